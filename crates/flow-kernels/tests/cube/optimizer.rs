//! The optimizer's operations and memory that lasts, against the CPU's.

use crate::setting::cube;
use crate::support::{Input, Side, compare, computing, sides, values};
use burn::tensor::{DType, FloatDType};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::tensors::{buffer, cast, row_part, shape};
use flow_core::{AdamWFactors, AdamWParam, AdamWStep, Kernels, MasterWeight, RawTensor, Squares};

#[test]
fn the_optimizers_operations_change_what_they_are_given_and_no_copy_of_it() {
    let of: [Input<'_>; 5] = [
        (&[77], false),
        (&[77], false),
        (&[77], false),
        (&[77], false),
        (&[4], false),
    ];
    compare("adamw, accumulate and average", 16, &of, &|side, inputs| {
        let square = |tensor: &RawTensor| {
            let squares = to_host(tensor).into_iter().map(|x| x * x).collect();
            side.device.plain(squares, &[77])
        };
        let [mut weight, mut first] = [0, 1].map(|at| inputs[at].clone());
        let (mut second, gradient) = (square(&inputs[2]), &inputs[3]);
        let step = AdamWStep {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.1,
            scalars: side.device.plain(vec![1e-2, 0.271, 0.003, 0.5], &[4]),
            rounding: Default::default(),
        };
        side.kernels.ops().optimizer.adamw(
            AdamWParam {
                weight: &mut weight,
                master: MasterWeight::F32,
                gradient,
                first: &mut first,
                second: &mut second,
            },
            &step,
        );
        assert_eq!(
            to_host(&inputs[0]),
            values(0, &[77]),
            "a weight that something else holds"
        );
        let (mut sum, mut mean) = (inputs[1].clone(), inputs[2].clone());
        side.kernels.ops().optimizer.accumulate(&mut sum, gradient);
        side.kernels.ops().optimizer.accumulate(&mut sum, gradient);
        side.kernels
            .ops()
            .optimizer
            .average(&mut mean, gradient, &side.device.plain(vec![0.75], &[1]));
        let squares = side.kernels.ops().optimizer.sums_of_squares(&[gradient])[0] as f32;
        let factors = |max_norm| AdamWFactors {
            learning_rate: 0.01,
            corrections: [0.271, 0.003],
            max_norm,
            units: 3,
        };
        let [clipped, free] = [1.5, 0.0].map(|bound| {
            let values = side.kernels.ops().optimizer.adamw_scalars(
                &[gradient, &inputs[0]],
                &factors(bound),
                &side.device,
            );
            values.scalars
        });
        vec![
            weight,
            first,
            second,
            sum,
            mean,
            side.device.plain(vec![squares], &[1]),
            clipped,
            free,
        ]
    });
}

#[test]
fn a_norm_of_squares_that_were_summed_one_tensor_after_another_has_the_bits_of_one_of_all() {
    for side in sides() {
        // Pieces that are full, one that is not, and tensors of other widths.
        let of = |(draw, count): (u64, usize)| side.device.plain(values(draw, &[count]), &[count]);
        let gradients = [(0, 9_001), (1, 4), (2, 8_192), (3, 333)].map(of);
        let factors = AdamWFactors {
            learning_rate: 0.01,
            corrections: [0.271, 0.003],
            max_norm: 0.5,
            units: 3,
        };
        let ops = side.kernels.ops().optimizer;
        let together = ops.adamw_scalars(&gradients.each_ref(), &factors, &side.device);
        let squares = gradients
            .each_ref()
            .map(|gradient| ops.squares(gradient, shape(gradient)[0]));
        let apart = ops.adamw_scalars_of(&squares, &factors, &side.device);
        let bits = |of: &RawTensor| to_host(of).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&apart.scalars), bits(&together.scalars));
        let totals: Vec<f64> = squares.iter().map(|squares| squares.total()).collect();
        assert_eq!(totals, ops.sums_of_squares(&gradients.each_ref()));
    }
}

#[test]
fn squares_of_pieces_that_are_given_apart_have_the_bits_of_those_of_the_whole_tensor() {
    let pieces = |squares: &Squares| -> Vec<u64> {
        match squares {
            Squares::Host(pieces) => pieces.iter().map(|sum| sum.to_bits()).collect(),
            Squares::Device(pieces) => {
                let pieces = to_host(pieces).into_iter();
                pieces.map(|sum| u64::from(sum.to_bits())).collect()
            }
        }
    };
    for side in sides() {
        let ops = side.kernels.ops().optimizer;
        let piece = ops.squares_piece();
        // Of every number of values that are read at once, though the first pieces alone would allow four.
        for rest in [1, 2, 4, 333] {
            let length = 2 * piece + rest;
            let gradient = side.device.plain(values(0, &[length]), &[length]);
            let wanted = pieces(&ops.squares(&gradient, length));
            assert_eq!(wanted.len(), 3);
            for cut in [piece, 2 * piece] {
                let parts = [0..cut, cut..length].map(|part| ops.squares(&row_part(&gradient, part), length));
                assert_eq!(
                    parts.each_ref().map(pieces).concat(),
                    wanted,
                    "{length} cut at {cut}"
                );
            }
        }
    }
}

#[test]
fn a_step_with_gradients_that_are_not_finite_changes_nothing() {
    for side in sides() {
        let of = |draw| side.device.plain(values(draw, &[333]), &[333]);
        let [mut weight, mut first, mut second] = [0, 1, 2].map(of);
        let before = [&weight, &first, &second].map(to_host);
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut slopes = values(3, &[333]);
            slopes[217] = wrong;
            let gradient = side.device.plain(slopes, &[333]);
            let factors = AdamWFactors {
                learning_rate: 0.01,
                corrections: [0.271, 0.003],
                max_norm: 1.0,
                units: 1,
            };
            let step = AdamWStep {
                betas: (0.9, 0.999),
                epsilon: 1e-8,
                weight_decay: 0.1,
                scalars: side
                    .kernels
                    .ops()
                    .optimizer
                    .adamw_scalars(&[&gradient], &factors, &side.device)
                    .scalars,
                rounding: Default::default(),
            };
            let kernels = &side.kernels;
            kernels.ops().optimizer.adamw(
                AdamWParam {
                    weight: &mut weight,
                    master: MasterWeight::F32,
                    gradient: &gradient,
                    first: &mut first,
                    second: &mut second,
                },
                &step,
            );
            assert_eq!([&weight, &first, &second].map(to_host), before, "{wrong}");
        }
    }
}

#[test]
fn what_is_taken_of_the_device_holds_what_was_made_there_and_nothing_is_said_of_a_processor() {
    let (device, _) = cube();
    let values = 3 << 20;
    let made = device.plain(vec![1.0; values], &[values]);
    let taken = device.taken_bytes().expect("the runtime has pools");
    assert!(
        taken >= 4 * values as u64,
        "{taken} bytes for {values} values of f32"
    );
    // Where the driver tells processes apart, it counts the pools and more.
    if let Some(counted) = device.driver_bytes() {
        assert!(
            counted >= taken,
            "the driver counts {counted} bytes, the pools {taken}"
        );
    }
    drop(made);
    assert_eq!(ComputeDevice::cpu().taken_bytes(), None);
    assert_eq!(ComputeDevice::cpu().driver_bytes(), None);
}

#[test]
fn what_lasts_stands_apart_from_the_pools_that_steps_use() {
    let (device, _) = cube();
    let values = 1 << 18;
    let plain = || device.plain(vec![1.0; values], &[values]);
    let before = device.bytes_persistent();
    let weights = device.with_persistent_allocation(plain);
    let passing = plain();
    let with_persistent_allocation = device.bytes_persistent() - before;
    assert_eq!(with_persistent_allocation, 4 * values as u64);
    assert_eq!(to_host(&weights), to_host(&passing));
    drop(weights);
    assert_eq!(device.bytes_persistent(), before);
    assert_eq!(ComputeDevice::cpu().with_persistent_allocation(|| 3), 3);
}

#[test]
fn a_copy_that_is_written_again_stays_where_recordings_read_it() {
    for Side { device, kernels } in computing() {
        let first = device.plain(values(1, &[7, 30]), &[7, 30]);
        let second = device.plain(values(2, &[7, 30]), &[7, 30]);
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            // A copy of its own, in a type that the device has.
            if dtype == FloatDType::BF16 && kernels.activations() != DType::BF16 {
                continue;
            }
            let mut copy = device.zeros(&[7, 30]);
            copy = cast(&copy, dtype);
            let place = buffer(&copy).identity;
            for of in [&first, &second] {
                kernels.ops().weights.copy_all(vec![(&mut copy, of)]);
                assert_eq!(buffer(&copy).identity, place, "{dtype:?}: it moved");
                assert_eq!(to_host(&copy), to_host(&cast(of, dtype)), "{dtype:?}");
            }
            // Who holds what was there keeps it.
            let kept = copy.clone();
            kernels.ops().weights.copy_all(vec![(&mut copy, &first)]);
            assert_eq!(to_host(&kept), to_host(&cast(&second, dtype)), "{dtype:?}");
            assert_eq!(to_host(&copy), to_host(&cast(&first, dtype)), "{dtype:?}");
        }
    }
}

#[test]
fn many_weights_and_averages_at_once_have_the_bits_of_each_alone() {
    let (device, kernels) = cube();
    let shapes: Vec<[usize; 2]> = (0..37).map(|index| [1 + index % 5, 1 + 7 * index]).collect();
    let plain = |draw: u64, shape: &[usize; 2]| device.plain(values(draw, shape), shape);
    let fresh = || -> Vec<[RawTensor; 4]> {
        let sets = shapes.iter().enumerate();
        sets.map(|(index, shape)| {
            let zeros = || device.plain(vec![0.0; shape[0] * shape[1]], shape);
            [plain(index as u64, shape), zeros(), zeros(), plain(50, shape)]
        })
        .collect()
    };
    let gradients: Vec<RawTensor> = (0..)
        .zip(&shapes)
        .map(|(index, shape)| plain(100 + index, shape))
        .collect();
    let step = AdamWStep {
        betas: (0.9, 0.99),
        epsilon: 1e-8,
        weight_decay: 0.1,
        scalars: device.plain(vec![0.05, 0.1, 0.01, 0.5], &[4]),
        rounding: Default::default(),
    };
    let decay = device.plain(vec![0.75], &[1]);
    let mut alone = fresh();
    for ([weight, first, second, average], gradient) in alone.iter_mut().zip(&gradients) {
        kernels.ops().optimizer.adamw(
            AdamWParam {
                weight,
                master: MasterWeight::F32,
                gradient,
                first,
                second,
            },
            &step,
        );
        kernels.ops().optimizer.average(average, weight, &decay);
    }
    let mut together = fresh();
    let (mut updated, mut averages) = (Vec::new(), Vec::new());
    for ([weight, first, second, average], gradient) in together.iter_mut().zip(&gradients) {
        updated.push(AdamWParam {
            weight,
            master: MasterWeight::F32,
            gradient,
            first,
            second,
        });
        averages.push(average);
    }
    kernels.ops().optimizer.adamw_all(updated, &step);
    let weights: Vec<RawTensor> = alone.iter().map(|[weight, ..]| weight.clone()).collect();
    kernels
        .ops()
        .optimizer
        .average_all(averages.into_iter().zip(&weights).collect(), &decay);
    for (index, (together, alone)) in together.iter().zip(&alone).enumerate() {
        for (together, alone) in together.iter().zip(alone) {
            let bits =
                |tensor: &RawTensor| -> Vec<u32> { to_host(tensor).into_iter().map(f32::to_bits).collect() };
            assert_eq!(bits(together), bits(alone), "weight {index}");
        }
    }
}
