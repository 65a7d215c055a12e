//! Constraints against a small model of what they mean, and the oracle of their reasons: what a reason
//! asks to change is changed, and the gang starts; all of it but one thing, and it does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/random.rs"]
mod random;
mod support;

use std::collections::BTreeMap;

use phalanx_core::reason::{Reason, Unmet, Unsuited};
use random::Random;
use support::World;

#[derive(Clone, Debug, Default)]
struct ModelNode {
    name: String,
    gpus: usize,
    labels: BTreeMap<&'static str, &'static str>,
    taints: Vec<(&'static str, &'static str, &'static str)>,
}

type Rule = (&'static str, &'static str, Vec<String>);

#[derive(Clone, Debug, Default)]
struct ModelPod {
    selector: Option<(&'static str, &'static str)>,
    /// Key, value where it counts, effect where it counts.
    tolerations: Vec<(String, Option<String>, Option<String>)>,
    terms: Option<Vec<Vec<Rule>>>,
    preferred: Vec<(u32, Vec<Rule>)>,
}

const KEYS: [&str; 3] = ["zone", "disk", "age"];
const VALUES: [&str; 4] = ["a", "b", "3", "5"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const OPERATORS: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];

fn node(random: &mut Random, at: usize) -> ModelNode {
    let mut node = ModelNode { name: format!("n{at}"), gpus: random.pick(&[4, 8]), ..ModelNode::default() };
    for key in KEYS {
        if random.one_in(2) {
            node.labels.insert(key, random.pick(&VALUES));
        }
    }
    for key in ["gpu", "team"] {
        if random.one_in(3) {
            node.taints.push((key, random.pick(&["", "x", "y"]), random.pick(&EFFECTS)));
        }
    }
    node
}

fn pod(random: &mut Random, nodes: &[ModelNode]) -> ModelPod {
    let mut pod = ModelPod::default();
    if random.one_in(3) {
        pod.selector = Some((random.pick(&KEYS), random.pick(&VALUES)));
    }
    while random.one_in(2) {
        let key = random.pick(&["gpu", "team", "*"]).to_owned();
        let value = random.pick(&["", "x", "y"]).to_owned();
        let value = (key != "*" && random.one_in(2)).then_some(value);
        let effect = random.one_in(2).then(|| random.pick(&EFFECTS).to_owned());
        pod.tolerations.push((key, value, effect));
    }
    if random.one_in(2) {
        let terms = 1 + random.at(2);
        pod.terms = Some((0..terms).map(|_| term(random, nodes)).collect());
    }
    while random.one_in(3) {
        let weight = [1, 2, 100][random.at(3)];
        pod.preferred.push((weight, term(random, nodes)));
    }
    pod.preferred.retain(|(_, rules)| !rules.is_empty());
    pod
}

fn term(random: &mut Random, nodes: &[ModelNode]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for _ in 0..random.at(3) {
        if random.one_in(5) {
            let name = nodes[random.at(nodes.len())].name.clone();
            rules.push(("metadata.name", random.pick(&["In", "NotIn"]), vec![name]));
            continue;
        }
        let operator = random.pick(&OPERATORS);
        let values = match operator {
            "In" | "NotIn" => (0..=random.at(2)).map(|_| random.pick(&VALUES).to_owned()).collect(),
            "Gt" | "Lt" => vec![random.pick(&["3", "4", "5"]).to_owned()],
            _ => Vec::new(),
        };
        rules.push((random.pick(&KEYS), operator, values));
    }
    rules
}

fn is_tolerated(pod: &ModelPod, (key, value, effect): &(&str, &str, &str)) -> bool {
    pod.tolerations.iter().any(|(of, with, only)| {
        (of == "*" || of == key)
            && with.as_ref().is_none_or(|with| with == value)
            && only.as_ref().is_none_or(|only| only == effect)
    })
}

fn meets(node: &ModelNode, rules: &[Rule]) -> bool {
    let rule = |(key, operator, values): &Rule| {
        let label = node.labels.get(key).copied();
        let value = if *key == "metadata.name" { Some(node.name.as_str()) } else { label };
        let number = value.and_then(|value| value.parse::<i32>().ok());
        match *operator {
            "In" => value.is_some_and(|value| values.iter().any(|known| known == value)),
            "NotIn" => value.is_none_or(|value| values.iter().all(|known| known != value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => number.is_some_and(|number| number > values[0].parse().unwrap()),
            "Lt" => number.is_some_and(|number| number < values[0].parse().unwrap()),
            other => panic!("{other}"),
        }
    };
    !rules.is_empty() && rules.iter().all(rule)
}

/// What the model says of a pod on a node.
fn suits(node: &ModelNode, pod: &ModelPod) -> bool {
    let has = |(key, value): (&str, &str)| node.labels.get(key) == Some(&value);
    let keeps_away = |taint: &&(&str, &str, &str)| taint.2 != "PreferNoSchedule";
    pod.selector.is_none_or(has)
        && node.taints.iter().filter(keeps_away).all(|taint| is_tolerated(pod, taint))
        && pod.terms.as_ref().is_none_or(|terms| terms.iter().any(|rules| meets(node, rules)))
}

/// Soft taints, then the weight that is missed.
fn dislike(node: &ModelNode, pod: &ModelPod) -> (usize, u32) {
    let soft = node.taints.iter().filter(|taint| taint.2 == "PreferNoSchedule");
    let missed = pod.preferred.iter().filter(|(_, rules)| !meets(node, rules));
    (soft.filter(|taint| !is_tolerated(pod, taint)).count(), missed.map(|(weight, _)| *weight).sum())
}

/// The node as commands of a scenario.
fn make(world: &mut World, node: &ModelNode) {
    world.run(&format!("node {} {}G", node.name, node.gpus));
    let labels: String = node.labels.iter().map(|(key, value)| format!(" label-{key}={value}")).collect();
    let taint = |(key, value, effect): &(&str, &str, &str)| match *value {
        "" => format!("{key}:{effect}"),
        value => format!("{key}={value}:{effect}"),
    };
    let taints: Vec<String> = node.taints.iter().map(taint).collect();
    let taints = if taints.is_empty() { String::new() } else { format!(" taint={}", taints.join(",")) };
    world.run(&format!("plain-node {}{labels}{taints}", node.name));
}

/// The pod's options in a scenario.
fn options(pod: &ModelPod) -> String {
    let mut text = String::new();
    if let Some((key, value)) = pod.selector {
        text += &format!(" selector={key}:{value}");
    }
    let toleration = |(key, value, effect): &(String, Option<String>, Option<String>)| {
        let value = value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        format!("{key}{value}{}", effect.as_ref().map(|effect| format!(":{effect}")).unwrap_or_default())
    };
    if !pod.tolerations.is_empty() {
        let tolerations: Vec<String> = pod.tolerations.iter().map(toleration).collect();
        text += &format!(" tolerates={}", tolerations.join(","));
    }
    if let Some(terms) = &pod.terms {
        let rule = |(key, operator, values): &Rule| format!("{key}:{operator}:{}", values.join("|"));
        let term = |rules: &Vec<Rule>| rules.iter().map(rule).collect::<Vec<_>>().join("&");
        text += &format!(" requires={}", terms.iter().map(term).collect::<Vec<_>>().join(","));
    }
    if !pod.preferred.is_empty() {
        let rule = |(key, operator, values): &Rule| format!("{key}:{operator}:{}", values.join("|"));
        let term = |(weight, rules): &(u32, Vec<Rule>)| {
            format!("{weight}@{}", rules.iter().map(rule).collect::<Vec<_>>().join("&"))
        };
        text += &format!(" prefers={}", pod.preferred.iter().map(term).collect::<Vec<_>>().join(","));
    }
    text
}

/// A cluster with one gang.
fn submitted(nodes: &[ModelNode], pod: &ModelPod, shape: &str) -> World {
    let mut world = World::new();
    for node in nodes {
        make(&mut world, node);
    }
    world.run(&format!("gang G {shape}{}", options(pod)));
    world.run("settle-quietly");
    world
}

fn world_of(seed: u64) -> (Vec<ModelNode>, ModelPod) {
    let mut random = Random(seed);
    let nodes: Vec<ModelNode> = (0..=random.at(4)).map(|at| node(&mut random, at)).collect();
    let pod = pod(&mut random, &nodes);
    (nodes, pod)
}

#[test]
fn pods_go_where_the_model_says_that_they_may_and_like_it_best() {
    let (mut placed, mut refused) = (0, 0);
    for seed in 0..1_500 {
        let (nodes, pod) = world_of(seed);
        // From the second pod on what was found out for the first is used.
        let pods = 1 + usize::try_from(seed % 3).unwrap();
        let mut world = submitted(&nodes, &pod, &format!("{pods}x1G"));
        let about = || format!("seed {seed}: {nodes:?} {pod:?}");
        if nodes.iter().any(|node| suits(node, &pod)) {
            assert_eq!(world.phase("G"), "running", "{}", about());
            let state = world.run("state");
            let suitable = nodes.iter().filter(|node| suits(node, &pod));
            let least = suitable.map(|node| dislike(node, &pod)).min().unwrap();
            for number in 0..pods {
                let is_at = |node: &&ModelNode| state.contains(&format!("G-{number}@{}[", node.name));
                let at = nodes.iter().find(is_at).unwrap();
                assert!(suits(at, &pod), "{}: {state}", about());
                assert_eq!(dislike(at, &pod), least, "{}: {state}", about());
            }
            placed += 1;
        } else {
            let Some(Reason::NoNodeMatches(unsuited)) = world.reason("G") else {
                panic!("{}: {:?}", about(), world.reason("G"));
            };
            let counted: u32 = unsuited.unmet.iter().map(|(_, count)| *count).sum();
            assert_eq!((counted, unsuited.nodes as usize), (unsuited.nodes, nodes.len()), "{}", about());
            refused += 1;
        }
    }
    assert!(placed > 250 && refused > 250, "{placed} placed, {refused} refused");
}

/// The pod as it is when these were changed.
fn changed(pod: &ModelPod, changes: &[Unmet]) -> ModelPod {
    let mut pod = pod.clone();
    for change in changes {
        match change {
            Unmet::Taint(taint) => pod.tolerations.push((
                taint.key.to_string(),
                Some(taint.value.to_string()),
                Some(taint.effect.as_str().to_owned()),
            )),
            Unmet::Selector(labels) => {
                let is_dropped = |(key, _): &(&str, &str)| labels.iter().any(|(of, _)| &**of == *key);
                pod.selector = pod.selector.filter(|selector| !is_dropped(selector));
            }
            Unmet::Affinity(_) => pod.terms = None,
            other => panic!("{other:?} is nothing to change"),
        }
    }
    pod
}

fn left_out(reason: Option<Reason>) -> Option<Unsuited> {
    match reason? {
        Reason::NoNodeMatches(unsuited) => Some(*unsuited),
        Reason::LargerThanCluster { left_out, .. } => left_out.map(|left_out| *left_out),
        Reason::NoRoom(room) => room.left_out.map(|left_out| *left_out),
        _ => None,
    }
}

#[test]
fn what_a_reason_asks_to_change_helps_and_less_does_not() {
    let mut helped = [0; 3];
    for seed in 0..1_200 {
        let (nodes, pod) = world_of(seed);
        let shape = ["1x4G", "2x4G", "3x4G"][usize::try_from(seed % 3).unwrap()];
        let world = submitted(&nodes, &pod, shape);
        let Some(unsuited) = left_out(world.reason("G")) else { continue };
        let starts =
            |changes: &[Unmet]| submitted(&nodes, &changed(&pod, changes), shape).phase("G") == "running";
        let about = || format!("seed {seed}: {nodes:?} {pod:?} {shape} {unsuited:?}");
        if unsuited.help.is_empty() {
            // Nothing about the pod would help: not even all of it at once.
            let all = ModelPod { tolerations: vec![("*".to_owned(), None, None)], ..ModelPod::default() };
            assert_ne!(submitted(&nodes, &all, shape).phase("G"), "running", "{}", about());
            continue;
        }
        assert!(starts(&unsuited.help), "{}", about());
        assert!(!unsuited.fix().is_empty());
        for at in 0..unsuited.help.len() {
            let mut less = unsuited.help.clone();
            less.remove(at);
            assert!(!starts(&less), "{}: {at} is not needed", about());
        }
        helped[unsuited.help.len().min(3) - 1] += 1;
    }
    assert!(helped.iter().all(|count| *count > 10), "{helped:?}");
}
