//! What every part of Phalanx shares: ids, units, resources, gang, queue and topology types, and the
//! wire messages. No I/O, no clock, no runtime.

pub mod constraints;
pub mod describe;
pub mod gang;
pub mod ids;
pub mod plan;
pub mod planted;
pub mod queue;
pub mod resources;
pub mod shadow;
pub mod topology;
pub mod units;
pub mod wire;
