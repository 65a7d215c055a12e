//! The part of the configuration that says what gangs may take from others, and how long they wait before.

use std::time::Duration;

use phalanx_common::units::Millis;
use phalanx_core::Settings;
use phalanx_text::Values;
use phalanx_text::settings::shown;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Longest wait before a hold, and longest time below the minimum: beyond it nobody waits for the end of a training.
pub(crate) const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
/// What `degraded-grace` says where nothing is ever given back.
const NEVER: &str = "never";

/// Reads the keys; everything else of the settings is their default.
pub(super) fn read(values: &mut Values) -> Settings {
    let default = Settings::default();
    let mut duration = |key, default: Millis, most| {
        let duration = values.duration(key, Duration::from_millis(default.0), SECOND, most);
        // The longest one allowed is a week.
        Millis(duration.as_millis() as u64)
    };
    let hold_after_ms = duration("hold-after", default.hold_after_ms, WEEK);
    let victim_timeout_ms = duration("victim-timeout", default.victim_timeout_ms, HOUR);
    Settings {
        preempt: values.boolean("preempt", default.preempt),
        reclaim: values.boolean("reclaim", default.reclaim),
        hold_after_ms,
        victim_timeout_ms,
        degraded_grace_ms: degraded_grace(values, default.degraded_grace_ms),
        ..default
    }
}

fn degraded_grace(values: &mut Values, default: Option<Millis>) -> Option<Millis> {
    let expected = format!("{NEVER}, or a duration from {} to {} such as 5m", shown(SECOND), shown(WEEK));
    let grace = values.read("degraded-grace", &expected, |written| {
        if written.text() == NEVER {
            return Some(None);
        }
        let duration = humantime::parse_duration(written.text()).ok()?;
        (SECOND..=WEEK).contains(&duration).then_some(Some(Millis(duration.as_millis() as u64)))
    });
    grace.unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::super::RunArguments;

    fn error(set: impl FnOnce(&mut RunArguments)) -> String {
        let mut arguments = RunArguments { state_dir: Some("/s".to_owned()), ..RunArguments::default() };
        set(&mut arguments);
        arguments.resolve().unwrap_err().to_string()
    }

    #[test]
    fn the_switches_must_be_true_or_false() {
        assert_eq!(
            error(|arguments| arguments.preempt = Some("off".to_owned())),
            "--preempt: must be true or false, found \"off\""
        );
        assert_eq!(
            error(|arguments| arguments.reclaim = Some(String::new())),
            "--reclaim: must be true or false, found \"\""
        );
    }

    #[test]
    fn the_times_have_their_ranges() {
        for wrong in ["0s", "5", "8days", "never"] {
            assert_eq!(
                error(|arguments| arguments.hold_after = Some(wrong.to_owned())),
                format!("--hold-after: must be a duration from 1s to 7days such as 5m, found {wrong:?}")
            );
        }
        assert_eq!(
            error(|arguments| arguments.victim_timeout = Some("2h".to_owned())),
            "--victim-timeout: must be a duration from 1s to 1h such as 1m, found \"2h\""
        );
        for wrong in ["0s", "Never", "", "8days"] {
            assert_eq!(
                error(|arguments| arguments.degraded_grace = Some(wrong.to_owned())),
                format!(
                    "--degraded-grace: must be never, or a duration from 1s to 7days such as 5m, found {wrong:?}"
                )
            );
        }
    }

    #[test]
    fn a_grace_is_a_duration_or_never() {
        let grace = |text: &str| {
            let arguments = RunArguments { degraded_grace: Some(text.to_owned()), ..RunArguments::default() };
            let file = b"state-dir = \"/s\"\n";
            arguments.resolve_bytes(file, "F".as_ref()).unwrap().settings.degraded_grace_ms.map(|ms| ms.0)
        };
        assert_eq!((grace("90s"), grace("never")), (Some(90_000), None));
    }
}
