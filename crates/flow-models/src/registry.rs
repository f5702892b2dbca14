//! Architectures by name.

use crate::ModelError;
use crate::lora::OriginalLayer;
use flow_config::{ModelKind, Rules};
use flow_core::device::ComputeDevice;
use flow_core::exec::Linear;
use flow_core::{BlockWeights, Drawn, FlowModel, LowPrecision, ParamLayout, Weights};
use flow_registry::{NameTaken, Registry};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

/// A model together with what initialising and adapting it needs to know.
pub trait Architecture: FlowModel {
    /// The linear layers, which are what an adapter can adapt, in the layout's order. Embedding tables and patch
    /// projections are not among them.
    fn linears(&self) -> &[Linear];

    /// What diffusers calls the model, or would.
    fn class_name(&self) -> &'static str;

    /// The constants that describe the model, as in a `config.json` of diffusers: none that a file of weights could be
    /// read without. The size of a latent is not among them where diffusers has it elsewhere.
    fn constants(&self) -> Value;

    /// Whether a constant is the size of a latent, which may be another one than the weights were trained at.
    fn is_size(&self, _constant: &str) -> bool {
        false
    }

    /// Whether a constant that published files state decides nothing, so that it is not compared.
    fn is_without_effect(&self, _constant: &str) -> bool {
        false
    }

    /// The linear layers of the program that published the model, where they have other names there.
    fn original_layers(&self) -> Vec<OriginalLayer> {
        Vec::new()
    }

    /// The constants that the layout declares as buffers: position in the layout and values. A file may replace them.
    fn buffers(&self) -> Vec<(usize, Vec<f32>)> {
        Vec::new()
    }
}

/// Initial weights: drawn from `seed`, buffers as the architecture computes them.
///
/// `layout` is the model's own, or a copy of it with adapters.
pub fn initialize(
    model: &dyn Architecture,
    layout: &Arc<ParamLayout>,
    seed: u64,
    device: &ComputeDevice,
) -> Weights {
    with_buffers(Weights::init(layout.clone(), seed, device), model)
}

/// As [`initialize`], for a file that is about to give the base weights: those are zeros.
pub fn initialize_adapters(
    model: &dyn Architecture,
    layout: &Arc<ParamLayout>,
    seed: u64,
    device: &ComputeDevice,
) -> Weights {
    with_buffers(Weights::init_adapters(layout.clone(), seed, device), model)
}

/// As [`initialize_adapters`], where only some weights are `trained`, one flag each: what the file gives for the others never lies on the
/// device in f32, and what `low_precision` has a form for not even in 16 bits ([`Weights::init_adapters_on_frozen`]).
pub fn initialize_adapters_on_frozen(
    model: &dyn Architecture,
    layout: &Arc<ParamLayout>,
    seed: u64,
    device: &ComputeDevice,
    trained: &[bool],
    low_precision: Arc<[Option<LowPrecision>]>,
) -> Weights {
    let weights = Weights::init_adapters_on_frozen(layout.clone(), seed, device, trained, low_precision);
    with_buffers(weights, model)
}

/// As [`initialize`], where `blocks` has some of the weights in parts, some are `trained` (one flag each), and those that are not `drawn` are zeros,
/// for a file that is about to give them ([`Weights::init_on_parts`]).
pub fn initialize_on_parts(
    model: &dyn Architecture,
    layout: &Arc<ParamLayout>,
    (seed, device): (u64, &ComputeDevice),
    (drawn, trained): (Drawn, &[bool]),
    blocks: Arc<dyn BlockWeights>,
) -> Weights {
    let weights = Weights::init_on_parts(layout.clone(), (seed, device), (drawn, trained), blocks);
    with_buffers(weights, model)
}

fn with_buffers(mut weights: Weights, model: &dyn Architecture) -> Weights {
    for (index, values) in model.buffers() {
        weights
            .set_host(index, values)
            .expect("a model computes its buffers in the shape it declares");
    }
    weights
}

/// Builds a model from a `P`, such as its table of a config.
pub type BuildFrom<P> = fn(&P, &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError>;

/// Builds a model from its constants, as files of weights have them; what it computes once is on `device`.
pub type Build = fn(&Value, &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError>;

type Dimensions = Map<String, Value>;
type BuildSection =
    dyn Fn(&Dimensions, &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> + Send + Sync;

/// What is known about an architecture before it is built.
#[derive(Clone)]
pub struct ModelFactory {
    kind: ModelKind,
    from_section: Arc<BuildSection>,
    from_constants: Build,
}

impl ModelFactory {
    /// An architecture as `kind` describes it, whose dimensions in a config are a `P`; `from_section` builds it from them,
    /// `from_constants` from what files of weights say.
    pub fn new<P>(kind: ModelKind, from_section: BuildFrom<P>, from_constants: Build) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        let reader = kind.plugin.clone();
        let from_section = move |dimensions: &Dimensions, device: &ComputeDevice| {
            let dimensions = reader
                .read::<P>(dimensions)
                .map_err(|error| ModelError::Dimensions {
                    architecture: reader.name().to_owned(),
                    problem: error.to_string(),
                })?;
            from_section(&dimensions, device)
        };
        Self {
            kind,
            from_section: Arc::new(from_section),
            from_constants,
        }
    }

    /// With rules that a schema cannot say; see [`PluginKind::with_rules`](flow_config::PluginKind::with_rules).
    pub fn with_rules<P: DeserializeOwned + 'static>(mut self, check: fn(&P, &mut Rules<'_>, &str)) -> Self {
        self.kind.plugin = self.kind.plugin.with_rules(check);
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

/// The architectures that a program knows. Filled explicitly, by [`register`](crate::register) and by others.
#[derive(Clone)]
pub struct ModelRegistry {
    factories: Registry<ModelFactory>,
}

impl Default for ModelRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelRegistry {
    /// A registry without any architecture.
    pub const fn new() -> Self {
        Self {
            factories: Registry::new("architecture"),
        }
    }

    /// Adds an architecture.
    ///
    /// # Errors
    /// [`NameTaken`] if there is one of its name.
    pub fn register(&mut self, factory: ModelFactory) -> Result<(), NameTaken> {
        let name = factory.name().to_owned();
        self.factories.register(&name, factory)?;
        Ok(())
    }

    /// Every architecture in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &ModelFactory> {
        self.factories.values()
    }

    /// What a config needs to know of each, for a [`Catalog`](flow_config::Catalog).
    pub fn plugins(&self) -> impl Iterator<Item = ModelKind> {
        self.iter().map(|factory| factory.kind.clone())
    }

    /// Registered names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.factories.names().collect()
    }

    /// Builds the architecture called `name` from the constants that a file of weights gives.
    ///
    /// # Errors
    /// [`ModelError::NotFound`], [`ModelError::Settings`].
    pub fn build(
        &self,
        name: &str,
        constants: &Value,
        device: &ComputeDevice,
    ) -> Result<Arc<dyn Architecture>, ModelError> {
        (self.factories.find(name)?.from_constants)(constants, device)
    }

    /// Builds the architecture called `name` from its table of a config.
    ///
    /// # Errors
    /// [`ModelError::NotFound`], [`ModelError::Dimensions`], [`ModelError::Settings`].
    pub fn build_section(
        &self,
        name: &str,
        dimensions: &Map<String, Value>,
        device: &ComputeDevice,
    ) -> Result<Arc<dyn Architecture>, ModelError> {
        (self.factories.find(name)?.from_section)(dimensions, device)
    }
}

impl fmt::Debug for ModelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelRegistry").field(&self.names()).finish()
    }
}
