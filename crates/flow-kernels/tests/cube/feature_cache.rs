//! A feature cache on a CubeCL device: its operations are the processor's, and so are the decisions and results of whole
//! rollouts under each kind of driver. With feature `lavapipe` the device is Vulkan's, where Mesa's driver for the processor
//! will do; with feature `cuda` an NVIDIA GPU.
//!
//! The kernels themselves are held against f64 in `flow-kernels-cube`; this is about what Burn's tensors pass through.

use burn::tensor::Tensor;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::model::LatentShape;
use flow_core::ops::{RowSource, TensorRow};
use flow_core::rng::{Purpose, Stream};
use flow_core::{FeatureCacheOps, Kernels, RawTensor};
use flow_kernels::{CpuFeatureCache, CubeKernels};

pub(crate) fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(17, Purpose::Test)
        .at(salt, 0)
        .fill_normal(&mut values);
    values
}

pub(crate) fn cube() -> (ComputeDevice, CubeKernels) {
    #[cfg(feature = "lavapipe")]
    let (device, kernels) = (ComputeDevice::vulkan(), CubeKernels::vulkan());
    #[cfg(not(feature = "lavapipe"))]
    let (device, kernels) = (ComputeDevice::cuda(0), CubeKernels::cuda());
    (device.unwrap_or_else(|error| panic!("{error:?}")), kernels)
}

/// How the rows of a tensor lie in memory.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Dense,
    /// Between other rows: no gaps, but an odd beginning.
    Among,
    /// Within longer rows.
    Gaps,
}

/// `[rows, values]` of noise.
fn matrix(device: &ComputeDevice, salt: u64, [rows, values]: [usize; 2], layout: Layout) -> RawTensor {
    let dense = noise(rows * values, salt);
    let (all, ranges) = match layout {
        Layout::Dense => return device.plain(dense, &[rows, values]),
        Layout::Among => {
            let all = [noise(values, 900), dense, noise(values, 901)].concat();
            ((all, [rows + 2, values]), [1..rows + 1, 0..values])
        }
        Layout::Gaps => {
            let padded = dense
                .chunks(values)
                .flat_map(|row| [&[9.0; 3][..], row, &[8.0; 2][..]].concat());
            ((padded.collect(), [rows, values + 5]), [0..rows, 3..values + 3])
        }
    };
    let tensor: Tensor<2> = device.tensor(all.0, all.1);
    tensor.slice(ranges).into_dispatch()
}

/// Each value is within the rounding of a few numbers of the size of the largest.
fn close(about: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{about}");
    let largest = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= 2f32.powi(-21) * largest,
            "{about}, value {at}: {found}, on the processor {expected}"
        );
    }
}

const SIZES: [usize; 5] = [1, 7, 333, 4096, 9001];
const LAYOUTS: [Layout; 3] = [Layout::Dense, Layout::Among, Layout::Gaps];

#[test]
fn rows_are_put_together_as_on_the_processor() {
    let (device, kernels) = cube();
    let assembled = |device: &ComputeDevice,
                     trajectories: &dyn FeatureCacheOps,
                     values: usize,
                     layout: Layout,
                     based: bool| {
        let computed = matrix(device, 1, [3, values], layout);
        let base = matrix(device, 2, [6, values], layout);
        let features = [3, 4, 5].map(|salt| matrix(device, salt, [1, values], layout));
        let terms = |count: usize| {
            let weights = [1.7f32, -0.9, 0.2];
            let places = features.iter().map(|feature| (feature, 0));
            RowSource::Forecast(weights.into_iter().zip(places).take(count).collect())
        };
        let rows = [
            terms(1),
            RowSource::Computed(0),
            RowSource::Computed(1),
            terms(3),
            RowSource::Computed(2),
            terms(2),
        ];
        let shape = [6, values];
        to_host(&trajectories.assemble(&shape, Some(&computed), based.then_some(&base), &rows))
    };
    for values in SIZES {
        for layout in LAYOUTS {
            for based in [true, false] {
                let about = format!("{values} values, {layout:?}, base: {based}");
                let found = assembled(&device, kernels.ops().feature_cache, values, layout, based);
                let expected = assembled(&ComputeDevice::cpu(), &CpuFeatureCache, values, layout, based);
                close(&about, &found, &expected);
                let copied = [values..3 * values, 4 * values..5 * values];
                for copied in copied {
                    assert_eq!(found[copied.clone()], expected[copied], "{about}: copied rows");
                }
            }
        }
    }
}

/// Forecasts of so many terms with these weights, of a row of each tensor.
fn forecasts<'a>(
    plan: [([f32; 2], usize, usize); 6],
    place: impl Fn(usize, usize) -> TensorRow<'a>,
) -> [RowSource<'a>; 6] {
    plan.map(|(weights, row, count)| {
        let terms = (0..count).map(|at| (weights[at], place(at, row)));
        RowSource::Forecast(terms.collect())
    })
}

/// Rows that follow one another in the same tensors, with the same weights, are computed at once; others are not.
#[test]
fn rows_of_shared_tensors_have_the_bits_of_rows_of_their_own() {
    let (device, kernels) = cube();
    let trajectories = kernels.ops().feature_cache;
    for values in SIZES {
        let shared = [3, 4].map(|salt| matrix(&device, salt, [6, values], Layout::Dense));
        let alone = shared
            .each_ref()
            .map(|tensor| trajectories.features(tensor, None));
        let base = matrix(&device, 2, [6, values], Layout::Dense);
        // A run, a run with other weights, a row out of order, a row of one term.
        let plan: [([f32; 2], usize, usize); 6] = [
            ([1.7, -0.7], 1, 2),
            ([1.7, -0.7], 2, 2),
            ([1.5, -0.5], 3, 2),
            ([1.5, -0.5], 4, 2),
            ([1.5, -0.5], 0, 2),
            ([1.5, -0.5], 1, 1),
        ];
        for base in [None, Some(&base)] {
            let of =
                |rows: [RowSource<'_>; 6]| to_host(&trajectories.assemble(&[6, values], None, base, &rows));
            let found = of(forecasts(plan, |at, row| (&shared[at], row)));
            let expected = of(forecasts(plan, |at, row| (&alone[at][row], 0)));
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                bits(&found),
                bits(&expected),
                "{values} values, base: {}",
                base.is_some()
            );
        }
    }
}

#[test]
fn features_are_copies_or_differences_in_memory_of_their_own() {
    let (device, kernels) = cube();
    for values in SIZES {
        for layout in LAYOUTS {
            for based in [true, false] {
                let features =
                    |device: &ComputeDevice, trajectories: &dyn FeatureCacheOps| -> Vec<Vec<f32>> {
                        let outputs = matrix(device, 1, [2, values], layout);
                        let base = matrix(device, 2, [3, values], layout);
                        let base = based.then_some((&base, &[2, 0][..]));
                        let mut features = trajectories.features(&outputs, base);
                        features.push(trajectories.together(&outputs, base));
                        drop(outputs);
                        features.iter().map(to_host).collect()
                    };
                let expected = features(&ComputeDevice::cpu(), &CpuFeatureCache);
                let found = features(&device, kernels.ops().feature_cache);
                assert_eq!(found, expected, "{values} values, {layout:?}, base: {based}");
                assert_eq!(
                    found[..2].concat(),
                    found[2],
                    "{values} values, {layout:?}: in one tensor"
                );
            }
        }
    }
}

#[test]
fn changes_are_the_same_sums_whatever_else_is_asked_for() {
    let (device, kernels) = cube();
    for layout in LAYOUTS {
        let sums = |device: &ComputeDevice, trajectories: &dyn FeatureCacheOps, sizes: &[usize]| {
            let pair = |values: &usize| [1, 2].map(|salt| matrix(device, salt, [3, *values], layout));
            let tensors: Vec<[RawTensor; 2]> = sizes.iter().map(pair).collect();
            let pairs: Vec<_> = tensors
                .iter()
                .flat_map(|[a, b]| [((a, 2), (b, 0)), ((a, 1), (a, 1))])
                .collect();
            trajectories.changes(&pairs).read()
        };
        let expected = sums(&ComputeDevice::cpu(), &CpuFeatureCache, &SIZES);
        let found = sums(&device, kernels.ops().feature_cache, &SIZES);
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (found, expected) in [
                (found.change, expected.change),
                (found.of_a, expected.of_a),
                (found.of_b, expected.of_b),
            ] {
                let about = format!("{layout:?}, pair {at}: {found}, on the processor {expected}");
                assert!((found - expected).abs() <= 2f64.powi(-18) * expected, "{about}");
            }
        }
        for (at, values) in SIZES.into_iter().enumerate() {
            let alone = sums(&device, kernels.ops().feature_cache, &[values]);
            assert_eq!(alone, found[2 * at..][..2], "{layout:?}, {values} values alone");
        }
        assert!(kernels.ops().feature_cache.changes(&[]).read().is_empty());
    }
}

#[test]
fn frequencies_are_those_of_the_processor_and_add_up() {
    let (device, kernels) = cube();
    for (channels, height, width) in [(1, 1, 1), (2, 4, 4), (3, 6, 15), (2, 33, 20)] {
        let shape = LatentShape {
            channels,
            frames: 2,
            height,
            width,
        };
        let parts = |device: &ComputeDevice, trajectories: &dyn FeatureCacheOps| {
            let [a, b] = [1, 2].map(|salt| matrix(device, salt, [3, shape.values()], Layout::Gaps));
            let parts = trajectories.frequencies(&[((&a, 2), (&b, 0)), ((&a, 0), (&a, 1))], &shape);
            let parts = parts.into_iter().flatten();
            parts.map(|part| to_host(&part)).collect::<Vec<_>>()
        };
        let expected = parts(&ComputeDevice::cpu(), &CpuFeatureCache);
        let found = parts(&device, kernels.ops().feature_cache);
        assert_eq!(found.len(), 4);
        for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
            close(&format!("{shape:?}, part {part}"), found, expected);
        }
    }
}
