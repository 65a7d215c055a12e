//! `phalanx delete`.

use crate::apply::{check_objects, read_sources};
use crate::arguments::Delete;
use crate::client::{AppliedObject, Client, PARTS};
use crate::failure::{Failure, Format, print_json, print_text};

/// Deletes one object, or all that files name.
///
/// # Errors
/// Something cannot be read, reached or deleted; the rest is deleted all the same.
pub fn run(client: &Client, options: &Delete, format: Format) -> Result<(), Failure> {
    let mut deleted = Vec::new();
    let mut failed = false;
    if let (Some(kind), Some(name)) = (options.kind, &options.name) {
        if let (false, Some(namespace)) = (kind.namespaced, &name.namespace) {
            return Err(Failure::new(format!(
                "a {} has no namespace: write {} instead of {namespace}/{}",
                kind.kind, name.name, name.name
            )));
        }
        let namespace = if kind.namespaced { name.namespace() } else { "-" };
        client.delete(kind.kind, namespace, &name.name)?;
        let shown = if kind.namespaced { format!("{namespace}/{}", name.name) } else { name.name.clone() };
        deleted.push(format!("{} {shown}", kind.kind));
    }
    let sources = read_sources(&options.files);
    sources.unreadable.iter().for_each(|failure| failure.print(format));
    failed |= !sources.unreadable.is_empty();
    let sources = sources.texts;
    // A queue may stand in another file than the jobs in it.
    for part in PARTS {
        let mut answers = Vec::new();
        for source in &sources {
            let answer = client.delete_text(&source.name, &source.text, part)?;
            failed |= !answer.ok;
            answer.diagnostics.iter().for_each(|diagnostic| eprintln!("{diagnostic}"));
            deleted.extend(answer.applied.iter().map(AppliedObject::title));
            answers.push(answer);
        }
        if part == PARTS[0] && !sources.is_empty() && !failed {
            check_objects(&options.files, &answers)?;
        }
    }
    match format {
        Format::Json => print_json(&serde_json::json!({ "deleted": deleted }))?,
        Format::Text => deleted.iter().for_each(|object| print_text(&format!("{object} deleted"))),
    }
    if failed { Err(Failure::Reported) } else { Ok(()) }
}
