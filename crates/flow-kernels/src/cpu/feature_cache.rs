//! The operations of a feature cache on the processor. What they owe is told at [`FeatureCacheOps`].

use crate::cpu::frequencies::split_frequencies;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::{DeferredSums, FeatureCacheOps, PairSums, RowSource, TensorRow};
use flow_core::{LatentShape, RawTensor};

/// The operations of a feature cache on the processor, one value after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuFeatureCache;

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

impl FeatureCacheOps for CpuFeatureCache {
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&RawTensor>,
        base: Option<&RawTensor>,
        rows: &[RowSource<'_>],
    ) -> RawTensor {
        let (computed, base) = (computed.map(CpuTensor::read), base.map(CpuTensor::read));
        let mut values = vec![0.0f32; shape.iter().product()];
        let each = values.len() / rows.len();
        for (index, (row, out)) in rows.iter().zip(values.chunks_exact_mut(each)).enumerate() {
            match row {
                RowSource::Computed(of) => {
                    let computed = computed.as_ref().expect("a row comes from what was computed");
                    out.copy_from_slice(row_of(computed, *of));
                }
                RowSource::Forecast(terms) => {
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

    fn features(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> Vec<RawTensor> {
        let outputs = CpuTensor::read(outputs);
        let base = base.map(|(base, of)| (CpuTensor::read(base), of));
        let shape = one_row(outputs.shape());
        (0..outputs.shape()[0])
            .map(|row| from_vec(feature(&outputs, base.as_ref(), row).collect(), &shape))
            .collect()
    }

    fn together(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> RawTensor {
        let outputs = CpuTensor::read(outputs);
        let base = base.map(|(base, of)| (CpuTensor::read(base), of));
        let rows = 0..outputs.shape()[0];
        let values = rows.flat_map(|row| feature(&outputs, base.as_ref(), row));
        from_vec(values.collect(), outputs.shape())
    }

    fn changes(&self, pairs: &[(TensorRow<'_>, TensorRow<'_>)]) -> DeferredSums {
        let sum = |((a, row_a), (b, row_b)): &(TensorRow<'_>, TensorRow<'_>)| {
            let (a, b) = (CpuTensor::read(a), CpuTensor::read(b));
            let mut sum = PairSums::default();
            for (a, b) in row_of(&a, *row_a).iter().zip(row_of(&b, *row_b)) {
                sum.change += f64::from((a - b).abs());
                sum.of_a += f64::from(a.abs());
                sum.of_b += f64::from(b.abs());
            }
            sum
        };
        let sums: Vec<PairSums> = pairs.iter().map(sum).collect();
        DeferredSums::deferred(move || sums)
    }

    fn frequencies(
        &self,
        pairs: &[(TensorRow<'_>, TensorRow<'_>)],
        shape: &LatentShape,
    ) -> Vec<[RawTensor; 2]> {
        let parts = |((a, row_a), (b, row_b)): &(TensorRow<'_>, TensorRow<'_>)| {
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
