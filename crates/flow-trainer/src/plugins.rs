//! What a config can ask for by name and the trainer builds.

use crate::algorithm::AlgorithmRegistry;
use flow_config::{Catalog, Kinds};
use flow_data::DatasetRegistry;
use flow_models::ModelRegistry;
use flow_registry::NameTaken;
use flow_rewards::RewardRegistry;

/// The plug-ins of a program. Nothing registers itself: a plug-in is a function that adds to one of these.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    /// Algorithms.
    pub algorithms: AlgorithmRegistry,
    /// Data sets.
    pub data: DatasetRegistry,
    /// Architectures.
    pub models: ModelRegistry,
    /// Rewards.
    pub rewards: RewardRegistry,
}

impl Plugins {
    /// Everything that this workspace brings.
    ///
    /// # Errors
    /// None in practice: the names differ.
    pub fn built_in() -> Result<Self, NameTaken> {
        let mut models = ModelRegistry::new();
        flow_models::register(&mut models)?;
        let mut rewards = RewardRegistry::with_built_in()?;
        flow_rewards_models::register(&mut rewards)?;
        flow_rewards_ocr::register(&mut rewards)?;
        flow_rewards_remote::register(&mut rewards)?;
        Ok(Self {
            algorithms: AlgorithmRegistry::with_built_in()?,
            data: DatasetRegistry::with_built_in()?,
            models,
            rewards,
        })
    }

    /// What a config may say of them. Made anew at each call, and worth keeping.
    pub fn catalog(&self) -> Catalog {
        let kinds = Kinds {
            algorithms: self.algorithms.plugins().collect(),
            data: self.data.plugins().collect(),
            models: self.models.plugins().collect(),
            rewards: self.rewards.plugins().collect(),
        };
        Catalog::new(kinds).expect("a registry takes each name once, whatever its case")
    }
}
