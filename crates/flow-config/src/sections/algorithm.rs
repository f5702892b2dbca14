//! `[algorithm]`: the loss. Formulas stand with their sources in the trainer; here are their constants.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[algorithm]`: the RL algorithm, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum AlgorithmConfig {
    /// Flow-GRPO (Liu et al. 2025, arXiv 2505.05470): clipped ratio of log-probabilities. Coupled.
    Grpo(GrpoConfig),
    /// GRPO-Guard (Wang et al. 2025, arXiv 2510.22319): the log-ratio is centred and scaled per step. Coupled.
    GrpoGuard(GrpoGuardConfig),
    /// DiffusionNFT (Zheng et al. 2025, arXiv 2509.16117): trains on clean images and any solver. Decoupled.
    Nft(NftConfig),
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        Self::Grpo(GrpoConfig::default())
    }
}

impl AlgorithmConfig {
    /// Its kind, as written in the config.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Grpo(_) => "grpo",
            Self::GrpoGuard(_) => "grpo-guard",
            Self::Nft(_) => "nft",
        }
    }

    /// Passes over the images of one rollout.
    pub fn inner_epochs(&self) -> usize {
        match self {
            Self::Grpo(grpo) => grpo.inner_epochs,
            Self::GrpoGuard(guard) => guard.inner_epochs,
            Self::Nft(nft) => nft.inner_epochs,
        }
    }

    /// Whether the loss reads the rollout's log-probabilities.
    pub fn is_coupled(&self) -> bool {
        match self {
            Self::Grpo(_) | Self::GrpoGuard(_) => true,
            Self::Nft(_) => false,
        }
    }
}

/// `kind = "grpo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrpoConfig {
    /// Ratio is clipped to `[1 + lo, 1 + hi]`. Log-probabilities are means over the elements of a latent, so the
    /// range is small. `-1 < lo <= 0 <= hi`.
    #[schemars(inner(range(min = -0.999_999, max = 1000.0)))]
    pub clip_range: [f64; 2],
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// Pull towards a reference model.
    pub kl: KlConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for GrpoConfig {
    fn default() -> Self {
        Self {
            clip_range: [-1e-4, 1e-4],
            advantage_clip: 5.0,
            kl: KlConfig::default(),
            inner_epochs: 1,
        }
    }
}

/// `kind = "grpo-guard"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrpoGuardConfig {
    /// Ratio is clipped to `[1 + lo, 1 + hi]`, with `-1 < lo <= 0 <= hi`.
    #[schemars(inner(range(min = -0.999_999, max = 1000.0)))]
    pub clip_range: [f64; 2],
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// Pull towards a reference model.
    pub kl: KlConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
    /// Divide the loss of a step by its `-dt`, as the official code does (Flow-Factory leaves it out).
    pub reweight: bool,
}

impl Default for GrpoGuardConfig {
    fn default() -> Self {
        let GrpoConfig {
            clip_range,
            advantage_clip,
            kl,
            inner_epochs,
        } = GrpoConfig::default();
        Self {
            clip_range,
            advantage_clip,
            kl,
            inner_epochs,
            reweight: true,
        }
    }
}

/// `[algorithm.kl]`: pull towards a reference model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KlConfig {
    /// What is compared with the reference.
    pub kind: KlKind,
    /// Factor of the term.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub beta: f64,
    /// What the reference is.
    pub reference: Reference,
}

impl Default for KlConfig {
    fn default() -> Self {
        Self {
            kind: KlKind::None,
            beta: 0.0,
            reference: Reference::Snapshot,
        }
    }
}

/// What is compared with the reference model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KlKind {
    /// Nothing: no term, and no reference is kept.
    #[default]
    None,
    /// Velocities: `beta * mean((v - v_ref)^2)`.
    Velocity,
    /// Means of the step: `beta * mean((mu - mu_ref)^2)`, without a division by the variance, as in Flow-Factory.
    Mean,
}

/// What the reference model is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// The base below the adapters; needs `model.finetune = "lora"`, and no memory.
    LoraOff,
    /// A copy of the weights as they were at the start of the run.
    #[default]
    Snapshot,
}

/// `kind = "nft"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NftConfig {
    /// Strength of the implicit guidance, b: `v+ = b v + (1 - b) v_old`, `v- = (1 + b) v_old - b v`.
    #[schemars(range(min = 1e-6, max = 1000.0))]
    pub beta: f64,
    /// Advantages are clamped to plus or minus this, then mapped to a weight between 0 and 1.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub advantage_clip: f64,
    /// How advantages become weights.
    pub advantage_mode: AdvantageMode,
    /// Factor of `mean((v - v_ref)^2)`; 0 keeps no reference.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_beta: f64,
    /// What the reference is.
    pub reference: Reference,
    /// How the policy that samples follows the one that is trained.
    pub old_policy: OldPolicyConfig,
    /// At which times the loss is taken.
    pub train_timesteps: TrainTimestepsConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for NftConfig {
    fn default() -> Self {
        Self {
            beta: 1.0,
            advantage_clip: 5.0,
            advantage_mode: AdvantageMode::All,
            kl_beta: 0.0,
            reference: Reference::Snapshot,
            old_policy: OldPolicyConfig::default(),
            train_timesteps: TrainTimestepsConfig::default(),
            inner_epochs: 1,
        }
    }
}

/// How advantages become weights (the official code's `adv_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AdvantageMode {
    /// As they are.
    #[default]
    All,
    /// Negative ones count as 0.
    PositiveOnly,
    /// Positive ones count as 0.
    NegativeOnly,
    /// Positive ones count as 1, the others as 0.
    OneOnly,
    /// Their sign.
    Binary,
}

/// `[algorithm.old_policy]`: after each iteration `old <- d old + (1 - d) current`, with
/// `d = clamp((iteration - flat) * rate, 0, hold)`, iterations counted from 1. The official code's types are 0: (0, 0, 0), 1: (0, 0.001, 0.5),
/// 2: (75, 0.0075, 0.999).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OldPolicyConfig {
    /// Iterations with `d = 0`, that is, purely on-policy.
    #[schemars(range(max = 100_000_000))]
    pub flat: usize,
    /// Rise of `d` per iteration after that.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rate: f64,
    /// Most that `d` becomes.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub hold: f64,
}

impl Default for OldPolicyConfig {
    fn default() -> Self {
        Self {
            flat: 0,
            rate: 0.001,
            hold: 0.5,
        }
    }
}

/// `[algorithm.train_timesteps]`: at which times the loss is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainTimestepsConfig {
    /// Times per image and pass; 0 takes as many as the scheduler's steps that lie in `range`.
    #[schemars(range(max = 1000))]
    pub count: usize,
    /// How times are drawn.
    pub strategy: TimeSampling,
    /// Shift `s` of drawn times, `f <- s f / (1 + (s - 1) f)`; for `uniform` and `logit-normal`.
    #[schemars(range(min = 0.01, max = 100.0))]
    pub shift: f64,
    /// Part of the path, as fractions from noise (0) to image (1): `0 <= lo < hi <= 1`.
    #[schemars(inner(range(min = 0.0, max = 1.0)))]
    pub range: [f64; 2],
}

impl Default for TrainTimestepsConfig {
    fn default() -> Self {
        Self {
            count: 0,
            strategy: TimeSampling::Discrete,
            shift: 3.0,
            range: [0.0, 0.9],
        }
    }
}

/// How training times are drawn; all are stratified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeSampling {
    /// Uniform over `range`, then shifted.
    Uniform,
    /// Sigmoid of a standard normal draw, then shifted.
    LogitNormal,
    /// The scheduler's own times.
    #[default]
    Discrete,
    /// The scheduler's own times, always with the first.
    DiscreteWithInit,
    /// The scheduler's own times, never with the first.
    DiscreteWithoutInit,
}
