//! Ctrl-C: once to finish the iteration and save, twice to stop at once.

use crate::failure::Failure;
use crate::terminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user wants to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C and requests to terminate from now on.
    pub fn listen() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let handler = interrupt.clone();
        ctrlc::set_handler(move || handler.request())
            .map_err(|error| Failure::Run(format!("cannot listen for Ctrl-C: {error}")))?;
        Ok(interrupt)
    }

    /// Asks to stop; gives whether somebody asked before.
    pub fn ask(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    /// What Ctrl-C does.
    fn request(&self) {
        if self.ask() {
            terminal::note("stopped at once; what was saved before is whole");
            // Files appear whole or not at all, so there is nothing to tidy.
            std::process::exit(130);
        }
        terminal::note("finishing this iteration, then saving; press Ctrl-C again to stop at once");
    }

    /// Whether the user asked to stop.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
