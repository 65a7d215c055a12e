//! What each action of Volcano's scheduler becomes here.

use super::report::Becomes;

/// An action of Volcano and what stands for it.
pub struct Action {
    /// Its name.
    pub name: &'static str,
    /// What it becomes.
    pub becomes: Becomes,
    /// The same for people.
    pub text: &'static str,
}

const fn always(name: &'static str, text: &'static str) -> Action {
    Action { name, becomes: Becomes::AlwaysOn, text }
}

const fn set(name: &'static str, text: &'static str) -> Action {
    Action { name, becomes: Becomes::Set, text }
}

const fn nothing(name: &'static str, text: &'static str) -> Action {
    Action { name, becomes: Becomes::Nothing, text }
}

/// All actions that Volcano has or had.
pub const ACTIONS: [Action; 10] = [
    always("enqueue", "always on: a gang is Inqueue as soon as its queue's quota and its minResources allow"),
    always("allocate", "always on: a gang is placed whole, once every node's agent has confirmed its GPUs"),
    always(
        "backfill",
        "always on, and more: smaller gangs pass one that waits, until that has waited for hold-after and gets a hold \
         (Volcano's places only pods that ask for nothing)",
    ),
    set("preempt", "preemption on (preempt = true), for whole gangs: never one eviction that makes no room"),
    set("reclaim", "reclaim on (reclaim = true): queues take back what others have above their share"),
    set("gangpreempt", "preemption on (preempt = true): it is of whole gangs always"),
    set("gangreclaim", "reclaim on (reclaim = true): it is of whole gangs always"),
    nothing("shuffle", "nothing: running pods are not moved to even out the load; leave it out"),
    nothing("elect", "nothing: Volcano has removed it; a gang that waited for hold-after gets a hold"),
    nothing("reserve", "nothing: Volcano has removed it; a gang that waited for hold-after gets a hold"),
];

/// The action of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Action> {
    ACTIONS.iter().find(|action| action.name == name)
}
