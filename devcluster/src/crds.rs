//! The project's own manifests, as they lie in the tree.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::servers::Servers;

impl Servers {
    /// A file or folder of `deploy/`.
    #[must_use]
    pub fn deploy(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
    }

    /// Applies `deploy/crds/` and waits until every one of them serves.
    ///
    /// # Errors
    /// One is refused, with what kubectl says.
    pub async fn apply_crds(&self) -> Result<(), Error> {
        let folder = Self::deploy("crds");
        let folder = folder.to_string_lossy();
        self.kubectl(&["apply", "--server-side", "-f", &folder]).await?;
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &folder]).await?;
        Ok(())
    }
}
