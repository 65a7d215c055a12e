//! Fields that mean nothing for placement. A value that the API server would refuse is told all the same: who has mistyped
//! one finds out now, and not on the day of the real cluster.

use super::reader::{Cursor, Fields, Sink};

/// What the value of such a field is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Whatever it is.
    Any,
    /// Text.
    Text,
    /// Text that is one of these.
    OneOf(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// `true` or `false`.
    Switch,
    /// A whole number that is no less than this.
    AtLeast(i64),
    /// Names with values.
    Environment,
}

impl Shape {
    fn check(self, at: &Cursor<'_>, sink: &mut Sink) {
        match self {
            Self::Any => {}
            Self::Text => drop(at.text(sink)),
            Self::OneOf(allowed) => drop(at.one_of(sink, allowed)),
            Self::Texts => {
                for text in at.list(sink).into_iter().flatten() {
                    text.text(sink);
                }
            }
            Self::Switch => drop(at.boolean(sink)),
            Self::AtLeast(least) => drop(at.whole(sink, least, i64::MAX)),
            Self::Environment => {
                for variable in at.list(sink).into_iter().flatten() {
                    let Some(mut fields) = variable.fields(sink) else { continue };
                    if let Some(name) = fields.required(sink, "name", "the variable's name") {
                        name.text(sink);
                    }
                    fields.check(sink, &[("value", Self::Text), ("valueFrom", Self::Any)]);
                    fields.finish(sink);
                }
            }
        }
    }
}

impl Fields<'_> {
    /// Checks fields that mean nothing to us.
    pub(super) fn check(&mut self, sink: &mut Sink, shapes: &[(&'static str, Shape)]) {
        for (name, shape) in shapes {
            if let Some(at) = self.get(name) {
                shape.check(&at, sink);
            }
        }
    }
}
