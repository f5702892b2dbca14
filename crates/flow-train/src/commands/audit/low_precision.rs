//! Weights in low precision as the config has them: combinations are with them and without.

use flow_accel::AcceleratorRegistry;
use flow_config::{AcceleratorEntry, Config, Finetune};
use flow_core::LowPrecisionCompute;

/// The value of the column where weights are as they are.
pub(super) const OFF: &str = "off";

/// The entries of `acceleration.shared` that ask for low precision.
pub(super) struct LowPrecision {
    entries: Vec<AcceleratorEntry>,
    /// What it is, as the column says it: `fp8`, `fp8-data-gradient`, or `storage-` and a format.
    pub name: String,
    compute: LowPrecisionCompute,
}

impl LowPrecision {
    /// That of `config`, if it has any.
    pub fn of(config: &Config, accelerators: &AcceleratorRegistry) -> Option<Self> {
        let shared = &config.acceleration.shared;
        let rule = accelerators.low_precision(shared)?;
        let is_of_it =
            |entry: &&AcceleratorEntry| accelerators.low_precision(std::slice::from_ref(*entry)).is_some();
        let format = rule.format;
        Some(Self {
            entries: shared.iter().filter(is_of_it).cloned().collect(),
            name: match rule.compute {
                LowPrecisionCompute::Storage => format!("storage-{format}"),
                LowPrecisionCompute::Fp8 => format.to_string(),
                LowPrecisionCompute::Fp8WithDataGradient => format!("{format}-data-gradient"),
            },
            compute: rule.compute,
        })
    }

    /// What a run of `config` can have of `found`: nothing, and it, unless it is for frozen weights and all are trained.
    pub fn choices<'a>(
        found: Option<&'a Self>,
        config: &Config,
    ) -> impl Iterator<Item = Option<&'a Self>> + use<'a> {
        let has_frozen = config.model.finetune == Finetune::Lora;
        let suits = |low: &&Self| has_frozen || low.compute.quantises_activations();
        std::iter::once(None).chain(found.filter(suits).map(Some))
    }

    /// Puts it in force.
    pub fn add_to(&self, config: &mut Config) {
        config.acceleration.shared.extend(self.entries.iter().cloned());
    }
}
