//! Operations that are made of others have the same bits as one: the composed ones are the reference.

mod support;

use burn::backend::DispatchTensor;
use flow_core::cpu::to_host;
use flow_core::ops::{
    Compute, FeedForwardWeights, GatedResidual, LinearWeights, ModulatedNorm, NormChunks, Stash,
};
use flow_core::{Activation, Kernels, RawTensor};
use flow_kernels::CpuKernels;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use support::{Operand, bits, check_threads, operand, run};

const SCALE: f32 = 1.5;
const CHUNKS: usize = 4;
const GATE: usize = 1;
const NORM: NormChunks = NormChunks {
    shift: 2,
    scale: 0,
    epsilon: 1e-6,
};

/// `[B, S, D]`, and the inner width of a feed-forward part.
const SIZES: [[usize; 4]; 6] = [
    [1, 1, 1, 1],
    [2, 3, 5, 7],
    [3, 7, 16, 64],
    [1, 129, 13, 40],
    [2, 33, 24, 1],
    [5, 65, 8, 96],
];

#[derive(Clone, Copy, Debug)]
enum Operation {
    GatedLinear,
    ModulatedLinear(Activation),
    FeedForward(Activation),
}

const OPERATIONS: [Operation; 6] = [
    Operation::GatedLinear,
    Operation::ModulatedLinear(Activation::None),
    Operation::ModulatedLinear(Activation::Silu),
    Operation::FeedForward(Activation::GeluTanh),
    Operation::FeedForward(Activation::Silu),
    Operation::FeedForward(Activation::None),
];

#[derive(Clone, Copy, Debug)]
struct Case {
    operation: Operation,
    size: [usize; 4],
    bias: bool,
    rank: Option<usize>,
}

impl Case {
    /// Weight, bias and adapter of a layer.
    fn layer(&self, seed: u64, inputs: usize, outputs: usize) -> Vec<Operand> {
        let mut operands = vec![operand(seed, &[outputs, inputs])];
        operands.extend(self.bias.then(|| operand(seed + 1, &[outputs])));
        if let Some(rank) = self.rank {
            operands.extend([
                operand(seed + 2, &[rank, inputs]),
                operand(seed + 3, &[outputs, rank]),
            ]);
        }
        operands
    }

    /// The stream, the modulation, what else is read, and the layers' weights.
    fn operands(&self) -> Vec<Operand> {
        let [batch, tokens, width, inner] = self.size;
        let mut operands = vec![
            operand(1, &[batch, tokens, width]),
            operand(2, &[batch, CHUNKS, width]),
        ];
        match self.operation {
            Operation::GatedLinear => {
                operands.push(operand(3, &[batch, tokens, inner]));
                operands.extend(self.layer(10, inner, width));
            }
            Operation::ModulatedLinear(_) => operands.extend(self.layer(10, width, inner)),
            Operation::FeedForward(_) => {
                operands.extend(self.layer(10, width, inner));
                operands.extend(self.layer(20, inner, width));
            }
        }
        operands
    }

    fn weights(&self, inputs: &[DispatchTensor]) -> LinearWeights {
        let last = inputs.len() - 1;
        LinearWeights {
            low_precision: None,
            weight: inputs[0].clone(),
            bias: self.bias.then(|| inputs[1].clone()),
            adapter: self
                .rank
                .map(|_| (inputs[last - 1].clone(), inputs[last].clone(), SCALE)),
        }
    }

    fn run(&self, kernels: &dyn Kernels, stash: &dyn Stash, inputs: &[DispatchTensor]) -> DispatchTensor {
        let (x, modulation) = (&inputs[0], &inputs[1]);
        match self.operation {
            Operation::GatedLinear => {
                let weights = self.weights(&inputs[3..]);
                kernels.ops().fused_or_composed(|ops| {
                    ops.linear_gated_residual(
                        stash,
                        GatedResidual {
                            residual: x,
                            modulation,
                            gate: GATE,
                        },
                        &[&inputs[2]],
                        &weights,
                    )
                })
            }
            Operation::ModulatedLinear(activation) => {
                let weights = self.weights(&inputs[2..]);
                kernels.ops().fused_or_composed(|ops| {
                    ops.modulated_linear(
                        stash,
                        ModulatedNorm {
                            x,
                            modulation,
                            chunks: NORM,
                        },
                        &weights,
                        activation,
                    )
                })
            }
            Operation::FeedForward(activation) => {
                let layers = &inputs[2..];
                let (up, down) = layers.split_at(layers.len() / 2);
                let weights = FeedForwardWeights {
                    up: self.weights(up),
                    activation,
                    down: self.weights(down),
                };
                kernels.ops().fused_or_composed(|ops| {
                    ops.modulated_feed_forward(
                        stash,
                        ModulatedNorm {
                            x,
                            modulation,
                            chunks: NORM,
                        },
                        &weights,
                        GATE,
                    )
                })
            }
        }
    }

    fn output_shape(&self) -> [usize; 3] {
        let [batch, tokens, width, inner] = self.size;
        match self.operation {
            Operation::ModulatedLinear(_) => [batch, tokens, inner],
            _ => [batch, tokens, width],
        }
    }

    fn seed(&self) -> Operand {
        operand(99, &self.output_shape())
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let of = |operation, size| {
        [(true, None), (false, None), (true, Some(3))].map(|(bias, rank)| Case {
            operation,
            size,
            bias,
            rank,
        })
    };
    OPERATIONS
        .into_iter()
        .flat_map(move |operation| SIZES.into_iter().flat_map(move |size| of(operation, size)))
}

fn sets() -> Vec<CpuKernels> {
    let mut sets = vec![CpuKernels::default()];
    match CpuKernels::bf16() {
        Ok(kernels) => sets.push(kernels),
        Err(why) => test_support::skipped(why),
    }
    sets
}

fn fused(kernels: &CpuKernels) -> Arc<dyn Kernels> {
    kernels.fused(Arc::new(|| {})).expect("not fused yet")
}

type Results = (Vec<u32>, Vec<Option<Vec<u32>>>);

fn results(case: &Case, tracked: &[bool], kernels: &(dyn Kernels + 'static), stash: &dyn Stash) -> Results {
    let kernel = |inputs: &[DispatchTensor]| case.run(kernels, stash, inputs);
    let (output, gradients) = run(&case.operands(), tracked, &kernel, &case.seed());
    let gradients = gradients.iter().map(|gradient| gradient.as_deref().map(bits));
    (bits(&output), gradients.collect())
}

#[test]
fn output_and_all_gradients_have_the_bits_of_the_composed_operations() {
    for kernels in sets() {
        let fused = fused(&kernels);
        for case in cases() {
            for tracked in [false, true] {
                let tracked = vec![tracked; case.operands().len()];
                let found = results(&case, &tracked, &*fused, &Compute);
                let expected = results(&case, &tracked, &kernels, &Compute);
                assert!(
                    found == expected,
                    "{} {case:?} tracked: {}",
                    kernels.name(),
                    tracked[0]
                );
            }
        }
    }
}

#[test]
fn whatever_is_tracked_the_gradients_are_those_of_the_composed_operations() {
    let kernels = CpuKernels::default();
    let fused = fused(&kernels);
    for operation in OPERATIONS {
        let case = Case {
            operation,
            size: [2, 9, 12, 20],
            bias: true,
            rank: Some(2),
        };
        let count = case.operands().len();
        for chosen in 0..1_u32 << count {
            let tracked: Vec<bool> = (0..count).map(|index| chosen >> index & 1 == 1).collect();
            let found = results(&case, &tracked, &*fused, &Compute);
            assert!(
                found == results(&case, &tracked, &kernels, &Compute),
                "{operation:?} {tracked:?}"
            );
        }
    }
}

#[test]
fn an_input_in_parts_has_the_bits_of_one_that_is_joined_first() {
    let [batch, tokens, width, left, right] = [2, 9, 12, 5, 20];
    let operands = [
        operand(1, &[batch, tokens, width]),
        operand(2, &[batch, tokens, left]),
        operand(3, &[batch, tokens, right]),
        operand(4, &[batch, CHUNKS, width]),
        operand(5, &[width, left + right]),
        operand(6, &[width]),
    ];
    let seed = operand(7, &[batch, tokens, width]);
    let of = |kernels: &dyn Kernels, tracked: &[bool]| {
        let kernel = |inputs: &[DispatchTensor]| {
            let weights = LinearWeights {
                low_precision: None,
                weight: inputs[4].clone(),
                bias: Some(inputs[5].clone()),
                adapter: None,
            };
            let gated = GatedResidual {
                residual: &inputs[0],
                modulation: &inputs[3],
                gate: GATE,
            };
            let parts = [&inputs[1], &inputs[2]];
            let ops = kernels.ops();
            ops.fused_or_composed(|ops| ops.linear_gated_residual(&Compute, gated, &parts, &weights))
        };
        let (output, gradients) = run(&operands, tracked, &kernel, &seed);
        let gradients = gradients.iter().map(|gradient| gradient.as_deref().map(bits));
        (bits(&output), gradients.collect::<Vec<_>>())
    };
    let kernels = CpuKernels::default();
    let fused = fused(&kernels);
    for chosen in 0..1_u32 << operands.len() {
        let tracked: Vec<bool> = (0..operands.len())
            .map(|index| chosen >> index & 1 == 1)
            .collect();
        // Burn joins tensors of one graph, or of none.
        if tracked[1] == tracked[2] {
            assert!(of(&*fused, &tracked) == of(&kernels, &tracked), "{tracked:?}");
        }
    }
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    let fused = fused(&CpuKernels::default());
    for operation in OPERATIONS {
        let case = Case {
            operation,
            size: [3, 300, 32, 96],
            bias: true,
            rank: Some(4),
        };
        check_threads(&case.operands(), &|inputs| case.run(&*fused, &Compute, inputs));
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let kernels = CpuKernels::default();
    let fused = fused(&kernels);
    for operation in OPERATIONS {
        let case = Case {
            operation,
            size: [2, 3, 4, 6],
            bias: true,
            rank: None,
        };
        let mut operands = case.operands();
        operands[0].values[0] = f32::NAN;
        operands[1].values[0] = f32::INFINITY;
        let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
        let of = |kernels: &dyn Kernels| to_host(&case.run(kernels, &Compute, &inputs));
        // Payloads of NaN may differ.
        let finite = |values: Vec<f32>| -> Vec<bool> { values.iter().map(|v| v.is_finite()).collect() };
        assert_eq!(finite(of(&*fused)), finite(of(&kernels)), "{operation:?}");
        assert!(finite(of(&*fused)).contains(&false));
    }
}

/// Keeps what a first run makes and gives it, in order, to a second.
#[derive(Debug, Default)]
struct Kept {
    replays: bool,
    results: Mutex<VecDeque<(&'static str, Vec<RawTensor>)>>,
}

impl Stash for Kept {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        let mut results = self.results.lock().expect("not poisoned");
        if self.replays {
            let (kept, values) = results.pop_front().expect("as many requests as in the first run");
            assert_eq!(kept, name);
            return values;
        }
        let values = compute();
        results.push_back((name, values.clone()));
        values
    }
}

#[test]
fn results_kept_from_a_plain_run_serve_a_tracked_run_with_the_same_bits() {
    let kernels = CpuKernels::default();
    let fused = fused(&kernels);
    for operation in OPERATIONS {
        let case = Case {
            operation,
            size: [2, 9, 12, 20],
            bias: true,
            rank: Some(2),
        };
        let stash = Kept::default();
        let inputs: Vec<RawTensor> = case.operands().iter().map(Operand::plain).collect();
        let first = bits(&to_host(&case.run(&*fused, &stash, &inputs)));
        let stash = Kept {
            replays: true,
            ..stash
        };
        let all = vec![true; inputs.len()];
        let replayed = results(&case, &all, &*fused, &stash);
        assert!(
            stash.results.lock().expect("not poisoned").is_empty(),
            "{operation:?}"
        );
        assert_eq!(first, replayed.0, "{operation:?}");
        assert!(
            replayed == results(&case, &all, &kernels, &Compute),
            "{operation:?}"
        );
    }
}

/// Gives one result as what left a region, and computes everything else.
#[derive(Debug)]
struct Given {
    ending: Mutex<RawTensor>,
    asked: AtomicU64,
}

impl Stash for Given {
    fn through(&self, _: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        compute()
    }

    fn keeps(&self, _: &'static str) -> bool {
        false
    }

    fn ending(&self) -> Option<RawTensor> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Some(self.ending.lock().expect("not poisoned").clone())
    }

    fn note_ending(&self, _: &RawTensor) {
        panic!("it was given");
    }
}

#[test]
fn an_operation_that_is_given_its_result_gives_that_and_has_the_gradients_of_one_that_computes() {
    let kernels = CpuKernels::default();
    let fused = fused(&kernels);
    for operation in OPERATIONS {
        if matches!(operation, Operation::ModulatedLinear(_)) {
            continue;
        }
        let case = Case {
            operation,
            size: [2, 9, 12, 20],
            bias: true,
            rank: Some(2),
        };
        // Nothing that a computation would come to.
        let ending = operand(7, &case.output_shape());
        let count = case.operands().len();
        let (all, mut gates_frozen) = (vec![true; count], vec![true; count]);
        gates_frozen[1] = false;
        for tracked in [all, gates_frozen, vec![false; count]] {
            let stash = Given {
                ending: Mutex::new(ending.plain()),
                asked: AtomicU64::new(0),
            };
            let found = results(&case, &tracked, &*fused, &stash);
            let expected = results(&case, &tracked, &kernels, &Compute);
            assert_eq!(found.0, bits(&ending.values), "{operation:?} {tracked:?}");
            assert!(found.1 == expected.1, "{operation:?} {tracked:?}");
            assert_eq!(stash.asked.into_inner(), 1, "{operation:?} {tracked:?}");
        }
    }
}

#[test]
fn every_fused_operation_is_told_once_and_fused_kernels_are_not_fused_again() {
    let told = Arc::new(AtomicU64::new(0));
    let counter = told.clone();
    let tell = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let fused = CpuKernels::default()
        .fused(Arc::new(tell))
        .expect("not fused yet");
    assert_eq!(fused.name(), "cpu-fused");
    for (index, operation) in OPERATIONS.into_iter().enumerate() {
        let case = Case {
            operation,
            size: [1, 2, 3, 4],
            bias: true,
            rank: None,
        };
        let inputs: Vec<RawTensor> = case.operands().iter().map(Operand::plain).collect();
        case.run(&*fused, &Compute, &inputs);
        assert_eq!(told.load(Ordering::Relaxed), index as u64 + 1);
    }
    assert!(fused.fused(Arc::new(|| {})).is_none());
}
