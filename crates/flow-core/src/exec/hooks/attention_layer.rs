//! Attention layers: the parts of a block whose output a feature cache may answer for.

use crate::exec::{AttentionKind, AttentionLayer, Exec, LayerBody, LayerDriver};
use crate::tensors::Tensors;
use burn::backend::DispatchTensor;

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
