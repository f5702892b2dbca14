//! Stacks: the sequence of blocks that makes up a transformer.

use crate::exec::{Body, Effect, Exec, Site, Stack, StackDriver};
use crate::model::RegionKind;
use crate::tensors::Tensors;
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// One block of a stack: a description holding weight handles and constants, never tensors of a call.
///
/// Every tensor that enters or leaves has the batch as its first axis.
pub trait Block: Debug + Send + Sync + 'static {
    /// What goes from block to block, for instance image and text tokens.
    type Carried: Tensors;
    /// What all blocks read, for instance the conditioning.
    type Shared: Tensors;

    /// Computes the block.
    fn forward(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        carried: Self::Carried,
        shared: Self::Shared,
    ) -> Self::Carried;

    /// What the block's first attention reads: its first carried tensor, normalised and modulated. `None` for a block
    /// that has no such thing. A feature cache compares it from step to step (TeaCache).
    fn modulated_input(
        self: &Arc<Self>,
        _exec: &Exec<'_>,
        _carried: &Self::Carried,
        _shared: &Self::Shared,
    ) -> Option<Tensor<3>> {
        None
    }
}

/// Runs every block.
#[derive(Debug)]
pub struct RunAllBlocks;

impl StackDriver for RunAllBlocks {
    fn name(&self) -> &str {
        "run-all"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        stack.run_blocks(exec, 0..stack.len(), carried, &shared)
    }
}

struct Blocks<'a, B> {
    name: Arc<str>,
    blocks: &'a [Arc<B>],
}

impl<B> Blocks<'_, B> {
    fn site(&self, block: usize) -> Site {
        Site {
            stack: self.name.clone(),
            block,
            kind: RegionKind::Block,
            effect: Effect::Pure,
        }
    }
}

impl<B: Block> Stack for Blocks<'_, B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn run_block(
        &self,
        exec: &Exec<'_>,
        index: usize,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let block = self.blocks[index].clone();
        let (carried_count, blocks) = (carried.len(), self.blocks.len());
        let body: Body = Arc::new(move |exec: &Exec<'_>, mut inputs: Vec<DispatchTensor>| {
            let shared = inputs.split_off(carried_count);
            let (carried, shared) = (B::Carried::join(inputs), B::Shared::join(shared));
            // In here, so that a run in backward puts them together anew and nothing keeps them in between.
            let carried = match exec.with_block_weights(exec.block_after(index, blocks)) {
                Some(exec) => block.forward(&exec, carried, shared),
                None => block.forward(exec, carried, shared),
            };
            carried.split()
        });
        let exec = Exec {
            site: Some(self.site(index)),
            ..exec.clone()
        };
        let mut inputs = carried;
        inputs.extend(shared);
        exec.backends.regions.run(&exec, inputs, body)
    }

    fn modulated_input(
        &self,
        exec: &Exec<'_>,
        index: usize,
        carried: &[DispatchTensor],
        shared: &[DispatchTensor],
    ) -> Option<DispatchTensor> {
        let exec = Exec {
            site: Some(self.site(index)),
            ..exec.clone()
        };
        // Whether a block computes after this is not known yet.
        let exec = exec.with_block_weights(None).unwrap_or(exec);
        let (carried, shared) = (
            B::Carried::join(carried.to_vec()),
            B::Shared::join(shared.to_vec()),
        );
        let input = self.blocks[index].modulated_input(&exec, &carried, &shared);
        input.map(Tensor::into_dispatch)
    }
}

impl<'w> Exec<'w> {
    /// The block that computes after number `index` of `blocks`, if none is left out: the next one, or in a backward pass, which runs blocks
    /// again, the one before.
    fn block_after(&self, index: usize, blocks: usize) -> Option<usize> {
        match self.in_backward {
            true => index.checked_sub(1),
            false => Some(index + 1).filter(|next| *next < blocks),
        }
    }

    /// The same call with the whole weights of the block where it computes, `next` being the one that computes after it; `None` where all
    /// weights are whole, or these are already.
    fn with_block_weights(&self, next: Option<usize>) -> Option<Exec<'w>> {
        let site = self.site.as_ref()?;
        let params = self.params.of_block(&site.stack, site.block, next)?;
        Some(Exec {
            params,
            ..self.clone()
        })
    }

    /// Takes `carried` through `blocks`, as the plan's driver decides.
    pub fn stack<B: Block>(
        &self,
        name: &str,
        blocks: &[Arc<B>],
        carried: B::Carried,
        shared: B::Shared,
    ) -> B::Carried {
        let stack = Blocks {
            name: name.into(),
            blocks,
        };
        B::Carried::join(
            self.backends
                .stacks
                .run(self, &stack, carried.split(), shared.split()),
        )
    }
}
