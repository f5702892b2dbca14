//! Data sets by name: each registers itself explicitly.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use flow_config::{DataFacts, DataKind, Rules};
use flow_registry::{NameTaken, Registry};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::dataset::Dataset;
use crate::error::DataError;

type Params = Map<String, Value>;
type Build = dyn Fn(&Params) -> Result<Arc<dyn Dataset>, DataError> + Send + Sync;

/// What is known about a data set before it is built.
#[derive(Clone)]
pub struct DatasetFactory {
    kind: DataKind,
    build: Arc<Build>,
}

impl DatasetFactory {
    /// A data set whose parameters are a `P`, which should carry `#[serde(deny_unknown_fields)]`; `facts` is what it is to a
    /// model, `build` makes it. `summary` is one sentence for lists, editors and `explain`.
    pub fn new<P>(
        name: &str,
        summary: &str,
        facts: fn(&P) -> DataFacts,
        build: fn(P) -> Result<Arc<dyn Dataset>, DataError>,
    ) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let kind = DataKind::new(name, summary, facts);
        let reader = kind.plugin.clone();
        let build = move |params: &Params| {
            let params = reader.read(params).map_err(|error| DataError::Params {
                dataset: reader.name().to_owned(),
                problem: error.to_string(),
            })?;
            build(params)
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

    /// With parameters that are paths; see [`PluginKind::with_paths`](flow_config::PluginKind::with_paths). They are
    /// joined to the folder of the config before the data set is built.
    pub fn with_paths(mut self, keys: &'static [&'static str]) -> Self {
        self.kind.plugin = self.kind.plugin.with_paths(keys, &[]);
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

impl fmt::Debug for DatasetFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatasetFactory")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

/// The data sets that a config can ask for.
#[derive(Clone, Debug)]
pub struct DatasetRegistry {
    factories: Registry<DatasetFactory>,
}

impl Default for DatasetRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl DatasetRegistry {
    /// An empty registry.
    pub const fn new() -> Self {
        Self {
            factories: Registry::new("data set"),
        }
    }

    /// A registry with the data sets of this crate.
    ///
    /// # Errors
    /// None in practice: the names differ.
    pub fn with_built_in() -> Result<Self, NameTaken> {
        let mut registry = Self::new();
        crate::Digits::register(&mut registry)?;
        crate::Images::register(&mut registry)?;
        crate::Preferences::register(&mut registry)?;
        crate::Prompts::register(&mut registry)?;
        crate::Shapes::register(&mut registry)?;
        crate::Words::register(&mut registry)?;
        Ok(registry)
    }

    /// Adds a data set.
    ///
    /// # Errors
    /// [`NameTaken`] if there is one of its name.
    pub fn register(&mut self, factory: DatasetFactory) -> Result<(), NameTaken> {
        let name = factory.name().to_owned();
        self.factories.register(&name, factory)?;
        Ok(())
    }

    /// Every data set in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &DatasetFactory> {
        self.factories.values()
    }

    /// What a config needs to know of each, for a [`Catalog`](flow_config::Catalog).
    pub fn plugins(&self) -> impl Iterator<Item = DataKind> {
        self.iter().map(|factory| factory.kind.clone())
    }

    /// Builds the data set with a name from its parameters; relative paths among them start at `base`.
    ///
    /// # Errors
    /// [`DataError::NotFound`], and what the data set says of its parameters.
    pub fn build(&self, name: &str, params: &Params, base: &Path) -> Result<Arc<dyn Dataset>, DataError> {
        let factory = self.factories.find(name)?;
        (factory.build)(&factory.kind.plugin.located(params, base))
    }
}
