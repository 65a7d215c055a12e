//! Manifests: YAML text to objects, with what a person should know about each line.
//!
//! A document that is wrong is left out and the others are applied. Unknown fields warn; known fields
//! that have no effect yet warn too; wrong values are errors that say what is allowed.

pub mod amounts;
mod circles;
pub(crate) mod constraints;
pub mod document;
pub mod group;
pub mod job;
pub mod names;
pub mod pod;
pub mod policy;
pub mod queue;
pub mod reader;
pub mod selector;
mod shape;

pub use document::parse;
pub use phalanx_text::tree;
pub use reader::{Diagnostic, Severity};

use crate::api::Object;

/// Largest manifest file, in bytes.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;

pub(crate) const NODE_NAME_IS_OURS: &str =
    "must not be set: Phalanx chooses the node; use nodeSelector kubernetes.io/hostname to ask for one";

/// A manifest that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The objects without errors, in the order written.
    pub objects: Vec<Object>,
    /// Line on which each object begins.
    pub lines: Vec<usize>,
    /// What was found.
    pub diagnostics: Vec<Diagnostic>,
}

impl Parsed {
    /// True where something was not applied.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}
