//! What people write, and what to tell them about it: settings of a program as a TOML file overridden by flags,
//! lines of a TOML text, YAML as trees that know their lines, and names that are nearly right. It knows no program's
//! keys.

pub mod near;
pub mod places;
pub mod settings;
pub mod tree;

pub use near::{closest, did_you_mean};
pub use settings::{Problem, Problems, Values};
