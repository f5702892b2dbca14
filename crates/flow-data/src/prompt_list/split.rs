//! Prompts that are trained on, and prompts that are kept for tests.

use super::{PromptEntry, PromptList, PromptListError};
use flow_rng::{Purpose, Stream};
use std::collections::HashSet;

/// How many prompts are kept for tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TestShare {
    /// This many.
    Count(usize),
    /// This part of all, above 0 and below 1; at least one.
    Fraction(f64),
}

impl PromptList {
    /// The prompts to train on and those for tests, each in the order of the file.
    ///
    /// Which is which depends on the seed and on the texts alone: not on the order of the file, and prompts that are added change
    /// little. A text is on one side only, whatever its metadata, so that nothing is tested that was trained on.
    ///
    /// # Errors
    /// [`PromptListError::Split`] if nothing is left on one side.
    pub fn split(self, share: TestShare, seed: u64) -> Result<(Self, Self), PromptListError> {
        let refused = |problem: String| {
            Err(PromptListError::Split {
                path: self.path.clone(),
                problem,
            })
        };
        let stream = Stream::new(seed, Purpose::DataSplit);
        let texts: HashSet<&str> = self.entries.iter().map(|it| it.text.as_str()).collect();
        let mut order: Vec<(u64, &str)> = texts
            .into_iter()
            .map(|text| (stream.at(address(text), 0).next_u64(), text))
            .collect();
        order.sort_unstable();
        let all = order.len();
        let kept = match share {
            TestShare::Count(count) => count,
            TestShare::Fraction(part) if part > 0.0 && part < 1.0 => {
                ((all as f64 * part).round() as usize).max(1)
            }
            TestShare::Fraction(part) => {
                return refused(format!(
                    "{part} is no part to keep for tests; it is above 0 and below 1"
                ));
            }
        };
        if kept == 0 || kept >= all {
            return refused(match all {
                0 | 1 => "there is one prompt in it, and none is left to train on if it is kept for tests"
                    .to_owned(),
                all => format!(
                    "{kept} of {all} different prompts cannot be kept for tests; from 1 to {} can",
                    all - 1
                ),
            });
        }
        let tests: HashSet<String> = order[..kept].iter().map(|(_, text)| (*text).to_owned()).collect();
        let (path, notes) = (self.path, self.notes);
        let (test, train): (Vec<PromptEntry>, Vec<PromptEntry>) = self
            .entries
            .into_iter()
            .partition(|entry| tests.contains(&entry.text));
        let list = |entries| Self {
            path: path.clone(),
            entries,
            notes: notes.clone(),
        };
        Ok((list(train), list(test)))
    }
}

/// A number of a text (FNV-1a, 64 bits).
fn address(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
