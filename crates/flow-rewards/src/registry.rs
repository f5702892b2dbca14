//! Rewards by name: each reward registers itself explicitly, and nothing is registered behind the caller's back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flow_data::suggest;
use serde_json::Value;

use crate::error::RewardError;
use crate::reward::{Reward, RewardKind};

/// Makes a reward from its parameters; the registry is passed so that a reward can wrap another one.
pub type BuildReward = dyn Fn(&RewardRegistry, &Value) -> Result<Arc<dyn Reward>, RewardError> + Send + Sync;

/// What is known about a reward before it is built.
pub struct RewardFactory {
    /// The name, in lower case with hyphens.
    pub name: &'static str,
    /// One sentence for `list`.
    pub summary: &'static str,
    /// Whether it scores samples or groups.
    pub kind: RewardKind,
    /// Names of its parameters.
    pub params: &'static [&'static str],
    /// Makes it.
    pub build: Box<BuildReward>,
}

impl fmt::Debug for RewardFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RewardFactory")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The rewards that a config can ask for.
#[derive(Debug, Default)]
pub struct RewardRegistry {
    factories: BTreeMap<String, RewardFactory>,
}

impl RewardRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry with the rewards of this crate.
    ///
    /// # Errors
    /// None in practice: the five names differ.
    pub fn with_built_in() -> Result<Self, RewardError> {
        let mut registry = Self::new();
        crate::DigitClassifier::register(&mut registry)?;
        crate::ShapesRules::register(&mut registry)?;
        crate::JpegCompressibility::register(&mut registry)?;
        crate::TargetColour::register(&mut registry)?;
        crate::RankInGroup::register(&mut registry)?;
        Ok(registry)
    }

    /// Adds a reward.
    ///
    /// # Errors
    /// [`RewardError::AlreadyRegistered`] if the name is taken.
    pub fn register(&mut self, factory: RewardFactory) -> Result<(), RewardError> {
        let key = normal(factory.name);
        if self.factories.contains_key(&key) {
            return Err(RewardError::AlreadyRegistered {
                name: factory.name.to_owned(),
            });
        }
        self.factories.insert(key, factory);
        Ok(())
    }

    /// Every reward in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &RewardFactory> {
        self.factories.values()
    }

    /// The reward with a name; case does not matter, nor whether words are joined by hyphens or underscores.
    ///
    /// # Errors
    /// [`RewardError::UnknownReward`], which lists what exists and the nearest name.
    pub fn get(&self, name: &str) -> Result<&RewardFactory, RewardError> {
        let key = normal(name);
        self.factories
            .get(&key)
            .ok_or_else(|| RewardError::UnknownReward {
                name: name.to_owned(),
                nearest: suggest::nearest(&key, self.factories.keys().map(String::as_str)).map(str::to_owned),
                available: self.factories.keys().cloned().collect(),
            })
    }

    /// Builds the reward with a name from its parameters, an object or `null`.
    ///
    /// # Errors
    /// Those of [`RewardRegistry::get`], and what the reward says of its parameters.
    pub fn build(&self, name: &str, params: &Value) -> Result<Arc<dyn Reward>, RewardError> {
        (self.get(name)?.build)(self, params)
    }
}

fn normal(name: &str) -> String {
    name.to_lowercase().replace('_', "-")
}
