//! Latents to patch tokens and back.

use super::Parts;
use burn::tensor::Tensor;
use flow_core::exec::Exec;
use flow_core::kernels::LinearWeights;
use flow_core::{Activation, Handle, Init, LatentShape};

/// The strided convolution `proj` of diffusers' `PatchEmbed`, computed as a linear layer over patches.
#[derive(Debug)]
pub(crate) struct PatchEmbedding {
    /// `[D, C, P, P]`.
    weight: Handle<4>,
    /// `[D]`.
    bias: Handle<1>,
    latent: LatentShape,
    patch: usize,
}

impl PatchEmbedding {
    pub fn new(mut parts: Parts<'_>, latent: LatentShape, patch: usize, hidden: usize) -> Self {
        let mut parts = parts.under("proj");
        let shape = [hidden, latent.channels, patch, patch];
        Self {
            weight: parts.param("weight", shape, Init::XavierUniform),
            bias: parts.param("bias", [hidden], Init::Zeros),
            latent,
            patch,
        }
    }

    /// `[B, N]` to `[B, S, D]`; tokens row by row.
    pub fn forward(&self, exec: &Exec<'_>, x_bn: Tensor<2>) -> Tensor<3> {
        let patches = patchify(x_bn, &self.latent, self.patch);
        let weight = exec.params().get(self.weight);
        let [hidden, channels, patch, _] = weight.dims();
        let weights = LinearWeights {
            weight: weight.reshape([hidden, channels * patch * patch]).into_dispatch(),
            bias: Some(exec.params().get(self.bias).into_dispatch()),
            adapter: None,
        };
        Tensor::from_dispatch(exec.kernels().linear(
            &**exec.stash(),
            &patches.into_dispatch(),
            &weights,
            Activation::None,
        ))
    }
}

/// `[B, N]` to `[B, S, C·P·P]`.
fn patchify(x_bn: Tensor<2>, latent: &LatentShape, patch: usize) -> Tensor<3> {
    let [batch, values] = x_bn.dims();
    assert_eq!(values, latent.values(), "values of one latent of {latent:?}");
    let (rows, columns) = (latent.height / patch, latent.width / patch);
    x_bn.reshape([batch, latent.channels, rows, patch, columns, patch])
        .permute([0, 2, 4, 1, 3, 5])
        .reshape([batch, rows * columns, latent.channels * patch * patch])
}

/// `[B, S, P·P·C]`, channels innermost as diffusers has them, to `[B, N]`.
pub(crate) fn unpatchify(y_bsd: Tensor<3>, latent: &LatentShape, patch: usize) -> Tensor<2> {
    let [batch, _, _] = y_bsd.dims();
    let (rows, columns) = (latent.height / patch, latent.width / patch);
    y_bsd
        .reshape([batch, rows, columns, patch, patch, latent.channels])
        .permute([0, 5, 1, 3, 2, 4])
        .reshape([batch, latent.values()])
}
