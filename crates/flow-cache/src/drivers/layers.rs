//! Attention layers answered for: the features are their outputs.

use crate::engine::{Engine, OnCall};
use crate::round::Place;
use crate::{Policy, Rules};
use burn::backend::DispatchTensor;
use flow_core::tensors::{is_tracked, select_rows as rows};
use flow_core::{AttentionLayer, Exec, LayerBody, LayerDriver};

/// A policy that answers for attention layers.
pub trait LayerPolicy: Policy {
    /// Whether it ever answers for `layer`.
    fn covers(&self, layer: &AttentionLayer) -> bool;
}

/// The driver of a [`LayerPolicy`]. Lives as long as one rollout.
///
/// # Panics
/// When it runs, with [`StepOrder`](crate::StepOrder), if a layer is asked for an earlier step of a sample, or twice.
#[derive(Debug)]
pub struct LayerCache<P: LayerPolicy> {
    engine: Engine<P>,
}

impl<P: LayerPolicy> LayerCache<P> {
    /// A driver with nothing kept. `on_call` is told what it did in each call.
    pub fn new(policy: P, rules: Rules, on_call: OnCall) -> Self {
        Self {
            engine: Engine::new(policy, rules, on_call),
        }
    }
}

impl<P: LayerPolicy> LayerDriver for LayerCache<P> {
    fn name(&self) -> &str {
        self.engine.policy.name()
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        layer: &AttentionLayer,
        inputs: Vec<DispatchTensor>,
        body: LayerBody<'_>,
    ) -> Vec<DispatchTensor> {
        let place = Place::Layer(layer.clone());
        let tracked = inputs.iter().any(is_tracked);
        if tracked || !self.engine.policy.covers(layer) || self.engine.stands_aside(exec, &place) {
            return body(exec, inputs);
        }
        let compute = |exec: &Exec<'_>, some: Option<&[usize]>| match some {
            None => body(exec, inputs.clone()),
            Some(some) => body(exec, inputs.iter().map(|input| rows(input, some)).collect()),
        };
        let block = layer.site.block;
        self.engine
            .fill(exec, place, None, None, block..block + 1, compute)
    }
}
