//! The cache's folders: what is there is used, what is missing is built.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::catalogue::{Module, Tool, Version};
use crate::{Binaries, Error};

/// Last lines of a failed build that its error shows.
const TAIL_LINES: usize = 20;

/// A folder of built binaries, and the Go that builds what is missing.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    go: OsString,
}

impl Cache {
    /// `$PHALANX_KUBE_CACHE`, else `phalanx/kube` in the user's cache folder; Go from the PATH.
    ///
    /// # Errors
    /// No variable names a folder.
    pub fn of_user() -> Result<Self, Error> {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = named("PHALANX_KUBE_CACHE")
            .or_else(|| named("XDG_CACHE_HOME").map(|folder| folder.join("phalanx/kube")))
            .or_else(|| named("HOME").map(|folder| folder.join(".cache/phalanx/kube")))
            .ok_or(Error::NoHome)?;
        Ok(Self::new(folder, "go"))
    }

    /// A cache in this folder, filled by this Go program.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, go: impl Into<OsString>) -> Self {
        Self { folder: folder.into(), go: go.into() }
    }

    /// The tools of a version; builds what is missing.
    ///
    /// # Errors
    /// Go is missing or too old, a build fails, or the folder cannot be written.
    pub fn ensure(&self, version: Version, tools: &[Tool]) -> Result<Binaries, Error> {
        let paths = tools.iter().map(|tool| Ok((*tool, self.ensure_one(version, *tool)?)));
        Ok(Binaries { version, paths: paths.collect::<Result<_, Error>>()? })
    }

    fn ensure_one(&self, version: Version, tool: Tool) -> Result<PathBuf, Error> {
        let module = tool.module(version);
        let folder = self.folder.join(module.key());
        let path = folder.join(tool.name());
        // Files come into the folder by a rename: what is there is whole.
        if path.is_file() {
            return Ok(path);
        }
        fs::create_dir_all(&folder).map_err(in_cache(&folder))?;
        let lock_path = folder.join("lock");
        let lock = File::create(&lock_path).map_err(in_cache(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                say(&format!("waiting for another process that builds into {}", folder.display()));
                lock.lock().map_err(in_cache(&lock_path))?;
            }
            Err(TryLockError::Error(error)) => return Err(in_cache(&lock_path)(error)),
        }
        if !path.is_file() {
            self.build(version, tool, &module, &folder)?;
        }
        Ok(path)
    }

    /// Builds one tool into the folder, whose lock the caller holds.
    fn build(&self, version: Version, tool: Tool, module: &Module, folder: &Path) -> Result<(), Error> {
        self.check_go(tool, module)?;
        let source = folder.join("module");
        fs::create_dir_all(&source).map_err(in_cache(&source))?;
        for (name, text) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
            let file = source.join(name);
            fs::write(&file, text).map_err(in_cache(&file))?;
        }
        // Under the lock nobody else has this name, and what an earlier crash left is written over.
        let unfinished = folder.join(format!(".{}.unfinished", tool.name()));
        let of = if module.name == version.name() { version.release() } else { module.name };
        say(&format!("building {tool} ({of}) into {}; this takes minutes, once ...", folder.display()));
        let output = Command::new(&self.go)
            .args(["build", "-mod=readonly", "-ldflags", &tool.linker_flags(version), "-o"])
            .arg(&unfinished)
            .arg(tool.package())
            .current_dir(&source)
            .env("GOWORK", "off")
            .env_remove("GOFLAGS")
            .output()
            .map_err(in_cache(Path::new(&self.go)))?;
        if !output.status.success() {
            // It may not have been written at all.
            let _ = fs::remove_file(&unfinished);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
            return Err(Error::Build { tool, folder: source, status: output.status.to_string(), tail });
        }
        fs::rename(&unfinished, folder.join(tool.name())).map_err(in_cache(&unfinished))
    }

    fn check_go(&self, tool: Tool, module: &Module) -> Result<(), Error> {
        let needed = module.needed_go().to_owned();
        // The version before any toolchain that Go would get by itself.
        let output = match Command::new(&self.go).arg("version").env("GOTOOLCHAIN", "local").output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoGo { tool, needed });
            }
            Err(error) => return Err(in_cache(Path::new(&self.go))(error)),
        };
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let found = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix("go1.").map(|rest| format!("1.{rest}")));
        match found {
            Some(found) if numbers(&found) >= numbers(&needed) => Ok(()),
            Some(found) => Err(Error::OldGo { tool, needed, found }),
            None => Err(Error::OldGo { tool, needed, found: format!("{text:?}") }),
        }
    }
}

/// `1.26.8` as numbers; a development version (`1.27-devel_…`) counts by what stands before the dash.
fn numbers(version: &str) -> Vec<u32> {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    version.split('.').map_while(digits).collect()
}

fn in_cache(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Cache { path: path.clone(), source }
}

/// Past the test harness, which would keep it until the test ends: minutes without a word look like a fault.
fn say(line: &str) {
    // Whoever closed our stderr does not want to know.
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_numbers() {
        assert!(numbers("1.26.8") >= numbers("1.26.0"));
        assert!(numbers("1.100") > numbers("1.26.0"));
        assert!(numbers("1.25.12") < numbers("1.26.0"));
        assert!(numbers("1.27-devel_abc") > numbers("1.26.6"));
    }
}
