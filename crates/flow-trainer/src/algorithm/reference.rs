//! The pull towards a reference model: parameters and rules that several algorithms have.

use flow_config::codes::{RULE_CLIP_RANGE, RULE_KL, RULE_REFERENCE, RULE_UNUSED};
use flow_config::{Finetune, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    pub reference: ReferenceWeights,
    /// Guidance of the reference: classifier-free, or the scale that a model embeds (FLUX.1-dev); without it that of training.
    #[schemars(range(min = 0.0, max = 100.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance_scale: Option<f64>,
}

impl Default for KlConfig {
    fn default() -> Self {
        Self {
            kind: KlKind::None,
            beta: 0.0,
            reference: ReferenceWeights::Snapshot,
            guidance_scale: None,
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
    /// Means of the step over its variance: `beta * mean((mu - mu_ref)^2) / (2 s^2)`, with the diffusion `s` of the step, as flow_grpo
    /// has it.
    Divergence,
}

/// What the reference model is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Reference")]
pub enum ReferenceWeights {
    /// The base below the adapters; needs `model.finetune = "lora"`, and no memory.
    #[serde(rename = "lora-off")]
    WithoutAdapters,
    /// A copy of the weights as they were at the start of the run.
    #[default]
    #[serde(rename = "snapshot")]
    Snapshot,
}

impl KlConfig {
    /// The reference that the term needs, if there is a term.
    pub fn needs(&self) -> Option<ReferenceWeights> {
        (self.kind != KlKind::None).then_some(self.reference)
    }

    /// The guidance of the reference, if the term needs one and it has its own.
    pub(super) fn guidance(&self) -> Option<f64> {
        self.needs().and(self.guidance_scale)
    }

    /// The rules on the term, which stands at `path`.
    pub(super) fn check(&self, rules: &mut Rules<'_>, path: &str) {
        let (kind, beta) = (format!("{path}.kind"), format!("{path}.beta"));
        match (self.kind, self.beta) {
            (KlKind::None, factor) if factor != 0.0 => {
                let message = format!("`{beta}` is {factor}, but `{kind}` is \"none\"");
                rules.error(RULE_KL, &[&beta, &kind], message).help(format!(
                    "set `{kind}` to \"velocity\", \"mean\" or \"divergence\", or remove the factor"
                ));
            }
            (KlKind::Velocity | KlKind::Mean | KlKind::Divergence, 0.0) => {
                let message = format!("there is a KL term, but its factor `{beta}` is 0");
                rules
                    .error(RULE_KL, &[&kind, &beta], message)
                    .help(format!("set `{beta}`, or `{kind} = \"none\"`"));
            }
            _ => {}
        }
        let guidance = format!("{path}.guidance_scale");
        if self.kind == KlKind::None && self.guidance_scale.is_some() {
            let message =
                format!("`{kind}` is \"none\", so there is no reference and `{guidance}` is not read");
            rules
                .warning(RULE_UNUSED, &[&guidance, &kind], message)
                .help(format!("remove it, or set `{kind}` and `{beta}`"));
        }
        if let Some(reference) = self.needs() {
            reference.check(rules, &format!("{path}.reference"));
        }
    }
}

impl ReferenceWeights {
    /// The rule on a reference, which is named at `key`.
    pub(super) fn check(self, rules: &mut Rules<'_>, key: &str) {
        if self == Self::WithoutAdapters && rules.config().model.finetune != Finetune::Lora {
            let message = format!("`{key} = \"lora-off\"` needs adapters, but `model.finetune` is \"full\"");
            rules
                .error(RULE_REFERENCE, &[key, "model.finetune"], message)
                .help(format!(
                    "set `{key} = \"snapshot\"`, or `model.finetune = \"lora\"`"
                ));
        }
    }
}

/// The rule on a clip range, which stands in the table at `path`.
pub(super) fn check_clip_range([lo, hi]: [f64; 2], rules: &mut Rules<'_>, path: &str) {
    if !(lo <= 0.0 && 0.0 <= hi) {
        let key = format!("{path}.clip_range");
        let message = format!("`{key}` is [{lo}, {hi}], but must have lo <= 0 <= hi");
        rules
            .error(RULE_CLIP_RANGE, &[&key], message)
            .help("the ratio is clipped to [1 + lo, 1 + hi]; the usual range is [-1e-4, 1e-4]");
    }
}
