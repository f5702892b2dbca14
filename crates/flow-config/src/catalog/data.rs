//! What rules on other sections need to know of a data set before it is built.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::{ParamsError, PluginKind};

/// What a data set is to a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataFacts {
    /// Its images; nothing if it has none, or does not know them before it is read.
    pub images: Option<ImageFacts>,
    /// The tokens of its prompts; nothing if they have none, or it does not know them before it is read.
    pub prompts: Option<PromptFacts>,
}

/// The images of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Side of the square images in pixels.
    pub size: usize,
    /// Their channels.
    pub channels: usize,
}

/// The prompts of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptFacts {
    /// Number of distinct tokens, padding and "no condition" included.
    pub vocabulary: usize,
    /// Length in tokens, padding included.
    pub length: usize,
}

type Facts = dyn Fn(&Map<String, Json>) -> Result<DataFacts, ParamsError> + Send + Sync;

/// A data set's description.
#[derive(Clone)]
pub struct DataKind {
    /// What every plug-in has.
    pub plugin: PluginKind,
    facts: Arc<Facts>,
}

impl DataKind {
    /// A data set whose parameters are a `P`, and what it is to a model.
    pub fn new<P>(name: &str, summary: &str, facts: fn(&P) -> DataFacts) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let plugin = PluginKind::new::<P>(name, summary);
        let reader = plugin.clone();
        Self {
            facts: Arc::new(move |params| Ok(facts(&reader.read::<P>(params)?))),
            plugin,
        }
    }

    /// What the data set with `params` is to a model.
    ///
    /// # Errors
    /// What is wrong with the parameters.
    pub fn facts(&self, params: &Map<String, Json>) -> Result<DataFacts, ParamsError> {
        (self.facts)(params)
    }
}

impl fmt::Debug for DataKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plugin.fmt(formatter)
    }
}
