//! Compares the actions of two recordings, in order, without their numbers and times.

use std::collections::VecDeque;
use std::path::Path;

use phalanx_common::units::Time;
use phalanx_core::Core;
use phalanx_core::action::{Action, Command};

use super::lines::Place;
use super::player::{Played, Player};
use super::{Replay, ReplayError};

/// Where two recordings part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Actions that were the same before.
    pub same: u64,
    /// Cycle of the first recording, and its action; `None` where it has ended.
    pub first: Option<(Place, Action)>,
    /// The same of the second.
    pub second: Option<(Place, Action)>,
}

/// One of two recordings that are read side by side.
pub(super) struct Side {
    pub(super) player: Player,
    ready: VecDeque<(Place, Action)>,
    has_ended: bool,
}

impl Side {
    fn open(path: &Path, context: usize) -> Result<Self, ReplayError> {
        Ok(Self { player: Player::open(path, context)?, ready: VecDeque::new(), has_ended: false })
    }

    /// The next action recorded.
    fn peek(&mut self) -> Result<Option<&Command>, ReplayError> {
        while self.ready.is_empty() && !self.has_ended {
            match self.player.step()? {
                Played::Cycle { recorded, .. } => {
                    // Whether the replay does the same is another question.
                    self.player.replay.difference = None;
                    let place = self.player.place();
                    self.ready.extend(recorded.into_iter().map(|action| (place.clone(), action)));
                }
                Played::End => self.has_ended = true,
                Played::Event | Played::Note(_) | Played::Quiet => {}
            }
        }
        Ok(self.ready.front().map(|(_, action)| &action.command))
    }

    pub(super) const fn core(&self) -> Option<&Core> {
        self.player.core()
    }

    pub(super) const fn at(&self) -> Time {
        self.player.at
    }
}

/// What a comparison has shown, and the two recordings where they part.
pub(super) struct Compared {
    pub(super) divergence: Option<Divergence>,
    pub(super) same: u64,
    pub(super) first: Side,
    pub(super) second: Side,
}

pub(super) fn side_by_side(first: &Path, second: &Path, context: usize) -> Result<Compared, ReplayError> {
    let (mut first, mut second) = (Side::open(first, context)?, Side::open(second, context)?);
    let mut same = 0;
    loop {
        let (left, right) = (first.peek()?, second.peek()?);
        if left != right {
            let divergence = Divergence {
                same,
                first: first.ready.front().cloned(),
                second: second.ready.front().cloned(),
            };
            return Ok(Compared { divergence: Some(divergence), same, first, second });
        }
        if left.is_none() {
            return Ok(Compared { divergence: None, same, first, second });
        }
        first.ready.pop_front();
        second.ready.pop_front();
        same += 1;
    }
}

/// Compares the actions that two recordings hold; `None` where they are the same.
///
/// # Errors
/// One of the recordings cannot be read.
pub fn compare(first: &Path, second: &Path) -> Result<(Option<Divergence>, Replay), ReplayError> {
    let compared = side_by_side(first, second, 0)?;
    Ok((compared.divergence, compared.first.player.replay))
}
