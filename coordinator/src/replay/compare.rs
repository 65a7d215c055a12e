//! Compares the actions of two recordings, in order, without their numbers and times.

use std::collections::VecDeque;
use std::path::Path;

use phalanx_common::units::Time;
use phalanx_core::Core;
use phalanx_core::action::{Action, Command};

use super::ReplayError;
use super::player::{Played, Player};

/// One of two recordings that are read side by side.
pub(super) struct Side {
    pub(super) player: Player,
    ready: VecDeque<Action>,
    has_ended: bool,
}

impl Side {
    fn open(path: &Path, context: usize) -> Result<Self, ReplayError> {
        Ok(Self { player: Player::open(path, context)?, ready: VecDeque::new(), has_ended: false })
    }

    /// The action at which the comparison stands; `None` where the recording has ended.
    pub(super) fn action(&self) -> Option<&Action> {
        self.ready.front()
    }

    /// The next action recorded.
    fn peek(&mut self) -> Result<Option<&Command>, ReplayError> {
        while self.ready.is_empty() && !self.has_ended {
            match self.player.step()? {
                Played::Cycle { recorded, .. } => {
                    // Whether the replay does the same is another question.
                    self.player.replay.difference = None;
                    self.ready.extend(recorded);
                }
                Played::End => self.has_ended = true,
                Played::Event | Played::Note(_) | Played::Quiet => {}
            }
        }
        Ok(self.action().map(|action| &action.command))
    }

    pub(super) const fn core(&self) -> Option<&Core> {
        self.player.core()
    }

    pub(super) const fn at(&self) -> Time {
        self.player.at
    }
}

/// Two recordings where they part, or where both have ended.
pub(super) struct Compared {
    pub(super) parts: bool,
    /// Actions that were the same before.
    pub(super) same: u64,
    pub(super) sides: [Side; 2],
}

pub(super) fn side_by_side(first: &Path, second: &Path, context: usize) -> Result<Compared, ReplayError> {
    let (mut first, mut second) = (Side::open(first, context)?, Side::open(second, context)?);
    let mut same = 0;
    loop {
        let (left, right) = (first.peek()?, second.peek()?);
        let parts = left != right;
        if parts || left.is_none() {
            return Ok(Compared { parts, same, sides: [first, second] });
        }
        first.ready.pop_front();
        second.ready.pop_front();
        same += 1;
    }
}
