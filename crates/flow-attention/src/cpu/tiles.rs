//! The memory a task works in.

use super::visible::Visible;
use flow_core::AttentionCall;
use flow_kernels::host::matrix::Matrix;
use flow_kernels::host::narrow::LANES;

/// Queries whose scores are held at a time.
pub(super) const QUERIES: usize = 64;

/// Multiplications worth of work, in the unit of `threads::worth_threads`.
pub(super) fn work(call: &AttentionCall) -> usize {
    call.batch * call.heads * call.queries * call.key_count() * (call.head_dim / 8 + 1)
}

/// Tiles of one task. `Q` queries lie along the lanes, so that sums over keys need no exchange between lanes; `Q` and,
/// where it is the last axis, `D` are padded to whole vectors.
pub(super) struct Tiles {
    /// Queries times the scale, `[D, Q]`.
    pub(super) queries: Vec<f32>,
    /// The same, `[Q, D]`, for backward.
    pub(super) query_rows: Vec<f32>,
    /// Gradients of the output, `[D, Q]`.
    pub(super) upstream: Vec<f32>,
    /// The same, `[Q, D]`.
    pub(super) upstream_rows: Vec<f32>,
    /// Scores, then exponentials or probabilities, `[keys that the tile sees, Q]`.
    pub(super) scores: Vec<f32>,
    /// Gradients of the scores, of the same shape.
    pub(super) dscores: Vec<f32>,
    /// A result for the queries, `[D, Q]`.
    pub(super) result: Vec<f32>,
    /// Gradients of keys and of values, `[keys, D]`.
    pub(super) sums: [Vec<f32>; 2],
}

impl Tiles {
    pub(super) fn new(call: &AttentionCall, visible: &Visible, backward: bool) -> Self {
        let (queries, channels) = (padded(call.queries.min(QUERIES)), padded(call.head_dim));
        let (keys, seen) = (call.key_count(), visible.most_keys());
        let only = |count: usize| vec![0.0; if backward { count } else { 0 }];
        Self {
            queries: vec![0.0; queries * call.head_dim],
            query_rows: only(queries * channels),
            upstream: only(queries * call.head_dim),
            upstream_rows: only(queries * channels),
            scores: vec![0.0; queries * seen],
            dscores: only(queries * seen),
            result: vec![0.0; queries * call.head_dim],
            sums: [only(keys * channels), only(keys * channels)],
        }
    }
}

/// The next multiple of a vector's lanes.
pub(super) fn padded(count: usize) -> usize {
    count.next_multiple_of(LANES)
}

/// Copies the rows of a matrix, times `factor`, to rows of `width` values, the rest of which stay as they are.
pub(super) fn copy_rows(tile: &mut [f32], rows: Matrix<'_>, width: usize, factor: f32) {
    for (index, to) in tile.chunks_exact_mut(width).take(rows.rows()).enumerate() {
        to.iter_mut()
            .zip(rows.row(index))
            .for_each(|(to, from)| *to = from * factor);
    }
}

/// Copies the rows of a matrix, times `factor`, to columns of a tile whose rows have `width` values; fills the rest
/// with zeros.
pub(super) fn copy_to_columns(tile: &mut [f32], rows: Matrix<'_>, width: usize, factor: f32) {
    if rows.rows() < width {
        tile.fill(0.0);
    }
    for column in 0..rows.rows() {
        let places = tile[column..].iter_mut().step_by(width);
        places
            .zip(rows.row(column))
            .for_each(|(to, from)| *to = from * factor);
    }
}
