//! A mask for kernels on the host: for a few queries, the runs of keys that any of them sees.

use crate::coverage::{Axis, Coverage};
use crate::mask::Bound;
use std::ops::Range;

/// Keys `keys`, one after the other, that some query of a tile sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRun {
    /// Numbered through both segments; of one segment only.
    pub keys: Range<usize>,
    /// Whether every query of the tile sees all of them; if not, ask [`Bound::allows`] for each pair.
    pub all: bool,
}

impl Bound<'_> {
    /// The keys that queries `queries` of batch entry `batch` see, in order, judged `block` keys at a time. Runs of one
    /// kind that touch are one.
    ///
    /// # Panics
    /// If `block` is 0 or the queries lie outside of the call's sizes.
    pub fn key_runs(&self, batch: usize, queries: Range<usize>, block: usize) -> Vec<KeyRun> {
        assert!(
            queries.end <= self.sizes.queries && batch < self.sizes.batch,
            "queries of the call"
        );
        let tile = self.tokens(batch, Axis::Queries, queries);
        let [first, second] = self.sizes.kv_segments;
        let mut runs: Vec<KeyRun> = Vec::new();
        for segment in [0..first, first..first + second] {
            let mut open = false;
            for start in segment.clone().step_by(block) {
                let keys = start..(start + block).min(segment.end);
                let all = match self.coverage(batch, &tile, &self.tokens(batch, Axis::Keys, keys.clone())) {
                    Coverage::None => {
                        open = false;
                        continue;
                    }
                    Coverage::Partial => false,
                    Coverage::All => true,
                };
                match runs.last_mut() {
                    Some(last) if open && last.all == all => last.keys.end = keys.end,
                    _ => runs.push(KeyRun { keys, all }),
                }
                open = true;
            }
        }
        runs
    }
}
