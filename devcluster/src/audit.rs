//! What the API server was asked, from its audit log.

use std::path::Path;

use serde_json::Value;

use crate::error::Error;
use crate::folder::Folder;

/// One request, when it was answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Audited {
    /// Who asked, `system:serviceaccount:NAMESPACE:NAME` for a ServiceAccount.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group; empty for the core group and for requests that are not about resources.
    pub group: String,
    /// Plural of the resource; empty for requests that are not about resources.
    pub resource: String,
    /// `status`, `binding`, `eviction` …; empty for the resource itself.
    pub subresource: String,
    /// Namespace; empty outside of any.
    pub namespace: String,
    /// Name of the object; empty for lists.
    pub name: String,
    /// HTTP status.
    pub code: u64,
}

/// One line a request, when the answer is complete; a watch also when it begins.
const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
 "rules": [{"level": "Metadata"}]}"#;

pub(crate) fn write_policy(folder: &Folder) -> Result<Vec<String>, Error> {
    let policy = folder.write("audit-policy.json", POLICY)?;
    let log = log(folder.path());
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        "--audit-log-mode=blocking".to_owned(),
    ])
}

fn log(folder: &Path) -> std::path::PathBuf {
    folder.join("audit.log")
}

/// All requests so far. Lines that are being written are left out.
pub(crate) fn read(folder: &Path) -> Result<Vec<Audited>, Error> {
    let path = log(folder);
    let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).map(|line| parse(&line)).collect())
}

fn parse(line: &Value) -> Audited {
    let text = |pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Audited {
        user: text("/user/username"),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource: text("/objectRef/resource"),
        subresource: text("/objectRef/subresource"),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: line.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
    }
}
