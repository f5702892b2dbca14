//! In bf16, which Vulkan's shaders have not: on an NVIDIA GPU.

use crate::support::{Input, Operation, Side, layer, run, sides, values};
use burn::backend::DispatchTensor;
use burn::tensor::{FloatDType, Tensor};
use flow_core::cpu::to_host;
use flow_core::ops::{Compute, GatedResidual, LinearWeights, ModulatedNorm, NormChunks};
use flow_core::tensors::cast;
use flow_core::{Activation, AdamWParam, AdamWStep, Kernels, MasterWeight};
use flow_kernels::CubeKernels;
use std::sync::Arc;

/// A matrix times a power of two, which rounds nothing.
fn scaled(matrix: &DispatchTensor, factor: f32) -> DispatchTensor {
    Tensor::<2>::from_dispatch(matrix.clone())
        .mul_scalar(factor)
        .into_dispatch()
}

/// In bf16, results and gradients are as far from the f32 ones as a few roundings of operands and results explain, in the
/// Euclidean norm.
pub(crate) fn compare_bf16(name: &str, of: &[Input<'_>], operation: Operation<'_>) {
    let [cpu, cube] = sides();
    let cube = Side {
        kernels: Arc::new(CubeKernels::cuda_bf16()),
        ..cube
    };
    let (expected, found) = (run(&cpu, of, operation), run(&cube, of, operation));
    let length = |values: &[f32]| values.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let differences: Vec<f32> = expected.iter().zip(found).map(|(a, b)| a - b).collect();
        let distance = length(&differences) / length(expected);
        // Each rounding is at most 2^-9 of a value, and less on average.
        assert!(
            distance < 6.0 * 2f64.powi(-9),
            "{name}, tensor {number}: {distance:e}"
        );
    }
}

#[test]
fn in_bf16_everything_is_as_near_as_its_roundings_allow() {
    let of: [Input<'_>; 12] = [
        (&[2, 64, 128], true),
        (&[2, 6, 128], true),
        (&[256, 128], true),
        (&[256], true),
        (&[8, 128], true),
        (&[256, 8], true),
        (&[128, 256], true),
        (&[128], true),
        (&[8, 256], true),
        (&[128, 8], true),
        (&[2, 64, 128], true),
        (&[2, 64, 256], true),
    ];
    let norm = NormChunks {
        shift: 3,
        scale: 4,
        epsilon: 1e-6,
    };
    for (name, kind) in [
        ("modulated linear", 0),
        ("gated linear", 1),
        ("norm", 2),
        ("linear", 3),
    ] {
        compare_bf16(name, &of, &|side, inputs| {
            let (x, modulation) = (&inputs[0], &inputs[1]);
            let kernels = &side.kernels;
            // Sums of variance 1 or so: at those of 500, the slope of an activation is all rounding.
            let scaled: Vec<DispatchTensor> = inputs
                .iter()
                .enumerate()
                .map(|(at, input)| match at {
                    2 | 4 | 6 | 8 => scaled(input, 0.0625),
                    5 | 9 => scaled(input, 0.25),
                    _ => input.clone(),
                })
                .collect();
            let (up, down) = (layer(&scaled, 2), layer(&scaled, 6));
            vec![match kind {
                0 => kernels.ops().fused_or_composed(|ops| {
                    ops.modulated_linear(
                        &Compute,
                        ModulatedNorm {
                            x,
                            modulation,
                            chunks: norm,
                        },
                        &up,
                        Activation::GeluTanh,
                    )
                }),
                1 => kernels.ops().fused_or_composed(|ops| {
                    ops.linear_gated_residual(
                        &Compute,
                        GatedResidual {
                            residual: &inputs[10],
                            modulation,
                            gate: 2,
                        },
                        &[&inputs[11]],
                        &down,
                    )
                }),
                2 => kernels.ops().model.modulated_layer_norm(ModulatedNorm {
                    x,
                    modulation,
                    chunks: NormChunks {
                        shift: 0,
                        scale: 1,
                        epsilon: 1e-6,
                    },
                }),
                _ => kernels.ops().model.linear(&Compute, x, &up, Activation::None),
            }]
        });
    }
    let of: [Input<'_>; 2] = [(&[2, 40, 3, 64], true), (&[64], true)];
    compare_bf16("rms_norm", &of, &|side, inputs| {
        vec![
            side.kernels
                .ops()
                .model
                .rms_norm(&inputs[0], Some(&inputs[1]), 1e-6),
        ]
    });
    compare_bf16("embedding", &[(&[5, 24], true)], &|side, inputs| {
        let index = side.device.int_tensor(vec![4, 0, 3, 2, 4, 1], [2, 3]);
        vec![
            side.kernels
                .ops()
                .model
                .embedding(&inputs[0], &index.into_dispatch()),
        ]
    });
}

#[test]
fn a_gradient_of_a_matrix_in_bf16_is_the_f32_one_rounded_and_others_stay_f32() {
    let [_, cube] = sides();
    let wide: Arc<dyn Kernels> = Arc::new(CubeKernels::cuda_bf16());
    let narrow = wide
        .with_matrix_gradients(FloatDType::BF16)
        .expect("it computes in bf16");
    let of: [Input<'_>; 3] = [(&[3, 333, 128], true), (&[256, 128], true), (&[256], true)];
    let [wide, narrow] = [wide, narrow].map(|kernels| {
        let side = Side {
            kernels,
            device: cube.device.clone(),
        };
        run(&side, &of, &|side, inputs| {
            vec![side.kernels.ops().model.linear(
                &Compute,
                &inputs[0],
                &biased(&inputs[1..]),
                Activation::None,
            )]
        })
    });
    // The output and the gradient of `x` come before the weight's.
    let [matrix, bias] = [2, 3];
    for (at, (wide, narrow)) in wide.iter().zip(&narrow).enumerate() {
        if at == matrix {
            let largest = wide
                .iter()
                .fold(0.0f32, |largest, value| largest.max(value.abs()));
            for (wide, narrow) in wide.iter().zip(narrow) {
                // Half a unit of bf16's last bit, and what another order of f32 sums would change.
                assert!((wide - narrow).abs() <= wide.abs() / 256.0 + 1e-5 * largest);
            }
            let rounded = |value: &f32| half::bf16::from_f32(*value).to_f32() == *value;
            assert!(narrow.iter().all(rounded) && !wide.iter().all(rounded));
        } else {
            assert_eq!(wide, narrow, "tensor {at}");
        }
    }
    assert_eq!(wide.len(), bias + 1);
}

fn biased(weights: &[DispatchTensor]) -> LinearWeights {
    LinearWeights {
        low_precision: None,
        weight: weights[0].clone(),
        bias: Some(weights[1].clone()),
        adapter: None,
    }
}

#[test]
fn a_step_of_the_optimizer_leaves_the_copy_that_models_see_rounded_from_the_weight() {
    let [_, cube] = sides();
    let plain = |draw: u64| cube.device.plain(values(draw, &[77, 13]), &[77, 13]);
    let squares = || {
        let squares = values(3, &[77, 13]).iter().map(|x| x * x).collect();
        cube.device.plain(squares, &[77, 13])
    };
    let step = AdamWStep {
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.1,
        scalars: cube.device.plain(vec![1e-2, 0.271, 0.003, 0.5], &[4]),
        rounding: Default::default(),
    };
    let kernels = CubeKernels::cuda_bf16();
    let run = |with_copy: bool| {
        let (mut weight, mut first, mut second) = (plain(0), plain(2), squares());
        let mut copy = cast(&weight, FloatDType::BF16);
        let stale = copy.clone();
        let given = with_copy.then_some(&mut copy);
        kernels.ops().optimizer.adamw(
            AdamWParam {
                weight: &mut weight,
                master: given.map_or(MasterWeight::F32, MasterWeight::F32WithCopy),
                gradient: &plain(1),
                first: &mut first,
                second: &mut second,
            },
            &step,
        );
        assert_eq!(
            to_host(&stale),
            to_host(&cast(&plain(0), FloatDType::BF16)),
            "what others hold"
        );
        (to_host(&weight), to_host(&copy))
    };
    let ((alone, _), (weight, copy)) = (run(false), run(true));
    assert_eq!(weight, alone);
    let rounded: Vec<f32> = weight.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    assert_eq!(copy, rounded);
}
