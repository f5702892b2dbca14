//! Architectures by name.

use crate::ModelError;
use crate::lora::OriginalLayer;
use crate::nearest::nearest;
use flow_core::device::ComputeDevice;
use flow_core::exec::Linear;
use flow_core::{FlowModel, ParamLayout, Weights};
use serde_json::Value;
use std::collections::BTreeMap;
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

fn with_buffers(mut weights: Weights, model: &dyn Architecture) -> Weights {
    for (index, values) in model.buffers() {
        weights
            .set_host(index, values)
            .expect("a model computes its buffers in the shape it declares");
    }
    weights
}

/// Builds a model from its settings, its constants on `device`.
pub type Build = fn(&Value, &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError>;

/// The architectures that a program knows. Filled explicitly, by [`register`](crate::register) and by others.
#[derive(Clone, Default)]
pub struct ModelRegistry {
    builders: BTreeMap<String, Build>,
}

impl ModelRegistry {
    /// A registry without any architecture.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an architecture.
    ///
    /// # Panics
    /// If the name is taken: two plugins of one program clash.
    pub fn add(&mut self, name: &str, build: Build) {
        let before = self.builders.insert(name.into(), build);
        assert!(before.is_none(), "architecture `{name}` is registered twice");
    }

    /// Registered names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.builders.keys().map(String::as_str).collect()
    }

    /// Builds the architecture called `name`.
    ///
    /// # Errors
    /// [`ModelError::UnknownArchitecture`], [`ModelError::Settings`].
    pub fn build(
        &self,
        name: &str,
        settings: &Value,
        device: &ComputeDevice,
    ) -> Result<Arc<dyn Architecture>, ModelError> {
        let build = self
            .builders
            .get(name)
            .ok_or_else(|| ModelError::UnknownArchitecture {
                name: name.into(),
                available: self.names().join(", "),
                nearest: nearest(name, self.names()).map(str::to_owned),
            })?;
        build(settings, device)
    }
}

impl fmt::Debug for ModelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelRegistry").field(&self.names()).finish()
    }
}
