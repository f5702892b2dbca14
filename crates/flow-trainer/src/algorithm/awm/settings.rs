//! AWM's settings and their rules.

use crate::algorithm::reference::check_clip_range;
use crate::algorithm::{OldPolicyConfig, ReferenceWeights, TrainTimestepsConfig};
use flow_config::codes::RULE_UNUSED;
use flow_config::{Diagnostic, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// AWM's settings, `kind = "awm"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwmSettings {
    /// How the error of a velocity becomes a log-probability.
    pub weighting: ErrorWeighting,
    /// Exponent p of `weighting = "generalised-huber"`.
    #[schemars(range(min = 1e-3, max = 1.0))]
    pub huber_power: f64,
    /// Ratio is clipped to `[1 + lo, 1 + hi]`. Errors are means over the elements of a latent, so the range is small.
    /// `-1 < lo <= 0 <= hi`.
    #[schemars(inner(range(min = -0.999_999, max = 1000.0)))]
    pub clip_range: [f64; 2],
    /// Advantages are clamped to plus or minus this.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub advantage_clip: f64,
    /// Factor of `mean((v - v_ref)^2)`; 0 keeps no reference.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub kl_beta: f64,
    /// What the reference is.
    pub reference: ReferenceWeights,
    /// Factor of `mean((v - v_old)^2)`, a pull towards the slower copy `old_policy`; 0 for none.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub old_policy_beta: f64,
    /// Whether the slower copy samples instead of the trained weights.
    pub off_policy: bool,
    /// How the slower copy follows, if there is one: with `off_policy` or `old_policy_beta`.
    pub old_policy: OldPolicyConfig,
    /// At which times the loss is taken.
    pub train_timesteps: TrainTimestepsConfig,
    /// Passes over the images of one rollout.
    #[schemars(range(min = 1, max = 1000))]
    pub inner_epochs: usize,
}

impl Default for AwmSettings {
    fn default() -> Self {
        Self {
            weighting: ErrorWeighting::Uniform,
            huber_power: 0.25,
            clip_range: [-1e-4, 1e-4],
            advantage_clip: 5.0,
            kl_beta: 0.0,
            reference: ReferenceWeights::Snapshot,
            old_policy_beta: 0.0,
            off_policy: false,
            old_policy: OldPolicyConfig::default(),
            train_timesteps: TrainTimestepsConfig::default(),
            inner_epochs: 1,
        }
    }
}

/// How the error `l = mean((v - v*)^2)` at noise level `sigma` becomes a log-probability (Flow-Factory's `awm_weighting`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorWeighting {
    /// `-l`.
    #[default]
    Uniform,
    /// `-sigma l`.
    Sigma,
    /// `-sigma^2 l`.
    SigmaSquared,
    /// `-(sqrt(l + 1e-10) - 1e-5) sigma`.
    Huber,
    /// `-((l + 1e-10)^p - 1e-10^p) sigma / p`.
    GeneralisedHuber,
}

impl AwmSettings {
    /// Whether the slower copy is kept.
    pub(super) fn keeps_old(&self) -> bool {
        self.off_policy || self.old_policy_beta > 0.0
    }

    /// The reference that the pull needs, if there is one.
    pub(super) fn needs(&self) -> Option<ReferenceWeights> {
        (self.kl_beta > 0.0).then_some(self.reference)
    }
}

/// The rules on settings that stand at `path`.
pub(super) fn check(settings: &AwmSettings, rules: &mut Rules<'_>, path: &str) {
    check_clip_range(settings.clip_range, rules, path);
    if settings.kl_beta != 0.0 {
        settings.reference.check(rules, &format!("{path}.reference"));
    }
    let old = format!("{path}.old_policy");
    if let (false, Some(first)) = (settings.keeps_old(), rules.written_below(&old).first()) {
        let [off_policy, beta] = ["off_policy", "old_policy_beta"].map(|key| format!("{path}.{key}"));
        let message = format!("`{first}` is not read: `{off_policy}` is false and `{beta}` is 0");
        rules
            .warning(RULE_UNUSED, &[first, &off_policy, &beta], message)
            .help(format!("set `{off_policy} = true` or `{beta}`, or remove it"));
    }
    settings.train_timesteps.check(rules);
}

/// The rule on the sampler's `sigmas`.
pub(super) fn check_steps(settings: &AwmSettings, sigmas: &[f64]) -> Option<Diagnostic> {
    settings.train_timesteps.check_steps(sigmas)
}
