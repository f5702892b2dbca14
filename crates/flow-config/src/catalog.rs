//! The plug-ins that a config can name, as descriptions: what the schema, the checks and `explain` are made of.
//!
//! A plug-in owns the type of its parameters. Its registry hands a [`PluginKind`] to the [`Catalog`]: name, summary, schema,
//! defaults and rules. This crate depends on none of them.

mod algorithm;
mod data;
mod kind;
mod model;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use flow_registry::{NameTaken, Registry};
use serde_json::{Map, Value as Json};

use crate::sections::{AlgorithmConfig, Config, RewardConfig};

pub use algorithm::{AlgorithmFacts, AlgorithmKind, DistillationFacts};
pub use data::{DataFacts, DataKind, ImageFacts, PromptFacts};
pub(crate) use kind::join_key;
pub use kind::{ParamsError, PluginKind};
pub use model::ModelKind;

/// The plug-ins of a program, sort by sort.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// Algorithms.
    pub algorithms: Vec<AlgorithmKind>,
    /// Data sets.
    pub data: Vec<DataKind>,
    /// Architectures.
    pub models: Vec<ModelKind>,
    /// Rewards.
    pub rewards: Vec<PluginKind>,
}

/// The plug-ins that configs of a program can name. Built once, of the program's registries.
#[derive(Clone, Debug)]
pub struct Catalog {
    algorithms: Registry<AlgorithmKind>,
    rewards: Registry<PluginKind>,
    data: Registry<DataKind>,
    models: Registry<ModelKind>,
    is_open: bool,
    schema: OnceLock<Json>,
    sections_of_key: OnceLock<BTreeMap<String, BTreeSet<String>>>,
    defaults: OnceLock<Config>,
}

impl Catalog {
    /// The catalog of these plug-ins.
    ///
    /// # Errors
    /// [`NameTaken`] if two of a sort have one name.
    pub fn new(kinds: Kinds) -> Result<Self, NameTaken> {
        let mut catalog = Self {
            is_open: false,
            ..Self::open()
        };
        for kind in kinds.algorithms {
            let name = kind.plugin.name().to_owned();
            catalog.algorithms.register(&name, kind)?;
        }
        for kind in kinds.data {
            let name = kind.plugin.name().to_owned();
            catalog.data.register(&name, kind)?;
        }
        for kind in kinds.models {
            let name = kind.plugin.name().to_owned();
            catalog.models.register(&name, kind)?;
        }
        for kind in kinds.rewards {
            let name = kind.name().to_owned();
            catalog.rewards.register(&name, kind)?;
        }
        Ok(catalog)
    }

    /// A catalog that takes whatever stands in the tables of plug-ins as it is: for programs that read other sections only, and
    /// leave the check to those that build what the config names.
    pub fn open() -> Self {
        Self {
            algorithms: Registry::new("algorithm"),
            rewards: Registry::new("reward"),
            data: Registry::new("data set"),
            models: Registry::new("architecture"),
            is_open: true,
            schema: OnceLock::new(),
            sections_of_key: OnceLock::new(),
            defaults: OnceLock::new(),
        }
    }

    /// The algorithms.
    pub fn algorithms(&self) -> &Registry<AlgorithmKind> {
        &self.algorithms
    }

    /// What the algorithm of a config asks of a run; nothing if the catalog does not have it.
    pub fn algorithm_facts(&self, config: &Config) -> Option<AlgorithmFacts> {
        let facts = self
            .algorithms
            .get(&config.algorithm.kind)?
            .facts(&config.algorithm.params);
        facts.ok()
    }

    /// Images of a record of the data set, if the algorithm of a config learns from these; none if it learns from rollouts, or the
    /// catalog does not have it.
    pub fn rows_of_record(&self, config: &Config) -> Option<usize> {
        self.algorithms.get(&config.algorithm.kind)?.rows_of_record()
    }

    /// What the algorithm of a config asks of a run, if it is a distillation.
    pub fn distillation_facts(&self, config: &Config) -> Option<DistillationFacts> {
        let kind = self.algorithms.get(&config.algorithm.kind)?;
        kind.distillation(&config.algorithm.params)
    }

    /// The algorithm `kind` with its defaults; nothing if the catalog does not have it, or it has parameters without a default.
    pub fn algorithm(&self, kind: &str) -> Option<AlgorithmConfig> {
        let params = self.algorithms.get(kind)?.plugin.complete(&Map::new()).ok()?;
        Some(AlgorithmConfig::new(kind, params))
    }

    /// The architectures.
    pub fn models(&self) -> &Registry<ModelKind> {
        &self.models
    }

    /// The architecture of a config; nothing if the catalog does not have it.
    pub fn model(&self, config: &Config) -> Option<&ModelKind> {
        self.models.get(&config.model.architecture)
    }

    /// The rewards.
    pub fn rewards(&self) -> &Registry<PluginKind> {
        &self.rewards
    }

    /// The data sets.
    pub fn data(&self) -> &Registry<DataKind> {
        &self.data
    }

    /// What the data set of a config is to a model; nothing if the catalog does not have it.
    pub fn data_facts(&self, config: &Config) -> Option<DataFacts> {
        let facts = self.data.get(&config.data.kind)?.facts(&config.data.params);
        facts.ok()
    }

    /// What a config says where nobody says anything.
    pub fn defaults(&self) -> &Config {
        self.defaults.get_or_init(|| {
            let mut config = Config::without_plugins();
            // The digits, GRPO and the DiT, in a program that has them.
            if self.data.get(&config.data.kind).is_none()
                && let Some(kind) = self.data.names().next()
            {
                config.data.kind = kind.to_owned();
            }
            if self.algorithms.get(&config.algorithm.kind).is_none()
                && let Some(kind) = self.algorithms.names().next()
            {
                config.algorithm.kind = kind.to_owned();
            }
            if self.models.get(&config.model.architecture).is_none()
                && let Some(name) = self.models.names().next()
            {
                config.model.architecture = name.to_owned();
            }
            // A default lacks nothing: the tests of each plug-in see to that.
            let _ = self.complete(&mut config);
            config
        })
    }

    /// A config that was recorded as JSON, such as a run's, with the defaults of what it lacks; nothing if it is none that this
    /// catalog can read.
    pub fn read(&self, recorded: &Json) -> Option<Config> {
        let mut recorded = recorded.clone();
        let sections = recorded.as_object_mut()?;
        if let Json::Object(defaults) = serde_json::to_value(self.defaults()).ok()? {
            for (section, default) in defaults {
                sections.entry(section).or_insert(default);
            }
        }
        let document = crate::tree::from_json(&recorded)?;
        if !crate::check::check_below(&document, self.schema(), Vec::new()).is_empty() {
            return None;
        }
        let mut config = serde_json::from_value(recorded).ok()?;
        self.complete(&mut config).ok()?;
        Some(config)
    }

    /// Fills in the defaults of parameters that nobody gave.
    ///
    /// # Errors
    /// The dotted path of a plug-in's table and what is wrong with its parameters, of the first one that is wrong.
    pub(crate) fn complete(&self, config: &mut Config) -> Result<(), (String, ParamsError)> {
        if let Some(kind) = self.algorithms.get(&config.algorithm.kind) {
            let complete = kind.plugin.complete(&config.algorithm.params);
            config.algorithm.params = complete.map_err(|error| ("algorithm".to_owned(), error))?;
        }
        if let Some(kind) = self.data.get(&config.data.kind) {
            let complete = kind.plugin.complete(&config.data.params);
            config.data.params = complete.map_err(|error| ("data".to_owned(), error))?;
        }
        for (name, kind) in self.models.iter() {
            let given = config
                .model
                .tables
                .remove(name)
                .unwrap_or_else(|| Map::new().into());
            let complete = match given {
                Json::Object(given) => kind.plugin.complete(&given),
                other => Err(ParamsError(format!("it is `{other}`, and no table"))),
            };
            let complete = complete.map_err(|error| (format!("model.{name}"), error))?;
            config.model.tables.insert(name.to_owned(), complete.into());
        }
        for (list, rewards) in config.reward_lists_mut() {
            for (index, reward) in rewards.iter_mut().enumerate() {
                let Some(kind) = self.rewards.get(&reward.kind) else {
                    continue;
                };
                let complete = kind.complete(&reward.params);
                reward.params = complete.map_err(|error| (format!("{list}.{index}"), error))?;
            }
        }
        Ok(())
    }

    /// The paths that a reward's parameters hold: key below the reward's table, and path. Words that stand for something
    /// of the plug-in's own are left out.
    pub(crate) fn reward_paths<'r>(&self, reward: &'r mut RewardConfig) -> Vec<(String, &'r mut String)> {
        let kind = self.rewards.get(&reward.kind);
        kind.map_or_else(Vec::new, |kind| {
            kind.all_paths_mut(&self.rewards, &mut reward.params)
        })
    }

    pub(crate) fn data_paths<'d>(
        &self,
        data: &'d mut crate::sections::DataConfig,
    ) -> Vec<(String, &'d mut String)> {
        let kind = self.data.get(&data.kind);
        kind.map_or_else(Vec::new, |kind| kind.plugin.paths_mut(&mut data.params))
    }

    pub(crate) fn algorithm_paths<'a>(
        &self,
        algorithm: &'a mut AlgorithmConfig,
    ) -> Vec<(String, &'a mut String)> {
        let kind = self.algorithms.get(&algorithm.kind);
        kind.map_or_else(Vec::new, |kind| kind.plugin.paths_mut(&mut algorithm.params))
    }

    /// The JSON schema of a config file; see [`schema`](crate::schema()).
    pub(crate) fn schema(&self) -> &Json {
        self.schema.get_or_init(|| schema::assemble(self))
    }

    /// For every key of the schema, the sections that have it: dotted paths without the key, lists without an index.
    pub(crate) fn sections_of_key(&self) -> &BTreeMap<String, BTreeSet<String>> {
        self.sections_of_key
            .get_or_init(|| crate::schema::sections_of_key(self.schema()))
    }
}
