//! What coordinator and agent do alike as processes: their log, a signal that must not end them, and points at which
//! tests kill them. It knows neither of the two.

#[cfg(debug_assertions)]
pub mod kill_point;

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Number of the signal on Linux.
const SIGXFSZ: i32 = 25;

/// Form of the log lines on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Logs to stderr from here on: what `RUST_LOG` says, or this level and above.
pub fn start_log(format: LogFormat, default_level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_level));
    // A line that cannot be written, because the disk of the log is full, is lost; to say so there would be a panic.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// While the result lives, a file that outgrows a limit of the process is an error of that write, as on a full disk,
/// and does not end the process.
///
/// # Errors
/// Those of the system.
pub fn outlive_file_limits() -> io::Result<Signal> {
    signal(SignalKind::from_raw(SIGXFSZ))
}
