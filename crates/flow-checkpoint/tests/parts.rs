//! Weights that are whole only while a block computes: what runs again fetches them anew, so that the graph keeps none. One test, since
//! memory is counted for the process.

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_checkpoint::{Checkpointing, CountingAllocator, MemoryProbe, Policy};
use flow_core::device::ComputeDevice;
use flow_core::model::{Condition, LatentShape, ModelInput};
use flow_core::rng::{Purpose, Stream};
use flow_core::{
    Backends, BlockWeights, CallContext, Drawn, FlowModel, ModelSpec, ParamKind, ParamLayout, RawTensor,
    Stage, TrainingPass, Weights, cpu,
};
use flow_kernels::CpuKernels;
use flow_models::{Dit, DitConfig, Position, Trained, add_lora, trained_mask};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[global_allocator]
static MEMORY: CountingAllocator = CountingAllocator::new();

const LAYERS: usize = 8;
const ROWS: usize = 2;

/// Gives blocks copies of what a file has, as if they came from other processes.
#[derive(Debug)]
struct Copies {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    file: Weights,
    /// Blocks in the order in which they were asked for, and which were said to be next.
    asked: Mutex<Vec<(usize, Option<usize>)>>,
    /// Bytes of the values of all blocks.
    bytes: AtomicUsize,
}

impl Copies {
    fn asked(&self) -> Vec<(usize, Option<usize>)> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl BlockWeights for Copies {
    fn own_part(&self, index: usize) -> Option<Range<usize>> {
        let weight = &self.layout.specs()[index];
        let is_of_block = weight.kind == ParamKind::Base && self.spec.block_of(&weight.name).is_some();
        is_of_block.then_some(0..0)
    }

    fn counts(&self, index: usize) -> Option<Vec<usize>> {
        self.own_part(index).map(|part| vec![part.len()])
    }

    fn open(&self) -> usize {
        0
    }

    fn show(&self, _: usize, _: usize, _: RawTensor) {}

    fn hide(&self, _: usize) {}

    fn gather(&self, _: usize, stack: &str, block: usize, next: Option<usize>) -> Vec<(usize, RawTensor)> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((block, next));
        let specs = self.layout.specs().iter().enumerate();
        let of_block = specs.filter(|(index, spec)| {
            self.own_part(*index).is_some() && self.spec.block_of(&spec.name) == Some((stack, block))
        });
        let copies = of_block.map(|(index, spec)| {
            let values = self.file.host(index);
            self.bytes.fetch_add(4 * values.len(), Ordering::Relaxed);
            (index, ComputeDevice::cpu().plain(values, &spec.shape))
        });
        copies.collect()
    }
}

fn model() -> Dit {
    let config = DitConfig {
        latent: LatentShape {
            channels: 3,
            frames: 1,
            height: 6,
            width: 5,
        },
        patch: 1,
        hidden: 72,
        layers: LAYERS,
        heads: 6,
        mlp_ratio: 4.0,
        moe: None,
        vocabulary: None,
        qk_norm: true,
        position: Position::Rope,
    };
    Dit::new(&config, &ComputeDevice::cpu()).expect("it fits")
}

fn velocity(model: &Dit, training: &TrainingPass<'_>) -> Tensor<2> {
    let device = ComputeDevice::cpu();
    let values = model.spec().latent.values();
    let mut noise = vec![0.0; ROWS * values];
    Stream::new(11, Purpose::Test).at(1, 0).fill_normal(&mut noise);
    let input = ModelInput {
        x: device.tensor(noise, [ROWS, values]),
        sigma: device.tensor(vec![0.3; ROWS], [ROWS]),
        condition: Condition::default(),
    };
    let exec = training.exec(CallContext::single(Stage::Training));
    model.velocity(&exec, input)
}

/// The bits of gradients, and by how many bytes more is in use after the forward pass than before it.
fn step(
    model: &Dit,
    weights: &Weights,
    plan: &Arc<Backends>,
    trained: &Arc<[bool]>,
) -> (Vec<Option<Vec<u32>>>, u64) {
    let before = MEMORY.in_use_bytes();
    let training = TrainingPass::new(weights, plan.clone(), trained.clone());
    let velocity = velocity(model, &training);
    let kept = MEMORY.in_use_bytes().saturating_sub(before);
    let gradients = training.gradients(&velocity.sum());
    let bits = |gradient: RawTensor| {
        let values = cpu::to_host(&gradient).into_iter();
        values.map(f32::to_bits).collect()
    };
    (
        gradients.into_iter().map(|gradient| gradient.map(bits)).collect(),
        kept,
    )
}

/// On one thread: with several, how much of their scratch is in use at one time depends on how they meet.
#[test]
fn blocks_that_run_again_fetch_their_weights_anew_and_the_graph_keeps_none() {
    let builder = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .stack_size(16 << 20);
    let pool = builder.build().expect("the system starts a thread");
    pool.install(everything);
}

fn everything() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let mut layout = (**model.layout()).clone();
    add_lora(&model, &mut layout, &["*".to_owned()], 2, 4.0).expect("it has linear layers");
    let layout = Arc::new(layout);
    let trained: Arc<[bool]> = trained_mask(&layout, Trained::Lora).expect("there are some");
    let mut file = Weights::zeros(layout.clone(), &device);
    // None is zero, so that every block has gradients.
    for (index, spec) in layout.specs().iter().enumerate() {
        let mut values = vec![0.0; spec.shape.iter().product()];
        Stream::new(12, Purpose::Test)
            .at(index as u64, 0)
            .fill_normal(&mut values);
        let values = values.into_iter().map(|value: f32| 0.2 * value).collect();
        file.set_host(index, values)
            .expect("the shapes are those of the layout");
    }
    let copies = Arc::new(Copies {
        spec: model.spec().clone(),
        layout: layout.clone(),
        file: file.clone(),
        asked: Mutex::default(),
        bytes: AtomicUsize::new(0),
    });
    let drawn = (Drawn::Adapters, &trained[..]);
    let mut in_parts = Weights::init_on_parts(layout.clone(), (3, &device), drawn, copies.clone());
    for index in 0..layout.len() {
        in_parts
            .set_host(index, file.host(index))
            .expect("the shapes are those of the layout");
    }
    let assignment = Policy::Full { split: false }.assign(model.spec());
    let assignment = assignment.expect("it has blocks").expect("no planner is needed");
    let plan = Arc::new(Backends {
        regions: Arc::new(Checkpointing::new("full", assignment)),
        ..Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
    });
    // What is made once, both make here.
    step(&model, &file, &plan, &trained);
    step(&model, &in_parts, &plan, &trained);
    copies.asked();
    copies.bytes.store(0, Ordering::Relaxed);

    let (wanted, kept_of_whole) = step(&model, &file, &plan, &trained);
    let (found, kept) = step(&model, &in_parts, &plan, &trained);
    assert!(
        wanted
            .iter()
            .flatten()
            .any(|bits| bits.iter().any(|bits| *bits << 1 != 0))
    );
    assert!(found == wanted, "gradients of adapters have other bits");
    // And the one that follows was announced in both directions.
    let forward = (0..LAYERS).map(|block| (block, Some(block + 1).filter(|next| *next < LAYERS)));
    let backward = (0..LAYERS).rev().map(|block| (block, block.checked_sub(1)));
    assert_eq!(copies.asked(), forward.chain(backward).collect::<Vec<_>>());
    // Each block was copied twice. The graph holds not even one of them.
    let block = copies.bytes.load(Ordering::Relaxed) as u64 / (2 * LAYERS as u64);
    assert!(
        kept < kept_of_whole + block / 2,
        "{kept} bytes are kept, {kept_of_whole} with whole weights, and a block has {block}"
    );
    // The same weights, those of blocks trained: their gradients arrive whole.
    let flags = layout.specs().iter().map(|spec| spec.kind == ParamKind::Base);
    let all: Arc<[bool]> = flags.collect();
    let (wanted, _) = step(&model, &file, &plan, &all);
    let (found, _) = step(&model, &in_parts, &plan, &all);
    let mut of_blocks = (0..layout.len()).filter(|index| copies.own_part(*index).is_some());
    assert!(of_blocks.any(|index| found[index].is_some()));
    assert!(found == wanted, "gradients of weights in parts have other bits");
}
