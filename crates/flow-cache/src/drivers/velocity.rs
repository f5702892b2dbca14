//! Whole calls of the model answered for: the features are velocities, or what is added to the latent to get one.

use crate::engine::{Engine, OnCall};
use crate::round::Place;
use crate::{Policy, Rules};
use burn::tensor::Tensor;
use flow_core::tensors::is_tracked;
use flow_core::{CallModel, Exec, FlowModel, ModelInput, VelocityDriver};
use std::ops::Range;
use std::sync::Arc;

/// A policy that answers for whole velocities. Its probe is the latent.
pub trait VelocityPolicy: Policy {
    /// Whether the features are `v - x`, so that an answer is added to the latent of its step; otherwise they are `v`.
    fn adds_to_latent(&self) -> bool;
}

/// The driver of a [`VelocityPolicy`]. Lives as long as one rollout.
///
/// # Panics
/// When it runs, with [`StepOrder`](crate::StepOrder), if the steps of a sample do not come once and in order.
#[derive(Debug)]
pub struct VelocityCache<P: VelocityPolicy> {
    engine: Engine<P>,
    calls: Arc<dyn VelocityDriver>,
}

impl<P: VelocityPolicy> VelocityCache<P> {
    /// A driver with nothing kept, above calls of the model. `on_call` is told what it did in each call.
    pub fn new(policy: P, rules: Rules, on_call: OnCall) -> Self {
        Self {
            engine: Engine::new(policy, rules, on_call),
            calls: Arc::new(CallModel),
        }
    }

    /// The same above `calls`, for instance recordings that are replayed: it is asked for whole batches of which nothing is
    /// answered. A few rows of a batch are asked of the model itself, for they come in every number, and a recording is of one.
    pub fn above(self, calls: Arc<dyn VelocityDriver>) -> Self {
        Self { calls, ..self }
    }
}

/// The blocks of one call of `model`, those of several stacks one after another.
pub(super) fn blocks(model: &dyn FlowModel) -> Range<usize> {
    0..model.spec().stacks.iter().map(|(_, blocks)| blocks).sum()
}

impl<P: VelocityPolicy> VelocityDriver for VelocityCache<P> {
    fn name(&self) -> &str {
        self.engine.policy.name()
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let x = input.x.clone().into_dispatch();
        let tracked = exec.params().is_training() || is_tracked(&x);
        if tracked || self.engine.stands_aside(exec, &Place::Velocity) {
            return self.calls.run(exec, model, input);
        }
        let policy = &self.engine.policy;
        let probe = policy.compares().probes().then(|| x.clone());
        let base = policy.adds_to_latent().then_some([x]);
        let compute = |exec: &Exec<'_>, some: Option<&[usize]>| {
            let velocity = match some {
                None => self.calls.run(exec, model, input.clone()),
                Some(some) => model.velocity(exec, input.rows(some)),
            };
            vec![velocity.into_dispatch()]
        };
        let base = base.as_ref().map(<[_; 1]>::as_slice);
        let blocks = blocks(model);
        let mut velocity = self
            .engine
            .fill(exec, Place::Velocity, probe.as_ref(), base, blocks, compute);
        Tensor::from_dispatch(velocity.remove(0))
    }
}
