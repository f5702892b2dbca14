//! The memory a task works in.

use flow_core::AttentionShape;
use flow_kernels::host::matrix::Matrix;

/// Queries whose scores are held at a time.
pub(super) const QUERIES: usize = 64;
/// The number of queries in a tile is a multiple of this.
pub(super) const LANES: usize = 16;
/// Multiplications worth of work, in the unit of [`threads::worth_threads`].
pub(super) fn work(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * shape.queries * shape.keys * (shape.head_dim / 8 + 1)
}

/// Tiles of one task. Queries are the last axis of all but the first, so that sums over keys run along the lanes'
/// outside, and are padded with zeros to `LANES`.
pub(super) struct Tiles {
    /// Queries times the scale, `[Q, D]`.
    pub(super) queries: Vec<f32>,
    /// Gradients of the output, `[Q, D]`.
    pub(super) upstream: Vec<f32>,
    /// Scores, then exponentials or probabilities, `[keys, Q]`.
    pub(super) scores: Vec<f32>,
    /// Gradients of the scores, `[keys, Q]`.
    pub(super) dscores: Vec<f32>,
    /// A result for the queries, `[D, Q]`.
    pub(super) result: Vec<f32>,
    /// Gradients of keys and of values, `[keys, D]`.
    pub(super) sums: [Vec<f32>; 2],
}

impl Tiles {
    pub(super) fn new(shape: &AttentionShape, backward: bool) -> Self {
        let queries = padded(shape.queries.min(QUERIES));
        let only = |count: usize| vec![0.0; if backward { count } else { 0 }];
        let keys = shape.keys * shape.head_dim;
        Self {
            queries: vec![0.0; queries * shape.head_dim],
            upstream: only(queries * shape.head_dim),
            scores: vec![0.0; queries * shape.keys],
            dscores: only(queries * shape.keys),
            result: vec![0.0; queries * shape.head_dim],
            sums: [only(keys), only(keys)],
        }
    }
}

pub(super) fn padded(queries: usize) -> usize {
    queries.next_multiple_of(LANES)
}

/// Copies rows, times `factor`, and fills what is left of `tile` with zeros.
pub(super) fn copy_rows(tile: &mut [f32], rows: Matrix<'_>, count: usize, width: usize, factor: f32) {
    for (index, to) in tile.chunks_exact_mut(width).enumerate() {
        if index < count {
            to.iter_mut()
                .zip(rows.row(index))
                .for_each(|(to, from)| *to = from * factor);
        } else {
            to.fill(0.0);
        }
    }
}
