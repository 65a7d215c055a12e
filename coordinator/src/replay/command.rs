//! The command `replay`: repeats a recording, stops where one wants to look, and shows the first difference.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use phalanx_core::action::Action;

use super::compare::{Side, side_by_side};
use super::player::{Played, Player};
use super::state::{self, About};
use super::{Difference, Replay, ReplayError, Until, print};
use crate::recorder::chain_of;

/// What `replay` is told.
#[derive(Clone, Debug, Args)]
pub struct ReplayArguments {
    /// A file of the recording, recording-START-PART.jsonl; the parts after it follow by themselves
    pub file: PathBuf,
    /// Stop there and print the state: +90s, 1764437478123 (ms), 2026-11-29T17:31:18Z, event:120, line:37 or
    /// line:PART:37
    #[arg(long, value_name = "WHEN")]
    pub until: Option<Until>,
    /// Print only the first difference, what came before it and the state around it; with OTHER compare the actions
    /// that both recordings hold
    #[arg(long, value_name = "OTHER", num_args = 0..=1)]
    #[allow(clippy::option_option, reason = "clap's form of a flag with an optional value")]
    pub diff: Option<Option<PathBuf>>,
    /// Lines shown before a difference
    #[arg(long, value_name = "LINES", default_value_t = 10)]
    pub context: usize,
}

/// Runs the command: actions and states go to `output`, what was found to `report`. True where nothing differs.
///
/// # Errors
/// A recording cannot be read, or the output not be written.
pub fn run(
    arguments: &ReplayArguments,
    output: &mut dyn Write,
    report: &mut dyn Write,
) -> Result<bool, ReplayError> {
    if let Some(Some(other)) = &arguments.diff {
        let compared = side_by_side(&arguments.file, other, arguments.context)?;
        let Some(divergence) = compared.divergence else {
            writeln!(report, "the same {} actions in both", compared.same).map_err(ReplayError::Output)?;
            return Ok(true);
        };
        let same = divergence.same;
        writeln!(output, "the recordings part after {same} actions").map_err(ReplayError::Output)?;
        let sides = [(&compared.first, divergence.first), (&compared.second, divergence.second)];
        for (side, action) in sides {
            write_side(output, side, action.map(|(_, action)| action)).map_err(ReplayError::Output)?;
        }
        return Ok(false);
    }
    let mut player = Player::open(&arguments.file, arguments.context)?;
    let is_quiet = arguments.diff.is_some() || arguments.until.is_some();
    loop {
        if let Some(until) = arguments.until
            && is_there(&mut player, until)?
        {
            write_moment(output, &player).map_err(ReplayError::Output)?;
            return Ok(true);
        }
        let played = player.step()?;
        match &played {
            Played::Cycle { at, made, .. } if !is_quiet => {
                print(output, at.0, made).map_err(ReplayError::Output)?;
            }
            Played::Note(note) => writeln!(report, "note: {note}").map_err(ReplayError::Output)?,
            Played::Cycle { .. } | Played::Event | Played::Quiet | Played::End => {}
        }
        if let Some(difference) = player.replay.difference.clone() {
            output.flush().map_err(ReplayError::Output)?;
            let actions = match played {
                Played::Cycle { recorded, made, .. } => (recorded, made),
                Played::Event | Played::Note(_) | Played::Quiet | Played::End => (Vec::new(), Vec::new()),
            };
            write_difference(report, &player, &difference, &actions, arguments.diff.is_some())
                .map_err(ReplayError::Output)?;
            return Ok(false);
        }
        if matches!(played, Played::End) {
            return finish(arguments, &player, output, report).map_err(ReplayError::Output).map(|()| true);
        }
    }
}

fn finish(
    arguments: &ReplayArguments,
    player: &Player,
    output: &mut dyn Write,
    report: &mut dyn Write,
) -> io::Result<()> {
    output.flush()?;
    if arguments.until.is_some() {
        writeln!(report, "note: the recording ends before that moment; this is its last state")?;
        write_moment(output, player)?;
    }
    let Replay { events, cycles, actions, .. } = &player.replay;
    writeln!(report, "the same: {events} events, {cycles} cycles, {actions} actions")
}

/// True where the moment is now: everything up to it has been played.
fn is_there(player: &mut Player, until: Until) -> Result<bool, ReplayError> {
    let is_begun = player.core().is_some();
    Ok(match until {
        Until::Event(number) => is_begun && player.replay.events >= number,
        Until::At(end) => player.next_record()?.0.is_some_and(|at| is_begun && at > end),
        Until::After(offset) => {
            let end = player.start() + offset;
            player.next_record()?.0.is_some_and(|at| is_begun && at > end)
        }
        Until::Line { part, line } => {
            let (_, next) = player.next_record()?;
            let of_next = chain_of(&next.path).map(|(_, part)| part);
            let of_first = player.first_part();
            let asked = part.or(of_first);
            match (of_next, asked) {
                (Some(next_part), Some(asked)) if next_part != asked => is_begun && next_part > asked,
                _ => is_begun && next.line > line,
            }
        }
    })
}

fn write_moment(output: &mut dyn Write, player: &Player) -> io::Result<()> {
    let place = player.place();
    writeln!(
        output,
        "state at {} ms, {} after the start, after {} events and {} cycles, {}:{}",
        player.at.0,
        player.at - player.start(),
        player.replay.events,
        player.replay.cycles,
        place.path.display(),
        place.line
    )?;
    match player.core() {
        Some(core) => state::write(output, core, player.at, &About::default()),
        None => Ok(()),
    }
}

/// One side of two recordings that part: what led there, the action, the state.
fn write_side(output: &mut dyn Write, side: &Side, action: Option<Action>) -> io::Result<()> {
    let place = side.player.place();
    writeln!(output, "\n{}:{}:", place.path.display(), place.line)?;
    for line in side.player.context.lines() {
        writeln!(output, "  {line}")?;
    }
    match &action {
        Some(action) => writeln!(output, "> {}", serde_json::to_string(action)?)?,
        None => writeln!(output, "> the recording ends")?,
    }
    match side.core() {
        Some(core) => state::write(output, core, side.at(), &About::of(&action)),
        None => Ok(()),
    }
}

/// The first difference between what was recorded and what the replay did.
fn write_difference(
    report: &mut dyn Write,
    player: &Player,
    difference: &Difference,
    (recorded, made): &(Vec<Action>, Vec<Action>),
    in_full: bool,
) -> io::Result<()> {
    if in_full {
        writeln!(report, "before it:")?;
        for line in player.context.lines() {
            writeln!(report, "  {line}")?;
        }
    }
    let Difference { path, line, recorded: wanted, replayed, state } = difference;
    if let Some(state) = state {
        writeln!(report, "{}:{line}: the state differs: {state}", path.display())?;
        return Ok(());
    }
    writeln!(report, "{}:{line}: the actions differ", path.display())?;
    for (whose, action) in [("recorded", wanted), ("replayed", replayed)] {
        let text = action.as_ref().map_or_else(|| Ok("nothing".to_owned()), serde_json::to_string)?;
        writeln!(report, "  {whose}: {text}")?;
    }
    if !in_full {
        return Ok(());
    }
    let same = recorded.iter().zip(made).take_while(|(left, right)| left == right).count();
    writeln!(report, "the actions of that cycle, - recorded, + replayed:")?;
    for (sign, actions) in [(" ", &recorded[..same]), ("-", &recorded[same..]), ("+", &made[same..])] {
        for action in actions {
            writeln!(report, "{sign} {}", serde_json::to_string(action)?)?;
        }
    }
    writeln!(report, "the state after it, of the gangs and nodes that these actions speak of:")?;
    let about = About::of(wanted.iter().chain(replayed));
    match player.core() {
        Some(core) => state::write(report, core, player.at, &about),
        None => Ok(()),
    }
}
