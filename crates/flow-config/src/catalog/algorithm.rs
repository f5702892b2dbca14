//! What other parts need to know of an algorithm before it is built.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::{ParamsError, PluginKind};
use crate::diagnostic::Diagnostic;

/// What an algorithm asks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmFacts {
    /// Whether its loss reads the log-probabilities of the rollout's steps, which are recorded for it.
    pub is_coupled: bool,
    /// Passes over the images of one rollout.
    pub inner_epochs: usize,
    /// Copies of the trained weights that it keeps: a slower one that samples, a reference.
    pub copies: usize,
}

/// What a distillation asks of a run beside [`AlgorithmFacts`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistillationFacts {
    /// Which steps of a rollout are kept for the loss, from the first (0) to the last (1).
    pub step_range: [f64; 2],
    /// Teachers that are adapters, over the weights of the run.
    pub adapters: usize,
    /// Teachers that are whole models.
    pub models: usize,
    /// Networks that are trained beside the run's own, each with an optimizer of its own.
    pub networks: usize,
}

type Object = Map<String, Json>;
type Facts = dyn Fn(&Object) -> Result<AlgorithmFacts, ParamsError> + Send + Sync;
type Distils = dyn Fn(&Object) -> Option<DistillationFacts> + Send + Sync;
type CheckSteps = dyn Fn(&Object, &[f64]) -> Option<Diagnostic> + Send + Sync;

/// An algorithm's description.
#[derive(Clone)]
pub struct AlgorithmKind {
    /// What every plug-in has.
    pub plugin: PluginKind,
    facts: Arc<Facts>,
    check_steps: Option<Arc<CheckSteps>>,
    rows_of_record: Option<usize>,
    distils: Option<Arc<Distils>>,
}

impl AlgorithmKind {
    /// An algorithm whose parameters are a `P`, and what it asks of a run.
    pub fn new<P>(name: &str, summary: &str, facts: fn(&P) -> AlgorithmFacts) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let plugin = PluginKind::new::<P>(name, summary);
        let reader = plugin.clone();
        Self {
            facts: Arc::new(move |params| Ok(facts(&reader.read::<P>(params)?))),
            plugin,
            check_steps: None,
            rows_of_record: None,
            distils: None,
        }
    }

    /// As a distillation, with what it asks of a run.
    pub fn with_distillation<P>(mut self, facts: fn(&P) -> DistillationFacts) -> Self
    where
        P: DeserializeOwned + 'static,
    {
        let reader = self.plugin.clone();
        self.distils = Some(Arc::new(move |params| {
            Some(facts(&reader.read::<P>(params).ok()?))
        }));
        self
    }

    /// What a distillation with `params` asks of a run; nothing of an algorithm that is none, or of parameters that cannot be read.
    pub fn distillation(&self, params: &Object) -> Option<DistillationFacts> {
        self.distils.as_ref()?(params)
    }

    /// With a rule on the sampler's steps, which stand at the sigmas of the last argument; these follow from the model, so that
    /// no rule on the config alone knows them.
    pub fn with_step_rule<P>(mut self, check: fn(&P, &[f64]) -> Option<Diagnostic>) -> Self
    where
        P: DeserializeOwned + 'static,
    {
        let reader = self.plugin.clone();
        self.check_steps = Some(Arc::new(move |params, sigmas| {
            check(&reader.read::<P>(params).ok()?, sigmas)
        }));
        self
    }

    /// Of an algorithm that learns from records of the data set and makes no rollout; each has `rows` images: 1, or 2 of a pair.
    pub fn with_records(mut self, rows: usize) -> Self {
        self.rows_of_record = Some(rows);
        self
    }

    /// Images of a record of the data set, if the algorithm learns from these; none if it learns from rollouts.
    pub fn rows_of_record(&self) -> Option<usize> {
        self.rows_of_record
    }

    /// What the algorithm with `params` asks of a run.
    ///
    /// # Errors
    /// What is wrong with the parameters.
    pub fn facts(&self, params: &Object) -> Result<AlgorithmFacts, ParamsError> {
        (self.facts)(params)
    }

    /// What its rule on the sampler's steps finds.
    pub fn check_steps(&self, params: &Object, sigmas: &[f64]) -> Option<Diagnostic> {
        self.check_steps.as_ref()?(params, sigmas)
    }
}

impl fmt::Debug for AlgorithmKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plugin.fmt(formatter)
    }
}
