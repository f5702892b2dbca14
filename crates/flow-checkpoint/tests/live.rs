//! Memory as the allocator sees it, and the planner on a real model. One test, since the count is the process's.

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_checkpoint::planner::{PlanError, Planner, Workload, cost};
use flow_checkpoint::{
    Assignment, BlockPolicy, CountingAllocator, MemoryProbe, Policy, RegionPolicy, Sampled, Saves,
};
use flow_core::autograd::backward_from;
use flow_core::device::ComputeDevice;
use flow_core::model::{Condition, LatentShape, ModelInput};
use flow_core::rng::{Purpose, Stream};
use flow_core::{Backends, CallContext, RegionKind, Stage, TrainingPass, Weights};
use flow_kernels::CpuKernels;
use flow_models::{
    Architecture, Dit, DitConfig, Mmdit, MmditConfig, MoeConfig, Position, Trained, trained_mask,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[global_allocator]
static MEMORY: CountingAllocator = CountingAllocator::new();

const LAYERS: usize = 8;
const ROWS: usize = 2;

fn model(moe: Option<MoeConfig>) -> Dit {
    let config = DitConfig {
        latent: LatentShape {
            channels: 3,
            frames: 1,
            height: 16,
            width: 16,
        },
        patch: 1,
        hidden: 48,
        layers: LAYERS,
        heads: 4,
        mlp_ratio: 4.0,
        moe,
        vocabulary: None,
        qk_norm: true,
        position: Position::Rope,
    };
    Dit::new(&config, &ComputeDevice::cpu()).expect("it fits")
}

fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(11, Purpose::Test)
        .at(salt, 0)
        .fill_normal(&mut values);
    values
}

struct Bench {
    model: Box<dyn Architecture>,
    weights: Weights,
    trained: Arc<[bool]>,
}

impl Bench {
    fn new(model: Box<dyn Architecture>) -> Self {
        Self {
            weights: Weights::init(model.layout().clone(), 3, &ComputeDevice::cpu()),
            trained: trained_mask(model.layout(), Trained::Full).expect("there are some"),
            model,
        }
    }

    fn velocity(&self, training: &TrainingPass<'_>) -> Tensor<2> {
        let device = ComputeDevice::cpu();
        let values = self.model.spec().latent.values();
        let mut input = ModelInput {
            x: device.tensor(noise(ROWS * values, 1), [ROWS, values]),
            sigma: device.tensor(vec![0.3; ROWS], [ROWS]),
            condition: Condition::default(),
        };
        if self.model.spec().text.is_some() {
            input.condition.text = Some(device.tensor(noise(ROWS * 50, 5), [ROWS, 5, 10]));
            input.condition.pooled = Some(device.tensor(noise(ROWS * 7, 6), [ROWS, 7]));
        }
        let exec = training.exec(CallContext::single(Stage::Training));
        self.model.velocity(&exec, input)
    }

    fn planner<'s>(&'s self, plan: &'s Backends, memory_probe: Arc<dyn MemoryProbe>) -> Planner<'s> {
        let start = Instant::now();
        let workload = Workload {
            spec: self.model.spec(),
            plan,
            forward: Box::new(|plan| self.forward(plan)),
            step: Box::new(|plan| self.step(plan)),
            passes: 1,
            reserved_bytes: 0,
            memory_probe,
            clock: Arc::new(move || start.elapsed()),
        };
        Planner::new(workload).expect("it has blocks")
    }

    fn forward(&self, plan: &Arc<Backends>) {
        self.velocity(&TrainingPass::new(
            &self.weights,
            plan.clone(),
            self.trained.clone(),
        ));
    }

    fn step(&self, plan: &Arc<Backends>) {
        let training = TrainingPass::new(&self.weights, plan.clone(), self.trained.clone());
        let velocity = self.velocity(&training).into_dispatch();
        let values = self.model.spec().latent.values();
        let seed = ComputeDevice::cpu().plain(noise(ROWS * values, 2), &[ROWS, values]);
        let gradients = backward_from(vec![velocity], vec![Some(seed)]);
        assert!(gradients.is_some());
    }
}

/// On one thread: with several, how much of their scratch is in use at one time depends on how they meet.
#[test]
fn memory_is_what_the_planner_says_and_a_budget_is_kept() {
    let builder = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .stack_size(16 << 20);
    let pool = builder.build().expect("the system starts a thread");
    pool.install(everything);
}

fn everything() {
    let bench = Bench::new(Box::new(model(None)));
    let plan = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let mut planner = bench.planner(&plan, Arc::new(&MEMORY));
    let profile = planner.profile().clone();
    assert_eq!(profile.kinds.len(), 1, "all blocks are alike");
    assert_eq!(profile.blocks.len(), LAYERS);
    a_block_is_measured_to_the_byte(&planner);
    attention_is_in_memory_from_its_own_backward_on(&bench, &planner);

    // Predictions against real steps.
    let mut steps = Vec::new();
    for policy in [
        Policy::Full { split: true },
        Policy::BlockSkip { every: 3 },
        Policy::AttnOnly { split: false },
        Policy::Full { split: false },
        Policy::EveryNthLinear { n: 2 },
        Policy::EveryNthLinear { n: 1 },
        Policy::None,
    ] {
        let assignment = policy.assign(bench.model.spec()).unwrap().unwrap();
        let (predicted, measured) = (
            planner.predict(&assignment),
            planner.measure(policy.name(), &assignment),
        );
        assert_eq!(
            predicted.held_bytes, measured.counts.most_held_bytes,
            "{policy}: what is held is predicted to the byte"
        );
        let ratio = measured.peak_bytes as f64 / predicted.peak_bytes as f64;
        assert!(
            (0.95..=1.05).contains(&ratio),
            "{policy}: peak of {} bytes, {} predicted",
            measured.peak_bytes,
            predicted.peak_bytes
        );
        steps.push((policy, measured.peak_bytes));
    }
    // Every way to treat a block that a plan may take.
    for option in planner.options()[0].clone() {
        let same = Assignment::new(&bench.model.spec().stacks, |_, _| option.block_policy.clone());
        let (predicted, measured) = (planner.predict(&same), planner.measure("same", &same));
        assert_eq!(
            predicted.held_bytes, measured.counts.most_held_bytes,
            "{option:?}"
        );
    }
    // From the policy that keeps least to the one that keeps all. The first three stand apart: attention that is put off keeps more than
    // `full` and has less in memory while a block is differentiated, so of few blocks it takes less.
    let steps = &steps[3..];
    for pair in steps.windows(2) {
        assert!(
            pair[0].1 < pair[1].1,
            "{} takes less than {}: {steps:?}",
            pair[0].0,
            pair[1].0
        );
    }

    // Budgets between the extremes are kept, and a larger one computes no more again.
    let (least, most) = (steps[0].1, steps[steps.len() - 1].1);
    let mut again = Duration::MAX;
    for part in 1..=4 {
        let budget = least + (most - least) * part / 4;
        let (assignment, record) = planner.within(budget).expect("full fits");
        assert!(record.measured.peak_bytes <= budget, "{record:?}");
        assert_eq!(
            record.predicted.held_bytes, record.measured.held_bytes,
            "{record:?}"
        );
        assert_eq!(record.budget_bytes, budget);
        assert!(record.smallest_budget_bytes <= budget);
        let time: Duration = (assignment.stacks())
            .flat_map(|(_, blocks)| blocks.iter().map(|block| cost(&profile.kinds[0], block).time))
            .sum();
        assert!(time <= again, "part {part}: {time:?} after {again:?}");
        again = time;
    }
    match planner.within(1 << 20) {
        Err(PlanError::Infeasible { smallest_gib, .. }) => {
            let smallest = smallest_gib * (1u64 << 30) as f64;
            assert!(
                smallest > (1 << 20) as f64 && smallest <= 1.1 * least as f64,
                "{smallest}"
            );
        }
        other => panic!("{other:?}"),
    }
    drop(planner);
    samples_come_close_to_the_peak(&bench, &plan);
    sampled_memory_is_predicted_too(&bench, &plan);
    blocks_of_several_kinds_are_predicted_each_by_its_own(&plan);
    experts_are_predicted_and_a_budget_for_them_is_kept(&plan);
    nothing_grows(&bench, &plan);
}

/// Blocks with and without a second attention, and a last one that hands the text on as it came.
fn blocks_of_several_kinds_are_predicted_each_by_its_own(plan: &Backends) {
    let config = MmditConfig {
        sample_size: 16,
        latent_height: None,
        latent_width: None,
        patch_size: 2,
        in_channels: 3,
        out_channels: Some(3),
        num_layers: 4,
        attention_head_dim: 8,
        num_attention_heads: 3,
        joint_attention_dim: 10,
        caption_projection_dim: 24,
        pooled_projection_dim: 7,
        pos_embed_max_size: 8,
        dual_attention_layers: vec![0, 1],
        qk_norm: true,
    };
    let bench = Bench::new(Box::new(
        Mmdit::new(&config, &ComputeDevice::cpu()).expect("it fits"),
    ));
    let planner = bench.planner(plan, Arc::new(&MEMORY));
    let kinds: Vec<usize> = planner
        .profile()
        .blocks
        .iter()
        .map(|(_, _, kind)| *kind)
        .collect();
    assert_eq!(kinds, [0, 0, 1, 2]);
    for policy in [
        Policy::Full { split: false },
        Policy::Full { split: true },
        Policy::AttnOnly { split: true },
        Policy::EveryNthLinear { n: 2 },
        Policy::BlockSkip { every: 2 },
    ] {
        let assignment = policy.assign(bench.model.spec()).unwrap().unwrap();
        let (predicted, measured) = (
            planner.predict(&assignment),
            planner.measure(policy.name(), &assignment),
        );
        assert_eq!(predicted.held_bytes, measured.counts.most_held_bytes, "{policy}");
    }
}

fn experts_are_predicted_and_a_budget_for_them_is_kept(plan: &Backends) {
    let bench = Bench::new(Box::new(model(Some(MoeConfig {
        experts: 4,
        top_k: 2,
        inner: 64,
        shared: 32,
        normalize: false,
    }))));
    let mut planner = bench.planner(plan, Arc::new(&MEMORY));
    assert_eq!(planner.profile().kinds.len(), 1, "all blocks are alike");
    let mut peaks = Vec::new();
    for policy in [
        Policy::Full { split: false },
        Policy::Full { split: true },
        Policy::AttnOnly { split: false },
        Policy::EveryNthLinear { n: 1 },
        Policy::Regions {
            save: vec!["moe:grouped_linear".into()],
        },
        Policy::BlockSkip { every: 2 },
    ] {
        let assignment = policy.assign(bench.model.spec()).unwrap().unwrap();
        let (predicted, measured) = (
            planner.predict(&assignment),
            planner.measure(policy.name(), &assignment),
        );
        assert_eq!(predicted.held_bytes, measured.counts.most_held_bytes, "{policy}");
        peaks.push(measured.peak_bytes);
    }
    let (least, most) = (peaks.iter().min().unwrap(), peaks.iter().max().unwrap());
    let budget = (least + most) / 2;
    let (_, record) = planner.within(budget).expect("a policy stays below it");
    assert!(record.measured.peak_bytes <= budget, "{record:?}");
    assert_eq!(record.predicted.held_bytes, record.measured.held_bytes);
}

/// A device that only says what is in use now is asked after every operation, which misses what an operation has in use
/// by itself.
fn samples_come_close_to_the_peak(bench: &Bench, plan: &Backends) {
    let sampled = Sampled::new(Arc::new(|| MEMORY.in_use_bytes()));
    let plan = Arc::new(sampled.observed(plan));
    bench.step(&plan);
    let before = MEMORY.in_use_bytes();
    MEMORY.reset_peak();
    sampled.reset_peak();
    bench.step(&plan);
    let (true_peak, found) = (MEMORY.peak_bytes() - before, sampled.peak_bytes() - before);
    assert!(
        found <= true_peak && found as f64 > 0.8 * true_peak as f64,
        "{found} of {true_peak}"
    );
}

/// The planner where memory can only be sampled, as on a GPU.
fn sampled_memory_is_predicted_too(bench: &Bench, plan: &Backends) {
    let mut planner = bench.planner(plan, Arc::new(Sampled::new(Arc::new(|| MEMORY.in_use_bytes()))));
    let assign = |policy: Policy| policy.assign(bench.model.spec()).unwrap().unwrap();
    let peaks = [Policy::AttnOnly { split: false }, Policy::None].map(|policy| {
        let assignment = assign(policy);
        let (predicted, measured) = (
            planner.predict(&assignment),
            planner.measure("sampled", &assignment),
        );
        let ratio = measured.peak_bytes as f64 / predicted.peak_bytes as f64;
        assert!((0.95..=1.05).contains(&ratio), "{predicted:?} {measured:?}");
        measured.peak_bytes
    });
    let budget = (peaks[0] + peaks[1]) / 2;
    let (_, record) = planner.within(budget).expect("attn-only fits");
    assert!(record.measured.peak_bytes <= budget, "{record:?}");
}

/// Tensors of a block by hand, in f32.
fn a_block_is_measured_to_the_byte(planner: &Planner<'_>) {
    let block = &planner.profile().kinds[0];
    let stream = (ROWS * 16 * 16 * 48 * 4) as u64;
    assert_eq!(block.input_bytes, stream);
    let kinds: Vec<RegionKind> = block.regions.iter().map(|region| region.kind).collect();
    assert_eq!(kinds, [RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp]);
    let slots: Vec<(&str, u64)> = (block.regions.iter())
        .flat_map(|region| region.slots.iter().map(|slot| (slot.name, slot.bytes)))
        .collect();
    let modulation = (ROWS * 6 * 48 * 4) as u64;
    let log_sum_exp = (ROWS * 4 * 256 * 4) as u64;
    let expected = [
        ("linear", modulation),
        ("linear", stream),
        ("linear", stream),
        ("linear", stream),
        ("attention", stream + log_sum_exp),
        ("linear", stream),
        ("linear", 4 * stream),
        ("linear", stream),
    ];
    assert_eq!(slots, expected);
    // To keep more never takes more time, nor less memory.
    let of = |block_policy: BlockPolicy| cost(block, &block_policy);
    let full = of(BlockPolicy::recomputed(Saves::default()));
    let attention = of(BlockPolicy::recomputed(Saves::all(["attention"])));
    assert_eq!(attention.held_bytes, full.held_bytes + stream + log_sum_exp);
    assert!(attention.time < full.time);
    let mut split = BlockPolicy::recomputed(Saves::default());
    split.regions = [(RegionKind::Attention, RegionPolicy::Separate)].into();
    let split = of(split);
    assert_eq!(split.held_bytes, full.held_bytes + stream);
    assert_eq!(split.time, full.time);
    for option in &planner.options()[0] {
        assert_eq!(cost(block, &option.block_policy), option.cost, "{option:?}");
    }
}

/// What attention reads, normalised, projected and turned, is none of the peak, which is in the feed-forward part.
fn attention_is_in_memory_from_its_own_backward_on(bench: &Bench, planner: &Planner<'_>) {
    let stream = (ROWS * 16 * 16 * 48 * 4) as u64;
    let [deferred, at_once] = [true, false].map(|defers| {
        let block_policy = BlockPolicy {
            defers,
            ..BlockPolicy::recomputed(Saves::all(["attention"]))
        };
        let assignment = Assignment::new(&bench.model.spec().stacks, |_, _| block_policy.clone());
        planner.measure("attn-only", &assignment)
    });
    assert_eq!(deferred.counts.most_held_bytes, at_once.counts.most_held_bytes);
    // Of queries, keys and values, and of queries and keys before they were turned, four at least.
    assert!(
        deferred.peak_bytes + 4 * stream <= at_once.peak_bytes,
        "{} bytes, {} if attention runs with its block",
        deferred.peak_bytes,
        at_once.peak_bytes
    );
}

/// Twenty steps leave what one leaves.
fn nothing_grows(bench: &Bench, plan: &Backends) {
    let assignment = Policy::AttnOnly { split: true }
        .assign(bench.model.spec())
        .unwrap()
        .unwrap();
    let engine = Arc::new(flow_checkpoint::Checkpointing::new("attn-only", assignment));
    let plan = Arc::new(Backends {
        regions: engine,
        ..plan.clone()
    });
    bench.step(&plan);
    let after_one = MEMORY.in_use_bytes();
    for _ in 0..20 {
        bench.step(&plan);
    }
    let grown = MEMORY.in_use_bytes().saturating_sub(after_one);
    // Burn's books of the graph grow and shrink by themselves.
    assert!(grown < 64 << 10, "{grown} bytes more after twenty steps");
}
