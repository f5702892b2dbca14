//! The first-block cache on a stack whose blocks are arithmetic, so that every result is known in closed form.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_cache::{FirstBlock, Rules, StackCache};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::exec::Stack;
use flow_core::params::LayoutBuilder;
use flow_core::{
    Backends, CallContext, Exec, InferencePass, Init, ParamLayout, StackDriver, Stage, TrajectoryId, Weights,
};
use flow_kernels::CpuKernels;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The threshold of every test.
const POLICY: FirstBlock = FirstBlock { threshold: 0.1 };

const RULE: Rules = Rules {
    warmup_steps: 0,
    max_consecutive: 0,
    compute_last: false,
    outside_sde_window: false,
    per_batch: false,
};

/// Block 0 adds the shared value of each row; block `i` doubles. Rows computed per block are counted.
struct Doubling {
    blocks: usize,
    rows: Mutex<Vec<usize>>,
}

impl Stack for Doubling {
    fn name(&self) -> &str {
        "blocks"
    }
    fn len(&self) -> usize {
        self.blocks
    }
    fn run_block(
        &self,
        _: &Exec<'_>,
        index: usize,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let [x] = carried.try_into().expect("one tensor");
        let x: Tensor<2> = Tensor::from_dispatch(x);
        self.rows.lock().expect("no panic")[index] += x.dims()[0];
        let x = match index {
            0 => x + Tensor::<2>::from_dispatch(shared[0].clone()),
            _ => x * 2.0,
        };
        vec![x.into_dispatch()]
    }
}

/// A cache with its stack, and what was skipped.
struct Bench {
    cache: StackCache<FirstBlock>,
    stack: Doubling,
    skipped: Arc<AtomicU64>,
    weights: Weights,
}

impl Bench {
    fn new(rule: Rules, blocks: usize) -> Self {
        let skipped = Arc::new(AtomicU64::new(0));
        let counter = skipped.clone();
        let mut layout = ParamLayout::default();
        LayoutBuilder::new(&mut layout).param("unused", [1, 1], Init::Zeros);
        Self {
            cache: StackCache::new(
                POLICY,
                rule,
                Box::new(move |counters| {
                    counter.fetch_add(counters.skipped(), Ordering::Relaxed);
                }),
            ),
            stack: Doubling {
                blocks,
                rows: Mutex::new(vec![0; blocks]),
            },
            skipped,
            weights: Weights::init(Arc::new(layout), 1, &ComputeDevice::cpu()),
        }
    }

    /// One step for samples, each with `x` (two values) and what block 0 adds to both.
    fn step(&self, step: u32, stochastic: bool, samples: &[(u64, f32, f32)]) -> Vec<f32> {
        let plan = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
        let rollout = InferencePass::new(&self.weights, Arc::new(plan));
        let trajectory = |sample: &(u64, f32, f32)| TrajectoryId {
            sample: sample.0,
            conditional: true,
        };
        let call = CallContext {
            step,
            steps: 8,
            stochastic,
            trajectories: samples.iter().map(trajectory).collect(),
            ..CallContext::single(Stage::Rollout)
        };
        let tensor = |value: fn(&(u64, f32, f32)) -> f32| {
            let values = samples.iter().flat_map(|sample| [value(sample); 2]).collect();
            let tensor: Tensor<2> = ComputeDevice::cpu().tensor(values, [samples.len(), 2]);
            tensor.into_dispatch()
        };
        let carried = vec![tensor(|sample| sample.1)];
        let shared = vec![tensor(|sample| sample.2)];
        let out = self.cache.run(&rollout.exec(call), &self.stack, carried, shared);
        to_host(&out[0]).chunks(2).map(|row| row[0]).collect()
    }

    fn rows(&self) -> Vec<usize> {
        self.stack.rows.lock().expect("no panic").clone()
    }

    fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}

#[test]
fn an_answered_step_is_the_first_block_and_the_difference_of_the_computed_one() {
    let bench = Bench::new(RULE, 3);
    // (1 + 2) doubled twice.
    assert_eq!(bench.step(0, false, &[(1, 1.0, 2.0)]), [12.0]);
    // 5 + 2.1 after the first block, and 12 - 3 from before.
    assert_eq!(bench.step(1, false, &[(1, 5.0, 2.1)]), [5.0 + 2.1 + 9.0]);
    assert_eq!((bench.rows(), bench.skipped()), (vec![2, 1, 1], 2));
    // A change of a quarter is too much.
    assert_eq!(bench.step(2, false, &[(1, 1.0, 2.5)]), [14.0]);
    assert_eq!((bench.rows(), bench.skipped()), (vec![3, 2, 2], 2));
}

#[test]
fn the_comparison_is_with_the_last_computed_step_and_not_with_the_one_before() {
    let bench = Bench::new(RULE, 2);
    bench.step(0, false, &[(1, 1.0, 1.0)]);
    bench.step(1, false, &[(1, 1.0, 1.07)]);
    assert_eq!(bench.skipped(), 1);
    bench.step(2, false, &[(1, 1.0, 1.14)]);
    assert_eq!(
        bench.skipped(),
        1,
        "0.14 since the computed step, though 0.07 since the last"
    );
}

#[test]
fn every_sample_decides_for_itself_whoever_is_beside_it() {
    let both = Bench::new(RULE, 3);
    let alone = [Bench::new(RULE, 3), Bench::new(RULE, 3)];
    let steps = [
        [(1, 1.0, 2.0), (2, 3.0, 1.0)],
        [(1, 1.5, 2.1), (2, 3.5, 2.0)],
        [(1, 2.0, 3.0), (2, 4.0, 2.1)],
    ];
    for (step, samples) in steps.iter().enumerate() {
        let step = step as u32;
        // The order of the rows does not matter either.
        let reversed = [samples[1], samples[0]];
        let found = both.step(step, false, if step == 1 { &reversed } else { samples });
        let mut expected: Vec<f32> = (samples.iter().zip(&alone))
            .flat_map(|(sample, bench)| bench.step(step, false, &[*sample]))
            .collect();
        if step == 1 {
            expected.reverse();
        }
        assert_eq!(found, expected, "step {step}");
    }
    // Sample 1 was answered in the second step, sample 2 in the third.
    assert_eq!(both.skipped(), 4);
    assert_eq!(both.rows(), [6, 4, 4]);
}

#[test]
fn what_is_not_a_number_is_computed() {
    let bench = Bench::new(RULE, 2);
    bench.step(0, false, &[(1, 1.0, f32::NAN)]);
    bench.step(1, false, &[(1, 1.0, f32::NAN)]);
    // A first block that changes nothing: 0 / 0.
    bench.step(2, false, &[(1, 1.0, 0.0)]);
    bench.step(3, false, &[(1, 1.0, 0.0)]);
    assert_eq!(bench.skipped(), 0);
}

#[test]
fn warm_up_the_last_step_and_the_bound_in_a_row_are_kept() {
    let rule = Rules {
        warmup_steps: 2,
        max_consecutive: 2,
        compute_last: true,
        ..RULE
    };
    let bench = Bench::new(rule, 2);
    let answered: Vec<bool> = (0..8)
        .map(|step| {
            let before = bench.skipped();
            bench.step(step, false, &[(1, 1.0, 1.0)]);
            bench.skipped() > before
        })
        .collect();
    assert_eq!(answered, [false, false, true, true, false, true, true, false]);
}

#[test]
fn outside_the_window_stochastic_steps_are_computed_and_forget() {
    let rule = Rules {
        outside_sde_window: true,
        ..RULE
    };
    let bench = Bench::new(rule, 2);
    let sample = [(1, 1.0, 1.0)];
    bench.step(0, false, &sample);
    bench.step(1, false, &sample);
    assert_eq!(bench.skipped(), 1);
    bench.step(2, true, &sample);
    bench.step(3, true, &sample);
    assert_eq!(bench.skipped(), 1, "stochastic");
    bench.step(4, false, &sample);
    assert_eq!(
        bench.skipped(),
        1,
        "what was kept was dropped at the window's entry"
    );
    bench.step(5, false, &sample);
    assert_eq!(bench.skipped(), 2);
    // In all steps, the same trajectory is answered wherever it can be.
    let bench = Bench::new(RULE, 2);
    (0..6).for_each(|step| drop(bench.step(step, step == 2 || step == 3, &sample)));
    assert_eq!(bench.skipped(), 5);
}

#[test]
fn a_ragged_last_batch_and_a_second_batch_are_their_own() {
    let bench = Bench::new(RULE, 2);
    bench.step(0, false, &[(1, 1.0, 1.0), (2, 1.0, 1.0), (3, 1.0, 1.0)]);
    bench.step(0, false, &[(4, 2.0, 1.0)]);
    assert_eq!(
        bench.skipped(),
        0,
        "another sample has nothing kept, whatever its row"
    );
    bench.step(1, false, &[(4, 2.0, 1.0)]);
    bench.step(1, false, &[(3, 1.0, 1.0), (1, 1.0, 1.0)]);
    assert_eq!(bench.skipped(), 3);
}

#[test]
fn a_stack_of_one_block_is_computed() {
    let bench = Bench::new(RULE, 1);
    bench.step(0, false, &[(1, 1.0, 1.0)]);
    assert_eq!(bench.step(1, false, &[(1, 2.0, 1.0)]), [3.0]);
    assert_eq!(bench.skipped(), 0);
}
