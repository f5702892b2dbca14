//! Norms, gates, rotary embedding, activations and embeddings against f64 references.

mod support;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_core::cpu::{from_vec, to_host};
use flow_core::device::ComputeDevice;
use flow_core::ops::{GatedResidual, ModulatedNorm, NormChunks, RotaryTables};
use flow_core::tensors::{plain, zeros_like};
use flow_core::{Activation, Kernels};
use flow_kernels::CpuKernels;
use support::{Operand, bits, check, check_threads, operand, run};

const EPSILON: f32 = 1e-6;

/// Shapes `[B, S, D]` with awkward sizes.
const SHAPES: [[usize; 3]; 4] = [[1, 1, 5], [2, 13, 24], [3, 7, 16], [1, 129, 3]];

fn layer_norm(
    x: &[f64],
    modulation: &[f64],
    [_, tokens, columns]: [usize; 3],
    chunks: usize,
    shift: usize,
    scale: usize,
) -> Vec<f64> {
    let mut y = Vec::new();
    for (row, x) in x.chunks(columns).enumerate() {
        let chunk = |chunk: usize| &modulation[(row / tokens * chunks + chunk) * columns..][..columns];
        let mean = x.iter().sum::<f64>() / columns as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64;
        for (column, x) in x.iter().enumerate() {
            let normalised = (x - mean) / (variance + f64::from(EPSILON)).sqrt();
            y.push(normalised * (1.0 + chunk(scale)[column]) + chunk(shift)[column]);
        }
    }
    y
}

#[test]
fn modulated_layer_norm_agrees_with_f64() {
    for shape in SHAPES {
        let [batch, _, columns] = shape;
        // Two channels or one have a variance near zero, where f32 has no accuracy to compare.
        let operands = [operand(1, &shape), operand(2, &[batch, 6, columns])];
        check(
            &operands,
            &|values| layer_norm(&values[0], &values[1], shape, 6, 3, 4),
            &|inputs| {
                CpuKernels::default()
                    .ops()
                    .model
                    .modulated_layer_norm(ModulatedNorm {
                        x: &inputs[0],
                        modulation: &inputs[1],
                        chunks: NormChunks {
                            shift: 3,
                            scale: 4,
                            epsilon: EPSILON,
                        },
                    })
            },
        );
    }
}

/// A layer norm by a modulation of zeros and two operations of Burn.
fn composed_layer_norm(kernels: &CpuKernels, inputs: &[DispatchTensor]) -> DispatchTensor {
    let first_token = Tensor::<3>::from_dispatch(plain(&inputs[0])).narrow(1, 0, 1);
    let norm = ModulatedNorm {
        x: &inputs[0],
        modulation: &zeros_like(&first_token.into_dispatch()),
        chunks: NormChunks {
            shift: 0,
            scale: 0,
            epsilon: EPSILON,
        },
    };
    let normed = kernels.ops().model.modulated_layer_norm(norm);
    let [weight, bias] =
        [1, 2].map(|at: usize| Tensor::<1>::from_dispatch(inputs[at].clone()).unsqueeze::<3>());
    (Tensor::<3>::from_dispatch(normed) * weight + bias).into_dispatch()
}

#[test]
fn layer_norm_with_weight_and_bias_agrees_with_f64_as_one_operation_and_composed() {
    let kernels = CpuKernels::default();
    for shape in SHAPES {
        let [batch, _, columns] = shape;
        let operands = [operand(1, &shape), operand(2, &[columns]), operand(3, &[columns])];
        let reference = |values: &[Vec<f64>]| {
            let factors: Vec<f64> = values[1].iter().map(|weight| weight - 1.0).collect();
            let modulation = [&values[2][..], &factors].concat().repeat(batch);
            layer_norm(&values[0], &modulation, shape, 2, 0, 1)
        };
        check(&operands, &reference, &|inputs| {
            kernels
                .ops()
                .model
                .layer_norm(&inputs[0], &inputs[1], &inputs[2], EPSILON)
        });
        check(&operands, &reference, &|inputs| {
            composed_layer_norm(&kernels, inputs)
        });
    }
}

#[test]
fn gated_residual_agrees_with_f64() {
    for shape in SHAPES {
        let [batch, tokens, columns] = shape;
        let operands = [
            operand(1, &shape),
            operand(2, &shape),
            operand(3, &[batch, 3, columns]),
        ];
        let reference = |values: &[Vec<f64>]| {
            let gate = |at: usize| values[2][(at / (tokens * columns) * 3 + 2) * columns + at % columns];
            (0..values[0].len())
                .map(|at| values[0][at] + gate(at) * values[1][at])
                .collect()
        };
        check(&operands, &reference, &|inputs| {
            CpuKernels::default().ops().model.gated_residual(
                GatedResidual {
                    residual: &inputs[0],
                    modulation: &inputs[2],
                    gate: 2,
                },
                &inputs[1],
            )
        });
    }
}

fn rms_norm(x: &[f64], weight: Option<&[f64]>, columns: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for x in x.chunks(columns) {
        let square = x.iter().map(|x| x * x).sum::<f64>() / columns as f64;
        for (column, x) in x.iter().enumerate() {
            y.push(x / (square + f64::from(EPSILON)).sqrt() * weight.map_or(1.0, |weight| weight[column]));
        }
    }
    y
}

#[test]
fn rms_norm_agrees_with_f64_with_and_without_weight() {
    for shape in [vec![7, 5], vec![2, 13, 4, 16], vec![129, 24], vec![1, 3]] {
        let columns = *shape.last().expect("an axis");
        let operands = [operand(1, &shape), operand(2, &[columns])];
        check(
            &operands,
            &|values| rms_norm(&values[0], Some(&values[1]), columns),
            &|inputs| {
                CpuKernels::default()
                    .ops()
                    .model
                    .rms_norm(&inputs[0], Some(&inputs[1]), EPSILON)
            },
        );
        check(
            &operands[..1],
            &|values| rms_norm(&values[0], None, columns),
            &|inputs| {
                CpuKernels::default()
                    .ops()
                    .model
                    .rms_norm(&inputs[0], None, EPSILON)
            },
        );
    }
}

#[test]
fn rotary_rotates_pairs_by_the_angle_of_their_token() {
    for [batch, tokens, heads, width] in [[2, 13, 3, 16], [1, 1, 1, 2], [3, 7, 2, 24]] {
        let half = width / 2;
        let angles: Vec<f64> = operand(5, &[tokens, half])
            .wide()
            .iter()
            .map(|a| a * 3.0)
            .collect();
        let table = |f: fn(f64) -> f64| angles.iter().map(|angle| f(*angle) as f32).collect::<Vec<_>>();
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let (cos_plain, sin_plain) = (
            from_vec(cos.clone(), &[tokens, half]),
            from_vec(sin.clone(), &[tokens, half]),
        );
        let reference = |values: &[Vec<f64>]| {
            let mut y = values[0].clone();
            for (pair, y) in y.chunks_mut(2).enumerate() {
                let token = pair / (heads * half) % tokens;
                let at = token * half + pair % half;
                let (c, s) = (f64::from(cos[at]), f64::from(sin[at]));
                let (a, b) = (y[0], y[1]);
                y.copy_from_slice(&[a * c - b * s, a * s + b * c]);
            }
            y
        };
        check(
            &[operand(1, &[batch, tokens, heads, width])],
            &reference,
            &|inputs| {
                CpuKernels::default().ops().model.rotary(
                    &inputs[0],
                    RotaryTables {
                        cos: &cos_plain,
                        sin: &sin_plain,
                    },
                )
            },
        );
    }
}

#[test]
fn activations_agree_with_f64() {
    for (activation, reference) in [
        (Activation::Silu, support::silu as fn(f64) -> f64),
        (Activation::GeluTanh, support::gelu),
        (Activation::None, |x| x),
    ] {
        let mut operand = operand(1, &[13, 5]);
        operand.values.iter_mut().for_each(|x| *x *= 6.0);
        let reference = |values: &[Vec<f64>]| values[0].iter().map(|x| reference(*x)).collect();
        check(&[operand], &reference, &|inputs| {
            CpuKernels::default()
                .ops()
                .model
                .activation(&inputs[0], activation)
        });
    }
}

#[test]
fn embedding_adds_up_the_gradients_of_a_repeated_index() {
    let index = [3i64, 0, 3, 2, 3, 0];
    let device = ComputeDevice::cpu();
    let plain_index = device.int_tensor(index.to_vec(), [2, 3]).into_dispatch();
    let reference = |values: &[Vec<f64>]| {
        index
            .iter()
            .flat_map(|row| values[0][*row as usize * 5..][..5].to_vec())
            .collect()
    };
    check(&[operand(1, &[4, 5])], &reference, &|inputs| {
        CpuKernels::default()
            .ops()
            .model
            .embedding(&inputs[0], &plain_index)
    });
}

#[test]
#[should_panic(expected = "embedding index 4 in a table of 4 rows")]
fn an_embedding_index_beyond_the_table_is_named() {
    let index = ComputeDevice::cpu()
        .int_tensor(vec![0, 4], [1, 2])
        .into_dispatch();
    CpuKernels::default()
        .ops()
        .model
        .embedding(&operand(1, &[4, 5]).plain(), &index);
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    let shape = [5, 70, 200];
    let modulation = operand(3, &[5, 6, 200]);
    check_threads(&[operand(1, &shape), modulation.clone()], &|inputs| {
        CpuKernels::default()
            .ops()
            .model
            .modulated_layer_norm(ModulatedNorm {
                x: &inputs[0],
                modulation: &inputs[1],
                chunks: NormChunks {
                    shift: 0,
                    scale: 1,
                    epsilon: EPSILON,
                },
            })
    });
    check_threads(&[operand(1, &shape), operand(2, &shape), modulation], &|inputs| {
        CpuKernels::default().ops().model.gated_residual(
            GatedResidual {
                residual: &inputs[0],
                modulation: &inputs[2],
                gate: 5,
            },
            &inputs[1],
        )
    });
    check_threads(&[operand(1, &shape), operand(2, &[200])], &|inputs| {
        CpuKernels::default()
            .ops()
            .model
            .rms_norm(&inputs[0], Some(&inputs[1]), EPSILON)
    });
    check_threads(&[operand(1, &shape)], &|inputs| {
        CpuKernels::default()
            .ops()
            .model
            .activation(&inputs[0], Activation::GeluTanh)
    });
    let (cos, sin) = (operand(4, &[70, 10]).plain(), operand(5, &[70, 10]).plain());
    check_threads(&[operand(1, &[5, 70, 10, 20])], &|inputs| {
        CpuKernels::default()
            .ops()
            .model
            .rotary(&inputs[0], RotaryTables { cos: &cos, sin: &sin })
    });
}

#[test]
fn a_sample_has_the_same_bits_in_a_batch_of_any_size() {
    let (shape, modulation) = ([5, 13, 24], operand(2, &[5, 6, 24]));
    let (x, seed) = (operand(1, &shape), operand(3, &shape));
    let part = |operand: &Operand, sample: usize| {
        let mut shape = operand.shape.clone();
        let count: usize = shape[1..].iter().product();
        shape[0] = 1;
        Operand {
            values: operand.values[sample * count..][..count].to_vec(),
            shape,
        }
    };
    let norm: &(dyn Fn(&[burn::backend::DispatchTensor]) -> _ + Sync) = &|inputs| {
        CpuKernels::default()
            .ops()
            .model
            .modulated_layer_norm(ModulatedNorm {
                x: &inputs[0],
                modulation: &inputs[1],
                chunks: NormChunks {
                    shift: 0,
                    scale: 1,
                    epsilon: EPSILON,
                },
            })
    };
    let (whole, gradients) = run(&[x.clone(), modulation.clone()], &[true, true], norm, &seed);
    for sample in 0..5 {
        let operands = [part(&x, sample), part(&modulation, sample)];
        let (alone, alone_gradients) = run(&operands, &[true, true], norm, &part(&seed, sample));
        let of = |values: &[f32], count: usize| bits(&values[sample * count..][..count]);
        assert_eq!(bits(&alone), of(&whole, 13 * 24));
        for (gradient, (alone, count)) in gradients
            .iter()
            .zip(alone_gradients.iter().zip([13 * 24, 6 * 24]))
        {
            assert_eq!(
                bits(alone.as_ref().expect("tracked")),
                of(gradient.as_ref().expect("tracked"), count)
            );
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let mut x = operand(1, &[1, 3, 8]);
    x.values[9] = f32::NAN;
    let normed = to_host(
        &CpuKernels::default()
            .ops()
            .model
            .modulated_layer_norm(ModulatedNorm {
                x: &x.plain(),
                modulation: &operand(2, &[1, 2, 8]).plain(),
                chunks: NormChunks {
                    shift: 0,
                    scale: 1,
                    epsilon: EPSILON,
                },
            }),
    );
    assert!(
        normed[8..16].iter().all(|y| y.is_nan()),
        "the row is lost, and says so"
    );
    assert!(
        normed[..8].iter().chain(&normed[16..]).all(|y| y.is_finite()),
        "the others are not"
    );
    for activation in [Activation::Silu, Activation::GeluTanh] {
        assert!(
            to_host(
                &CpuKernels::default()
                    .ops()
                    .model
                    .activation(&x.plain(), activation)
            )[9]
            .is_nan()
        );
    }
}
