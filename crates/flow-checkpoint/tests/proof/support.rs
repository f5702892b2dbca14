//! Small models, their inputs, and one training pass.

#[cfg(any(feature = "lavapipe", feature = "cuda"))]
use burn::tensor::FloatDType;
use burn::tensor::Tensor;
#[cfg(any(feature = "lavapipe", feature = "cuda"))]
use flow_attention::AttentionRegistry;
use flow_attention::CpuAttention;
use flow_checkpoint::{Assignment, BlockPolicy, Checkpointing, Policy, RegionPolicy, Saves};
use flow_core::autograd::take_gradient;
use flow_core::device::ComputeDevice;
use flow_core::model::{LatentShape, ModelInput, Vocabulary};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::{leaf, plain};
use flow_core::{
    AdamWParam, AdamWStep, Backends, CallContext, Condition, FlowModel, Kernels, MasterWeight, ModelSpec,
    ParamLayout, RawTensor, RegionKind, Stage, TrainingPass, Weights, cpu,
};
use flow_kernels::CpuKernels;
#[cfg(any(feature = "lavapipe", feature = "cuda"))]
use flow_kernels::KernelRegistry;
use flow_models::{
    Architecture, Dit, DitConfig, Flux, FluxConfig, Mmdit, MmditConfig, MoeConfig, Position, QwenImage,
    QwenImageConfig, Trained, Wan, WanConfig, add_lora, trained_mask,
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

pub fn bits(tensor: &RawTensor) -> Vec<u32> {
    let host = cpu::to_host(tensor);
    host.iter().map(|value| value.to_bits()).collect()
}

/// Where models compute, and how.
#[derive(Clone)]
pub struct Place {
    pub name: &'static str,
    pub device: ComputeDevice,
    pub plan: Backends,
}

impl Place {
    fn cpu(name: &'static str, kernels: CpuKernels) -> Self {
        Self {
            name,
            device: ComputeDevice::cpu(),
            plan: plan_of(kernels),
        }
    }

    /// The processor in every precision it has, and the GPU that this was built for.
    pub fn all() -> Vec<Self> {
        let mut places = vec![Self::cpu("f32", CpuKernels::default())];
        match CpuKernels::bf16() {
            Ok(kernels) => places.push(Self::cpu("bf16", kernels)),
            Err(why) => test_support::skipped(why),
        }
        #[cfg(any(feature = "lavapipe", feature = "cuda"))]
        places.extend(gpus());
        places
    }
}

#[cfg(any(feature = "lavapipe", feature = "cuda"))]
fn gpus() -> Vec<Place> {
    #[cfg(feature = "lavapipe")]
    let (device, kernels) = (ComputeDevice::vulkan(), [("vulkan", FloatDType::F32)]);
    #[cfg(not(feature = "lavapipe"))]
    let (device, kernels) = (
        ComputeDevice::cuda(0),
        [("cuda", FloatDType::F32), ("cuda-bf16", FloatDType::BF16)],
    );
    let device = device.unwrap_or_else(|error| panic!("{error:?}"));
    let mut registries = (KernelRegistry::default(), AttentionRegistry::default());
    flow_kernels::register(&mut registries.0).expect("a new registry");
    flow_attention::register(&mut registries.1).expect("a new registry");
    let attention = if cfg!(feature = "lavapipe") {
        "portable"
    } else {
        "cuda"
    };
    let attention = registries.1.get(attention).expect("it is registered");
    let place = |(name, dtype)| Place {
        name,
        device: match dtype {
            FloatDType::F32 => device.clone(),
            other => device.clone().computing_in(other),
        },
        plan: Backends::new(
            attention.clone(),
            registries.0.get(name).expect("it is registered"),
        ),
    };
    kernels.into_iter().map(place).collect()
}

/// A model with weights, of which some are trained.
pub struct Subject {
    pub name: String,
    pub device: ComputeDevice,
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

/// Experts in the place of the feed-forward part, with one that all tokens share if `shared` is its width.
pub fn experts_config(position: Position, shared: usize) -> DitConfig {
    DitConfig {
        moe: Some(MoeConfig {
            experts: 5,
            top_k: 2,
            inner: 20,
            shared,
            normalize: shared == 0,
        }),
        ..dit_config(position)
    }
}

pub fn wan_config() -> WanConfig {
    WanConfig {
        latent_frames: 2,
        latent_height: 4,
        latent_width: 6,
        num_attention_heads: 2,
        attention_head_dim: 12,
        in_channels: 3,
        out_channels: Some(3),
        text_dim: 10,
        freq_dim: 32,
        ffn_dim: 40,
        num_layers: LAYERS,
        ..WanConfig::t2v_1_3b()
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

pub fn qwen_image_config() -> QwenImageConfig {
    QwenImageConfig {
        latent_height: 4,
        latent_width: 6,
        in_channels: 12,
        out_channels: 3,
        num_layers: LAYERS,
        attention_head_dim: 8,
        num_attention_heads: 3,
        joint_attention_dim: 10,
        axes_dims_rope: [2, 2, 4],
        ..QwenImageConfig::published()
    }
}

/// Blocks of two streams, and as many of one.
pub fn flux_config() -> FluxConfig {
    FluxConfig {
        latent_height: 4,
        latent_width: 6,
        in_channels: 12,
        num_layers: LAYERS,
        num_single_layers: LAYERS,
        attention_head_dim: 8,
        num_attention_heads: 3,
        joint_attention_dim: 10,
        pooled_projection_dim: 7,
        axes_dims_rope: [2, 2, 4],
        ..FluxConfig::flux1_schnell()
    }
}

impl Subject {
    pub fn new(name: &str, model: Box<dyn Architecture>, trained: Trained, rows: usize) -> Self {
        Self::on(&ComputeDevice::cpu(), name, model, trained, rows)
    }

    fn on(
        device: &ComputeDevice,
        name: &str,
        model: Box<dyn Architecture>,
        trained: Trained,
        rows: usize,
    ) -> Self {
        let mut layout = (**model.layout()).clone();
        if trained == Trained::Lora {
            add_lora(&*model, &mut layout, &["*".to_owned()], 3, 6.0).expect("every linear layer");
        }
        let layout = Arc::new(layout);
        Self {
            name: name.into(),
            device: device.clone(),
            weights: noisy_weights(&layout, device),
            trained: trained_mask(&layout, trained).expect("there are some"),
            model,
            rows,
        }
    }

    pub fn dit() -> Self {
        let dit = Dit::new(&dit_config(Position::Rope), &ComputeDevice::cpu()).expect("it fits");
        Self::new("dit", Box::new(dit), Trained::Full, 2)
    }

    /// A model of two stacks.
    pub fn flux() -> Self {
        let flux = Flux::new(&flux_config(), &ComputeDevice::cpu()).expect("it fits");
        Self::new("flux, lora", Box::new(flux), Trained::Lora, 2)
    }

    /// Every kind of model of one stack, set of trained weights, and batch, on the processor.
    pub fn all() -> Vec<Self> {
        Self::all_on(&ComputeDevice::cpu())
    }

    /// Every kind of model of one stack, set of trained weights, and batch.
    pub fn all_on(device: &ComputeDevice) -> Vec<Self> {
        let dit = |position| Box::new(Dit::new(&dit_config(position), device).expect("it fits"));
        let experts = |position, shared| {
            let config = experts_config(position, shared);
            Box::new(Dit::new(&config, device).expect("it fits"))
        };
        let mmdit = || Box::new(Mmdit::new(&mmdit_config(), device).expect("it fits"));
        let wan = || Box::new(Wan::new(&wan_config(), device).expect("it fits"));
        let qwen_image = || Box::new(QwenImage::new(&qwen_image_config(), device).expect("it fits"));
        let models: Vec<(&str, Box<dyn Architecture>, Trained, usize)> = vec![
            ("dit", dit(Position::Rope), Trained::Full, 2),
            ("dit, guided batch", dit(Position::Sincos), Trained::Full, 4),
            ("dit, lora", dit(Position::Rope), Trained::Lora, 2),
            ("experts", experts(Position::Rope, 0), Trained::Full, 2),
            (
                "experts, guided batch",
                experts(Position::Sincos, 28),
                Trained::Full,
                4,
            ),
            ("experts, lora", experts(Position::Rope, 28), Trained::Lora, 2),
            ("wan", wan(), Trained::Full, 2),
            ("mmdit", mmdit(), Trained::Full, 2),
            ("mmdit, lora", mmdit(), Trained::Lora, 2),
            ("qwen-image", qwen_image(), Trained::Full, 2),
            ("qwen-image, lora", qwen_image(), Trained::Lora, 2),
        ];
        let models = models.into_iter();
        models
            .map(|(name, model, trained, rows)| Self::on(device, name, model, trained, rows))
            .collect()
    }

    /// A batch; of a guided one, the second half has the latents of the first and another condition.
    pub fn input(&self, salt: u64) -> ModelInput {
        let (device, spec) = (&self.device, self.model.spec());
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
        if spec.text.is_some() {
            condition.text = Some(device.tensor(noise(rows * 50, salt + 1), [rows, 5, 10]));
            // A model that hides padding sees texts of two lengths.
            condition.text_lengths = Some((0..rows).map(|row| 5 - 2 * (row % 2)).collect());
            condition.pooled = Some(device.tensor(noise(rows * 7, salt + 2), [rows, 7]));
        }
        ModelInput {
            x: device.tensor(x, [rows, values]),
            sigma: device.tensor(sigma, [rows]),
            condition,
        }
    }

    /// The gradient that a loss would give the velocity.
    pub fn cotangent(&self, salt: u64) -> RawTensor {
        let values = self.model.spec().latent.values();
        self.device
            .plain(noise(self.rows * values, salt), &[self.rows, values])
    }

    /// The velocity of a training pass that is never differentiated.
    pub fn forward(&self, plan: &Arc<Backends>) -> RawTensor {
        let training = TrainingPass::new(&self.weights, plan.clone(), self.trained.clone());
        let exec = training.exec(CallContext::single(Stage::Training));
        let (velocity, _) = self.model.velocity_and_balance(&exec, self.input(1));
        plain(&velocity.into_dispatch())
    }

    /// Velocities and losses of `calls` calls, the gradients of their inputs, and of the weights.
    pub fn pass(&self, plan: &Arc<Backends>, calls: u64) -> Found {
        self.pass_with(plan, calls, &self.weights)
    }

    /// Each call ends in a loss: the mean squared distance of its velocity to a target, and, of experts, how unevenly
    /// they are loaded. The sum of all is differentiated.
    pub fn pass_with(&self, plan: &Arc<Backends>, calls: u64, weights: &Weights) -> Found {
        let training = TrainingPass::new(weights, plan.clone(), self.trained.clone());
        let exec = training.exec(CallContext::single(Stage::Training));
        let (mut velocities, mut losses, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        for call in 0..calls {
            let (input, leaves) = on_leaves(self.input(100 * call + 1));
            let (velocity, balance) = self.model.velocity_and_balance(&exec, input);
            let velocity = velocity.into_dispatch();
            let target = self.cotangent(100 * call + 50);
            losses.push(plan.kernels.ops().loss.mean_squared_distance(&velocity, &target));
            losses.extend(balance.map(Tensor::into_dispatch));
            velocities.push(plain(&velocity));
            inputs.extend(leaves);
        }
        let found = losses.iter().map(plain).collect();
        let seeds = losses
            .iter()
            .map(|_| Some(self.device.plain(vec![0.7; self.rows], &[self.rows])));
        let seeds = seeds.collect();
        let mut gradients = flow_core::autograd::backward_from(losses, seeds).expect("something is trained");
        let of_inputs = inputs.iter().map(|leaf| take_gradient(leaf, &mut gradients));
        let of_inputs: Vec<_> = of_inputs.collect();
        assert!(of_inputs[0].is_some(), "the velocity depends on the latents");
        Found {
            velocities,
            losses: found,
            of_inputs,
            of_weights: exec.params().take_gradients(&mut gradients),
        }
    }
}

/// `input` with everything in it that is a real number as a leaf, and these leaves.
fn on_leaves(mut input: ModelInput) -> (ModelInput, Vec<RawTensor>) {
    fn lift<const D: usize>(tensor: &mut Tensor<D>) -> RawTensor {
        let lifted = leaf(&plain(&tensor.clone().into_dispatch()));
        *tensor = Tensor::from_dispatch(lifted.clone());
        lifted
    }
    let mut leaves = vec![lift(&mut input.x)];
    leaves.extend(input.condition.text.as_mut().map(lift));
    leaves.extend(input.condition.pooled.as_mut().map(lift));
    (input, leaves)
}

/// What a pass gives.
pub struct Found {
    pub velocities: Vec<RawTensor>,
    /// Of each call, by row: the distance, and the balance of experts if there are any.
    pub losses: Vec<RawTensor>,
    /// Of each call: latents, text and pooled text, as far as the model reads them.
    pub of_inputs: Vec<Option<RawTensor>>,
    pub of_weights: Vec<Option<RawTensor>>,
}

impl Found {
    #[track_caller]
    pub fn assert_same_bits(&self, expected: &Self, what: &str, layout: &ParamLayout) {
        let all = |tensors: &[RawTensor]| tensors.iter().map(bits).collect::<Vec<_>>();
        assert_eq!(
            all(&self.velocities),
            all(&expected.velocities),
            "{what}: velocities"
        );
        assert_eq!(all(&self.losses), all(&expected.losses), "{what}: losses");
        let inputs = |tensors: &[Option<RawTensor>]| -> Vec<Option<Vec<u32>>> {
            tensors.iter().map(|found| found.as_ref().map(bits)).collect()
        };
        assert_eq!(
            inputs(&self.of_inputs),
            inputs(&expected.of_inputs),
            "{what}: gradients of the inputs"
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

/// The processor, with these kernels.
pub fn plan_of(kernels: CpuKernels) -> Backends {
    Backends::new(Arc::new(CpuAttention), Arc::new(kernels))
}

/// `plan` with operations of blocks that are made of others computed as one.
pub fn fused(plan: &Backends) -> Backends {
    Backends {
        block_kernels: plan.kernels.fused(Arc::new(|| {})),
        ..plan.clone()
    }
}

pub fn with_engine(plan: &Backends, engine: &Arc<Checkpointing>) -> Arc<Backends> {
    Arc::new(Backends {
        regions: engine.clone(),
        ..plan.clone()
    })
}

pub fn engine(policy: &Policy, model: &dyn FlowModel) -> Arc<Checkpointing> {
    let assignment = policy.assign(model.spec()).expect("it fits");
    let assignment = assignment.expect("it needs no planner");
    Arc::new(Checkpointing::new(policy.to_string(), assignment))
}

/// Every policy that needs no planner, with patterns for what `spec` declares.
pub fn policies(spec: &ModelSpec) -> Vec<Policy> {
    let save = |patterns: &[&str]| Policy::Regions {
        save: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
    };
    let stack = &spec.stacks[0].0;
    let patterns = if spec.regions.contains(&RegionKind::Moe) {
        vec![
            save(&[&format!("{stack}.1.*"), "moe:grouped_linear"]),
            save(&["router"]),
            save(&["moe", "attention:attention"]),
        ]
    } else {
        vec![save(&[&format!("{stack}.1.*"), "mlp:linear"])]
    };
    let mut policies = vec![
        Policy::None,
        Policy::Full { split: false },
        Policy::Full { split: true },
        Policy::BlockSkip { every: 2 },
        Policy::EveryNthLinear { n: 1 },
        Policy::EveryNthLinear { n: 2 },
        Policy::AttnOnly { split: false },
        Policy::AttnOnly { split: true },
        save(&["attention"]),
        save(&["adaln", "attention:attention"]),
    ];
    policies.extend(patterns);
    policies
}

/// What of `all` is tried with the subject of this number. A processor in a GPU's place takes long: there it is one in `every`, and other
/// ones with the next subject.
pub fn tried<T>(all: Vec<T>, device: &ComputeDevice, number: usize, every: usize) -> Vec<T> {
    let stands_in = cfg!(feature = "lavapipe") && !device.is_processor();
    let (first, every) = if stands_in {
        (number % every, every)
    } else {
        (0, 1)
    };
    all.into_iter().skip(first).step_by(every).collect()
}

/// Engines that no policy makes: blocks kept and their regions apart, and every region apart within a block that is
/// computed again.
pub fn unusual(model: &dyn FlowModel) -> Vec<Arc<Checkpointing>> {
    let kinds = &model.spec().regions;
    let mut nested = BlockPolicy::recomputed(Saves::all(["attention"]));
    nested.regions = (kinds.iter().map(|kind| (*kind, RegionPolicy::Separate))).collect();
    let block_policies = [
        (
            "regions alone",
            BlockPolicy::split(Saves::default(), kinds.iter().copied()),
        ),
        (
            "attention alone",
            BlockPolicy::split(Saves::all(["linear"]), [RegionKind::Attention]),
        ),
        ("regions within blocks", nested),
    ];
    let engine = |(name, block_policy): (&str, BlockPolicy)| {
        let assignment = Assignment::new(&model.spec().stacks, |_, _| block_policy.clone());
        Arc::new(Checkpointing::new(name, assignment))
    };
    block_policies.into_iter().map(engine).collect()
}

/// Weights and AdamW's moments.
pub struct State {
    device: ComputeDevice,
    pub weights: Weights,
    pub first: Vec<RawTensor>,
    pub second: Vec<RawTensor>,
}

impl State {
    /// Before the first step.
    pub fn of(weights: &Weights, device: &ComputeDevice) -> Self {
        let zeros = || {
            let values = weights.stored().iter();
            values.map(flow_core::tensors::zeros_like).collect()
        };
        Self {
            device: device.clone(),
            weights: weights.clone(),
            first: zeros(),
            second: zeros(),
        }
    }

    /// AdamW's step number `number`, from 1.
    pub fn step(&mut self, kernels: &dyn Kernels, gradients: &[Option<RawTensor>], number: i32) {
        let corrections = [1.0 - 0.9f32.powi(number), 1.0 - 0.95f32.powi(number)];
        let scalars = vec![1e-2, corrections[0], corrections[1], 1.0];
        let scalars = self.device.plain(scalars, &[4]);
        let step = AdamWStep {
            betas: (0.9, 0.95),
            epsilon: 1e-8,
            weight_decay: 1e-3,
            scalars,
            rounding: Default::default(),
        };
        for (index, value) in self.weights.values_mut().iter_mut().enumerate() {
            if let Some(gradient) = &gradients[index] {
                kernels.ops().optimizer.adamw(
                    AdamWParam {
                        weight: value,
                        master: MasterWeight::F32,
                        gradient,
                        first: &mut self.first[index],
                        second: &mut self.second[index],
                    },
                    &step,
                );
            }
        }
    }

    pub fn bits(&self) -> Vec<Vec<u32>> {
        let moments = self.first.iter().chain(&self.second);
        self.weights.stored().iter().chain(moments).map(bits).collect()
    }
}
