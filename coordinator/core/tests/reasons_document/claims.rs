//! Examples of what is the matter with claims.

use phalanx_common::units::Time;
use phalanx_core::reason::{ClaimHeld, ClaimProblem, Reason};

use super::{Example, also, example};

fn held(problem: ClaimProblem) -> Reason {
    of_several(problem, 0, 1)
}

fn of_several(problem: ClaimProblem, with_volume: u32, claims: u32) -> Reason {
    Reason::Claim(Box::new(ClaimHeld { claim: "data".into(), problem, with_volume, claims }))
}

pub fn examples() -> Vec<Example> {
    let binding = || ClaimProblem::Binding { since: Time::default(), seconds: Some(12) };
    vec![
        example(
            "A claim that a pod mounts has no volume yet, for so long since it was made. Of several claims of the gang \
             it says how many have one. Like all reasons of claims it costs nobody anything: the gang is charged \
             nothing, and is tried again when the claim changes. What is written down says no seconds.",
            held(binding()),
        ),
        also(of_several(binding(), 1, 2)),
        example(
            "A claim does not exist; or that of an `ephemeral` volume was not made yet.",
            held(ClaimProblem::Missing { own: false }),
        ),
        also(held(ClaimProblem::Missing { own: true })),
        example(
            "A pod has an `ephemeral` volume, and a claim of the name that its own would have was there before.",
            held(ClaimProblem::OfAnother { pod: "train-0".into() }),
        ),
        example(
            "A claim gets its volume only once a scheduler has chosen a node for its first pod (`volumeBindingMode: \
             WaitForFirstConsumer`), which is not served yet.",
            held(ClaimProblem::AwaitsPod { class: "local".into() }),
        ),
        example("The volume of a claim is gone.", held(ClaimProblem::Lost)),
        example(
            "A claim was deleted and is there only until no pod uses it.",
            held(ClaimProblem::Deleting { own: false }),
        ),
        also(held(ClaimProblem::Deleting { own: true })),
        example(
            "`spec.nodeAffinity.required` of a claim's volume cannot be read, so that nobody knows from where it is \
             reached.",
            held(ClaimProblem::Unreadable {
                problem: "PersistentVolume pv-7: spec.nodeAffinity.required: is no mapping".into(),
            }),
        ),
        example(
            "A claim that one pod at a time may use (`ReadWriteOncePod`) is used by another pod, or wanted by an \
             earlier pod of the same gang.",
            held(ClaimProblem::UsedByOnePod { pod: "eval-0".into(), is_planned: false }),
        ),
        also(held(ClaimProblem::UsedByOnePod { pod: "train-0".into(), is_planned: true })),
    ]
}
