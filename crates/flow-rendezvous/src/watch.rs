//! Seeing that another rank has given up, while this one computes.

use crate::store::Store;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// Watches over the key `abort` of a run until it is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    words: Mutex<Option<String>>,
}

impl Watch {
    pub(crate) fn start(mut store: Store, key: String) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let seen = shared.clone();
        let look = move || {
            while !seen.ended.load(Ordering::SeqCst) {
                let words = match store.has(&key) {
                    Ok(false) => {
                        std::thread::sleep(EVERY);
                        continue;
                    }
                    Ok(true) => store
                        .get(&key)
                        .map(|words| String::from_utf8_lossy(&words).into_owned()),
                    Err(error) => Err(error),
                };
                let words = words.unwrap_or_else(|error| error.to_string());
                *seen.words.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
                return;
            }
        };
        let thread = std::thread::Builder::new().name("abort watch".into()).spawn(look);
        if let Err(error) = thread {
            let words = format!("cannot watch over the other ranks: {error}");
            *shared.words.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        }
        Self { shared }
    }

    /// Why the run is over, if another rank said so or the store is gone.
    pub fn aborted(&self) -> Option<String> {
        self.shared
            .words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
    }
}
