//! DGPO's settings and their rules.

use crate::algorithm::reference::check_clip_range;
use crate::algorithm::rows::check_whole_groups;
use crate::algorithm::slow::copy_config;
use crate::algorithm::times::times_config;
use crate::algorithm::{ReferenceWeights, TimeSampling, TrainTimestepsConfig};
use flow_config::codes::RULE_UNUSED;
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// DGPO's settings, `kind = "dgpo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DgpoSettings {
    /// Strength of the preference between the better and the worse images of a group: how far its weight follows their errors.
    #[schemars(range(min = 1e-6, max = 1e9))]
    pub beta: f64,
    /// Whether the images of a group have the same noise at drawn times.
    pub shared_noise: bool,
    /// An image learns nothing more once `exp(error under the slower copy - error)` is beyond `[1 + lo, 1 + hi]` in the direction that its
    /// advantage asks for. `-1 < lo <= 0 <= hi`.
    #[schemars(inner(range(min = -0.999_999, max = 1000.0)))]
    pub clip_range: [f64; 2],
    /// Whether `clip_range` holds for the error.
    pub clip_error: bool,
    /// Whether `clip_range` holds for the pull towards the reference.
    pub clip_kl: bool,
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// Factor of `mean((v - v_ref)^2)`; 0 for no pull.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_beta: f64,
    /// What the reference is.
    pub reference: ReferenceWeights,
    /// Classifier-free guidance of the reference; 1 for none. The model that learns has none in this loss.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub reference_guidance: f64,
    /// Whether the weight of a group compares errors with those of the slower copy instead of the reference.
    pub against_old: bool,
    /// How the slower copy follows after each optimizer step, if there is one: with `clip_error`, `clip_kl` or `against_old`.
    pub old_copy: DgpoCopyConfig,
    /// Optimizer steps after which the slower copy samples instead of the trained weights, if there is one.
    #[schemars(range(max = 100_000_000))]
    pub old_samples_after: usize,
    /// At which times the loss is taken.
    pub train_timesteps: DgpoTimesConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for DgpoSettings {
    fn default() -> Self {
        Self {
            beta: 100.0,
            shared_noise: true,
            clip_range: [-1e-4, 1e-4],
            clip_error: true,
            clip_kl: false,
            advantage_clip: 5.0,
            kl_beta: 0.0,
            reference: ReferenceWeights::Snapshot,
            reference_guidance: 1.0,
            against_old: false,
            old_copy: DgpoCopyConfig::default(),
            old_samples_after: 200,
            train_timesteps: DgpoTimesConfig::default(),
            inner_epochs: 1,
        }
    }
}

copy_config! {
    /// `[algorithm.old_copy]` of `dgpo`: how the slower copy follows after each optimizer step. The first step is number 0.
    DgpoCopyConfig { flat: 0, start: 0.0, rate: 0.001, hold: 0.3 }
}

times_config! {
    /// `[algorithm.train_timesteps]` of `dgpo`: at which times the loss is taken.
    DgpoTimesConfig, " Times per image and pass; 0 takes as many as the scheduler's steps that lie in `range`." {
        count: 0, strategy: TimeSampling::Discrete, shift: 3.0, range: [0.0, 0.6]
    }
}

impl DgpoSettings {
    /// Whether rows beyond `clip_range` are held.
    pub(super) fn clips(&self) -> bool {
        self.clip_error || self.clip_kl
    }

    /// Whether the slower copy is kept.
    pub(super) fn keeps_old(&self) -> bool {
        self.clips() || self.against_old
    }

    /// The reference that a term needs, if one does.
    pub(super) fn needs(&self) -> Option<ReferenceWeights> {
        (self.kl_beta > 0.0 || !self.against_old).then_some(self.reference)
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &DgpoSettings, rules: &mut Rules<'_>, path: &str) {
    check_clip_range(settings.clip_range, rules, path);
    if settings.needs().is_some() {
        settings.reference.check(rules, &format!("{path}.reference"));
    }
    check_whole_groups(
        rules,
        "`algorithm.kind = \"dgpo\"` weighs an image by the errors of its whole group",
    );
    let mut unused = |key: &str, is_read: bool, why: &str, help: &str| {
        let key = format!("{path}.{key}");
        if let (false, Some(first)) = (is_read, rules.written_below(&key).first()) {
            rules
                .warning(RULE_UNUSED, &[first], format!("`{first}` is not read: {why}"))
                .help(format!("{help}, or remove it"));
        }
    };
    let no_copy = "no slower copy is kept, since `clip_error`, `clip_kl` and `against_old` are false";
    for key in ["old_copy", "old_samples_after"] {
        unused(key, settings.keeps_old(), no_copy, "set one of them to true");
    }
    let no_reference = "no term compares with the reference";
    unused(
        "reference_guidance",
        settings.needs().is_some(),
        no_reference,
        "set `kl_beta`, or `against_old = false`",
    );
    TrainTimestepsConfig::from(&settings.train_timesteps).check(rules);
}

/// The rule on the sampler's `sigmas`.
pub(super) fn check_steps(settings: &DgpoSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    TrainTimestepsConfig::from(&settings.train_timesteps).check_steps(sigmas)
}
