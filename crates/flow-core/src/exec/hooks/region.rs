//! Regions: the parts of a block that a checkpoint policy decides about.

use crate::autograd::{self, Backward};
use crate::exec::{Body, Effect, Exec, RegionEngine, Site};
use crate::model::RegionKind;
use crate::tensors::{RawTensor, Tensors, is_tracked, plain, zeros_like};
use burn::backend::DispatchTensor;
use std::sync::Arc;

/// Backward keeps whatever the operations keep.
///
/// What enters a region passes an identity of its own, so that the gradients of a tensor read by several regions (the
/// conditioning) are summed region by region, as engines that compute a region again sum them. So every engine gives
/// the same bits.
#[derive(Debug)]
pub struct NoCheckpointing;

impl RegionEngine for NoCheckpointing {
    fn name(&self) -> &str {
        "keep-all"
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<DispatchTensor>, body: Body) -> Vec<DispatchTensor> {
        body(exec, boundary(inputs))
    }
}

/// `inputs`, the tracked ones behind one node that hands all their gradients on at once.
fn boundary(mut inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
    let tracked: Vec<usize> = (0..inputs.len())
        .filter(|index| is_tracked(&inputs[*index]))
        .collect();
    let crossing: Vec<&DispatchTensor> = tracked.iter().map(|index| &inputs[*index]).collect();
    let values: Vec<RawTensor> = crossing.iter().map(|tensor| plain(tensor)).collect();
    let like = values.clone();
    let backward: Backward = Arc::new(move |incoming| {
        let gradients = incoming.output_gradients.iter().cloned().zip(&like);
        gradients
            .map(|(gradient, like)| gradient.or_else(|| Some(zeros_like(like))))
            .collect()
    });
    let through = autograd::bind("boundary", &crossing, values, backward);
    for (index, tensor) in tracked.into_iter().zip(through) {
        inputs[index] = tensor;
    }
    inputs
}

/// A function of a block as a body.
fn erased<B, I, O>(block: &Arc<B>, body: fn(&Arc<B>, &Exec<'_>, I) -> O) -> Body
where
    B: Send + Sync + 'static,
    I: Tensors,
    O: Tensors,
{
    let block = block.clone();
    Arc::new(move |exec, inputs| body(&block, exec, I::join(inputs)).split())
}

impl Exec<'_> {
    /// Runs a part of `block` as a region of its own.
    ///
    /// `body` is a function, not a closure: what it computes from comes in through `inputs`, through `block`'s
    /// constants, or through the context's weights, so it can run again.
    ///
    /// # Panics
    /// If called outside of a stack.
    pub fn region<B, I, O>(
        &self,
        kind: RegionKind,
        block: &Arc<B>,
        inputs: I,
        body: fn(&Arc<B>, &Exec<'_>, I) -> O,
    ) -> O
    where
        B: Send + Sync + 'static,
        I: Tensors,
        O: Tensors,
    {
        self.region_with_effect(kind, Effect::Pure, block, inputs, body)
    }

    /// Runs a part of a region of `block` that gives what an operation in it gave, as it came: attention with its projections. An
    /// engine that runs a block again and kept that result need not run the part with the block. It takes the result, and runs
    /// the part when backward has come to it; until then neither queries nor keys nor values are in memory.
    ///
    /// `body` is a function, not a closure, as that of a [region](Self::region).
    ///
    /// # Panics
    /// If called outside of a stack and the engine asks for the place.
    pub fn deferrable<B, I, O>(&self, block: &Arc<B>, inputs: I, body: fn(&Arc<B>, &Exec<'_>, I) -> O) -> O
    where
        B: Send + Sync + 'static,
        I: Tensors,
        O: Tensors,
    {
        let erased = erased(block, body);
        O::join(self.backends.regions.run_deferrable(self, inputs.split(), erased))
    }

    /// As [`region`](Self::region), for a part of `block` that has an effect and so is never run again.
    ///
    /// # Panics
    /// If called outside of a stack.
    pub fn region_with_effect<B, I, O>(
        &self,
        kind: RegionKind,
        effect: Effect,
        block: &Arc<B>,
        inputs: I,
        body: fn(&Arc<B>, &Exec<'_>, I) -> O,
    ) -> O
    where
        B: Send + Sync + 'static,
        I: Tensors,
        O: Tensors,
    {
        let outer = self
            .site
            .clone()
            .expect("a region lies within a block of a stack");
        let erased = erased(block, body);
        let exec = Exec {
            site: Some(Site {
                kind,
                effect,
                ..outer
            }),
            ..self.clone()
        };
        O::join(self.backends.regions.run(&exec, inputs.split(), erased))
    }
}
