//! How often a request is repeated, and how long is waited before.

use crate::HubError;
use std::thread::sleep;
use std::time::Duration;

/// The longest time that a server's `Retry-After` is obeyed.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// When a request is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Requests in a row that may fail, the first included; at least 1.
    pub attempts: u32,
    /// The wait after the first failure; it doubles with each one.
    pub first_wait: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
}

impl Default for Retries {
    /// Six attempts, with waits of 1, 2, 4, 8 and 16 seconds.
    fn default() -> Self {
        Self {
            attempts: 6,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(30),
        }
    }
}

impl Retries {
    /// The wait after `failed` failures in a row.
    fn wait(&self, failed: u32) -> Duration {
        let doubled = 2u32.saturating_pow(failed.saturating_sub(1));
        self.first_wait.saturating_mul(doubled).min(self.longest_wait)
    }
}

/// Why one attempt failed.
pub(crate) enum Failure {
    /// Another attempt may succeed, after the wait that the server asks for.
    Transient(HubError, Option<Duration>),
    /// Another attempt would fail in the same way.
    Final(HubError),
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// The attempts of one request so far.
pub(crate) struct Attempts<'r> {
    retries: &'r Retries,
    failed: u32,
}

impl<'r> Attempts<'r> {
    pub(crate) fn new(retries: &'r Retries) -> Self {
        Self { retries, failed: 0 }
    }

    /// Something came: failures are counted from 0 again.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits until the next attempt may be made.
    ///
    /// # Errors
    /// The failure's error, if there is to be no other attempt.
    pub(crate) fn wait_after(&mut self, failure: Failure) -> Result<(), HubError> {
        let (error, asked) = match failure {
            Failure::Transient(error, asked) => (error, asked),
            Failure::Final(error) => return Err(error),
        };
        self.failed += 1;
        if self.failed >= self.retries.attempts {
            return Err(error.after_attempts(self.failed));
        }
        let wait = self.retries.wait(self.failed);
        sleep(asked.map_or(wait, |asked| wait.max(asked.min(LONGEST_RETRY_AFTER))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let retries = Retries::default();
        let waits: Vec<u64> = (1..8).map(|failed| retries.wait(failed).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(retries.wait(u32::MAX), retries.longest_wait);
    }
}
