//! Resources that no node offers.

use std::fmt;

use phalanx_common::resources::format_amount;

use super::Reason;

impl Reason {
    /// What nobody offers, and who would.
    pub(super) fn fmt_offer(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::NoNodeOffers { resource, asked, listed_by, .. } = self else { return Ok(()) };
        // Devices count only where an agent confirms them.
        let who = if resource.contains('/') { "no node with an agent" } else { "no node" };
        write!(formatter, "{who} offers {resource}, pod asks {}", format_amount(resource, *asked))?;
        match listed_by {
            Some(node) => write!(formatter, "; {node} lists it and has no agent"),
            None => Ok(()),
        }
    }

    /// The nearest way to get it.
    pub(super) fn fix_of_offer(&self) -> String {
        match self {
            Self::NoNodeOffers { suggestion: Some(name), .. } => format!("ask for {name}"),
            Self::NoNodeOffers { listed_by: Some(node), .. } => format!("start an agent on {node}"),
            Self::NoNodeOffers { resource, .. } => format!("add a node that offers {resource}"),
            _ => String::new(),
        }
    }
}
