//! What a command says when it cannot do what it was asked.

use phalanx_common::describe::plain;
use thiserror::Error;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON value on standard output.
    Json,
}

/// Why a command failed; exit code 1. The text names the thing, its value and the way out.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// Printed as `error: …`.
    #[error("{0}")]
    Message(String),
    /// The diagnostics are printed already.
    #[error("")]
    Reported,
}

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self::Message(text.into())
    }

    /// Prints it on standard error.
    pub fn print(&self, format: Format) {
        match (self, format) {
            (Self::Reported, _) => {}
            (Self::Message(text), Format::Text) => eprintln!("error: {}", plain(text)),
            (Self::Message(text), Format::Json) => {
                eprintln!("{}", serde_json::json!({ "error": plain(text) }));
            }
        }
    }
}

/// Prints a value as JSON for programs.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("cannot write the answer as JSON: {error}")))?;
    print_text(&text);
    Ok(())
}

/// Prints a line of results. A reader that has closed its end (`| head`) is no failure: what was
/// started is still stopped and removed in order.
pub fn print_text(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
