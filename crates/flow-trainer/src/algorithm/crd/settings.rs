//! CRD's settings and their rules.

use crate::algorithm::idle_keys::check_decided_keys;
use crate::algorithm::rows::check_whole_groups;
use crate::algorithm::slow::copy_config;
use crate::algorithm::times::times_config;
use crate::algorithm::{ReferenceWeights, TimeSampling, TrainTimestepsConfig};
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CRD's settings, `kind = "crd"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrdSettings {
    /// Factor of the implicit reward before it is compared with the reward.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub beta: f64,
    /// How the two rewards are compared.
    pub loss: CrdLoss,
    /// Under which weights the error stands that the implicit reward measures progress from.
    pub baseline: Baseline,
    /// Whether an error is divided by its mean absolute value, which is not differentiated.
    pub normalise_errors: bool,
    /// Over which images rewards are centred.
    pub centre: Centre,
    /// How much each of these images counts in the centre.
    pub centre_weights: CentreWeights,
    /// Temperature of `centre_weights = "softmax"`.
    #[schemars(range(min = 1e-3, max = 1000.0))]
    pub centre_temperature: f64,
    /// Advantages are clamped to plus or minus this, then mapped to a reward between 0 and 1.
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub advantage_clip: f64,
    /// Factor of the pull towards the reference; 0 for none.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_beta: f64,
    /// Whether better images are pulled more: by `m + a (1 - m)`, with `m = 1e-4 / kl_beta` and the reward `a`.
    pub adaptive_kl: bool,
    /// What the reference is.
    pub reference: ReferenceWeights,
    /// Classifier-free guidance of the reference in the pull; at 1 and below that of the rollout.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub reference_guidance: f64,
    /// How the copy follows that the implicit reward measures from, if `baseline = "old"`.
    pub old_copy: CrdOldConfig,
    /// How the copy follows that samples.
    pub sampling_copy: CrdSamplingConfig,
    /// At which times the loss is taken.
    pub train_timesteps: CrdTimesConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for CrdSettings {
    fn default() -> Self {
        Self {
            beta: 1.0,
            loss: CrdLoss::Mse,
            baseline: Baseline::Old,
            normalise_errors: true,
            centre: Centre::Step,
            centre_weights: CentreWeights::Uniform,
            centre_temperature: 1.0,
            advantage_clip: 5.0,
            kl_beta: 0.1,
            adaptive_kl: true,
            reference: ReferenceWeights::Snapshot,
            reference_guidance: 4.5,
            old_copy: CrdOldConfig::default(),
            sampling_copy: CrdSamplingConfig::default(),
            train_timesteps: CrdTimesConfig::default(),
            inner_epochs: 1,
        }
    }
}

/// How CRD compares the implicit reward with the reward (Flow-Factory's `crd_loss_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CrdLoss {
    /// Squared difference of the centred rewards.
    #[default]
    Mse,
    /// Cross entropy of their sigmoids.
    Bce,
}

/// What CRD's implicit reward measures progress from (Flow-Factory's `use_old_for_loss`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// A slower copy of the weights, `old_copy`.
    #[default]
    Old,
    /// The reference.
    Reference,
}

/// Over which images CRD centres rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Centre {
    /// All of an optimizer step, whatever their prompts, as in Flow-Factory's code.
    #[default]
    Step,
    /// Those of the same prompt, as in Flow-Factory's guide.
    Group,
}

/// How much each image counts in CRD's centre (Flow-Factory's `weight_temp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CentreWeights {
    /// All the same.
    #[default]
    Uniform,
    /// The mean of two losses: one centred on images with positive, one on those with negative advantages.
    Signs,
    /// The mean of two losses: one centred by `softmax(a / temperature)`, one by `softmax(-a / temperature)`.
    Softmax,
}

copy_config! {
    /// `[algorithm.old_copy]` of `crd`: how the copy follows after each iteration that the implicit reward measures from.
    CrdOldConfig { flat: 0, start: 0.25, rate: 0.005, hold: 0.999 }
}

copy_config! {
    /// `[algorithm.sampling_copy]` of `crd`: how the copy follows after each iteration that samples.
    CrdSamplingConfig { flat: 75, start: 0.0, rate: 0.0075, hold: 0.999 }
}

times_config! {
    /// `[algorithm.train_timesteps]` of `crd`: at which times the loss is taken.
    CrdTimesConfig, " Times per image and pass; 0 takes as many as the scheduler's steps that lie in `range`." {
        count: 0, strategy: TimeSampling::Discrete, shift: 3.0, range: [0.0, 0.99]
    }
}

impl CrdSettings {
    /// The reference that a term needs, if one does.
    pub(super) fn needs(&self) -> Option<ReferenceWeights> {
        (self.kl_beta > 0.0 || self.baseline == Baseline::Reference).then_some(self.reference)
    }

    /// The guidance of the reference in the pull, if it is not that of the rollout.
    pub(super) fn guidance(&self) -> Option<f64> {
        (self.kl_beta > 0.0 && self.reference_guidance > 1.0).then_some(self.reference_guidance)
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &CrdSettings, rules: &mut Rules<'_>, path: &str) {
    if settings.needs().is_some() {
        settings.reference.check(rules, &format!("{path}.reference"));
    }
    if settings.centre == Centre::Group {
        check_whole_groups(
            rules,
            "`algorithm.centre = \"group\"` centres rewards over whole groups",
        );
    }
    let has_pull = settings.kl_beta > 0.0;
    check_decided_keys(
        rules,
        path,
        &[
            ("adaptive_kl", has_pull, "kl_beta", "a factor above 0"),
            ("reference_guidance", has_pull, "kl_beta", "a factor above 0"),
            (
                "old_copy",
                settings.baseline == Baseline::Old,
                "baseline",
                "\"old\"",
            ),
            (
                "centre_temperature",
                settings.centre_weights == CentreWeights::Softmax,
                "centre_weights",
                "\"softmax\"",
            ),
        ],
    );
    TrainTimestepsConfig::from(&settings.train_timesteps).check(rules);
}

/// The rule on the sampler's `sigmas`.
pub(super) fn check_steps(settings: &CrdSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    TrainTimestepsConfig::from(&settings.train_timesteps).check_steps(sigmas)
}
