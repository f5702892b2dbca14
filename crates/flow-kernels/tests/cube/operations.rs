//! Every operation, results and gradients, against the CPU's.

use crate::support::{Input, Keep, Side, compare, computing, inputs, layer, run, sides};
use burn::backend::DispatchTensor;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::ops::{
    Compute, FeedForwardWeights, GatedResidual, LinearWeights, ModulatedNorm, NormChunks, RotaryTables,
    SdeStep,
};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_core::{Activation, Noise, RawTensor};
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
            low_precision: None,
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
                    &[inner],
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
