//! What gangs and pods say of evictions and of their run time, in annotations and labels: names, values, and what is wrong
//! with a value. Also the durations of a QueuePolicy.

use std::sync::Arc;

use phalanx_common::gang::{FewerAfter, GangGroup, Grace};
use phalanx_common::units::Millis;

use super::names::{MIXED_GPU_MODELS, label_problem, parse_switch};
use super::tree::shorten;

/// `"false"`: never evicted for others. On pods and PodGroups, as an annotation or a label.
pub const PREEMPTABLE: &str = "volcano.sh/preemptable";
/// Not evicted for others before it has run so long. As an annotation or a label.
pub const COOLDOWN: &str = "volcano.sh/cooldown-time";
/// So long before its pods are evicted it is told.
pub const CHECKPOINT_GRACE: &str = "phalanx.dev/checkpoint-grace";
/// Below its minimum for so long, a gang gives back what it has.
pub const DEGRADED_GRACE: &str = "phalanx.dev/degraded-grace";
/// Gangs that start together.
pub const GANG_GROUP: &str = "phalanx.dev/gang-group";
/// A lower minimum for a gang that has waited.
pub const FEWER_AFTER: &str = "phalanx.dev/fewer-after";
/// How long a gang runs: a vcjob's `runningEstimate`, on its PodGroup.
pub const RUN_ESTIMATE: &str = "phalanx.dev/run-estimate";
/// The same as Kueue's users say it, in seconds. As an annotation or a label.
pub const MAX_EXEC_TIME: &str = "kueue.x-k8s.io/max-exec-time-seconds";

/// Annotations of ours that are read.
pub const OF_GANGS: [&str; 5] = [CHECKPOINT_GRACE, DEGRADED_GRACE, GANG_GROUP, FEWER_AFTER, RUN_ESTIMATE];
/// What may stand in a label too.
pub const AS_LABELS: [&str; 3] = [PREEMPTABLE, COOLDOWN, MAX_EXEC_TIME];

/// Longest time that means anything here: ten years.
const LONGEST: Millis = Millis(10 * 365 * 24 * 3_600 * 1_000);
/// Gangs of one group: all must fit together.
const MOST_GANGS: u32 = 1_000;

/// True for what a PodGroup that is made for pods gets from them, or from what looks after them.
#[must_use]
pub fn is_inherited(key: &str) -> bool {
    key.starts_with("volcano.sh/") || OF_GANGS.contains(&key) || key == MAX_EXEC_TIME
}

/// True for an annotation or a label that says something of gangs, wherever it stands.
#[must_use]
pub fn is_of_gangs(key: &str) -> bool {
    OF_GANGS.contains(&key) || AS_LABELS.contains(&key) || key == MIXED_GPU_MODELS
}

/// What is done where the value of an annotation or a label cannot be read.
#[must_use]
pub fn instead(key: &str) -> &'static str {
    match key {
        PREEMPTABLE => "it may be evicted for others, unless its PodGroup says otherwise",
        COOLDOWN => "no cooldown is taken",
        CHECKPOINT_GRACE => "its pods are not told before they are evicted",
        RUN_ESTIMATE | MAX_EXEC_TIME => "defaultRunTime of its queue is taken",
        DEGRADED_GRACE => "degraded-grace of the coordinator is taken",
        GANG_GROUP => "it starts by itself",
        FEWER_AFTER => "it waits for its whole minimum",
        MIXED_GPU_MODELS => "false is taken",
        _ => "it is left out",
    }
}

/// What is wrong with the value of an annotation or a label that is read, if anything.
#[must_use]
pub fn problem(key: &str, text: &str) -> Option<String> {
    match key {
        PREEMPTABLE => parse_switch(text).err(),
        COOLDOWN => parse_duration(text).err(),
        CHECKPOINT_GRACE => parse_time(text).err(),
        RUN_ESTIMATE => parse_run_time(text).err(),
        DEGRADED_GRACE => parse_grace(text).err(),
        GANG_GROUP => parse_group(text).err(),
        FEWER_AFTER => parse_fewer(text).err(),
        MAX_EXEC_TIME => parse_seconds(text).err(),
        _ => None,
    }
}

fn wrong(allowed: &str, text: &str) -> String {
    format!("must be {allowed}, found {:?}", shorten(text))
}

/// Reads a duration as Go and Volcano write it: `90s`, `5m`, `1h30m`, `1.5h`; and `0`.
///
/// # Errors
/// Not a duration, or longer than ten years.
pub fn parse_duration(text: &str) -> Result<Millis, String> {
    duration(text).ok_or_else(|| wrong("a time such as 90s, 5m or 1h30m, at most ten years", text))
}

/// The same where zero would mean that nothing ever runs.
///
/// # Errors
/// Also zero.
pub fn parse_run_time(text: &str) -> Result<Millis, String> {
    let found = duration(text).filter(|time| *time > Millis(0));
    found.ok_or_else(|| wrong("a time above 0 such as 90s, 5m or 1h30m, at most ten years", text))
}

/// A duration, or whole seconds.
fn time(text: &str) -> Option<Millis> {
    match text.parse() {
        Ok(seconds) => Some(Millis::from_seconds(seconds)).filter(|time| *time <= LONGEST),
        Err(_) => duration(text),
    }
}

/// Reads a duration, or seconds without a unit.
///
/// # Errors
/// Neither, or longer than ten years.
pub fn parse_time(text: &str) -> Result<Millis, String> {
    time(text).ok_or_else(|| wrong("seconds such as 120, or a time such as 90s, 5m or 1h30m", text))
}

/// Reads whole seconds above zero.
///
/// # Errors
/// Anything else.
pub fn parse_seconds(text: &str) -> Result<Millis, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0).map(Millis::from_seconds);
    seconds
        .filter(|time| *time <= LONGEST)
        .ok_or_else(|| wrong("a whole number of seconds above 0 such as 3600, at most ten years", text))
}

/// Reads a time, or `never`.
///
/// # Errors
/// Neither.
pub fn parse_grace(text: &str) -> Result<Grace, String> {
    if text == "never" {
        return Ok(Grace::Never);
    }
    let found = time(text).map(Grace::After);
    found.ok_or_else(|| wrong("never, seconds such as 300, or a time such as 5m", text))
}

/// Reads `NAME/SIZE`.
///
/// # Errors
/// Not of this form.
pub fn parse_group(text: &str) -> Result<GangGroup, String> {
    let allowed = || {
        wrong(
            &format!(
                "NAME/SIZE such as train/2: a name of lower case letters, digits and -, and 1 to {MOST_GANGS} gangs"
            ),
            text,
        )
    };
    let (name, size) = text.split_once('/').ok_or_else(allowed)?;
    let size: u32 = size.parse().ok().filter(|size| (1..=MOST_GANGS).contains(size)).ok_or_else(allowed)?;
    if label_problem(name).is_some() {
        return Err(allowed());
    }
    Ok(GangGroup { name: Arc::from(name), size })
}

/// Reads `MIN/DURATION`.
///
/// # Errors
/// Not of this form.
pub fn parse_fewer(text: &str) -> Result<FewerAfter, String> {
    let read = || {
        let (minimum, after) = text.split_once('/')?;
        let minimum = minimum.parse().ok().filter(|minimum| *minimum > 0)?;
        Some(FewerAfter { minimum, after_ms: time(after)? })
    };
    read().ok_or_else(|| {
        wrong("MIN/DURATION such as 4/10m: a number of pods from 1 on, and a time to wait first", text)
    })
}

/// Numbers with units, one after another. Whole nanoseconds, so that no fraction is rounded twice.
fn duration(text: &str) -> Option<Millis> {
    const NANOS_OF_MILLIS: u128 = 1_000_000;
    if text == "0" {
        return Some(Millis(0));
    }
    let mut rest = text;
    let mut sum: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (digits, after) = rest.split_at(number);
        let end = after.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        sum = sum.checked_add(nanos(digits, nanos_of(unit)?)?)?;
        rest = after;
    }
    let millis = Millis(u64::try_from(sum / NANOS_OF_MILLIS).ok()?);
    (!text.is_empty() && millis <= LONGEST).then_some(millis)
}

const fn nanos_of(unit: &str) -> Option<u128> {
    Some(match unit.as_bytes() {
        b"ns" => 1,
        b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1_000,
        b"ms" => 1_000_000,
        b"s" => 1_000_000_000,
        b"m" => 60_000_000_000,
        b"h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A number such as `1.5`, of this unit.
fn nanos(digits: &str, unit: u128) -> Option<u128> {
    /// Digits behind the point that are looked at; one more is less than a nanosecond of most units.
    const MOST_PLACES: usize = 12;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let read = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok().map(u128::from) };
    let kept = &fraction[..fraction.len().min(MOST_PLACES)];
    let places = u32::try_from(kept.len()).ok()?;
    let part = read(kept)?.checked_mul(unit)? / 10_u128.checked_pow(places)?;
    read(whole)?.checked_mul(unit)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("500ms", 500),
            ("1500us", 1),
            ("1h0m0.25s", 3_600_250),
            ("87600h", 315_360_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "5",
            "m",
            "5 m",
            "5x",
            "-5s",
            "1.2.3s",
            ".s",
            "5m3",
            "87601h",
            "99999999999999999999h",
            "5d",
            "+5s",
        ] {
            let problem = parse_duration(text).unwrap_err();
            assert!(problem.contains("such as 90s, 5m or 1h30m") && problem.contains(&format!("{text:?}")));
        }
    }

    #[test]
    fn values_are_read_and_a_wrong_one_is_answered_with_an_example() {
        assert_eq!(parse_time("120"), Ok(Millis(120_000)));
        assert_eq!(parse_time("2m"), Ok(Millis(120_000)));
        assert_eq!(parse_grace("never"), Ok(Grace::Never));
        assert_eq!(parse_grace("300"), Ok(Grace::After(Millis(300_000))));
        assert_eq!(parse_grace("5m"), Ok(Grace::After(Millis(300_000))));
        assert_eq!(parse_group("train/2"), Ok(GangGroup { name: "train".into(), size: 2 }));
        assert_eq!(parse_fewer("4/10m"), Ok(FewerAfter { minimum: 4, after_ms: Millis(600_000) }));
        assert_eq!(parse_seconds("3600"), Ok(Millis(3_600_000)));
        for (key, texts, example) in [
            (PREEMPTABLE, &["no", "True", ""][..], "must be \"true\" or \"false\""),
            (COOLDOWN, &["600", "ten minutes"], "such as 90s, 5m or 1h30m"),
            (CHECKPOINT_GRACE, &["-1", "soon"], "seconds such as 120"),
            (RUN_ESTIMATE, &["0", "0s", "2"], "a time above 0 such as 90s"),
            (DEGRADED_GRACE, &["Never", "-5"], "never, seconds such as 300"),
            (
                GANG_GROUP,
                &["train", "train/0", "/2", "Train/2", "a/b/2", "a/1001"],
                "NAME/SIZE such as train/2",
            ),
            (FEWER_AFTER, &["4", "0/10m", "4/", "4/soon", "x/10m"], "MIN/DURATION such as 4/10m"),
            (MAX_EXEC_TIME, &["0", "1h", "-5"], "seconds above 0 such as 3600"),
        ] {
            for text in texts {
                let problem = problem(key, text).unwrap_or_else(|| panic!("{key}: {text:?} was taken"));
                assert!(problem.contains(example) && problem.contains(&format!("{text:?}")), "{problem}");
            }
        }
        assert_eq!(problem("example.com/other", "x"), None);
    }
}
