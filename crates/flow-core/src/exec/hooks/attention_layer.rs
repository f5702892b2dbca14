//! Attention layers: the parts of a block whose output a feature cache may answer for.

use super::Site;
use crate::exec::Exec;
use crate::tensors::Tensors;
use burn::backend::DispatchTensor;
use std::fmt::Debug;

/// What the queries of an attention layer look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttentionKind {
    /// The tokens of the same image or frame, joint with the text or not.
    Spatial,
    /// The same place in other frames.
    Temporal,
    /// The condition only.
    Cross,
}

/// An attention layer of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionLayer {
    /// Its block.
    pub site: Site,
    /// Its name within the block, unique there.
    pub name: &'static str,
    /// What it looks at.
    pub kind: AttentionKind,
}

/// An attention layer as a driver sees it: a function of its inputs, for all or some trajectories.
pub type LayerBody<'a> = &'a dyn Fn(&Exec<'_>, Vec<DispatchTensor>) -> Vec<DispatchTensor>;

/// Computes attention layers, or answers for them.
pub trait LayerDriver: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// The outputs of `layer` for `inputs`; each has the batch as its first axis.
    fn run(
        &self,
        exec: &Exec<'_>,
        layer: &AttentionLayer,
        inputs: Vec<DispatchTensor>,
        body: LayerBody<'_>,
    ) -> Vec<DispatchTensor>;
}

/// Computes every layer.
#[derive(Debug)]
pub struct ComputeAllLayers;

impl LayerDriver for ComputeAllLayers {
    fn name(&self) -> &str {
        "compute-layers"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        _: &AttentionLayer,
        inputs: Vec<DispatchTensor>,
        body: LayerBody<'_>,
    ) -> Vec<DispatchTensor> {
        body(exec, inputs)
    }
}

impl Exec<'_> {
    /// The output of an attention layer, from its inputs, which it normalises, to what its heads attend to: so kernels may
    /// compute norm and projections in one ([`modulated_linears`](Exec::modulated_linears)), and the output projection, which
    /// comes after, with gate and residual ([`linear_gated_residual`](Exec::linear_gated_residual)). `body` takes whatever has
    /// the batch as its first axis through `inputs`.
    ///
    /// The projection is affine. An output that is repeated gives the same bits on either side of it, and so do, up to
    /// rounding, weighted sums of outputs whose weights sum to 1, of which published extrapolations are made. A model that
    /// ends a layer after the projection is served as well; it merely gives up the fused form.
    ///
    /// # Panics
    /// If called outside of a stack.
    pub fn attention_layer<I: Tensors, O: Tensors>(
        &self,
        name: &'static str,
        kind: AttentionKind,
        inputs: I,
        body: impl Fn(&Exec<'_>, I) -> O,
    ) -> O {
        let site = self.site.clone();
        let layer = AttentionLayer {
            site: site.expect("an attention layer lies within a block of a stack"),
            name,
            kind,
        };
        let erased = |exec: &Exec<'_>, inputs| body(exec, I::join(inputs)).split();
        O::join(self.backends.layers.run(self, &layer, inputs.split(), &erased))
    }
}
