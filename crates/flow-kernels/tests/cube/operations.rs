//! Every operation, results and gradients, against the CPU's.

use crate::setting::cube;
use crate::support::{Input, Keep, Side, compare, computing, inputs, layer, run, sides, values};
use burn::backend::DispatchTensor;
use burn::tensor::{DType, FloatDType};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::ops::{
    Compute, FeedForwardWeights, GatedResidual, LinearWeights, ModulatedNorm, NormChunks, RotaryTables,
    SdeStep,
};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{buffer, cast, plain};
use flow_core::{Activation, AdamWFactors, AdamWParam, AdamWStep, Kernels, MasterWeight, Noise, RawTensor};
use flow_kernels::draw_noise;
use std::sync::Arc;

#[test]
fn linear_layers_with_bias_adapter_and_activation() {
    for activation in [Activation::None, Activation::Silu, Activation::GeluTanh] {
        let of: [Input<'_>; 5] = [
            (&[2, 13, 20], true),
            (&[30, 20], true),
            (&[30], true),
            (&[4, 20], true),
            (&[30, 4], true),
        ];
        compare("linear", 60, &of, &|side, inputs| {
            vec![
                side.kernels
                    .ops()
                    .model
                    .linear(&Compute, &inputs[0], &layer(inputs, 1), activation),
            ]
        });
    }
    let frozen: [Input<'_>; 2] = [(&[7, 20], true), (&[30, 20], false)];
    compare("linear without bias, frozen", 30, &frozen, &|side, inputs| {
        let weights = LinearWeights {
            weight: inputs[1].clone(),
            bias: None,
            adapter: None,
        };
        vec![
            side.kernels
                .ops()
                .model
                .linear(&Compute, &inputs[0], &weights, Activation::None),
        ]
    });
}

#[test]
fn norms_gates_and_activations() {
    let of: [Input<'_>; 2] = [(&[3, 13, 72], true), (&[3, 6, 72], true)];
    compare("modulated_layer_norm", 72, &of, &|side, inputs| {
        vec![side.kernels.ops().model.modulated_layer_norm(ModulatedNorm {
            x: &inputs[0],
            modulation: &inputs[1],
            chunks: NormChunks {
                shift: 3,
                scale: 4,
                epsilon: 1e-6,
            },
        })]
    });
    let of: [Input<'_>; 3] = [(&[3, 13, 72], true), (&[72], true), (&[72], true)];
    compare("layer_norm", 72, &of, &|side, inputs| {
        let [x, weight, bias] = inputs else {
            panic!("three inputs")
        };
        vec![side.kernels.ops().model.layer_norm(x, weight, bias, 1e-6)]
    });
    let of: [Input<'_>; 3] = [(&[3, 13, 72], true), (&[3, 13, 72], true), (&[3, 6, 72], true)];
    compare("gated_residual", 13, &of, &|side, inputs| {
        vec![side.kernels.ops().model.gated_residual(
            GatedResidual {
                residual: &inputs[0],
                modulation: &inputs[2],
                gate: 5,
            },
            &inputs[1],
        )]
    });
    let of: [Input<'_>; 2] = [(&[2, 5, 3, 24], true), (&[24], true)];
    compare("rms_norm", 30, &of, &|side, inputs| {
        let weight = Some(&inputs[1]);
        vec![
            side.kernels.ops().model.rms_norm(&inputs[0], weight, 1e-6),
            side.kernels.ops().model.rms_norm(&inputs[0], None, 1e-6),
        ]
    });
    for activation in [Activation::None, Activation::Silu, Activation::GeluTanh] {
        compare("activation", 16, &[(&[5, 7], true)], &|side, inputs| {
            vec![side.kernels.ops().model.activation(&inputs[0], activation)]
        });
    }
}

#[test]
fn rotary_and_token_embeddings() {
    let of: [Input<'_>; 3] = [(&[2, 5, 3, 24], true), (&[5, 12], false), (&[5, 12], false)];
    compare("rotary", 2, &of, &|side, inputs| {
        vec![side.kernels.ops().model.rotary(
            &inputs[0],
            RotaryTables {
                cos: &plain(&inputs[1]),
                sin: &plain(&inputs[2]),
            },
        )]
    });
    compare("embedding", 6, &[(&[5, 24], true)], &|side, inputs| {
        let index = side.device.int_tensor(vec![4, 0, 4, 2, 4, 1], [2, 3]);
        vec![
            side.kernels
                .ops()
                .model
                .embedding(&inputs[0], &index.into_dispatch()),
        ]
    });
}

#[test]
fn rms_norm_and_rotary_in_one_pass_are_the_two() {
    // Head by head, and all heads of a token at once.
    let shapes: [(&[usize], &[usize]); 2] = [(&[2, 5, 3, 24], &[24]), (&[2, 5, 72], &[72])];
    for (x, weight) in shapes {
        let of: [Input<'_>; 4] = [(x, true), (weight, true), (&[5, 12], false), (&[5, 12], false)];
        compare("rms_norm and rotary", 60, &of, &|side, inputs| {
            let fused = side.kernels.fused(Arc::new(|| {})).expect("not fused yet");
            let [cos, sin] = [2, 3].map(|at| plain(&inputs[at]));
            vec![fused.ops().fused_or_composed(|ops| {
                ops.rms_norm_rotary(
                    &inputs[0],
                    Some(&inputs[1]),
                    1e-6,
                    RotaryTables { cos: &cos, sin: &sin },
                )
            })]
        });
    }
}

#[test]
fn views_with_gaps_and_odd_beginnings_are_read_as_they_are() {
    use burn::tensor::Tensor;
    let of: [Input<'_>; 2] = [(&[3, 13, 75], false), (&[3, 6, 72], false)];
    compare("modulated_layer_norm of a slice", 72, &of, &|side, inputs| {
        let x: Tensor<3> = Tensor::from_dispatch(inputs[0].clone());
        let x = x.slice([0..3, 0..13, 3..75]).into_dispatch();
        vec![side.kernels.ops().model.modulated_layer_norm(ModulatedNorm {
            x: &x,
            modulation: &inputs[1],
            chunks: NormChunks {
                shift: 0,
                scale: 1,
                epsilon: 1e-6,
            },
        })]
    });
    compare(
        "activation of a row from its middle on",
        16,
        &[(&[1, 77], false)],
        &|side, inputs| {
            let x: Tensor<2> = Tensor::from_dispatch(inputs[0].clone());
            let x = x.slice([0..1, 5..69]).into_dispatch();
            vec![side.kernels.ops().model.activation(&x, Activation::Silu)]
        },
    );
}

#[test]
fn operations_made_of_others() {
    let of: [Input<'_>; 12] = [
        (&[2, 7, 24], true),
        (&[2, 6, 24], true),
        (&[40, 24], true),
        (&[40], true),
        (&[4, 24], true),
        (&[40, 4], true),
        (&[24, 40], true),
        (&[24], true),
        (&[4, 40], true),
        (&[24, 4], true),
        (&[2, 7, 24], true),
        (&[2, 7, 40], true),
    ];
    let norm = NormChunks {
        shift: 3,
        scale: 4,
        epsilon: 1e-6,
    };
    compare("feed-forward and its parts", 400, &of, &|side, inputs| {
        let weights = FeedForwardWeights {
            up: layer(inputs, 2),
            activation: Activation::GeluTanh,
            down: layer(inputs, 6),
        };
        let (x, modulation) = (&inputs[0], &inputs[1]);
        let (residual, inner) = (&inputs[10], &inputs[11]);
        let silu = Activation::Silu;
        let kernels = &side.kernels;
        vec![
            kernels.ops().fused_or_composed(|ops| {
                ops.modulated_feed_forward(
                    &Compute,
                    ModulatedNorm {
                        x,
                        modulation,
                        chunks: norm,
                    },
                    &weights,
                    5,
                )
            }),
            kernels.ops().fused_or_composed(|ops| {
                ops.modulated_linear(
                    &Compute,
                    ModulatedNorm {
                        x,
                        modulation,
                        chunks: norm,
                    },
                    &weights.up,
                    silu,
                )
            }),
            kernels.ops().fused_or_composed(|ops| {
                ops.linear_gated_residual(
                    &Compute,
                    GatedResidual {
                        residual,
                        modulation,
                        gate: 2,
                    },
                    inner,
                    &weights.down,
                )
            }),
        ]
    });
}

#[test]
fn noise_has_the_bits_of_the_host_and_a_step_may_draw_it_itself() {
    let bits = |values: &RawTensor| to_host(values).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (values, batch) in [(333, 3), (4096, 2), (30_002, 5)] {
        let samples: Vec<u64> = (0..batch).map(|row| (row << 33) + 7 * row).collect();
        let noise = Noise {
            stream: Stream::new(u64::MAX / 5, Purpose::SdeNoise),
            samples: &samples,
            step: 3,
            values,
        };
        let host = draw_noise(&noise, &ComputeDevice::cpu());
        for Side { device, kernels } in computing() {
            let drawn = kernels.ops().sampler.noise(&noise, &device);
            assert_eq!(bits(&drawn), bits(&host), "noise of {batch} x {values}");
            let of: [Input<'_>; 3] = [
                (&[samples.len(), values], false),
                (&[samples.len(), values], false),
                (&[samples.len(), 5], false),
            ];
            let side = Side { device, kernels };
            let [x, v, coefficients]: [_; 3] = inputs(&side, &of).try_into().expect("three");
            let Side { device, kernels } = side;
            let given = kernels.ops().sampler.sde_step(
                SdeStep {
                    x: &x,
                    v: &v,
                    coefficients: &coefficients,
                },
                &drawn,
            );
            let by_itself = kernels.ops().sampler.sde_step_drawn(
                SdeStep {
                    x: &x,
                    v: &v,
                    coefficients: &coefficients,
                },
                &noise,
                &device,
            );
            for (given, by_itself) in [
                (&given.x_next, &by_itself.x_next),
                (&given.mean, &by_itself.mean),
                (&given.log_prob, &by_itself.log_prob),
            ] {
                assert_eq!(bits(given), bits(by_itself), "a step of {batch} x {values}");
            }
        }
    }
}

#[test]
fn steps_log_probabilities_and_distances() {
    let of: [Input<'_>; 4] = [
        (&[3, 333], false),
        (&[3, 333], false),
        (&[3, 333], false),
        (&[3, 5], false),
    ];
    compare("sde_step", 400, &of, &|side, inputs| {
        let step = side.kernels.ops().sampler.sde_step(
            SdeStep {
                x: &inputs[0],
                v: &inputs[1],
                coefficients: &inputs[3],
            },
            &inputs[2],
        );
        vec![step.x_next, step.mean, step.log_prob]
    });
    let of: [Input<'_>; 4] = [
        (&[3, 333], false),
        (&[3, 333], true),
        (&[3, 333], false),
        (&[3, 5], false),
    ];
    compare("sde_log_prob", 400, &of, &|side, inputs| {
        let (log_prob, mean) = side.kernels.ops().loss.sde_log_prob(
            SdeStep {
                x: &inputs[0],
                v: &inputs[1],
                coefficients: &inputs[3],
            },
            &inputs[2],
        );
        vec![log_prob, mean]
    });
    let of: [Input<'_>; 2] = [(&[3, 333], true), (&[3, 333], false)];
    compare("mean_squared_distance", 333, &of, &|side, inputs| {
        vec![
            side.kernels
                .ops()
                .loss
                .mean_squared_distance(&inputs[0], &inputs[1]),
        ]
    });
}

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
fn a_kept_result_of_a_linear_layer_gives_the_same_output_and_gradients() {
    let [_, cube] = sides();
    let of: [Input<'_>; 5] = [
        (&[2, 13, 20], true),
        (&[30, 20], true),
        (&[30], true),
        (&[4, 20], true),
        (&[30, 4], true),
    ];
    let keep = Keep::default();
    let through_keep = |side: &Side, inputs: &[DispatchTensor]| {
        keep.again();
        let activation = Activation::GeluTanh;
        vec![
            side.kernels
                .ops()
                .model
                .linear(&keep, &inputs[0], &layer(inputs, 1), activation),
        ]
    };
    let first = run(&cube, &of, &through_keep);
    assert_eq!(first, run(&cube, &of, &through_keep));
    let computed = run(&cube, &of, &|side, inputs| {
        let activation = Activation::GeluTanh;
        vec![
            side.kernels
                .ops()
                .model
                .linear(&Compute, &inputs[0], &layer(inputs, 1), activation),
        ]
    });
    assert_eq!(first, computed);
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
