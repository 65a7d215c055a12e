//! The cache of binaries with a Go of the test's own: what it builds, how often, and what a failure leaves.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_kube_binaries::{Cache, Error, Tool, Version};

/// A program that one test writes while another starts one is busy for the system: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A folder that goes with the test.
struct Folder(PathBuf, #[expect(dead_code)] MutexGuard<'static, ()>);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("phalanx-cache-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path, ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A program that is called as Go is: it says this version, notes each build, and does this for it.
    fn go(&self, version: &str, build: &str) -> PathBuf {
        let program = self.0.join("go");
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = version ]; then echo go version go{version} linux/amd64; exit; fi\n\
             echo \"$@\" >>{}/builds\nwhile [ \"$1\" != -o ]; do shift; done\nout=$2\n{build}\n",
            self.0.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    fn builds(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("builds")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn cache(&self, go: &Path) -> Cache {
        Cache::new(self.0.join("cache"), go)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Names of all files of a folder and below.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found
}

#[test]
fn only_what_is_asked_is_built_and_only_once() {
    let folder = Folder::new("once");
    let cache = folder.cache(&folder.go("1.27.1", "echo built >$out"));
    let asked = [Tool::Etcd, Tool::Kubectl];
    let binaries = cache.ensure(Version::V1_34, &asked).unwrap();
    assert_eq!(fs::read_to_string(binaries.path(Tool::Kubectl).unwrap()).unwrap(), "built\n");
    assert_eq!(cache.ensure(Version::V1_34, &asked).unwrap(), binaries);
    let builds = folder.builds();
    assert_eq!(builds.len(), 2, "{builds:?}");
    assert!(builds[1].contains("gitVersion=v1.34.4") && builds[1].contains("gitMinor=34"), "{builds:?}");
    // One etcd serves every version.
    cache.ensure(Version::V1_37, &[Tool::Etcd]).unwrap();
    assert_eq!(folder.builds().len(), 2);
    assert!(matches!(binaries.path(Tool::Kubelet), Err(Error::NotAsked(Tool::Kubelet))));
}

#[test]
fn those_that_ask_at_once_build_once() {
    let folder = Folder::new("lock");
    let cache = folder.cache(&folder.go("1.27.1", "sleep 0.3; echo built >$out"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| cache.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap());
        }
    });
    assert_eq!(folder.builds().len(), 1);
}

#[test]
fn a_build_that_breaks_leaves_nothing_half() {
    let folder = Folder::new("broken");
    let cache = folder.cache(&folder.go("1.27.1", "echo half >$out; echo no space left >&2; exit 3"));
    let error = cache.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap_err().to_string();
    assert!(error.contains("kube-apiserver") && error.contains("no space left"), "{error}");
    assert_eq!(files(&folder.0.join("cache")), ["go.mod", "go.sum", "lock"]);
    // One that died in the middle of it left a file; the next build is whole again.
    let cache = folder.cache(&folder.go("1.27.1", "echo half >$out; kill -9 $$"));
    cache.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap_err();
    let cache = folder.cache(&folder.go("1.27.1", "echo whole >$out"));
    let binaries = cache.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap();
    assert_eq!(fs::read_to_string(binaries.path(Tool::ApiServer).unwrap()).unwrap(), "whole\n");
}

#[test]
fn a_missing_or_old_go_is_an_error_that_says_how_to_get_one() {
    let folder = Folder::new("missing");
    let missing = folder.cache(&folder.0.join("no-such-go"));
    let error = missing.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap_err();
    assert!(matches!(error, Error::NoGo { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("install Go 1.26.0 or newer") && text.contains("https://go.dev/dl"), "{text}");
    let old = folder.cache(&folder.go("1.21.3", "echo built >$out"));
    let text = old.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap_err().to_string();
    assert!(text.contains("1.21.3") && text.contains("https://go.dev/dl"), "{text}");
    assert!(folder.builds().is_empty());
    // What is there needs no Go.
    let new = folder.cache(&folder.go("1.27.1", "echo built >$out"));
    new.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap();
    missing.ensure(Version::V1_37, &[Tool::ApiServer]).unwrap();
}
