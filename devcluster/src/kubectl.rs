//! kubectl as a user calls it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// How kubectl is called.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
    pub cache: PathBuf,
}

impl Kubectl {
    /// Runs it and gives what it wrote on stdout.
    pub async fn run(self, arguments: Vec<String>, input: Option<String>) -> Result<String, Error> {
        let task = tokio::task::spawn_blocking(move || self.run_blocking(&arguments, input.as_deref()));
        task.await.map_err(|error| Error::Task(format!("kubectl: {error}")))?
    }

    fn run_blocking(&self, arguments: &[String], input: Option<&str>) -> Result<String, Error> {
        let failed = |source| Error::Start { name: "kubectl".to_owned(), source };
        let mut child = command(&self.program, &self.kubeconfig)
            .arg("--cache-dir")
            .arg(&self.cache)
            .args(arguments)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let (Some(mut stdin), Some(text)) = (child.stdin.take(), input) {
            // It reads all of its input before it writes; where it ends early its own words are better than ours.
            let _ = stdin.write_all(text.as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        Err(Error::Kubectl {
            arguments: arguments.join(" "),
            status: output.status.to_string(),
            output: format!("{}{stdout}", String::from_utf8_lossy(&output.stderr)),
        })
    }
}

fn command(program: &Path, kubeconfig: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("KUBECONFIG", kubeconfig).env_remove("KUBERNETES_SERVICE_HOST");
    command
}
