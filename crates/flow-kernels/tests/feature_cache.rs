//! The operations of a feature cache against their definitions.

use flow_core::cpu::{from_vec, to_host};
use flow_core::{FeatureCacheOps, LatentShape, RawTensor, RowSource};
use flow_kernels::{CpuFeatureCache, split_frequencies};

const SHAPE: [usize; 3] = [1, 3, 700];

/// Rows of `3 · 700` values, more than a piece of the fused sum.
fn tensor(rows: usize, salt: f32) -> RawTensor {
    let count = rows * SHAPE[1] * SHAPE[2];
    let values = (0..count).map(|i| (salt + i as f32 * 0.37).sin()).collect();
    from_vec(values, &[rows, SHAPE[1], SHAPE[2]])
}

fn row(tensor: &RawTensor, row: usize) -> Vec<f32> {
    let each = SHAPE[1] * SHAPE[2];
    to_host(tensor)[row * each..(row + 1) * each].to_vec()
}

#[test]
fn rows_are_copied_or_summed_in_f32_from_the_base_on_in_the_order_of_the_terms() {
    let (computed, base) = (tensor(2, 1.0), tensor(4, 2.0));
    let features = [tensor(1, 3.0), tensor(3, 4.0), tensor(2, 5.0)];
    let weights = [1.7f32, -0.9, 0.2];
    let places = || features.iter().zip([0, 2, 1]);
    let terms = |count: usize| weights.into_iter().zip(places()).take(count).collect::<Vec<_>>();
    let rows = [
        RowSource::Computed(1),
        RowSource::Forecast(terms(1)),
        RowSource::Computed(0),
        RowSource::Forecast(terms(3)),
    ];
    let shape = [4, SHAPE[1], SHAPE[2]];
    for with_base in [true, false] {
        let all = CpuFeatureCache.assemble(&shape, Some(&computed), with_base.then_some(&base), &rows);
        assert_eq!(row(&all, 0), row(&computed, 1));
        assert_eq!(row(&all, 2), row(&computed, 0));
        for (at, count) in [(1, 1), (3, 3)] {
            let expected = (0..SHAPE[1] * SHAPE[2]).map(|i| {
                let start = with_base.then(|| row(&base, at)[i]);
                terms(count)
                    .into_iter()
                    .fold(start, |sum, (weight, (feature, of))| {
                        let term = weight * row(feature, of)[i];
                        Some(sum.map_or(term, |sum| sum + term))
                    })
            });
            // The first rows suffice: the definition is slow.
            let expected: Vec<f32> = expected.take(40).flatten().collect();
            assert_eq!(row(&all, at)[..40], expected, "row {at}, base: {with_base}");
        }
    }
}

#[test]
fn features_are_rows_of_their_own_less_the_rows_of_the_base_that_they_belong_to() {
    let (outputs, base) = (tensor(2, 1.0), tensor(3, 2.0));
    let plain = CpuFeatureCache.features(&outputs, None);
    let less = CpuFeatureCache.features(&outputs, Some((&base, &[2, 0])));
    for (at, of) in [(0, 2), (1, 0)] {
        assert_eq!(to_host(&plain[at]), row(&outputs, at));
        let pairs = row(&outputs, at).into_iter().zip(row(&base, of));
        assert_eq!(
            to_host(&less[at]),
            pairs.map(|(a, b)| a - b).collect::<Vec<f32>>()
        );
    }
    let apart = |features: &[RawTensor]| features.iter().flat_map(to_host).collect::<Vec<f32>>();
    assert_eq!(to_host(&CpuFeatureCache.together(&outputs, None)), apart(&plain));
    assert_eq!(
        to_host(&CpuFeatureCache.together(&outputs, Some((&base, &[2, 0])))),
        apart(&less)
    );
}

#[test]
fn changes_are_sums_of_absolute_values_per_pair_of_rows() {
    let (a, b) = (tensor(3, 1.0), tensor(2, 2.0));
    let sums = CpuFeatureCache
        .changes(&[((&a, 2), (&b, 0)), ((&a, 0), (&a, 0))])
        .read();
    let sum = |values: Vec<f32>| {
        values
            .into_iter()
            .map(|value| f64::from(value.abs()))
            .sum::<f64>()
    };
    let difference = row(&a, 2)
        .into_iter()
        .zip(row(&b, 0))
        .map(|(a, b)| a - b)
        .collect();
    assert_eq!((sums[0].change, sums[0].of_a), (sum(difference), sum(row(&a, 2))));
    assert_eq!(sums[0].of_b, sum(row(&b, 0)));
    assert_eq!((sums[1].change, sums[1].of_a), (0.0, sums[1].of_b));
}

#[test]
fn frequencies_are_those_of_the_difference_of_two_rows_and_add_up_to_it() {
    let (a, b) = (tensor(3, 1.0), tensor(2, 2.0));
    let shape = LatentShape {
        channels: 3,
        frames: 1,
        height: 20,
        width: 35,
    };
    let parts = CpuFeatureCache.frequencies(&[((&a, 2), (&b, 1)), ((&b, 0), (&b, 0))], &shape);
    let difference: Vec<f32> = row(&a, 2)
        .into_iter()
        .zip(row(&b, 1))
        .map(|(a, b)| a - b)
        .collect();
    let (low, high) = split_frequencies(&difference, &shape);
    assert_eq!(parts[0].each_ref().map(to_host), [low, high]);
    for (at, [low, high]) in (difference.iter().enumerate())
        .map(|(at, _)| (at, &parts[0]))
        .take(50)
    {
        let sum = to_host(low)[at] + to_host(high)[at];
        assert!((sum - difference[at]).abs() < 1e-5);
    }
    assert!(
        parts[1]
            .iter()
            .all(|part| to_host(part).iter().all(|value| *value == 0.0))
    );
}
