//! Blocks of a stack answered for: the features are what the blocks add to what enters them.

use crate::engine::{Engine, OnCall};
use crate::round::Place;
use crate::{Policy, Rules};
use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use flow_core::exec::Stack;
use flow_core::tensors::{is_tracked, select_rows as rows};
use flow_core::{Exec, StackDriver};

/// Which blocks a policy leaves out, and what it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackShape {
    /// Blocks at the start that are always computed.
    pub front: usize,
    /// Blocks at the end that are always computed.
    pub back: usize,
    /// What is compared from step to step.
    pub probe: StackProbe,
}

/// What is compared from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackProbe {
    /// Nothing.
    Nothing,
    /// What the blocks at the start add to the first carried tensor.
    FrontResidual,
    /// What the first block's attention reads ([`Block::modulated_input`](flow_core::Block::modulated_input)).
    ModulatedInput,
    /// The first shared tensor: the conditioning.
    Conditioning,
}

/// A policy that answers for the blocks of a stack.
pub trait StackPolicy: Policy {
    /// Which blocks.
    fn shape(&self) -> StackShape;
}

/// The driver of a [`StackPolicy`]. Lives as long as one rollout.
///
/// # Panics
/// When it runs, with [`StepOrder`](crate::StepOrder), if the steps of a sample do not come once and in order.
#[derive(Debug)]
pub struct StackCache<P: StackPolicy> {
    engine: Engine<P>,
}

impl<P: StackPolicy> StackCache<P> {
    /// A driver with nothing kept. `on_call` is told what it did in each call.
    pub fn new(policy: P, rules: Rules, on_call: OnCall) -> Self {
        Self {
            engine: Engine::new(policy, rules, on_call),
        }
    }
}

impl<P: StackPolicy> StackDriver for StackCache<P> {
    fn name(&self) -> &str {
        self.engine.policy.name()
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let StackShape { front, back, probe } = self.engine.policy.shape();
        let place = Place::Stack(stack.name().to_owned());
        let tracked = carried.iter().chain(&shared).any(is_tracked);
        if tracked || front + back >= stack.len() || self.engine.stands_aside(exec, &place) {
            return stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        }
        let middle = front..stack.len() - back;
        let before = carried[0].clone();
        let head = stack.run_blocks(exec, 0..front, carried, &shared);
        let probe = match probe {
            StackProbe::Nothing => None,
            StackProbe::FrontResidual => Some(Dispatch::float_sub(head[0].clone(), before)),
            StackProbe::ModulatedInput => stack.modulated_input(exec, front, &head, &shared),
            StackProbe::Conditioning => shared.first().cloned(),
        };
        let compute = |exec: &Exec<'_>, some: Option<&[usize]>| {
            let gather = |tensors: &[DispatchTensor]| -> Vec<DispatchTensor> {
                let select = |tensor| some.map_or_else(|| Clone::clone(tensor), |some| rows(tensor, some));
                tensors.iter().map(select).collect()
            };
            stack.run_blocks(exec, middle.clone(), gather(&head), &gather(&shared))
        };
        let filled = self
            .engine
            .fill(exec, place, probe.as_ref(), Some(&head), middle.clone(), compute);
        stack.run_blocks(exec, middle.end..stack.len(), filled, &shared)
    }
}
