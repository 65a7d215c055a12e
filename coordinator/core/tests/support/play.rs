//! Plays a text scenario.

#![allow(dead_code)]

use super::World;

/// The scenario with what is printed now.
pub fn play(text: &str) -> String {
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
    printed.trim_end().to_owned() + "\n"
}

/// Where the two differ; `None` = nowhere.
pub fn difference(expected: &str, printed: &str) -> Option<String> {
    if printed == expected {
        return None;
    }
    let wrong = printed.lines().zip(expected.lines()).position(|(new, old)| new != old);
    let at = wrong.unwrap_or_else(|| printed.lines().count().min(expected.lines().count()));
    Some(format!(
        "differs in line {}:\n  expected: {:?}\n  printed:  {:?}\n\nall that is printed:\n{printed}",
        at + 1,
        expected.lines().nth(at),
        printed.lines().nth(at)
    ))
}
