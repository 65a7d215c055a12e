//! Text scenarios: commands, `----`, and what they print. A file is rewritten with what is printed now
//! when `PHALANX_UPDATE_SCENARIOS=1`. An action that a file does not list fails its test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;

use support::World;

fn scenario(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap();
    let mut world = World::new();
    let mut printed = String::new();
    for block in text.split("\n\n") {
        let block = block.trim_end_matches('\n');
        let commands = block.split_once("----").map_or(block, |(commands, _)| commands);
        let mut out = String::new();
        let mut has_commands = false;
        for line in commands.lines().filter(|line| !line.trim().is_empty()) {
            printed.push_str(line);
            printed.push('\n');
            let Some(command) = line.split('#').next().map(str::trim).filter(|line| !line.is_empty()) else {
                continue;
            };
            has_commands = true;
            if command == "reset" {
                world = World::new();
                continue;
            }
            out.push_str(&world.run(command));
        }
        if has_commands {
            printed.push_str("----\n");
            printed.push_str(&out);
        }
        printed.push('\n');
    }
    let printed = printed.trim_end().to_owned() + "\n";
    if std::env::var("PHALANX_UPDATE_SCENARIOS").as_deref() == Ok("1") {
        std::fs::write(&path, &printed).unwrap();
        return;
    }
    if printed != text {
        let wrong = printed.lines().zip(text.lines()).position(|(new, old)| new != old);
        let at = wrong.unwrap_or_else(|| printed.lines().count().min(text.lines().count()));
        panic!(
            "{name}.txt differs in line {}:\n  expected: {:?}\n  printed:  {:?}\n\nall that is printed:\n{printed}",
            at + 1,
            text.lines().nth(at),
            printed.lines().nth(at)
        );
    }
}

macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            scenario(stringify!($name));
        })+
    };
}

scenarios! {
    one_gang_life,
    case_001_two_equal_gangs,
    case_005_not_enough_per_node,
    case_028_same_node_twice,
    case_112_one_failing_item,
    case_116_strange_numbers,
    stress_gangs_first,
    stress_singles_first,
    stress_alternating,
    refusal_and_quarantine,
    silent_agent,
    binding_faults,
    restart_in_every_phase,
    restart_findings,
    quota,
    order,
    elastic,
    gpu_lost,
    plain_nodes,
    agent_gone,
    node_churn,
    restart_node_away,
    driver_away,
    true_fixes,
    growth,
    many_gpus,
    models,
    best_set,
}
