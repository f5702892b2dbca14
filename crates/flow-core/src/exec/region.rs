//! Regions: the parts of a block that a checkpoint policy decides about.

use super::Exec;
use crate::tensors::Tensors;
use burn::backend::DispatchTensor;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// What a region computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// A whole block of a stack.
    Block,
    /// Projections, attention and output projection.
    Attention,
    /// Feed-forward.
    Mlp,
    /// Mixture of experts.
    Moe,
    /// The router of a mixture of experts.
    Router,
    /// Normalisation with modulation.
    Norm,
    /// The modulation from the conditioning.
    AdaLn,
}

/// Where a region stands in the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Name of the stack.
    pub stack: Arc<str>,
    /// Index of the block.
    pub block: usize,
    /// Kind of the region.
    pub kind: RegionKind,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}].{:?}", self.stack, self.block, self.kind)
    }
}

/// A region as a value: a pure function of its inputs and of the weights that the context shows it. It can run again
/// during backward, on other leaves.
pub type Body = Arc<dyn Fn(&Exec<'_>, Vec<DispatchTensor>) -> Vec<DispatchTensor> + Send + Sync>;

/// Runs regions; decides what backward keeps of them.
pub trait RegionEngine: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// Runs `body` on `inputs`. `exec` is at the region's [`Site`].
    fn run(&self, exec: &Exec<'_>, inputs: Vec<DispatchTensor>, body: Body) -> Vec<DispatchTensor>;
}

/// Backward keeps whatever the operations keep.
#[derive(Debug)]
pub struct KeepAll;

impl RegionEngine for KeepAll {
    fn name(&self) -> &str {
        "keep-all"
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<DispatchTensor>, body: Body) -> Vec<DispatchTensor> {
        body(exec, inputs)
    }
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
        let outer = self
            .site
            .clone()
            .expect("a region lies within a block of a stack");
        let block = block.clone();
        let erased: Body = Arc::new(move |exec, inputs| body(&block, exec, I::join(inputs)).split());
        let exec = Exec {
            site: Some(Site { kind, ..outer }),
            ..self.clone()
        };
        O::join(self.plan.regions.run(&exec, inputs.split(), erased))
    }
}
