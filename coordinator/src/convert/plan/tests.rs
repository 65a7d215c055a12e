//! Plans in objects: who may change what, and what one write does.

use std::sync::Arc;

use phalanx_common::ids::{NodeName, PodUid};
use phalanx_common::plan::{PlanPurpose, PlannedPod};
use phalanx_common::units::{Millis, Time};
use phalanx_core::event::Event;

use super::*;
use crate::api::store::Store;

fn gang(name: &str) -> GangName {
    GangName::new("team", name)
}

fn plan(name: &str, term: u64) -> GangPlan {
    GangPlan {
        gang: gang(name),
        gang_uid: Arc::from("uid"),
        term,
        binding_deadline: Time(1_000),
        purpose: PlanPurpose::Bind,
        victims: Vec::new(),
        pods: vec![PlannedPod {
            pod: PodUid::from("u1"),
            name: Arc::from("p-0"),
            node: NodeName::from("n1"),
            lease: None,
            gpus: Vec::new(),
        }],
    }
}

/// Names of so many gangs whose plans stand in one object.
fn together(count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("g-{number}"));
    names.filter(|name| number_of(&gang(name)) == number_of(&gang("g-0"))).take(count).collect()
}

fn key() -> ObjectKey {
    plan_key(&Reading::default(), &gang("g-0"))
}

fn write(name: &str, term: u64) -> PlanChange {
    PlanChange::Write(Box::new(plan(name, term)))
}

fn removal(name: &str, term: u64) -> PlanChange {
    PlanChange::Remove { gang: gang(name), term }
}

/// A store, and what is decided and written there.
struct World(Store, u64);

impl World {
    fn new() -> Self {
        Self(Store::new(100), 0)
    }

    fn stored(&self) -> Option<Arc<Object>> {
        self.0.get(&key()).ok()
    }

    fn done(&mut self, changes: &[PlanChange]) -> Vec<Result<(), ApiError>> {
        let decided = decide(&key(), self.stored().as_deref(), changes);
        if let Some(mutation) = decided.mutation {
            self.1 += 1;
            self.0.mutate(mutation, Time(0) + Millis(self.1), &format!("uid-{}", self.1)).unwrap();
        }
        decided.answers
    }

    fn found(&self) -> Vec<(String, u64)> {
        let Some(object) = self.stored() else { return Vec::new() };
        let plans = plans_of_object(&Reading::default(), &object);
        assert_eq!(plans.warnings, Vec::<String>::new());
        plans.found.iter().map(|plan| (plan.gang.name.to_string(), plan.term)).collect()
    }
}

fn is_conflict(answer: &Result<(), ApiError>) -> bool {
    matches!(answer, Err(ApiError::Conflict(_)))
}

#[test]
fn the_place_of_a_plan_is_the_same_in_all_versions() {
    let number = |namespace: &str, name: &str| number_of(&GangName::new(namespace, name));
    let names = [("default", "a"), ("default", "b"), ("team-a", "llm-training"), ("x", "y"), ("", "")];
    assert_eq!(names.map(|(namespace, name)| number(namespace, name)), [4, 1, 1, 5, 2]);
    let mut counts = [0; OBJECTS as usize];
    for gang in 0..800 {
        counts[usize::from(number("team", &format!("job-{gang}")))] += 1;
    }
    assert!(counts.iter().all(|count| (60..=140).contains(count)), "{counts:?}");
    let reading = Reading::default().in_namespace("own");
    assert_eq!(plan_key(&reading, &GangName::new("x", "y")).to_string(), "GangPlan own/plans-5");
}

#[test]
fn one_write_does_all_changes_and_the_object_is_there_as_long_as_a_plan_is() {
    let names = together(3);
    let [a, b, c] = [0, 1, 2].map(|at| names[at].as_str());
    let mut world = World::new();
    assert_eq!(world.done(&[write(a, 5), write(b, 5)]), [Ok(()), Ok(())]);
    assert_eq!(world.1, 1);
    let spec = world.stored().unwrap().spec.clone();
    assert_eq!((&spec["gangs"], &spec["term"]), (&json!(2), &json!(5)));
    let read = plans_of_object(&Reading::default(), &world.stored().unwrap());
    assert_eq!(read, Plans { found: vec![plan(a, 5), plan(b, 5)], warnings: Vec::new() });
    assert_eq!(plan_in(&Reading::default(), &world.stored().unwrap(), &gang(b)), Some(plan(b, 5)));
    assert_eq!(plan_in(&Reading::default(), &world.stored().unwrap(), &gang(c)), None);
    // Removals and plans in their order.
    assert_eq!(
        world.done(&[removal(a, 5), write(c, 6), removal(c, 6), write(c, 6), removal(a, 5)])[..4],
        [Ok(()), Ok(()), Ok(()), Ok(())]
    );
    assert_eq!((world.1, world.found()), (2, vec![(b.to_owned(), 5), (c.to_owned(), 6)]));
    assert_eq!(world.stored().unwrap().spec["term"], 6);
    // The same once more is no write.
    assert_eq!(world.done(&[write(c, 6)]), [Ok(())]);
    assert!(matches!(world.done(&[removal(a, 6)])[..], [Err(ApiError::NotFound(_))]));
    assert_eq!(world.1, 2);
    assert_eq!(world.done(&[removal(b, 6), removal(c, 6)]), [Ok(()), Ok(())]);
    assert_eq!((world.1, world.stored()), (3, None));
    assert!(matches!(world.done(&[removal(b, 6)])[..], [Err(ApiError::NotFound(_))]));
    assert_eq!(world.1, 3);
}

#[test]
fn what_a_later_leader_wrote_stays_and_holds_up_no_other_gang() {
    let names = together(3);
    let [a, b, c] = [0, 1, 2].map(|at| names[at].as_str());
    let mut world = World::new();
    world.done(&[write(a, 6), write(b, 5)]);
    let answers = world.done(&[write(a, 5), removal(a, 5), removal(b, 5), write(c, 5)]);
    assert!(is_conflict(&answers[0]) && is_conflict(&answers[1]), "{answers:?}");
    assert_eq!(answers[2..], [Ok(()), Ok(())]);
    assert_eq!(world.found(), [(a.to_owned(), 6), (c.to_owned(), 5)]);
    // A term that nobody can have reached is damaged.
    world.done(&[write(c, u64::MAX)]);
    assert_eq!(world.done(&[write(c, 7), removal(a, 7)]), [Ok(()), Ok(())]);
    assert_eq!(world.found(), [(c.to_owned(), 7)]);
}

#[test]
fn a_write_that_was_decided_before_another_ones_does_not_land() {
    let names = together(2);
    let [a, b] = [0, 1].map(|at| names[at].as_str());
    let mut world = World::new();
    // Both saw nothing: the later leader's plan must not be missed by the earlier one.
    let late = decide(&key(), None, &[write(a, 5)]).mutation.unwrap();
    world.done(&[write(a, 6)]);
    assert!(matches!(world.0.mutate(late, Time(0), "late"), Err(ApiError::AlreadyExists(_))));
    // Of another gang: it is decided anew, and done.
    let stored = world.stored();
    let late = [write(b, 5), removal(a, 6)]
        .map(|change| decide(&key(), stored.as_deref(), &[change]).mutation.unwrap());
    world.done(&[write(a, 7)]);
    for late in late {
        assert!(matches!(world.0.mutate(late, Time(0), "late"), Err(ApiError::Conflict(_))));
    }
}

#[test]
fn what_cannot_be_read_is_left_out_alone_and_only_its_term_counts() {
    let names = together(4);
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| names[at].as_str());
    let mut world = World::new();
    world.done(&[write(a, 5), write(b, 5), write(c, 5), write(d, 5)]);
    let mut object = Object::clone(&world.stored().unwrap());
    object.spec["plans"][format!("team/{b}")]["pods"][0] = json!("nonsense");
    object.spec["plans"][format!("team/{c}")]["deadline"] = json!(1.5);
    object.spec["plans"]["nonsense"] = json!({});
    object.spec["plans"]["team/elsewhere"] = object.spec["plans"][format!("team/{a}")].clone();
    object.spec["tomorrow"] = json!({ "x": 1 });
    let plans = plans_of_object(&Reading::default(), &object);
    assert_eq!(plans.found, [plan(a, 5), plan(d, 5)]);
    let key = key();
    let wrong = |at: &str, problem: &str| format!("{key}: spec.plans[{at}]{problem}");
    let mut expected = [
        wrong("nonsense", ": the name must be NAMESPACE/PODGROUP; the plan is left out"),
        wrong("team/elsewhere", ": belongs into GangPlan phalanx-system/plans-"),
        wrong(
            &format!("team/{b}"),
            ".pods[0]: must be 5 words (name, node, lease, pod, GPUs), found 1 in \"nonsense\"; the plan is left out",
        ),
        wrong(
            &format!("team/{c}"),
            ": invalid type: floating point `1.5`, expected u64; the plan is left out",
        ),
    ];
    expected.sort_unstable();
    let mut warnings = plans.warnings.clone();
    warnings.sort_unstable();
    assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
    for (warning, expected) in warnings.iter().zip(&expected) {
        assert!(warning.starts_with(expected.as_str()), "{warning}\n{expected}");
    }
    // Written over and removed by whoever has to do with the gang; the rest stays as it is.
    let decided = decide(&key, Some(&object), &[write(b, 4), removal(c, 5), removal(d, 5)]);
    assert_eq!(decided.answers.len(), 3);
    assert!(is_conflict(&decided.answers[0]), "its term can be read");
    let decided = decide(&key, Some(&object), &[write(b, 5), removal(c, 5), removal(d, 5)]);
    let Some(Mutation::Update(written)) = decided.mutation else { panic!() };
    assert_eq!(written.spec["tomorrow"], object.spec["tomorrow"]);
    let left: Vec<&String> = written.spec["plans"].as_object().unwrap().keys().collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn an_object_that_is_full_takes_no_more_and_one_gang_that_is_too_large_is_named() {
    let names = together(3);
    let large = |name: &str, pods: usize| {
        let mut plan = plan(name, 5);
        plan.pods = vec![plan.pods.remove(0); pods];
        PlanChange::Write(Box::new(plan))
    };
    let mut world = World::new();
    let answers = world.done(&[large(&names[0], 30_000), large(&names[1], 20_000), large(&names[2], 50_000)]);
    let Err(ApiError::Invalid(full)) = &answers[2] else { panic!("{:?}", answers[2]) };
    let begin = format!("{}: the plan of gang team/{}: there is no room for it: all plans", key(), names[2]);
    assert!(full.starts_with(&begin) && full.contains("at most 1048576 are allowed. It is tried"), "{full}");
    assert_eq!(answers[..2], [Ok(()), Ok(())]);
    // What other gangs leave in the same write is room, wherever it stands; a gang's own changes keep their order.
    let batch =
        [large(&names[2], 50_000), removal(&names[0], 5), removal(&names[2], 5), removal(&names[1], 5)];
    assert_eq!(world.done(&batch), vec![Ok(()); 4]);
    assert_eq!(world.found(), []);
    let answers = world.done(&[large(&names[2], 100_000)]);
    let Err(ApiError::Invalid(large)) = &answers[0] else { panic!("{:?}", answers[0]) };
    assert!(large.contains(&format!("the plan of gang team/{}: it has", names[2])), "{large}");
}

#[test]
fn an_object_goes_with_its_last_plan_only_where_nothing_else_is_in_it() {
    let names = together(1);
    let mut world = World::new();
    world.done(&[write(&names[0], 5)]);
    let mut object = Object::clone(&world.stored().unwrap());
    object.spec["tomorrow"] = json!({ "x": 1 });
    world.0.mutate(Mutation::Update(Box::new(object)), Time(9), "other").unwrap();
    assert_eq!(world.done(&[removal(&names[0], 5)]), [Ok(())]);
    let left = world.stored().unwrap();
    assert_eq!(left.spec, json!({ "plans": {}, "gangs": 0, "term": null, "tomorrow": { "x": 1 } }));
    let writes = world.1;
    assert!(matches!(world.done(&[removal(&names[0], 5)])[..], [Err(ApiError::NotFound(_))]));
    assert_eq!(world.1, writes, "there is nothing to write");
    assert_eq!(world.done(&[write(&names[0], 6)]), [Ok(())]);
    assert_eq!(world.found(), [(names[0].clone(), 6)]);
}

#[test]
fn an_object_that_is_none_of_the_eight_is_left_out_with_what_removes_it() {
    let reading = Reading::default();
    for (namespace, name) in
        [("team", "g"), ("team", "plans-0"), ("phalanx-system", "plans-8"), ("phalanx-system", "plans-07")]
    {
        let object =
            Object::new(Kind::GangPlan, namespace, name).with_spec(json!({ "gang": {}, "pods": [] }));
        let warning = format!(
            "GangPlan {namespace}/{name}: plans stand in plans-0 to plans-7 in namespace phalanx-system, and in no other \
             object; it is left out. Remove it: kubectl delete gangplan -n {namespace} {name}"
        );
        let expected = Plans { found: Vec::new(), warnings: vec![warning.clone()] };
        assert_eq!(plans_of_object(&reading, &object), expected);
        let mut told = PlansTold::default();
        assert_eq!(told.object(&reading, &object), (Vec::new(), vec![warning]));
        assert_eq!(told.object(&reading, &object), (Vec::new(), Vec::new()), "said once");
    }
}

#[test]
fn however_long_a_wrong_value_is_its_warning_is_not() {
    let names = together(2);
    let mut world = World::new();
    world.done(&[write(&names[0], 5), write(&names[1], 5)]);
    let mut object = Object::clone(&world.stored().unwrap());
    object.spec["plans"][format!("team/{}", names[0])]["pods"][0] = json!("x".repeat(100_000));
    object.spec["plans"][format!("team/{}", names[1])]["term"] = json!("y".repeat(100_000));
    object.spec["plans"]["z".repeat(100_000)] = json!({});
    let plans = plans_of_object(&Reading::default(), &object);
    assert_eq!((plans.found, plans.warnings.len()), (Vec::new(), 3));
    for warning in &plans.warnings {
        assert!(warning.len() < 800 && warning.contains(" ... "), "{warning}");
    }
    let is_said = |text: &str| plans.warnings.iter().any(|warning| warning.contains(text));
    assert!(is_said(".pods[0]: must be 5 words") && is_said("expected u64; the plan is left out"));
    object.spec["plans"] = json!("w".repeat(100_000));
    assert!(plans_of_object(&Reading::default(), &object).warnings[0].len() < 800);
}

#[test]
fn only_plans_that_are_new_are_told() {
    let names = together(3);
    let [a, b, c] = [0, 1, 2].map(|at| names[at].as_str());
    let reading = Reading::default();
    let (mut world, mut told) = (World::new(), PlansTold::default());
    let mut news = |world: &World| {
        let (events, warnings) = told.object(&reading, &world.stored().unwrap());
        assert_eq!(warnings, Vec::<String>::new());
        let names = events.into_iter().map(|event| match event {
            Event::PlanFound(plan) => (plan.gang.name.to_string(), plan.term),
            other => panic!("{other:?}"),
        });
        names.collect::<Vec<_>>()
    };
    world.done(&[write(a, 5), write(b, 5)]);
    assert_eq!(news(&world), [(a.to_owned(), 5), (b.to_owned(), 5)]);
    world.done(&[write(b, 6), write(c, 6)]);
    assert_eq!(news(&world), [(b.to_owned(), 6), (c.to_owned(), 6)]);
    world.done(&[removal(b, 6)]);
    assert_eq!(news(&world), []);
    // The same object once more is no news: a log that keeps the newest version tells it more than once.
    assert_eq!(news(&world), []);
    // Written anew, it is told anew.
    world.done(&[write(b, 6)]);
    assert_eq!(news(&world), [(b.to_owned(), 6)]);
    let mut broken = Object::clone(&world.stored().unwrap());
    broken.spec["plans"][format!("team/{a}")]["pods"] = json!(["x"]);
    assert_eq!(told.object(&reading, &broken).1.len(), 1);
    assert_eq!(told.object(&reading, &broken), (Vec::new(), Vec::new()), "said once");
}
