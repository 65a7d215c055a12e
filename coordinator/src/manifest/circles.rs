//! Names that lead back to themselves: queues whose parents form a circle.

use std::collections::{BTreeMap, BTreeSet};

/// The names that are above themselves. A name that only leads into a circle is not one of them. Asks for the parent
/// of each name once, whatever the names look like: the texts of strangers are read with it.
pub fn in_circles<'n>(
    names: impl Iterator<Item = &'n str>,
    mut parent_of: impl FnMut(&str) -> Option<&'n str>,
) -> BTreeSet<&'n str> {
    // The walk that came by a name first. Walks are told apart by their number, so that one that meets an earlier
    // one ends: what lies above was looked at.
    let mut walk_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut circles = BTreeSet::new();
    for (walk, name) in names.enumerate() {
        let mut path = Vec::new();
        let mut next = Some(name);
        while let Some(at) = next {
            match walk_of.get(at) {
                None => {
                    walk_of.insert(at, walk);
                    path.push(at);
                    next = parent_of(at);
                }
                Some(seen) if *seen == walk => {
                    let first = path.iter().position(|passed| *passed == at).unwrap_or(path.len());
                    circles.extend(path.drain(first..));
                    break;
                }
                Some(_) => break,
            }
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(parents: &[(&'static str, &'static str)]) -> Vec<&'static str> {
        let parents: BTreeMap<_, _> = parents.iter().copied().collect();
        in_circles(parents.keys().copied(), |name| parents.get(name).copied()).into_iter().collect()
    }

    #[test]
    fn only_what_is_above_itself_is_in_a_circle() {
        assert_eq!(found(&[("a", "b"), ("b", "c")]), [""; 0]);
        assert_eq!(found(&[("a", "a")]), ["a"]);
        assert_eq!(found(&[("a", "b"), ("b", "c"), ("c", "b"), ("d", "a"), ("e", "f")]), ["b", "c"]);
        // Two circles, and one that is met from two sides.
        assert_eq!(
            found(&[("a", "z"), ("b", "z"), ("y", "x"), ("z", "y"), ("x", "z"), ("m", "n"), ("n", "m")]),
            ["m", "n", "x", "y", "z"]
        );
    }

    #[test]
    fn each_name_is_looked_at_once() {
        // All lead into the circle of the last two: a walk of its own for each would take the square.
        let count = 10_000;
        let names: Vec<String> = (0..count).map(|at| format!("queue-{at:05}")).collect();
        let parents: BTreeMap<&str, &str> = (0..count)
            .map(|at| (names[at].as_str(), names[if at + 1 == count { at - 1 } else { at + 1 }].as_str()))
            .collect();
        for backwards in [false, true] {
            let mut asked = 0;
            let mut order: Vec<&str> = names.iter().map(String::as_str).collect();
            if backwards {
                order.reverse();
            }
            let circles = in_circles(order.into_iter(), |name| {
                asked += 1;
                parents.get(name).copied()
            });
            assert_eq!(circles.into_iter().collect::<Vec<_>>(), ["queue-09998", "queue-09999"]);
            assert_eq!(asked, count);
        }
    }
}
