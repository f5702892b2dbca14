//! How long is waited before another attempt.

use std::time::Duration;

use flow_rng::{Purpose, Stream};

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);

/// Waits that double, with jitter, so that many clients of a server that comes back do not ask in the same moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    first: Duration,
}

impl Waits {
    /// Waits of which the first has at most `first_s` seconds.
    pub(crate) fn new(first_s: f64) -> Self {
        Self {
            first: Duration::from_secs_f64(first_s),
        }
    }

    /// The wait before attempt `attempt` (the first has number 0) at a request of the content `content`: half of the doubled wait
    /// to all of it. A function of its arguments.
    pub(crate) fn before(&self, attempt: u32, content: u64) -> Duration {
        let doubled = 2u32.saturating_pow(attempt.saturating_sub(1));
        let longest = self.first.saturating_mul(doubled).min(LONGEST);
        let share = Stream::new(0, Purpose::RetryWait).at(content, attempt).uniform();
        longest.mul_f64(0.5 + 0.5 * share)
    }
}

/// A number that tells contents apart: FNV-1a (Fowler, Noll and Vo; offset and prime of 64 bits).
pub(crate) fn number_of(content: &[u8]) -> u64 {
    content.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_are_the_same_each_time() {
        let waits = Waits::new(0.5);
        for (attempt, longest_s) in [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (9, 60.0), (1000, 60.0)] {
            for content in [0, 7, u64::MAX] {
                let wait = waits.before(attempt, content);
                assert_eq!(wait, waits.before(attempt, content));
                let share = wait.as_secs_f64() / longest_s;
                assert!((0.5..=1.0).contains(&share), "attempt {attempt}: {wait:?}");
            }
        }
        assert_ne!(waits.before(1, 1), waits.before(1, 2));
    }

    #[test]
    fn contents_have_the_published_numbers() {
        assert_eq!(number_of(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(number_of(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(number_of(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
