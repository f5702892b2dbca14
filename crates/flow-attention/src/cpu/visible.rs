//! Which keys the queries of each tile see, found once for a call and shared by its heads.

use super::tiles::QUERIES;
use flow_attention_mask::Mask;
use flow_core::AttentionCall;
use flow_core::ops::attention::Sizes;
use std::sync::Arc;

/// Keys judged at a time.
const BLOCK: usize = 64;

/// Keys of one part, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Which part.
    pub(super) part: usize,
    /// The first key within the part.
    pub(super) start: usize,
    /// The first key, numbered through both parts.
    pub(super) first: usize,
    /// How many.
    pub(super) count: usize,
    /// Whether every query of the tile sees all of them.
    pub(super) all: bool,
}

/// The runs of each tile of queries.
#[derive(Debug)]
pub(super) struct Visible {
    runs: Vec<Vec<Run>>,
    tiles: usize,
    depends_on_batch: bool,
    mask: Option<Arc<Mask>>,
    sizes: Sizes,
}

impl Visible {
    pub(super) fn new(call: &AttentionCall) -> Self {
        let (sizes, tiles) = (call.sizes(), call.queries.div_ceil(QUERIES));
        let run = |start: usize, count: usize, all: bool| {
            let part = usize::from(start >= call.keys[0]);
            Run {
                part,
                start: start - part * call.keys[0],
                first: start,
                count,
                all,
            }
        };
        let everything = || {
            let parts = [run(0, call.keys[0], true), run(call.keys[0], call.keys[1], true)];
            parts.into_iter().filter(|run| run.count > 0).collect()
        };
        let depends_on_batch = call.mask.as_ref().is_some_and(|mask| mask.depends_on_batch());
        let masks = if depends_on_batch { call.batch } else { 1 };
        let of_tile = |batch: usize, tile: usize| -> Vec<Run> {
            let Some(mask) = &call.mask else {
                return everything();
            };
            let queries = tile * QUERIES..((tile + 1) * QUERIES).min(call.queries);
            let bound = mask.bind(sizes).expect("the call was checked with its mask");
            let runs = bound.key_runs(batch, queries, BLOCK).into_iter();
            runs.map(|found| run(found.keys.start, found.keys.len(), found.all))
                .collect()
        };
        let batches = if call.batch == 0 { 0 } else { masks };
        let each = (0..batches).flat_map(|batch| (0..tiles).map(move |tile| (batch, tile)));
        Self {
            runs: each.map(|(batch, tile)| of_tile(batch, tile)).collect(),
            tiles,
            depends_on_batch,
            mask: call.mask.clone(),
            sizes,
        }
    }

    /// The runs of the tile that begins with query `start` of sample `batch`.
    pub(super) fn runs(&self, batch: usize, start: usize) -> &[Run] {
        let batch = if self.depends_on_batch { batch } else { 0 };
        &self.runs[batch * self.tiles + start / QUERIES]
    }

    /// The most keys that a tile sees.
    pub(super) fn most_keys(&self) -> usize {
        let keys = |runs: &Vec<Run>| runs.iter().map(|run| run.count).sum();
        self.runs.iter().map(keys).max().unwrap_or(0)
    }

    /// Sets the scores `[keys of the run, width]` of pairs that the mask forbids to minus infinity; `count` queries of
    /// sample `batch` from `start` on.
    pub(super) fn hide(&self, run: &Run, batch: usize, start: usize, count: usize, scores: &mut [f32]) {
        let Some(mask) = self.mask.as_ref().filter(|_| !run.all) else {
            return;
        };
        let bound = mask.bind(self.sizes).expect("the call was checked with its mask");
        let width = scores.len() / run.count;
        for (key, row) in scores.chunks_exact_mut(width).enumerate() {
            for (query, score) in row[..count].iter_mut().enumerate() {
                if !bound.allows(batch, start + query, run.first + key) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }
}
