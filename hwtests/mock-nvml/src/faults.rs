//! Faults at run time: a text file that is read at every call.
//!
//! Lines: `lost INDEX` (each call on that GPU gives 15), `init CODE` (nvmlInit gives CODE),
//! `unsupported` (each call on a GPU gives 3), `link-state-by-field` (nvmlDeviceGetNvLinkState gives 3, so
//! that callers have to ask for the field value), `# comment`. A missing file means no faults.

use std::fs;
use std::path::Path;

/// What is broken now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) lost: Vec<usize>,
    pub(crate) init_code: Option<u32>,
    pub(crate) unsupported: bool,
    pub(crate) link_state_by_field: bool,
}

impl Faults {
    pub(crate) fn read(file: Option<&Path>) -> Self {
        file.and_then(|file| fs::read_to_string(file).ok()).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let mut faults = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let known = match line.split_once(' ') {
                Some(("lost", index)) => index.trim().parse().map(|index| faults.lost.push(index)).is_ok(),
                Some(("init", code)) => code.trim().parse().map(|code| faults.init_code = Some(code)).is_ok(),
                None if line == "unsupported" => {
                    faults.unsupported = true;
                    true
                }
                None if line == "link-state-by-field" => {
                    faults.link_state_by_field = true;
                    true
                }
                _ => false,
            };
            if !known {
                eprintln!(
                    "mock-nvml: fault {line:?} is not one of: lost INDEX, init CODE, unsupported, link-state-by-field"
                );
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_nonsense_is_no_fault() {
        let faults = Faults::parse("# a comment\nlost 3\n\n lost 0 \ninit 18\nlost many\n");
        assert_eq!(faults, Faults { lost: vec![3, 0], init_code: Some(18), ..Faults::default() });
        assert!(Faults::parse("unsupported").unsupported);
        assert_eq!(Faults::read(Some(Path::new("/nonexistent/faults"))), Faults::default());
    }
}
