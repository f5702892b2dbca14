//! What a config can ask for by name.

use flow_attention::AttentionRegistry;
use flow_kernels::KernelRegistry;
use flow_models::ModelRegistry;
use flow_rewards::{RewardError, RewardRegistry};

/// The registries of a program. Nothing registers itself: a plugin is a function that adds to one of them.
#[derive(Debug, Default)]
pub struct Registries {
    /// Architectures.
    pub models: ModelRegistry,
    /// Rewards.
    pub rewards: RewardRegistry,
    /// Implementations of the fused operations.
    pub kernels: KernelRegistry,
    /// Implementations of attention.
    pub attention: AttentionRegistry,
}

impl Registries {
    /// Everything that this workspace brings.
    ///
    /// # Errors
    /// If two rewards have one name, which the tests rule out.
    pub fn built_in() -> Result<Self, RewardError> {
        let mut registries = Self {
            rewards: RewardRegistry::with_built_in()?,
            ..Self::default()
        };
        flow_models::register(&mut registries.models);
        flow_kernels::register(&mut registries.kernels);
        flow_attention::register(&mut registries.attention);
        Ok(registries)
    }
}
