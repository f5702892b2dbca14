//! Operations of a feature cache, each of which is one kernel: putting answers together, keeping features, comparing.
//!
//! A cache holds what it keeps by lane, as rows of tensors: of one `[B, …]` as long as all lanes of a call are kept at the same
//! steps, else of `[1, …]`, one per lane, wherever they lie in memory. So every operation here takes lists of rows. The rows
//! that must be computed are gathered by [`select_rows`](crate::tensors::select_rows).
//!
//! What a device must implement, and the bits it owes:
//!
//! - [`LaneKernels::assemble`]: one pass over the output. Each row is copied, or summed in f32 from its base and up to five
//!   features times their weights: from the base on, in the order of the terms, and rounded once, when it is stored. Either
//!   all products are rounded before they are added, as [`HostLanes`] does, or all are added with a fused multiply-add; so
//!   the bits of a row do not depend on the batch.
//! - [`LaneKernels::features`]: rows copied, or subtracted from, into tensors of their own; [`LaneKernels::together`]: into one.
//! - [`LaneKernels::changes`]: three sums per pair of rows, in a fixed order that depends on the number of values alone. The
//!   result stays on the device until [`LaneSums::read`]; that read is the only synchronisation of a decision, and policies
//!   that decide by a plan never ask for it. Sums must be f64, or f32 with an error below 2^-18 of the sum, for instance by
//!   adding sums of pieces; bits may differ from the host's, since decisions compare with thresholds, not with each other.
//! - [`LaneKernels::frequencies`]: a difference and its low-pass filter, in f32.
//!
//! Tensors are of the type that the model passes from operation to operation, or f32; what is kept has the type of what it
//! was taken from.

use super::frequencies::split_frequencies;
use crate::cpu::{CpuTensor, from_vec};
use crate::model::LatentShape;
use crate::tensors::Plain;
use std::fmt::{self, Debug};

/// Where a row of [`LaneKernels::assemble`] comes from.
#[derive(Clone, Debug)]
pub enum LaneRow<'a> {
    /// The row of this number of what was computed.
    Computed(usize),
    /// The row of the base with the number of this row, if there is a base, plus the features, each times its weight.
    Forecast(Vec<(f32, RowOf<'a>)>),
}

/// A row of a tensor whose first axis is the batch.
pub type RowOf<'a> = (&'a Plain, usize);

/// Sums of absolute values, per pair of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneSum {
    /// `Σ |a - b|`.
    pub change: f64,
    /// `Σ |a|`.
    pub of_a: f64,
    /// `Σ |b|`.
    pub of_b: f64,
}

/// Sums that may still be under way on a device.
pub struct LaneSums(Box<dyn FnOnce() -> Vec<LaneSum> + Send>);

impl LaneSums {
    /// Sums that `read` fetches when they are asked for.
    pub fn deferred(read: impl FnOnce() -> Vec<LaneSum> + Send + 'static) -> Self {
        Self(Box::new(read))
    }

    /// The sums on the host, in the order of the pairs.
    pub fn read(self) -> Vec<LaneSum> {
        (self.0)()
    }
}

impl Debug for LaneSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LaneSums")
    }
}

/// The operations. Tensors are plain and of the device that the kernels are for, on the processor f32; shapes are checked
/// by the caller.
pub trait LaneKernels: Debug + Send + Sync {
    /// A tensor of `shape`, `[rows.len(), …]`, each row from where `rows` says. `computed` and `base` have the axes of
    /// `shape` but for the first; `base` has as many rows as `rows`.
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&Plain>,
        base: Option<&Plain>,
        rows: &[LaneRow<'_>],
    ) -> Plain;

    /// The rows of `outputs [B, …]` as tensors `[1, …]` of their own. With a base, row `i` less row `of[i]` of the base.
    fn features(&self, outputs: &Plain, base: Option<(&Plain, &[usize])>) -> Vec<Plain>;

    /// As [`features`](Self::features), with the rows in one tensor `[B, …]`, which shares nothing with `outputs`.
    fn together(&self, outputs: &Plain, base: Option<(&Plain, &[usize])>) -> Plain;

    /// The sums of each pair of rows `a` and `b`.
    fn changes(&self, pairs: &[(RowOf<'_>, RowOf<'_>)]) -> LaneSums;

    /// Of each pair of rows, which are latents of `shape`, the low and the high frequencies of `a - b`: two tensors of the
    /// shape of the rows, `[1, …]`, that add up to it. See [`split_frequencies`].
    fn frequencies(&self, pairs: &[(RowOf<'_>, RowOf<'_>)], shape: &LatentShape) -> Vec<[Plain; 2]>;
}

/// The operations on the processor, one value after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostLanes;

/// The values of row `row` of `tensor`, which has `tensor.shape()[0]` of them.
fn row_of(tensor: &CpuTensor, row: usize) -> &[f32] {
    let each = tensor.values().len() / tensor.shape()[0];
    &tensor.values()[row * each..(row + 1) * each]
}

/// `shape` with a batch of one.
fn one_row(shape: &[usize]) -> Vec<usize> {
    std::iter::once(1).chain(shape[1..].iter().copied()).collect()
}

/// A row of `outputs`, less that row of the base that belongs to it.
fn feature<'a>(
    outputs: &'a CpuTensor,
    base: Option<&'a (CpuTensor, &[usize])>,
    row: usize,
) -> impl Iterator<Item = f32> + 'a {
    let base = base.map(|(base, of)| row_of(base, of[row]));
    let values = row_of(outputs, row).iter().enumerate();
    values.map(move |(at, value)| base.map_or(*value, |base| value - base[at]))
}

impl LaneKernels for HostLanes {
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&Plain>,
        base: Option<&Plain>,
        rows: &[LaneRow<'_>],
    ) -> Plain {
        let (computed, base) = (computed.map(CpuTensor::read), base.map(CpuTensor::read));
        let mut values = vec![0.0f32; shape.iter().product()];
        let each = values.len() / rows.len();
        for (index, (row, out)) in rows.iter().zip(values.chunks_exact_mut(each)).enumerate() {
            match row {
                LaneRow::Computed(of) => {
                    let computed = computed.as_ref().expect("a row comes from what was computed");
                    out.copy_from_slice(row_of(computed, *of));
                }
                LaneRow::Forecast(terms) => {
                    let features: Vec<CpuTensor> = terms
                        .iter()
                        .map(|(_, (feature, _))| CpuTensor::read(feature))
                        .collect();
                    let terms: Vec<(f32, &[f32])> = (terms.iter().zip(&features))
                        .map(|((weight, (_, row)), feature)| (*weight, row_of(feature, *row)))
                        .collect();
                    combine(base.as_ref().map(|base| row_of(base, index)), &terms, out);
                }
            }
        }
        from_vec(values, shape)
    }

    fn features(&self, outputs: &Plain, base: Option<(&Plain, &[usize])>) -> Vec<Plain> {
        let outputs = CpuTensor::read(outputs);
        let base = base.map(|(base, of)| (CpuTensor::read(base), of));
        let shape = one_row(outputs.shape());
        (0..outputs.shape()[0])
            .map(|row| from_vec(feature(&outputs, base.as_ref(), row).collect(), &shape))
            .collect()
    }

    fn together(&self, outputs: &Plain, base: Option<(&Plain, &[usize])>) -> Plain {
        let outputs = CpuTensor::read(outputs);
        let base = base.map(|(base, of)| (CpuTensor::read(base), of));
        let rows = 0..outputs.shape()[0];
        let values = rows.flat_map(|row| feature(&outputs, base.as_ref(), row));
        from_vec(values.collect(), outputs.shape())
    }

    fn changes(&self, pairs: &[(RowOf<'_>, RowOf<'_>)]) -> LaneSums {
        let sum = |((a, row_a), (b, row_b)): &(RowOf<'_>, RowOf<'_>)| {
            let (a, b) = (CpuTensor::read(a), CpuTensor::read(b));
            let mut sum = LaneSum::default();
            for (a, b) in row_of(&a, *row_a).iter().zip(row_of(&b, *row_b)) {
                sum.change += f64::from((a - b).abs());
                sum.of_a += f64::from(a.abs());
                sum.of_b += f64::from(b.abs());
            }
            sum
        };
        let sums: Vec<LaneSum> = pairs.iter().map(sum).collect();
        LaneSums::deferred(move || sums)
    }

    fn frequencies(&self, pairs: &[(RowOf<'_>, RowOf<'_>)], shape: &LatentShape) -> Vec<[Plain; 2]> {
        let parts = |((a, row_a), (b, row_b)): &(RowOf<'_>, RowOf<'_>)| {
            let (a, b) = (CpuTensor::read(a), CpuTensor::read(b));
            let pairs = row_of(&a, *row_a).iter().zip(row_of(&b, *row_b));
            let difference: Vec<f32> = pairs.map(|(a, b)| a - b).collect();
            let (low, high) = split_frequencies(&difference, shape);
            let axes = one_row(a.shape());
            [low, high].map(|part| from_vec(part, &axes))
        };
        pairs.iter().map(parts).collect()
    }
}

/// `out = base + Σ_i weight_i · history_i`, accumulated in f32 in this order, in one pass over memory. Without a base
/// the sum starts at its first term.
///
/// # Panics
/// If lengths differ, or there is neither base nor term.
pub fn combine(base: Option<&[f32]>, terms: &[(f32, &[f32])], out: &mut [f32]) {
    /// Values of a piece that stays in the processor's nearest cache while the terms are added.
    const PIECE: usize = 1024;
    assert!(base.is_some() || !terms.is_empty(), "something to combine");
    for (_, values) in terms {
        assert_eq!(values.len(), out.len(), "values of a term");
    }
    for start in (0..out.len()).step_by(PIECE) {
        let range = start..(start + PIECE).min(out.len());
        let piece = &mut out[range.clone()];
        let mut terms = terms.iter();
        match base {
            Some(base) => piece.copy_from_slice(&base[range.clone()]),
            None => {
                let (weight, first) = terms.next().expect("something to combine");
                let values = piece.iter_mut().zip(&first[range.clone()]);
                values.for_each(|(out, value)| *out = weight * value);
            }
        }
        for (weight, values) in terms {
            let values = piece.iter_mut().zip(&values[range.clone()]);
            values.for_each(|(out, value)| *out += weight * value);
        }
    }
}
