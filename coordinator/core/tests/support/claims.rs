//! Claims in the language of scenarios.
//!
//! A claim: `claim NAME bound|binding|awaits-pod|lost|deleting|unreadable`, with `one-pod=yes` (ReadWriteOncePod),
//! `from=zone:In:z1` (nodes from which its volume is reached, as in `requires=`), `owner=POD`. `claim-gone NAME`.
//! Of a pod: `claims=data,logs-%` (`%` is the pod's name) and `own-claims=scratch` (an ephemeral volume: its claim is
//! called `POD-scratch`). Of a pod of others: `claims=data`.

use std::sync::Arc;

use phalanx_common::constraints::NodeTerm;
use phalanx_common::gang::PodClaim;
use phalanx_core::event::{ClaimSpec, ClaimState, Event, Mounts};

use super::{Words, World, constrained, name};

fn list<'w>(words: &Words<'w>, key: &str) -> impl Iterator<Item = &'w str> {
    words.options.get(key).copied().into_iter().flat_map(|text| text.split(','))
}

/// The claims that a pod's options name.
pub(super) fn of_pod(words: &Words<'_>, pod: &str) -> Vec<PodClaim> {
    let claims =
        list(words, "claims").map(|claim| PodClaim { name: claim.replace('%', pod).into(), own: false });
    let own = list(words, "own-claims")
        .map(|volume| PodClaim { name: format!("{pod}-{volume}").into(), own: true });
    claims.chain(own).collect()
}

/// The same of a pod of others.
pub(super) fn mounts(words: &Words<'_>) -> Option<Box<Mounts>> {
    let claims: Vec<Arc<str>> = list(words, "claims").map(Into::into).collect();
    (!claims.is_empty()).then(|| Box::new(Mounts { pod: name(words.plain[2]), claims }))
}

impl World {
    pub(super) fn make_claim(&mut self, words: &Words<'_>) {
        let claim = name(words.plain[1]);
        let terms: Vec<NodeTerm> = list(words, "from").map(constrained::term).collect();
        let state = match words.plain[2] {
            "bound" => ClaimState::Bound {
                reachable_from: words.options.contains_key("from").then(|| Arc::from(terms)),
            },
            "binding" => ClaimState::Binding,
            "awaits-pod" => ClaimState::AwaitsPod { class: "local".into() },
            "lost" => ClaimState::Lost,
            "deleting" => ClaimState::Deleting,
            "unreadable" => {
                ClaimState::Unreadable { problem: "spec.nodeAffinity.required: is no term".into() }
            }
            other => panic!("unknown state {other}"),
        };
        let spec = ClaimSpec {
            name: claim.clone(),
            created: self.claims.get(&claim).map_or(self.now, |known| known.created),
            one_pod: words.options.get("one-pod") == Some(&"yes"),
            owner: words.options.get("owner").map(|pod| self.uid(pod)),
            state,
        };
        self.claims.insert(claim, spec.clone());
        self.apply(Event::ClaimApplied(Box::new(spec)));
    }
}
