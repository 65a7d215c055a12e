//! The name that was meant.

/// The candidate that is close enough to `text` to be a slip of the hand.
#[must_use]
pub fn closest<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // Nobody means a name of that length, and the comparison costs its square.
    if text.len() > 80 {
        return None;
    }
    let folded = |text: &str| text.to_lowercase().replace('_', "-").chars().collect::<Vec<char>>();
    let wanted = folded(text);
    let most = (wanted.len() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &folded(candidate)), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean NAME?`, or nothing.
#[must_use]
pub fn did_you_mean<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
    closest(text, candidates).map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Number of letters to insert, drop or replace.
fn distance(first: &[char], second: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=second.len()).collect();
    for (at, letter) in first.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (other_at, other) in second.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[other_at + 1];
            row[other_at + 1] = replaced.min(row[other_at] + 1).min(diagonal + 1);
        }
    }
    row[second.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_hand_is_known_and_another_word_is_not() {
        let known = ["reservation", "resend", "minAvailable", "binding-deadline"];
        for (written, meant) in [
            ("reservatoin", Some("reservation")),
            ("minAvaliable", Some("minAvailable")),
            ("Binding_Deadline", Some("binding-deadline")),
            ("resen", Some("resend")),
            ("weight", None),
            ("", None),
        ] {
            assert_eq!(closest(written, known), meant, "{written}");
        }
        assert_eq!(did_you_mean("resent", known), "; did you mean resend?");
        assert_eq!(did_you_mean("weight", known), "");
        assert_eq!(closest(&"r".repeat(81), known), None);
    }
}
