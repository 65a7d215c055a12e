//! Ctrl-C and SIGTERM as a flag that loops look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Set once the user asks to stop.
#[derive(Clone)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Starts to listen for SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn listen() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
        let flag = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let guard = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        drop(guard);
        let raised = flag.clone();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                        _ = hangup.recv() => {}
                    }
                    raised.store(true, Ordering::SeqCst);
                }
            });
        });
        Ok(Self(flag))
    }

    /// True once a signal has come.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
