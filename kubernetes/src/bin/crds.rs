//! Writes deploy/crds from the Rust types; `cargo xtask crds` runs it.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    match write(&folder) {
        Ok(count) => {
            println!("{count} definitions are in {}", folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let files = phalanx_kubernetes::crds::files()?;
    std::fs::create_dir_all(folder)?;
    for file in &files {
        std::fs::write(folder.join(&file.name), &file.text)?;
    }
    Ok(files.len())
}
