//! Texts of errors for people.

use std::error::Error;

/// An error with its causes, each said once: most errors here quote their cause already.
#[must_use]
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let cause = plain(&error.to_string());
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
        next = error.source();
    }
    text
}

/// The text without the system's numbers: `No such file or directory`, not `… (os error 2)`.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut pieces = text.split(" (os error ");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => plain += rest,
            _ => {
                plain += " (os error ";
                plain += piece;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::io;

    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    #[error("cannot listen")]
    struct Outer(#[source] Middle);

    #[derive(Debug, Error)]
    #[error("socket on {0}: {1}; is another program using it?")]
    struct Middle(&'static str, #[source] io::Error);

    #[test]
    fn every_cause_is_said_once_and_without_numbers() {
        let cause = || io::Error::from_raw_os_error(2);
        let text = "socket on 1:2: No such file or directory; is another program using it?";
        assert_eq!(describe(&Middle("1:2", cause())), text);
        assert_eq!(describe(&Outer(Middle("1:2", cause()))), format!("cannot listen: {text}"));
    }

    #[test]
    fn only_the_systems_numbers_go() {
        assert_eq!(plain("a: x (os error 2); b (os error 13)"), "a: x; b");
        for text in ["", "x", "x (os error two)", "x (os error 2"] {
            assert_eq!(plain(text), text);
        }
    }
}
