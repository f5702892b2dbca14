//! Rewards by name: each reward registers itself explicitly, and nothing is registered behind the caller's back.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use flow_config::{PluginKind, Rules};
use flow_registry::{NameTaken, Registry};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::RewardError;
use crate::lent::Lent;
use crate::reward::{Reward, RewardKind};

/// Parameters as a config gives them: by name, untyped.
pub type Params = Map<String, Value>;

type BuildReward = dyn Fn(&RewardContext<'_>, &Params) -> Result<Arc<dyn Reward>, RewardError> + Send + Sync;

/// What a reward is built in.
#[derive(Clone, Copy, Debug)]
pub struct RewardContext<'a> {
    /// The rewards of the program, so that one can wrap another.
    pub rewards: &'a RewardRegistry,
    /// Where relative paths start: the folder of the config.
    pub base: &'a Path,
    /// What the program lends to its rewards.
    pub lent: &'a Lent,
}

impl RewardContext<'_> {
    /// Builds another reward in this context, to wrap it.
    ///
    /// # Errors
    /// As [`RewardRegistry::build`].
    pub fn build(&self, name: &str, params: &Params) -> Result<Arc<dyn Reward>, RewardError> {
        let factory = self.rewards.get(name)?;
        (factory.build)(self, &factory.plugin.located(params, self.base))
    }
}

/// What a reward's networks hold in memory as long as the run lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewardMemory {
    /// Weights.
    pub values: usize,
    /// Whether they are on the device of the run and in its precision, or in f32 in the memory of the host.
    pub is_on_run_device: bool,
}

/// Says from parameters, whose paths need no base any more, what a reward will hold in memory. It reads no weight.
pub type MemoryOf<P> = fn(&P) -> Result<RewardMemory, RewardError>;

/// The kind of a reward with these parameters: whether it scores samples or groups.
pub type KindOf<P> = fn(&P) -> RewardKind;

type AskKind = dyn Fn(&Params) -> Option<RewardKind> + Send + Sync;

type AskMemory = dyn Fn(&Params) -> Result<RewardMemory, RewardError> + Send + Sync;

/// Builds a reward from its parameters.
pub type BuildFrom<P> = fn(&RewardContext<'_>, P) -> Result<Arc<dyn Reward>, RewardError>;

/// What is known about a reward before it is built.
#[derive(Clone)]
pub struct RewardFactory {
    plugin: PluginKind,
    kind: RewardKind,
    kind_of: Option<Arc<AskKind>>,
    build: Arc<BuildReward>,
    memory: Option<Arc<AskMemory>>,
}

impl RewardFactory {
    /// A reward whose parameters are a `P`, which should carry `#[serde(deny_unknown_fields)]`; `build` makes it from them.
    /// `summary` is one sentence for lists, editors and `explain`.
    pub fn new<P>(name: &str, summary: &str, kind: RewardKind, build: BuildFrom<P>) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let plugin = PluginKind::new::<P>(name, summary);
        let reader = plugin.clone();
        let build = move |context: &RewardContext<'_>, params: &Params| {
            let params = reader.read(params).map_err(|error| RewardError::Params {
                reward: reader.name().to_owned(),
                problem: error.to_string().into(),
            })?;
            build(context, params)
        };
        Self {
            plugin,
            kind,
            kind_of: None,
            build: Arc::new(build),
            memory: None,
        }
    }

    /// With a kind that depends on the parameters; [`kind`](Self::kind) stays the one that [`new`](Self::new) got, that of most
    /// parameters.
    pub fn with_kind<P: DeserializeOwned + 'static>(mut self, kind: KindOf<P>) -> Self {
        let reader = self.plugin.clone();
        self.kind_of = Some(Arc::new(move |params: &Params| {
            let params: P = reader.read(params).ok()?;
            Some(kind(&params))
        }));
        self
    }

    /// With what it will hold in memory; without, it is taken to hold nothing worth counting.
    pub fn with_memory<P: DeserializeOwned + 'static>(mut self, memory: MemoryOf<P>) -> Self {
        let reader = self.plugin.clone();
        self.memory = Some(Arc::new(move |params| {
            let params = reader.read(params).map_err(|error| RewardError::Params {
                reward: reader.name().to_owned(),
                problem: error.to_string().into(),
            })?;
            memory(&params)
        }));
        self
    }

    /// With rules that a schema cannot say; see [`PluginKind::with_rules`].
    pub fn with_rules<P: DeserializeOwned + 'static>(mut self, check: fn(&P, &mut Rules<'_>, &str)) -> Self {
        self.plugin = self.plugin.with_rules(check);
        self
    }

    /// With parameters that are paths; see [`PluginKind::with_paths`].
    pub fn with_paths(mut self, keys: &'static [&'static str], words: &'static [&'static str]) -> Self {
        self.plugin = self.plugin.with_paths(keys, words);
        self
    }

    /// With another reward within; see [`PluginKind::wrapping`].
    pub fn wrapping(mut self, name: &'static str, params: &'static str) -> Self {
        self.plugin = self.plugin.wrapping(name, params);
        self
    }

    /// Its name, in lower case with hyphens.
    pub fn name(&self) -> &str {
        self.plugin.name()
    }

    /// What it is, in one sentence.
    pub fn summary(&self) -> &str {
        self.plugin.summary()
    }

    /// Whether it scores samples or groups, with most parameters.
    pub fn kind(&self) -> RewardKind {
        self.kind
    }

    /// Whether it scores samples or groups with these parameters; for wrong ones as [`kind`](Self::kind), and the error comes when it is
    /// built.
    pub fn kind_with(&self, params: &Params) -> RewardKind {
        let of_params = self.kind_of.as_ref().and_then(|kind| kind(params));
        of_params.unwrap_or(self.kind)
    }

    /// What a config needs to know of it.
    pub fn plugin(&self) -> &PluginKind {
        &self.plugin
    }
}

impl fmt::Debug for RewardFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RewardFactory")
            .field("name", &self.name())
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The rewards that a config can ask for.
#[derive(Clone, Debug)]
pub struct RewardRegistry {
    factories: Registry<RewardFactory>,
}

impl Default for RewardRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl RewardRegistry {
    /// An empty registry.
    pub const fn new() -> Self {
        Self {
            factories: Registry::new("reward"),
        }
    }

    /// A registry with the rewards of this crate.
    ///
    /// # Errors
    /// None in practice: the six names differ.
    pub fn with_built_in() -> Result<Self, NameTaken> {
        let mut registry = Self::new();
        crate::DigitClassifier::register(&mut registry)?;
        crate::ShapesRules::register(&mut registry)?;
        crate::JpegCompressibility::register(&mut registry)?;
        crate::TargetColour::register(&mut registry)?;
        crate::RankInGroup::register(&mut registry)?;
        crate::DiversityInGroup::register(&mut registry)?;
        Ok(registry)
    }

    /// Adds a reward.
    ///
    /// # Errors
    /// [`NameTaken`] if there is one of its name.
    pub fn register(&mut self, factory: RewardFactory) -> Result<(), NameTaken> {
        let name = factory.name().to_owned();
        self.factories.register(&name, factory)?;
        Ok(())
    }

    /// Every reward in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &RewardFactory> {
        self.factories.values()
    }

    /// What a config needs to know of each, for a [`Catalog`](flow_config::Catalog).
    pub fn plugins(&self) -> impl Iterator<Item = PluginKind> {
        self.iter().map(|factory| factory.plugin.clone())
    }

    /// The reward with a name; case does not matter, nor whether words are joined by hyphens or underscores.
    ///
    /// # Errors
    /// [`RewardError::NotFound`], which lists what exists and the nearest name.
    pub fn get(&self, name: &str) -> Result<&RewardFactory, RewardError> {
        Ok(self.factories.find(name)?)
    }

    /// What the reward with a name, or the one that it wraps, will hold in memory; relative paths among its parameters start at
    /// `base`. No weight is read.
    ///
    /// # Errors
    /// Those of [`RewardRegistry::get`], and of files that are not there or damaged.
    pub fn memory(&self, name: &str, params: &Params, base: &Path) -> Result<RewardMemory, RewardError> {
        let factory = self.get(name)?;
        if let Some((name, params)) = factory.plugin.wrapped(params) {
            return self.memory(name, params, base);
        }
        match &factory.memory {
            Some(memory) => memory(&factory.plugin.located(params, base)),
            None => Ok(RewardMemory::default()),
        }
    }

    /// Builds the reward with a name from its parameters; relative paths among them start at `base`.
    ///
    /// # Errors
    /// Those of [`RewardRegistry::get`], and what the reward says of its parameters.
    pub fn build(&self, name: &str, params: &Params, base: &Path) -> Result<Arc<dyn Reward>, RewardError> {
        self.build_with(name, params, base, &Lent::default())
    }

    /// As [`RewardRegistry::build`]; the reward may use what is `lent`.
    ///
    /// # Errors
    /// As [`RewardRegistry::build`].
    pub fn build_with(
        &self,
        name: &str,
        params: &Params,
        base: &Path,
        lent: &Lent,
    ) -> Result<Arc<dyn Reward>, RewardError> {
        let context = RewardContext {
            rewards: self,
            base,
            lent,
        };
        context.build(name, params)
    }
}
