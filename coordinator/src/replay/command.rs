//! The command `replay`: repeats a recording, stops where one wants to look, and shows the first difference.

use std::cmp::Ordering;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use phalanx_core::action::Action;

use super::compare::{Compared, Side, side_by_side};
use super::lines::Place;
use super::player::{Played, Player};
use super::state::{self, About};
use super::{Difference, Replay, ReplayError, Until, step};
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
        if arguments.until.is_some() {
            return Err(ReplayError::UntilBesideOther);
        }
        let compared = side_by_side(&arguments.file, other, arguments.context)?;
        return write_compared(&compared, output, report).map_err(ReplayError::Output);
    }
    let mut player = Player::open(&arguments.file, arguments.context)?;
    let mut nowhere = io::sink();
    let is_quiet = arguments.diff.is_some() || arguments.until.is_some();
    loop {
        if let Some(until) = arguments.until
            && is_there(&mut player, until)?
        {
            write_moment(output, &player).map_err(ReplayError::Output)?;
            return Ok(true);
        }
        let played = step(&mut player, if is_quiet { &mut nowhere } else { output }, report)?;
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
    if player.core().is_none() {
        return Ok(false);
    }
    let end = match until {
        Until::Event(number) => return Ok(player.replay.events >= number),
        Until::Line { part, line } => return is_at_line(player, part.or(player.first_part()), line),
        Until::At(end) => end,
        Until::After(offset) => player.start() + offset,
    };
    Ok(match player.next_record()?.0 {
        Some(next) => next > end,
        None => player.is_at_end()? && player.at >= end,
    })
}

fn is_at_line(player: &mut Player, part: Option<u32>, line: usize) -> Result<bool, ReplayError> {
    let compared = |place: &Place| match (chain_of(&place.path), part) {
        (Some((_, of_place)), Some(part)) => of_place.cmp(&part),
        // A file that is not called as recordings are is alone.
        _ => Ordering::Equal,
    };
    let here = player.place();
    let is_played = compared(here) == Ordering::Equal && here.line >= line;
    Ok(is_played || compared(&player.next_record()?.1) == Ordering::Greater)
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

/// What the comparison of two recordings has shown. True where it is nothing.
fn write_compared(compared: &Compared, output: &mut dyn Write, report: &mut dyn Write) -> io::Result<bool> {
    let Compared { parts, same, sides } = compared;
    for note in sides.iter().flat_map(|side| &side.player.replay.notes) {
        writeln!(report, "note: {note}")?;
    }
    if !parts {
        writeln!(report, "the same {same} actions in both")?;
        return Ok(true);
    }
    writeln!(output, "the recordings part after {same} actions")?;
    for side in sides {
        write_side(output, side)?;
    }
    Ok(false)
}

/// One side of two recordings that part: what led there, the action, the state.
fn write_side(output: &mut dyn Write, side: &Side) -> io::Result<()> {
    let place = side.player.place();
    writeln!(output, "\n{}:{}:", place.path.display(), place.line)?;
    for line in side.player.context.lines() {
        writeln!(output, "  {line}")?;
    }
    let action = side.action();
    match action {
        Some(action) => writeln!(output, "> {}", serde_json::to_string(action)?)?,
        None => writeln!(output, "> the recording ends")?,
    }
    match side.core() {
        Some(core) => state::write(output, core, side.at(), &About::of(action)),
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
