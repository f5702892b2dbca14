//! The accelerators that a config can name.

use crate::params::{self, Params};
use crate::{AccelerationError, Accelerator, AcceleratorStage, Arrangement, Refusal};
use flow_config::{AcceleratorEntry, Diagnostic};
use flow_core::{Backends, LowPrecisionRule, ModelSpec};
use flow_registry::{NameTaken, NotFound, Registry, UnknownName};
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;

/// What the registry holds.
const WHAT: &str = "accelerator";

type Build = dyn Fn(&Params) -> Result<Arc<dyn Accelerator>, AccelerationError> + Send + Sync;

/// A registered accelerator, before it has parameters.
#[derive(Clone)]
pub struct AcceleratorKind {
    name: String,
    stage: AcceleratorStage,
    summary: String,
    floor: Option<String>,
    schema: Schema,
    build: Arc<Build>,
}

impl AcceleratorKind {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its stage, and so the slot that it may stand in.
    pub fn stage(&self) -> AcceleratorStage {
        self.stage
    }

    /// What it does, in one line.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// What it does in this build in place of what it is made for, if it cannot do that here.
    pub fn floor(&self) -> Option<&str> {
        self.floor.as_deref()
    }

    /// Says what it does in this build in place of what it is made for.
    pub fn set_floor(&mut self, floor: &str) {
        self.floor = Some(floor.into());
    }

    /// JSON schema of its parameters.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// What its schema says against parameters that stand at the dotted `path` of a config: everything at once, in the
    /// words that the config's own keys have.
    pub fn problems(&self, params: &Params, path: &str) -> Vec<Diagnostic> {
        params::check(params, self.schema.as_value(), path)
    }
}

impl fmt::Debug for AcceleratorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceleratorKind")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Accelerators by name. Built by the program that uses it; there is no global one, and none is registered from the
/// start.
#[derive(Clone, Debug)]
pub struct AcceleratorRegistry {
    kinds: Registry<AcceleratorKind>,
}

impl Default for AcceleratorRegistry {
    fn default() -> Self {
        Self {
            kinds: Registry::new(WHAT),
        }
    }
}

impl AcceleratorRegistry {
    /// Registers an accelerator of `stage` whose parameters are a `P`: `build` makes it from them. The case of ASCII
    /// letters does not matter in `name`.
    ///
    /// `P` should carry `#[serde(deny_unknown_fields)]`, so that a misspelt parameter is an error. Ranges and lengths that
    /// its schema declares are checked.
    ///
    /// # Errors
    /// [`NameTaken`] if the name is taken.
    pub fn register<P, A>(
        &mut self,
        name: &str,
        stage: AcceleratorStage,
        summary: &str,
        build: impl Fn(P) -> Result<A, Refusal> + Send + Sync + 'static,
    ) -> Result<&mut AcceleratorKind, NameTaken>
    where
        P: DeserializeOwned + JsonSchema,
        A: Accelerator + 'static,
    {
        let name = name.to_ascii_lowercase();
        let called = name.clone();
        let schema = schemars::schema_for!(P);
        let by_schema = schema.as_value().clone();
        let build = move |given: &Params| {
            let wrong = |message| AccelerationError::Params {
                name: called.clone(),
                message,
            };
            let problems = params::check(given, &by_schema, "params");
            if !problems.is_empty() {
                let messages: Vec<String> = problems.iter().map(params::in_words).collect();
                return Err(wrong(messages.join("; ")));
            }
            let params: P = params::read(given).map_err(wrong)?;
            let built = build(params).and_then(|accelerator| match accelerator.stage() {
                found if found == stage => Ok(Arc::new(accelerator) as Arc<dyn Accelerator>),
                found => Err(Refusal::new(
                    format!("it is registered with stage `{stage}`, but its own is `{found}`"),
                    "This is a defect of the crate that registers it; remove the entry",
                )),
            });
            built.map_err(|refusal| AccelerationError::Refused {
                name: called.clone(),
                refusal,
            })
        };
        let kind = AcceleratorKind {
            name: name.clone(),
            stage,
            summary: summary.into(),
            floor: None,
            schema,
            build: Arc::new(build),
        };
        self.kinds.register(&name, kind)
    }

    /// Remembers a name that was an accelerator once, or is one elsewhere: `why` says what became of it, without a full
    /// stop, and `instead` what to write.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an accelerator of this name.
    pub fn remove(&mut self, name: &str, why: &str, instead: &str) -> Result<(), NameTaken> {
        self.kinds.remove(name, why, instead)
    }

    /// The accelerator registered as `name`; case does not matter.
    pub fn kind(&self, name: &str) -> Option<&AcceleratorKind> {
        self.find(name).ok()
    }

    /// The registered accelerators, by name.
    pub fn kinds(&self) -> impl Iterator<Item = &AcceleratorKind> {
        self.kinds.values()
    }

    /// The accelerator called `name` with `params`.
    ///
    /// # Errors
    /// [`AccelerationError::Unknown`] with the names there are and the nearest, [`AccelerationError::Removed`] with what
    /// to write instead, [`AccelerationError::Params`] if the
    /// parameters are not its own, [`AccelerationError::Refused`] if it does not take their values.
    pub fn build(&self, name: &str, params: &Params) -> Result<Arc<dyn Accelerator>, AccelerationError> {
        (self.find(name)?.build)(params)
    }

    /// How frozen matrices are stored with these entries of `acceleration.shared`; the first that asks for it counts. Entries that
    /// cannot be built ask for nothing: who puts them in force says why they cannot.
    pub fn low_precision(&self, shared: &[AcceleratorEntry]) -> Option<LowPrecisionRule> {
        let of = |entry: &AcceleratorEntry| {
            let built = self.build(&entry.name, &entry.params).ok()?;
            built.low_precision().cloned()
        };
        shared.iter().find_map(of)
    }

    /// The largest share of samples that one of these entries of a slot wants to be taken once more without it. Entries that cannot be
    /// built ask for nothing.
    pub fn audit_share(&self, entries: &[AcceleratorEntry]) -> f64 {
        let built = entries
            .iter()
            .filter_map(|entry| self.build(&entry.name, &entry.params).ok());
        built
            .map(|accelerator| accelerator.audit_share())
            .fold(0.0, f64::max)
    }

    /// As the registry finds it, where the joints of words are those of the name: the schema of a config allows no other.
    fn find(&self, name: &str) -> Result<&AcceleratorKind, NotFound> {
        let kind = self.kinds.find(name)?;
        match kind.name.eq_ignore_ascii_case(name) {
            true => Ok(kind),
            false => Err(UnknownName::new(WHAT, name, self.kinds.names()).into()),
        }
    }

    /// The entries of both slots over `base`, each entry a name with its parameters.
    ///
    /// # Errors
    /// All errors of [`build`](Self::build); if there are none, all errors of [`Arrangement::new`].
    pub fn arrangement<'a>(
        &self,
        base: Backends,
        shared: impl IntoIterator<Item = (&'a str, &'a Params)>,
        rollout: impl IntoIterator<Item = (&'a str, &'a Params)>,
        model: &ModelSpec,
    ) -> Result<Arrangement, Vec<AccelerationError>> {
        let mut errors = Vec::new();
        let mut build =
            |(name, params): (&str, &Params)| self.build(name, params).map_err(|e| errors.push(e)).ok();
        let shared: Vec<_> = shared.into_iter().filter_map(&mut build).collect();
        let rollout: Vec<_> = rollout.into_iter().filter_map(&mut build).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        Arrangement::new(base, &shared, &rollout, model)
    }
}
