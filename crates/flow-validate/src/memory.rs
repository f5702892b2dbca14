//! About how much memory a run needs.
//!
//! In values of 4 bytes, with `W` weights of which `T` are trained ([`Stored`] says what takes less):
//!
//! | part | values |
//! |---|---|
//! | weights | `W`; on a GPU that computes in bf16, half of what is frozen, and of what is trained if it is stored in bf16; of the weights of blocks, an even share on several processes that share them out; of the lower halves of trained weights, which a GPU that computes in bf16 keeps beside what models read, an even share on several processes that share out the optimizer's state, where all weights are trained and no copy of them is kept (beside a reference alone they are shared out as well, but counted whole); what the accelerator `low_precision` stores takes a byte a value and 4 a row, or in NF4 half a byte a value and 2 for each 64 of a row, with `data_gradient = "fp8"` again a byte a value and 4 a column, and the largest such matrix stands there widened as well |
//! | products in FP8 | with `compute = "fp8"`, of the product that takes most: the codes of its activations, or with `data_gradient = "fp8"` of its gradients, and these widened, as they are where a device multiplies no FP8; of trained weights as much for the largest matrix, with `data_gradient = "fp8"` or its transpose |
//! | whole blocks | where processes share out weights: five times the largest block as it is stored: the one that computes, the next one, and three rows of a block that are on their way between processes |
//! | gradients | `2 T`: those added up over micro-batches, and those of the call under way, which may be bf16. Where processes share out trained blocks, one block of the call under way, and three rows of it, of 256 MiB at most, on their way between processes; the sums are whole until a process's last unit of an update, so an even share where it has one |
//! | moments | `2 T`: AdamW's first and second; half of it in bf16; on several processes that share the optimizer's state, an even share of it |
//! | copies | `T` for each of the moving average, the reference, the policy that samples and, with `sampling.staleness`, the weights before the last update, and half as much again for what a model that computes in bf16 reads of them; what is frozen is shared; of blocks that processes share out, an even share in f32 |
//! | teachers | of a distillation: `W` for each whole model, `T` for each adapter, and `W` once more for what adapters stand on where the run trains all weights; stored as what is frozen |
//! | networks beside the student | the fake score of `dmd2`, `tdm` and `tdm-r1`, and the surrogate of `tdm-r1`: each as much as one copy, and moments of its own |
//! | trajectories | `N (3 S + 1)` per image: before, after and mean of each of `S` recorded steps, and the final latent of `N` values, twice with `sampling.staleness`; `N` for each deterministic step that a distillation keeps |
//! | autoencoder | its weights, half of them in bytes on a GPU that computes in bf16, and what is there while it decodes |
//! | rewards | the weights of their networks that compute on the device of the run; half of them in bytes on a GPU that computes in bf16 |
//! | text encoders | the largest one with its activations: each is dropped before the next is loaded; half of it on a GPU that computes in bf16, which never holds its weights in f32 |
//! | activations | per row of a micro-batch, twice the images under guidance: the input and the output of every linear layer, once; of blocks that are computed again, their inputs, what the policy keeps of attention and of linear layers, and all of the largest one; and of the layer that has most its input and output once more, for their gradients; half of it on a GPU that computes in bf16 |
//! | calls | per row of a micro-batch, in a rollout four times the input and output of the layer that has most, 3.7 and 4.0 times on H100s (FLUX.1, Stable Diffusion 3.5 medium); with `graph_capture` an update, too, as recordings keep it |
//!
//! While weights are read those that are trained are in f32, and the others as they stay: a bf16 of a file goes to the device as it is, and
//! others are rounded on the host.
//!
//! Not all of it is there at one time ([`Phase`]). Text encoders are gone before the first rollout.
//!
//! The layout says which layers see a sample and which its tokens. What the libraries and the data set hold is left out. What is
//! surely there ([`MemoryEstimate::certain`]) is less: one set of gradients, which may be its own sum, and `2 S + 1` latents of a
//! trajectory, where each step begins at what the one before gave. Where that does not fit, nothing helps, and it is an error. Of
//! activations this is an estimate only. Layers that read the same input keep it once, frozen ones keep none, and fused operations keep less,
//! so that a run may fit where the sum does not: a warning.

use crate::activations::{Kept, values_per_row};
use crate::checkpoint_policy;
use crate::companions::{Companion, Companions};
use crate::features::is_bf16_gpu;
use crate::low_precision::LowPrecisionLoad;
use crate::phase::Phase;
use flow_accel::AcceleratorRegistry;
use flow_checkpoint::Policy;
use flow_config::{
    Branching, Catalog, Config, DistillationFacts, Dynamics, Finetune, GradientStorage, MomentStorage, Shard,
    TextConfig, WeightStorage, Window,
};
use flow_core::{LowPrecisionRule, ModelSpec, ParamKind, ParamLayout, ParamSpec};
use std::collections::BTreeMap;

const BYTES: f64 = 4.0;
/// Values of the sums of a block that processes exchange at a time, unless a weight has more.
const LARGEST_ROW: f64 = (1 << 26) as f64;
/// The accelerator that records calls.
const RECORDING: &str = "graph_capture";

/// What a run asks of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Rows of a call: the images of a micro-batch, twice under guidance.
    pub rows: usize,
    /// Images whose trajectories are kept: of an iteration, and of the next one where rollouts are an update behind.
    pub images: usize,
    /// Steps recorded of each trajectory.
    pub records: usize,
    /// Deterministic steps kept of each trajectory, one latent each: what a distillation compares at.
    pub states: usize,
    /// Copies of the trained weights: average, reference, sampling policy, those before the last update.
    pub copies: usize,
    /// Networks that are trained beside the run's own.
    pub networks: usize,
    /// Frozen models that the algorithm learns from.
    pub teachers: Teachers,
    /// Every how many blocks one is computed again in backward, if any is.
    pub recomputed_every: Option<usize>,
    /// What blocks that are computed again keep beside their inputs.
    pub kept: Kept,
    /// Whether calls are recorded: what passes through those of a rollout stays.
    pub recorded: bool,
    /// Bytes of values.
    pub stored: Stored,
    /// Tokens of the encoded text, for a model that reads it.
    pub text_tokens: usize,
    /// Processes over which the optimizer's moments are shared out; 1 where each has all.
    pub moment_shards: usize,
    /// Processes over which the lower halves of whole trained weights are shared out; 1 where each has all, or these are not in halves.
    pub lower_half_shards: usize,
    /// Processes over which the weights of blocks are shared out; 1 where each has all.
    pub weight_shards: usize,
    /// Whether it is trained weights of blocks that are shared out: no adapters stand on them.
    pub shards_trained: bool,
    /// Whether each process has one unit of an update, a micro-batch at one position, so that the sums of these weights' gradients are in parts
    /// as soon as backward has them.
    pub one_unit: bool,
    /// Frozen weights in low precision.
    pub low_precision: LowPrecisionLoad,
}

/// Frozen models that a distillation learns from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Teachers {
    /// Whole models, of as many values as the run's.
    pub models: usize,
    /// Adapters, of about as many values as those that are trained.
    pub adapters: usize,
}

impl Teachers {
    /// Those of a config.
    fn of(config: &Config, facts: Option<DistillationFacts>) -> Self {
        let Some(DistillationFacts { adapters, models, .. }) = facts else {
            return Self::default();
        };
        match config.model.finetune {
            Finetune::Lora => Self { models, adapters },
            // What is trained moves on, and the weights stay there that adapters stand on. Their own size is in their files.
            Finetune::Full => Self {
                models: models + usize::from(adapters > 0),
                adapters: 0,
            },
        }
    }
}

/// Bytes of a value, by what it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Of a weight that is trained.
    pub trained: usize,
    /// Of a weight that is not.
    pub frozen: usize,
    /// Of a copy of a trained weight.
    pub copy: usize,
    /// Of a gradient, before it is added up.
    pub gradient: usize,
    /// Of a moment of the optimizer.
    pub moment: usize,
    /// Of what passes between operations.
    pub activation: usize,
}

impl Stored {
    /// What a config asks for.
    pub fn of(config: &Config) -> Self {
        let optimizer = &config.optimizer;
        let narrow = is_bf16_gpu(config);
        let two_if = |two: bool| if two { 2 } else { 4 };
        Self {
            trained: two_if(narrow && optimizer.weights == WeightStorage::Bf16),
            frozen: two_if(narrow),
            copy: if narrow { 6 } else { 4 },
            gradient: two_if(narrow && optimizer.gradients == GradientStorage::Bf16),
            moment: two_if(optimizer.moments == MomentStorage::Bf16),
            activation: two_if(narrow),
        }
    }
}

impl Load {
    /// That of a config. Of text that is read from a file it knows no length, so `text_tokens` is 0 then and the estimate a little lower.
    pub fn of(config: &Config, catalog: &Catalog) -> Self {
        let sampling = &config.sampling;
        let branches = if sampling.guidance_scale == 1.0 { 1 } else { 2 };
        let algorithm = catalog.algorithm_facts(config);
        let is_coupled = algorithm.is_some_and(|facts| facts.is_coupled);
        let distillation = catalog.distillation_facts(config);
        let scheduler = &config.scheduler;
        let branching = &sampling.branching;
        let policy = checkpoint_policy(config);
        let is_random_once = matches!(branching, Branching::OneStep(_) | Branching::OneStepPerGroup(_));
        let records = match &scheduler.window {
            _ if scheduler.dynamics == Dynamics::Ode => 0,
            _ if !is_coupled && distillation.is_none() => 0,
            _ if is_random_once => 1,
            Window::All(_) => scheduler.steps.saturating_sub(1),
            Window::List(list) => list.steps.len(),
            Window::Random(random) => random.count,
            Window::Sliding(sliding) => sliding.size,
            Window::Contiguous(contiguous) => contiguous.size,
        };
        let states = match distillation {
            Some(facts) if scheduler.dynamics == Dynamics::Ode => {
                let [lo, hi] = facts.step_range.map(|end| end * scheduler.steps as f64);
                let within = |step: &usize| (lo..=hi).contains(&(*step as f64));
                (0..scheduler.steps).filter(within).count()
            }
            _ => 0,
        };
        Self {
            rows: sampling.micro_batch * branches,
            images: sampling.images_per_step() * (1 + sampling.staleness),
            records,
            states,
            copies: usize::from(config.ema.enabled)
                + sampling.staleness
                + algorithm.map_or(0, |facts| facts.copies),
            networks: distillation.map_or(0, |facts| facts.networks),
            teachers: Teachers::of(config, distillation),
            recomputed_every: match policy {
                Policy::None => None,
                Policy::BlockSkip { every } => Some(every),
                _ => Some(1),
            },
            kept: Kept::of(&policy),
            recorded: config
                .acceleration
                .shared
                .iter()
                .any(|entry| entry.name.eq_ignore_ascii_case(RECORDING)),
            stored: Stored::of(config),
            text_tokens: match &config.text {
                TextConfig::Words(words) => words.tokens,
                TextConfig::File(_) => 0,
                TextConfig::Bert(bert) => bert.tokens,
                TextConfig::Encoders(encoders) => match config.model.architecture.as_str() {
                    // 77 tokens of CLIP stand before those of T5.
                    "mmdit" => 77 + encoders.tokens.unwrap_or(256),
                    _ => encoders.tokens.unwrap_or(512),
                },
            },
            moment_shards: 1,
            lower_half_shards: 1,
            weight_shards: 1,
            shards_trained: false,
            one_unit: false,
            low_precision: LowPrecisionLoad::default(),
        }
    }

    /// That of one of `ranks` processes of a run of the model of `layout` and `spec`, with what its accelerators store in low precision.
    pub fn of_run(
        config: &Config,
        catalog: &Catalog,
        accelerators: &AcceleratorRegistry,
        (layout, spec): (&ParamLayout, &ModelSpec),
        ranks: usize,
    ) -> Self {
        let rule = accelerators.low_precision(&config.acceleration.shared);
        Self::of(config, catalog)
            .on_ranks(config, ranks)
            .with_low_precision(rule.as_ref(), layout, spec)
    }

    /// With frozen weights of `layout` in low precision, as far as `rule` is about them; without one, as before.
    #[must_use]
    pub fn with_low_precision(
        mut self,
        rule: Option<&LowPrecisionRule>,
        layout: &ParamLayout,
        spec: &ModelSpec,
    ) -> Self {
        let of = |rule| {
            let sizes = (self.stored.activation, self.text_tokens);
            LowPrecisionLoad::of(rule, layout, spec, sizes)
        };
        self.low_precision = rule.map(of).unwrap_or_default();
        self
    }

    /// That of one of `ranks` processes which train as one run.
    #[must_use]
    pub fn on_ranks(self, config: &Config, ranks: usize) -> Self {
        let is_in_halves = is_bf16_gpu(config) && config.optimizer.weights == WeightStorage::F32;
        // An average follows all bits everywhere, and so may a copy of the algorithm.
        let are_followed = self.copies > config.sampling.staleness;
        let shares_halves = is_in_halves && !are_followed && config.model.finetune == Finetune::Full;
        Self {
            moment_shards: match config.distributed.shard {
                Shard::Optimizer | Shard::Weights => ranks.max(1),
                Shard::None => 1,
            },
            lower_half_shards: match config.distributed.shard {
                Shard::Optimizer | Shard::Weights if shares_halves => ranks.max(1),
                Shard::Optimizer | Shard::Weights | Shard::None => 1,
            },
            weight_shards: match config.distributed.shard {
                Shard::Weights => ranks.max(1),
                Shard::Optimizer | Shard::None => 1,
            },
            shards_trained: config.distributed.shard == Shard::Weights
                && config.model.finetune == Finetune::Full,
            // Of losses that replay recorded steps; how many times others are taken at is the algorithm's.
            one_unit: crate::several::accumulated(config) == Some(ranks)
                && self.records == 1
                && config.sampling.branching == Branching::default(),
            ..self
        }
    }
}

/// Bytes by what they are for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryEstimate {
    /// The weights.
    pub weights: f64,
    /// Of that, those that are trained.
    pub trained_weights: f64,
    /// A block while it computes and the next one on its way, where the weights of blocks are shared out.
    pub whole_blocks: f64,
    /// Gradients of the trained ones, of the call under way.
    pub gradients: f64,
    /// Sums of gradients over micro-batches, and what of them is on its way between processes.
    pub sums: f64,
    /// The optimizer's moments.
    pub moments: f64,
    /// Average, reference, sampling policy.
    pub copies: f64,
    /// Frozen models that the algorithm learns from.
    pub teachers: f64,
    /// What a rollout keeps for the loss.
    pub trajectories: f64,
    /// Of that, what steps that follow one another do not share.
    pub unshared_trajectories: f64,
    /// What a micro-batch keeps for its backward pass.
    pub activations: f64,
    /// What passes through a call without a gradient.
    pub calls: f64,
    /// Of that, what stays during updates, as recordings of forward passes, a rollout's or training's, have it to themselves.
    pub recorded_calls: f64,
    /// What a product in FP8 takes beside what a micro-batch keeps.
    pub products: f64,
    /// The weights while they are read: those that are trained in f32, before they are stored; the others as they stay.
    pub loading: f64,
    /// The autoencoder's weights.
    pub autoencoder: f64,
    /// The weights of rewards' networks.
    pub rewards: f64,
    /// What the autoencoder takes while it decodes.
    pub decoding: f64,
    /// The text encoder that takes most, its weights and what passes through it.
    pub encoder: f64,
}

impl MemoryEstimate {
    /// Of a model with `layout`, of whose values `trained` are trained.
    pub fn new(layout: &ParamLayout, spec: &ModelSpec, trained: usize, load: &Load) -> Self {
        let all = layout.count_values(|_| true) as f64;
        let (trained, latent) = (trained as f64, spec.latent.values() as f64);
        let per_row = values_per_row(layout, spec, load);
        let bytes = |one: usize, values: f64| one as f64 * values;
        let stored = load.stored;
        let calls = bytes(stored.activation, per_row.called) * load.rows as f64;
        let low = load.low_precision;
        let widened = bytes(stored.activation, low.largest as f64);
        let latents = |of_one: usize| BYTES * latent * load.images as f64 * of_one as f64;
        let blocks = shared_blocks(layout, spec, load);
        let (of_blocks, largest) = (
            blocks.values().sum::<f64>(),
            blocks.values().copied().fold(0.0, f64::max),
        );
        let elsewhere = of_blocks * (1.0 - 1.0 / load.weight_shards as f64);
        let (trained_elsewhere, trained_parts, frozen_elsewhere) = match load.shards_trained {
            true => (elsewhere, of_blocks - elsewhere, 0.0),
            false => (0.0, 0.0, elsewhere),
        };
        let trained_here = trained - trained_elsewhere;
        // Two bytes of each value that is not in parts.
        let lower_halves = bytes(2, trained_here - trained_parts);
        let lower_elsewhere = lower_halves * (1.0 - 1.0 / load.lower_half_shards as f64);
        let trained_weights = bytes(stored.trained, trained_here) - lower_elsewhere;
        // Of blocks in parts there is the one that backward is at.
        let under_way = match load.shards_trained {
            true => trained - of_blocks + largest,
            false => trained,
        };
        // The last two rows that this process sent, and what it gets of the others'.
        let on_their_way = match load.shards_trained {
            true => 3.0 * largest.min(LARGEST_ROW),
            false => 0.0,
        };
        let summed = match load.one_unit {
            true => trained_here,
            false => trained,
        };
        let frozen = bytes(
            stored.frozen,
            all - trained - low.values as f64 - frozen_elsewhere,
        ) + low.bytes as f64;
        // Nothing beside a part is in the type of models: blocks are gathered in it.
        let of_copy = bytes(stored.copy, trained_here - trained_parts) + BYTES * trained_parts;
        Self {
            weights: trained_weights + frozen + widened,
            trained_weights,
            // Two whole ones, and three rows on their way: what this process gives of two of them, and what it gets.
            whole_blocks: 5.0 * bytes(stored.frozen, largest),
            gradients: bytes(stored.gradient, under_way),
            sums: BYTES * (summed + on_their_way),
            // Weights are shared out whole: some process has at least this much, and none has more than one weight above it. Those of a
            // second network are whole everywhere.
            moments: bytes(stored.moment, 2.0 * trained)
                * (1.0 / load.moment_shards as f64 + load.networks as f64),
            copies: of_copy * (load.copies + load.networks) as f64,
            teachers: bytes(
                stored.frozen,
                all * load.teachers.models as f64 + trained * load.teachers.adapters as f64,
            ),
            trajectories: latents(3 * load.records + load.states + 1),
            unshared_trajectories: latents(2 * load.records + load.states + 1),
            activations: bytes(stored.activation, per_row.kept) * load.rows as f64,
            calls,
            recorded_calls: if load.recorded { calls } else { 0.0 },
            products: low.product as f64 * load.rows as f64 + low.rounded as f64,
            loading: frozen + BYTES * trained_here,
            autoencoder: 0.0,
            rewards: 0.0,
            decoding: 0.0,
            encoder: 0.0,
        }
    }

    /// With the models beside the one that is trained, which are stored as weights that are not trained.
    #[must_use]
    pub fn with_companions(self, companions: &Companions, stored: Stored) -> Self {
        let bytes = |values: usize| stored.frozen as f64 * values as f64;
        let encoders = companions.encoders.iter();
        Self {
            autoencoder: companions
                .autoencoder
                .as_ref()
                .map_or(0.0, |model| bytes(model.values)),
            rewards: companions.rewards.iter().map(|model| bytes(model.values)).sum(),
            decoding: companions.decoding_bytes,
            encoder: encoders
                .map(|model| encoder_bytes(model, stored))
                .fold(0.0, f64::max),
            ..self
        }
    }

    /// What is there at one time, by name, in bytes.
    pub fn parts(&self, phase: Phase) -> Vec<(&'static str, f64)> {
        if phase == Phase::Loading {
            return vec![(
                "weights, those that are trained in f32 as they are read",
                self.loading,
            )];
        }
        let mut parts = vec![("weights", self.weights)];
        if phase == Phase::Update {
            parts.push(("gradients", self.gradients + self.sums));
        }
        parts.push(("optimizer moments", self.moments));
        parts.push(("copies of the trained weights", self.copies));
        if self.teachers > 0.0 {
            parts.push(("teachers", self.teachers));
        }
        if self.whole_blocks > 0.0 && phase != Phase::Encoding {
            parts.push(("whole blocks", self.whole_blocks));
        }
        parts.push(("autoencoder", self.autoencoder));
        if self.rewards > 0.0 {
            parts.push(("rewards", self.rewards));
        }
        if self.products > 0.0 && phase != Phase::Encoding {
            parts.push(("products in FP8", self.products));
        }
        match phase {
            Phase::Loading => {}
            Phase::Encoding => parts.push(("the largest text encoder", self.encoder)),
            Phase::Rollout => {
                parts.push(("trajectories", self.trajectories));
                parts.push(("decoding", self.decoding));
                parts.push(("activations of a call", self.calls));
            }
            Phase::Update => {
                parts.push(("trajectories", self.trajectories));
                parts.push(("activations of a micro-batch", self.activations));
                if self.recorded_calls > 0.0 {
                    parts.push(("recorded calls of a rollout", self.recorded_calls));
                }
            }
        }
        parts
    }

    /// All that is there at one time, in bytes.
    pub fn at(&self, phase: Phase) -> f64 {
        self.parts(phase).into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// When most is there, and how much, in bytes; of equals the latest.
    pub fn peak(&self) -> (Phase, f64) {
        let mut peak = (Phase::Update, self.at(Phase::Update));
        for phase in Phase::ALL {
            let bytes = self.at(phase);
            if bytes > peak.1 {
                peak = (phase, bytes);
            }
        }
        peak
    }

    /// Weights and all that grows with them.
    pub fn state(&self) -> f64 {
        self.weights + self.gradients + self.sums + self.moments + self.copies + self.teachers
    }

    /// What is surely there at one time, in bytes: no activations, nothing twice that may be there once, and no text encoder, since
    /// prompts may be encoded already.
    pub fn certain(&self) -> f64 {
        self.least().at(Phase::Update)
    }

    /// The parts of [`certain`](Self::certain).
    pub(crate) fn least(self) -> Self {
        Self {
            sums: 0.0,
            trajectories: self.unshared_trajectories,
            activations: 0.0,
            calls: 0.0,
            recorded_calls: 0.0,
            products: 0.0,
            whole_blocks: 0.0,
            ..self
        }
    }

    /// The most that is there at one time, in bytes.
    pub fn total(&self) -> f64 {
        self.peak().1
    }
}

/// What a text encoder takes: its weights, and what one of its blocks makes of a batch of prompts.
pub(crate) fn encoder_bytes(model: &Companion, stored: Stored) -> f64 {
    stored.frozen as f64 * model.values as f64 + stored.activation as f64 * model.passing as f64
}

/// Values of the weights of each block that are shared out, by stack and block; of none where weights are whole, as all are where some are
/// in low precision.
fn shared_blocks<'a>(
    layout: &ParamLayout,
    spec: &'a ModelSpec,
    load: &Load,
) -> BTreeMap<(&'a str, usize), f64> {
    let mut blocks = BTreeMap::new();
    if load.weight_shards < 2 || load.low_precision.values > 0 {
        return blocks;
    }
    for weight in layout
        .specs()
        .iter()
        .filter(|weight| weight.kind == ParamKind::Base)
    {
        if let Some(block) = spec.block_of(&weight.name) {
            *blocks.entry(block).or_insert(0.0) += weight.shape.iter().product::<usize>() as f64;
        }
    }
    blocks
}

/// Output and input channels of a weight that is a linear layer's: tables of embeddings are looked up, not multiplied by.
/// Of the layers of experts one counts for each token, the least that it gets.
pub fn features(weight: &ParamSpec) -> Option<[usize; 2]> {
    let is_matrix = !weight.name.ends_with(".bias") && !weight.name.contains("token_embed");
    match weight.shape[..] {
        _ if weight.kind == ParamKind::Buffer || !is_matrix => None,
        [output, input] => Some([output, input]),
        [_, output, input] if weight.name.contains(".experts.") => Some([output, input]),
        _ => None,
    }
}

/// An amount of memory in GiB, as messages have it.
pub fn gib(bytes: f64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    match bytes / GIB {
        gib if gib >= 100.0 => format!("{gib:.0} GiB"),
        gib if gib >= 0.1 => format!("{gib:.1} GiB"),
        gib => format!("{gib:.4} GiB"),
    }
}
