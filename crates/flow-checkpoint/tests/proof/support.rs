//! Small models, their inputs, and one training pass.

use flow_attention::CpuAttention;
use flow_checkpoint::{Assignment, BlockTreatment, Checkpointing, Policy, RegionTreatment, Saves};
use flow_core::device::ComputeDevice;
use flow_core::model::{LatentShape, ModelInput, Vocabulary};
use flow_core::op::take_gradient;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{leaf, plain};
use flow_core::{
    AdamWStep, CallContext, Condition, FlowModel, Kernels, ParamLayout, Plain, Plan, RegionKind, Stage,
    Training, Weights, cpu,
};
use flow_kernels::CpuKernels;
use flow_models::{
    Architecture, Dit, DitConfig, Mmdit, MmditConfig, Position, Trained, add_lora, trained_mask,
};
use std::sync::Arc;

pub const LAYERS: usize = 3;

/// Normal values; `salt` tells draws apart.
pub fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(11, Purpose::Test)
        .at(salt, 0)
        .fill_normal(&mut values);
    values
}

pub fn bits(tensor: &Plain) -> Vec<u32> {
    let host = cpu::to_host(tensor);
    host.iter().map(|value| value.to_bits()).collect()
}

/// A model with weights, of which some are trained.
pub struct Subject {
    pub name: String,
    pub model: Box<dyn Architecture>,
    pub weights: Weights,
    pub trained: Arc<[bool]>,
    /// Rows of a batch.
    pub rows: usize,
}

pub fn dit_config(position: Position) -> DitConfig {
    DitConfig {
        latent: LatentShape {
            channels: 3,
            frames: 1,
            height: 6,
            width: 4,
        },
        patch: 2,
        hidden: 24,
        layers: LAYERS,
        heads: 3,
        mlp_ratio: 2.5,
        moe: None,
        vocabulary: Some(Vocabulary { size: 5, length: 3 }),
        qk_norm: position == Position::Rope,
        position,
    }
}

pub fn mmdit_config() -> MmditConfig {
    MmditConfig {
        sample_size: 8,
        latent_height: Some(4),
        latent_width: Some(6),
        patch_size: 2,
        in_channels: 3,
        out_channels: Some(3),
        num_layers: LAYERS,
        attention_head_dim: 8,
        num_attention_heads: 3,
        joint_attention_dim: 10,
        caption_projection_dim: 24,
        pooled_projection_dim: 7,
        pos_embed_max_size: 4,
        dual_attention_layers: vec![0, 1],
        qk_norm: true,
    }
}

impl Subject {
    pub fn new(name: &str, model: Box<dyn Architecture>, trained: Trained, rows: usize) -> Self {
        let device = ComputeDevice::cpu();
        let mut layout = (**model.layout()).clone();
        if trained == Trained::Lora {
            add_lora(&*model, &mut layout, &["*".to_owned()], 3, 6.0).expect("every linear layer");
        }
        let layout = Arc::new(layout);
        Self {
            name: name.into(),
            weights: noisy_weights(&layout, &device),
            trained: trained_mask(&layout, trained).expect("there are some"),
            model,
            rows,
        }
    }

    pub fn dit() -> Self {
        let dit = Dit::new(&dit_config(Position::Rope), &ComputeDevice::cpu()).expect("it fits");
        Self::new("dit", Box::new(dit), Trained::Full, 2)
    }

    /// Every kind of model, set of trained weights, and batch.
    pub fn all() -> Vec<Self> {
        let device = ComputeDevice::cpu();
        let dit = |position| Box::new(Dit::new(&dit_config(position), &device).expect("it fits"));
        let mmdit = || Box::new(Mmdit::new(&mmdit_config(), &device).expect("it fits"));
        vec![
            Self::dit(),
            Self::new("dit, guided batch", dit(Position::Sincos), Trained::Full, 4),
            Self::new("dit, lora", dit(Position::Rope), Trained::Lora, 2),
            Self::new("mmdit", mmdit(), Trained::Full, 2),
            Self::new("mmdit, lora", mmdit(), Trained::Lora, 2),
        ]
    }

    /// A batch; of a guided one, the second half has the latents of the first and another condition.
    pub fn input(&self, salt: u64) -> ModelInput {
        let device = ComputeDevice::cpu();
        let spec = self.model.spec();
        let (rows, values) = (self.rows, spec.latent.values());
        let mut x = noise(rows * values, salt);
        if rows == 4 {
            let (conditional, unconditional) = x.split_at_mut(2 * values);
            unconditional.copy_from_slice(conditional);
        }
        let sigma = (0..rows).map(|row| (row % 2) as f32 * 0.5 + 0.3).collect();
        let mut condition = Condition::default();
        if let Some(Vocabulary { size, length }) = spec.vocabulary {
            let tokens = (0..rows * length).map(|at| ((at * 7 + 3) % size) as i64);
            condition.tokens = Some(device.int_tensor(tokens.collect(), [rows, length]));
        }
        if spec.reads_text {
            condition.text = Some(device.tensor(noise(rows * 50, salt + 1), [rows, 5, 10]));
            condition.pooled = Some(device.tensor(noise(rows * 7, salt + 2), [rows, 7]));
        }
        ModelInput {
            x: device.tensor(x, [rows, values]),
            sigma: device.tensor(sigma, [rows]),
            condition,
        }
    }

    /// The gradient that a loss would give the velocity.
    pub fn cotangent(&self, salt: u64) -> Plain {
        let values = self.model.spec().latent.values();
        ComputeDevice::cpu().plain(noise(self.rows * values, salt), &[self.rows, values])
    }

    /// Velocities of `calls` calls, the gradients of their latents, and of the weights.
    pub fn pass(&self, plan: &Arc<Plan>, calls: u64) -> Found {
        self.pass_with(plan, calls, &self.weights)
    }

    pub fn pass_with(&self, plan: &Arc<Plan>, calls: u64, weights: &Weights) -> Found {
        let training = Training::new(weights, plan.clone(), self.trained.clone());
        let exec = training.exec(CallContext::single(Stage::Training));
        let (mut outputs, mut latents, mut seeds) = (Vec::new(), Vec::new(), Vec::new());
        for call in 0..calls {
            let mut input = self.input(100 * call + 1);
            let x = leaf(&plain(&input.x.into_dispatch()));
            input.x = burn::tensor::Tensor::from_dispatch(x.clone());
            outputs.push(self.model.velocity(&exec, input).into_dispatch());
            latents.push(x);
            seeds.push(Some(self.cotangent(100 * call + 50)));
        }
        let velocities = outputs.iter().map(plain).collect();
        let gradients = flow_core::op::backward_from(outputs, seeds);
        let mut gradients = gradients.expect("something is trained");
        let of_latents = latents
            .iter()
            .map(|x| take_gradient(x, &mut gradients).expect("the velocity depends on it"));
        Found {
            velocities,
            of_latents: of_latents.collect(),
            of_weights: exec.params().take_gradients(&mut gradients),
        }
    }
}

/// What a pass gives.
pub struct Found {
    pub velocities: Vec<Plain>,
    pub of_latents: Vec<Plain>,
    pub of_weights: Vec<Option<Plain>>,
}

impl Found {
    #[track_caller]
    pub fn assert_same_bits(&self, expected: &Self, what: &str, layout: &ParamLayout) {
        let all = |tensors: &[Plain]| tensors.iter().map(bits).collect::<Vec<_>>();
        assert_eq!(
            all(&self.velocities),
            all(&expected.velocities),
            "{what}: velocities"
        );
        assert_eq!(
            all(&self.of_latents),
            all(&expected.of_latents),
            "{what}: gradients of the latents"
        );
        let pairs = self.of_weights.iter().zip(&expected.of_weights);
        for (spec, (found, expected)) in layout.specs().iter().zip(pairs) {
            assert_eq!(
                found.as_ref().map(bits),
                expected.as_ref().map(bits),
                "{what}: gradient of {}",
                spec.name
            );
        }
    }
}

/// Weights that are all different from zero, so that no path is shut by a zero gate.
pub fn noisy_weights(layout: &Arc<ParamLayout>, device: &ComputeDevice) -> Weights {
    let mut weights = Weights::init(layout.clone(), 0, device);
    for (index, spec) in layout.specs().iter().enumerate() {
        let count = spec.shape.iter().product();
        let offset = if spec.name.contains(".norm_") { 1.0 } else { 0.0 };
        let values = noise(count, 1000 + index as u64);
        let values = values.iter().map(|value| offset + 0.2 * value).collect();
        weights
            .set(index, device.plain(values, &spec.shape))
            .expect("its own shape");
    }
    weights
}

/// The processor's kernels in every precision it has.
pub fn precisions() -> Vec<(&'static str, CpuKernels)> {
    let bf16 = CpuKernels::bf16().ok().map(|kernels| ("bf16", kernels));
    [("f32", CpuKernels::default())].into_iter().chain(bf16).collect()
}

pub fn plan_of(kernels: CpuKernels) -> Plan {
    Plan::new(Arc::new(CpuAttention), Arc::new(kernels))
}

pub fn with_engine(plan: &Plan, engine: &Arc<Checkpointing>) -> Arc<Plan> {
    Arc::new(Plan {
        regions: engine.clone(),
        ..plan.clone()
    })
}

pub fn engine(policy: &Policy, model: &dyn FlowModel) -> Arc<Checkpointing> {
    let assignment = policy.assign(model.spec()).expect("it fits");
    let assignment = assignment.expect("it needs no planner");
    Arc::new(Checkpointing::new(policy.to_string(), assignment))
}

/// Every policy that needs no planner.
pub fn policies() -> Vec<Policy> {
    let save = |patterns: &[&str]| Policy::Regions {
        save: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
    };
    vec![
        Policy::None,
        Policy::Full { split: false },
        Policy::Full { split: true },
        Policy::BlockSkip { every: 2 },
        Policy::EveryNthLinear { n: 1 },
        Policy::EveryNthLinear { n: 2 },
        Policy::AttnOnly { split: false },
        Policy::AttnOnly { split: true },
        save(&["attention"]),
        save(&["transformer_blocks.1.*", "mlp:linear"]),
        save(&["adaln", "attention:attention"]),
    ]
}

/// Engines that no policy makes: blocks kept and their regions apart, and every region apart within a block that is
/// computed again.
pub fn unusual(model: &dyn FlowModel) -> Vec<Arc<Checkpointing>> {
    let kinds = [RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp];
    let mut nested = BlockTreatment::recomputed(Saves::all(["attention"]));
    nested.regions = kinds.map(|kind| (kind, RegionTreatment::Apart)).into();
    let treatments = [
        ("regions alone", BlockTreatment::split(Saves::default(), kinds)),
        (
            "attention alone",
            BlockTreatment::split(Saves::all(["linear"]), [RegionKind::Attention]),
        ),
        ("regions within blocks", nested),
    ];
    let engine = |(name, treatment): (&str, BlockTreatment)| {
        let assignment = Assignment::new(&model.spec().stacks, |_, _| treatment.clone());
        Arc::new(Checkpointing::new(name, assignment))
    };
    treatments.into_iter().map(engine).collect()
}

/// Weights and AdamW's moments.
pub struct State {
    pub weights: Weights,
    pub first: Vec<Plain>,
    pub second: Vec<Plain>,
}

impl State {
    pub fn new(subject: &Subject) -> Self {
        let zeros = || {
            let values = subject.weights.values().iter();
            values.map(flow_core::tensors::zeros_like).collect()
        };
        Self {
            weights: subject.weights.clone(),
            first: zeros(),
            second: zeros(),
        }
    }

    /// AdamW's step number `number`, from 1.
    pub fn step(&mut self, kernels: &dyn Kernels, gradients: &[Option<Plain>], number: i32) {
        let corrections = [1.0 - 0.9f32.powi(number), 1.0 - 0.95f32.powi(number)];
        let varying = ComputeDevice::cpu().plain(vec![1e-2, corrections[0], corrections[1], 1.0], &[4]);
        let step = AdamWStep {
            betas: (0.9, 0.95),
            epsilon: 1e-8,
            weight_decay: 1e-3,
            varying,
        };
        for (index, value) in self.weights.values_mut().iter_mut().enumerate() {
            if let Some(gradient) = &gradients[index] {
                kernels.adamw(
                    value,
                    None,
                    gradient,
                    &mut self.first[index],
                    &mut self.second[index],
                    &step,
                );
            }
        }
    }

    pub fn bits(&self) -> Vec<Vec<u32>> {
        let moments = self.first.iter().chain(&self.second);
        self.weights.values().iter().chain(moments).map(bits).collect()
    }
}
