//! Algorithms by name: each registers itself explicitly.

use super::{Algorithm, RecordKind};
use crate::error::TrainError;
use flow_config::{
    AlgorithmConfig, AlgorithmFacts, AlgorithmKind, Config, Diagnostic, DistillationFacts, Rules,
};
use flow_registry::{NameTaken, Registry};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;

/// What an algorithm is built in.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmContext<'a> {
    /// The whole config.
    pub config: &'a Config,
    /// The model's sequence length, on which the sampler's steps depend.
    pub tokens: usize,
}

type Build =
    dyn Fn(&AlgorithmContext<'_>, &AlgorithmConfig) -> Result<Box<dyn Algorithm>, TrainError> + Send + Sync;

/// Builds an algorithm from its settings.
pub type BuildFrom<P> = fn(&AlgorithmContext<'_>, P) -> Result<Box<dyn Algorithm>, TrainError>;

/// What is known about an algorithm before it is built.
#[derive(Clone)]
pub struct AlgorithmFactory {
    kind: AlgorithmKind,
    build: Arc<Build>,
}

impl AlgorithmFactory {
    /// An algorithm whose parameters are a `P`, which should carry `#[serde(deny_unknown_fields)]`; `facts` is what it asks of a
    /// run, `build` makes it. `summary` is one sentence for lists, editors and `explain`.
    pub fn new<P>(name: &str, summary: &str, facts: fn(&P) -> AlgorithmFacts, build: BuildFrom<P>) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let kind = AlgorithmKind::new(name, summary, facts);
        let reader = kind.plugin.clone();
        let build = move |context: &AlgorithmContext<'_>, config: &AlgorithmConfig| {
            let params = reader.read(&config.params).map_err(|error| {
                TrainError::setting(format!(
                    "parameters of the algorithm `{}`: {error}",
                    reader.name()
                ))
                .about("algorithm")
            })?;
            build(context, params)
        };
        Self {
            kind,
            build: Arc::new(build),
        }
    }

    /// With rules that a schema cannot say; see [`PluginKind::with_rules`](flow_config::PluginKind::with_rules).
    pub fn with_rules<P: DeserializeOwned + 'static>(mut self, check: fn(&P, &mut Rules<'_>, &str)) -> Self {
        self.kind.plugin = self.kind.plugin.with_rules(check);
        self
    }

    /// With a rule on the sampler's steps; see [`AlgorithmKind::with_step_rule`].
    pub fn with_step_rule<P: DeserializeOwned + 'static>(
        mut self,
        check: fn(&P, &[f64]) -> Option<Diagnostic>,
    ) -> Self {
        self.kind = self.kind.with_step_rule(check);
        self
    }

    /// Of an algorithm that learns from records of the data set; as [`Algorithm::records`] says of what is built.
    pub fn with_records(mut self, kind: RecordKind) -> Self {
        self.kind = self.kind.with_records(kind.rows());
        self
    }

    /// With parameters that are paths; see [`PluginKind::with_paths`](flow_config::PluginKind::with_paths).
    pub fn with_paths(mut self, keys: &'static [&'static str]) -> Self {
        self.kind.plugin = self.kind.plugin.with_paths(keys, &[]);
        self
    }

    /// As a distillation; see [`AlgorithmKind::with_distillation`].
    pub fn with_distillation<P: DeserializeOwned + 'static>(
        mut self,
        facts: fn(&P) -> DistillationFacts,
    ) -> Self {
        self.kind = self.kind.with_distillation(facts);
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.kind.plugin.name()
    }

    /// What it is, in one sentence.
    pub fn summary(&self) -> &str {
        self.kind.plugin.summary()
    }
}

impl fmt::Debug for AlgorithmFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlgorithmFactory")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// The algorithms that a config can ask for.
#[derive(Clone, Debug)]
pub struct AlgorithmRegistry {
    factories: Registry<AlgorithmFactory>,
}

impl Default for AlgorithmRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl AlgorithmRegistry {
    /// An empty registry.
    pub const fn new() -> Self {
        Self {
            factories: Registry::new("algorithm"),
        }
    }

    /// A registry with the algorithms of this crate.
    ///
    /// # Errors
    /// None in practice: the names differ.
    pub fn with_built_in() -> Result<Self, NameTaken> {
        let mut registry = Self::new();
        super::Grpo::register(&mut registry)?;
        super::GrpoGuard::register(&mut registry)?;
        super::Nft::register(&mut registry)?;
        super::Dppo::register(&mut registry)?;
        super::Awm::register(&mut registry)?;
        super::Dpo::register(&mut registry)?;
        super::Dgpo::register(&mut registry)?;
        super::Crd::register(&mut registry)?;
        super::Sft::register(&mut registry)?;
        super::OfflineDpo::register(&mut registry)?;
        super::Opd::register(&mut registry)?;
        super::Dmd2::register(&mut registry)?;
        super::Tdm::register(&mut registry)?;
        super::TdmR1::register(&mut registry)?;
        super::Gardo::register(&mut registry)?;
        Ok(registry)
    }

    /// Adds an algorithm.
    ///
    /// # Errors
    /// [`NameTaken`] if there is one of its name.
    pub fn register(&mut self, factory: AlgorithmFactory) -> Result<(), NameTaken> {
        let name = factory.name().to_owned();
        self.factories.register(&name, factory)?;
        Ok(())
    }

    /// Every algorithm in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &AlgorithmFactory> {
        self.factories.values()
    }

    /// What a config needs to know of each, for a [`Catalog`](flow_config::Catalog).
    pub fn plugins(&self) -> impl Iterator<Item = AlgorithmKind> {
        self.iter().map(|factory| factory.kind.clone())
    }

    /// Builds the algorithm that the config names.
    ///
    /// # Errors
    /// If there is none of its name, or a constant is outside its range.
    pub fn build(&self, context: &AlgorithmContext<'_>) -> Result<Box<dyn Algorithm>, TrainError> {
        let config = &context.config.algorithm;
        let factory = self.factories.find(&config.kind);
        let factory = factory.map_err(|error| TrainError::setting(error.to_string()))?;
        (factory.build)(context, config)
    }
}
