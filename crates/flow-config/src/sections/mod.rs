//! The sections of the config, one file each, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod acceleration;
mod advantage;
mod algorithm;
mod branching;
mod data;
mod device;
mod distributed;
mod ema;
mod evaluation;
mod exploration;
mod lora;
mod model;
mod optimizer;
mod output;
mod pretrain;
mod reward;
mod run;
mod sampling;
mod scheduler;
mod text;
mod watch;

pub use acceleration::*;
pub use advantage::*;
pub use algorithm::*;
pub use branching::*;
pub use data::*;
pub use device::*;
pub use distributed::*;
pub use ema::*;
pub use evaluation::*;
pub use exploration::*;
pub use lora::*;
pub use model::*;
pub use optimizer::*;
pub use output::*;
pub use pretrain::*;
pub use reward::*;
pub use run::*;
pub use sampling::*;
pub use scheduler::*;
pub use text::*;
pub use watch::*;

/// The version of the config format that this build reads; older ones are migrated.
pub const CONFIG_VERSION: u32 = 1;

/// A flow-train config: everything that decides what a run computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "flow-train config")]
pub struct Config {
    /// Version of the config format: 1. Older files are brought up to date by `flow-train migrate`.
    #[schemars(range(min = 1, max = 1))]
    pub config_version: u32,
    /// Named set of values to start from instead of the defaults; the file's own values win over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Name, directory, seed and length of the run.
    #[serde(default)]
    pub run: RunConfig,
    /// Device, storage type and threads.
    #[serde(default)]
    pub device: DeviceConfig,
    /// One run on several processes.
    #[serde(default)]
    pub distributed: DistributedConfig,
    /// Architecture and weights.
    #[serde(default)]
    pub model: ModelConfig,
    /// Low-rank adapters.
    #[serde(default)]
    pub lora: LoraConfig,
    /// Data set and prompts.
    pub data: DataConfig,
    /// Encoded text, for models that read it.
    #[serde(default)]
    pub text: TextConfig,
    /// What `flow-train pretrain` does.
    #[serde(default)]
    pub pretrain: PretrainConfig,
    /// What images are scored by; training needs at least one.
    #[serde(default)]
    pub rewards: Vec<RewardConfig>,
    /// What evaluation scores by; without it, the same as `rewards`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_rewards: Option<Vec<RewardConfig>>,
    /// The sampling path of rollouts.
    #[serde(default)]
    pub scheduler: SchedulerConfig,
    /// Geometry of a rollout.
    #[serde(default)]
    pub sampling: SamplingConfig,
    /// Many candidates sampled cheaply, the most telling ones exactly.
    #[serde(default)]
    pub exploration: ExplorationConfig,
    /// The RL algorithm.
    pub algorithm: AlgorithmConfig,
    /// From rewards to advantages.
    #[serde(default)]
    pub advantage: AdvantageConfig,
    /// AdamW, clipping, accumulation, warm-up.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Moving average of the trained weights.
    #[serde(default)]
    pub ema: EmaConfig,
    /// Measuring the model on held-out prompts.
    #[serde(default)]
    pub evaluation: EvaluationConfig,
    /// Saved states.
    #[serde(default)]
    pub checkpoints: CheckpointsConfig,
    /// Metrics and reports.
    #[serde(default)]
    pub logging: LoggingConfig,
    /// Checks that the trainer makes of itself.
    #[serde(default)]
    pub audit: AuditConfig,
    /// Signs that the trained reward is exploited.
    #[serde(default)]
    pub watch: WatchConfig,
    /// Accelerators.
    #[serde(default)]
    pub acceleration: AccelerationConfig,
    /// Which activations are kept for the backward pass.
    #[serde(default)]
    pub checkpointing: CheckpointingConfig,
    /// Settings of Burn and CubeCL.
    #[serde(default)]
    pub runtime: RuntimeConfig,
}

impl Config {
    /// The defaults, but for the parameters of plug-ins, which a catalog fills in.
    pub(crate) fn without_plugins() -> Self {
        Self {
            config_version: CONFIG_VERSION,
            preset: None,
            run: RunConfig::default(),
            device: DeviceConfig::default(),
            distributed: DistributedConfig::default(),
            model: ModelConfig::default(),
            lora: LoraConfig::default(),
            data: DataConfig::new("digits", serde_json::Map::new()),
            text: TextConfig::default(),
            pretrain: PretrainConfig::default(),
            rewards: Vec::new(),
            eval_rewards: None,
            scheduler: SchedulerConfig::default(),
            sampling: SamplingConfig::default(),
            exploration: ExplorationConfig::default(),
            algorithm: AlgorithmConfig::new("grpo", serde_json::Map::new()),
            advantage: AdvantageConfig::default(),
            optimizer: OptimizerConfig::default(),
            ema: EmaConfig::default(),
            evaluation: EvaluationConfig::default(),
            checkpoints: CheckpointsConfig::default(),
            logging: LoggingConfig::default(),
            audit: AuditConfig::default(),
            watch: WatchConfig::default(),
            acceleration: AccelerationConfig::default(),
            checkpointing: CheckpointingConfig::default(),
            runtime: RuntimeConfig::default(),
        }
    }
}

impl Config {
    /// The rewards that evaluation scores by: `eval_rewards`, or `rewards` where it is left out.
    pub fn effective_eval_rewards(&self) -> &[RewardConfig] {
        self.eval_rewards.as_deref().unwrap_or(&self.rewards)
    }

    /// The lists of rewards that are there, with their keys.
    pub fn reward_lists(&self) -> impl Iterator<Item = (&'static str, &[RewardConfig])> {
        let evaluation = self.eval_rewards.as_deref();
        let lists = [
            ("rewards", Some(self.rewards.as_slice())),
            ("eval_rewards", evaluation),
        ];
        lists
            .into_iter()
            .filter_map(|(list, rewards)| Some((list, rewards?)))
    }

    pub(crate) fn reward_lists_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut [RewardConfig])> {
        let evaluation = self.eval_rewards.as_deref_mut();
        let lists = [
            ("rewards", Some(self.rewards.as_mut_slice())),
            ("eval_rewards", evaluation),
        ];
        lists
            .into_iter()
            .filter_map(|(list, rewards)| Some((list, rewards?)))
    }

    /// Whether the model is called with batches of several sizes: the last one of an evaluation may be smaller. (Where a data set
    /// holds fewer prompts back than `evaluation.prompts`, it may not be.)
    pub fn has_ragged_batches(&self) -> bool {
        let images = self
            .evaluation
            .prompts
            .saturating_mul(self.evaluation.images_per_prompt);
        self.evaluation.every > 0 && !images.is_multiple_of(self.sampling.micro_batch.max(1))
    }

    /// Number of denoising steps of evaluation.
    pub fn eval_steps(&self) -> usize {
        self.evaluation.steps.unwrap_or(self.scheduler.steps)
    }

    /// Guidance scale of evaluation.
    pub fn eval_guidance_scale(&self) -> f64 {
        self.evaluation
            .guidance_scale
            .unwrap_or(self.sampling.guidance_scale)
    }
}
