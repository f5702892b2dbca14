//! Operations that are made of others have the same bits as one: the composed ones are the reference.

use crate::support::{Input, Keep, Side, computing, layer, run};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_core::ops::{
    Compute, FeedForwardWeights, GatedResidual, ModulatedNorm, NormChunks, RotaryTables, Stash,
};
use flow_core::tensors::{plain, shape};
use flow_core::{Activation, Kernels};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NORM: NormChunks = NormChunks {
    shift: 3,
    scale: 4,
    epsilon: 1e-6,
};

#[derive(Clone, Copy, Debug)]
enum Made {
    GatedLinear,
    ModulatedLinear(Activation),
    ModulatedLinears,
    FeedForward(Activation),
    /// Of each head.
    NormedRotary,
    /// Of all heads of a token at once.
    NormedRotaryTogether,
}

const MADE: [Made; 9] = [
    Made::GatedLinear,
    Made::ModulatedLinear(Activation::None),
    Made::ModulatedLinear(Activation::Silu),
    Made::ModulatedLinears,
    Made::FeedForward(Activation::GeluTanh),
    Made::FeedForward(Activation::Silu),
    Made::FeedForward(Activation::None),
    Made::NormedRotary,
    Made::NormedRotaryTogether,
];

/// Inputs of a computation.
const INPUTS: usize = 23;

/// Channels of a head that is turned.
const HEAD_DIM: usize = 8;

/// Shapes of the inputs: `x [2, S, D]`, the modulation, what is gated `[2, S, I]`, then the weights of four layers with
/// adapters, `D -> I`, `I -> D`, `D -> D` and `D -> I`, then weights of an RMS norm of a head and of all, and rotary tables.
fn shapes([tokens, channels, inner]: [usize; 3]) -> Vec<Vec<usize>> {
    let layer = |from: usize, to: usize| vec![vec![to, from], vec![to], vec![4, from], vec![to, 4]];
    let tensors = vec![
        vec![2, tokens, channels],
        vec![2, 6, channels],
        vec![2, tokens, inner],
    ];
    [
        tensors,
        layer(channels, inner),
        layer(inner, channels),
        layer(channels, channels),
        layer(channels, inner),
        vec![
            vec![HEAD_DIM],
            vec![channels],
            vec![tokens, HEAD_DIM / 2],
            vec![tokens, HEAD_DIM / 2],
        ],
    ]
    .concat()
}

fn compute(made: Made, side: &Side, stash: &dyn Stash, inputs: &[DispatchTensor]) -> Vec<DispatchTensor> {
    let (x, modulation, inner) = (&inputs[0], &inputs[1], &inputs[2]);
    let (up, down) = (layer(inputs, 3), layer(inputs, 7));
    let kernels = &side.kernels;
    vec![match made {
        Made::ModulatedLinears => {
            let layers = [up, layer(inputs, 11), layer(inputs, 15)];
            return kernels.ops().fused_or_composed(|ops| {
                ops.modulated_linears(
                    stash,
                    ModulatedNorm {
                        x,
                        modulation,
                        chunks: NORM,
                    },
                    &layers,
                )
            });
        }
        Made::GatedLinear => kernels.ops().fused_or_composed(|ops| {
            ops.linear_gated_residual(
                stash,
                GatedResidual {
                    residual: x,
                    modulation,
                    gate: 2,
                },
                &[inner],
                &down,
            )
        }),
        Made::ModulatedLinear(activation) => kernels.ops().fused_or_composed(|ops| {
            ops.modulated_linear(
                stash,
                ModulatedNorm {
                    x,
                    modulation,
                    chunks: NORM,
                },
                &up,
                activation,
            )
        }),
        Made::FeedForward(activation) => {
            let weights = FeedForwardWeights { up, activation, down };
            kernels.ops().fused_or_composed(|ops| {
                ops.modulated_feed_forward(
                    stash,
                    ModulatedNorm {
                        x,
                        modulation,
                        chunks: NORM,
                    },
                    &weights,
                    5,
                )
            })
        }
        Made::NormedRotary | Made::NormedRotaryTogether => {
            let [cos, sin] = [21, 22].map(|at| plain(&inputs[at]));
            let [batch, tokens, channels] = shape(x)[..] else {
                panic!("three axes")
            };
            let heads = [batch, tokens, channels / HEAD_DIM, HEAD_DIM];
            let (x, weight) = match made {
                Made::NormedRotary => {
                    let x = Tensor::<3>::from_dispatch(x.clone()).reshape(heads);
                    (x.into_dispatch(), &inputs[19])
                }
                _ => (x.clone(), &inputs[20]),
            };
            kernels.ops().fused_or_composed(|ops| {
                ops.rms_norm_rotary(&x, Some(weight), 1e-6, RotaryTables { cos: &cos, sin: &sin })
            })
        }
    }]
}

fn fused(side: &Side) -> Side {
    let kernels = side.kernels.fused(Arc::new(|| {}));
    Side {
        device: side.device.clone(),
        kernels: kernels.expect("not fused yet"),
    }
}

/// Which inputs a gradient is wanted of: all, each kind alone, none.
fn tracked() -> [[bool; INPUTS]; 8] {
    let only = |those: &[usize]| std::array::from_fn(|at| those.contains(&at));
    [
        [true; INPUTS],
        only(&[0, 2]),
        only(&[1]),
        only(&[3, 4, 11, 16]),
        only(&[5, 6, 9, 10, 13, 14]),
        only(&[7, 8]),
        only(&[19, 20]),
        [false; INPUTS],
    ]
}

#[test]
fn outputs_and_gradients_have_the_bits_of_the_composed_operations() {
    for side in computing() {
        let fused = fused(&side);
        for size in [[7, 24, 40], [33, 64, 136]] {
            let shapes = shapes(size);
            for (made, tracked) in MADE
                .iter()
                .flat_map(|made| tracked().map(|tracked| (*made, tracked)))
            {
                let of: Vec<Input<'_>> = shapes.iter().map(Vec::as_slice).zip(tracked).collect();
                let by = |side: &Side| run(side, &of, &|side, inputs| compute(made, side, &Compute, inputs));
                let (expected, found) = (by(&side), by(&fused));
                assert!(
                    expected == found,
                    "{:?}, {made:?} of {size:?}, {tracked:?}",
                    side.kernels
                );
            }
        }
    }
}

#[test]
fn results_kept_from_a_run_serve_another_with_the_same_bits() {
    for side in computing() {
        let fused = fused(&side);
        let shapes = shapes([9, 24, 40]);
        let with = |tracked: bool| -> Vec<Input<'_>> {
            shapes.iter().map(|shape| (shape.as_slice(), tracked)).collect()
        };
        for made in MADE {
            let expected = run(&side, &with(true), &|side, inputs| {
                compute(made, side, &Compute, inputs)
            });
            let keep = Keep::default();
            let through_keep = |side: &Side, inputs: &[DispatchTensor]| {
                keep.again();
                compute(made, side, &keep, inputs)
            };
            let plain = run(&fused, &with(false), &through_keep);
            assert_eq!(plain[0], expected[0], "{:?}, {made:?}", side.kernels);
            let replayed = run(&fused, &with(true), &through_keep);
            assert!(replayed == expected, "{:?}, {made:?}", side.kernels);
        }
    }
}

#[test]
fn every_fused_operation_is_told_once_and_fused_kernels_are_not_fused_again() {
    let [side, ..] = &computing()[..] else {
        panic!("there is a device")
    };
    let told = Arc::new(AtomicU64::new(0));
    let counter = told.clone();
    let tell = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let fused: Arc<dyn Kernels> = side.kernels.fused(Arc::new(tell)).expect("not fused yet");
    assert_eq!(fused.name(), format!("{}-fused", side.kernels.name()));
    assert!(fused.fused(Arc::new(|| {})).is_none());
    let fused = Side {
        device: side.device.clone(),
        kernels: fused,
    };
    let shapes = shapes([3, 8, 16]);
    let of: Vec<Input<'_>> = shapes.iter().map(|shape| (shape.as_slice(), false)).collect();
    for (number, made) in MADE.into_iter().enumerate() {
        run(&fused, &of, &|side, inputs| compute(made, side, &Compute, inputs));
        assert_eq!(told.load(Ordering::Relaxed), number as u64 + 1);
    }
}
