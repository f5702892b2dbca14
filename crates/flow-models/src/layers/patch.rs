//! Latents to patch tokens and back.

use super::Parts;
use burn::tensor::Tensor;
use flow_core::exec::Exec;
use flow_core::ops::LinearWeights;
use flow_core::{Activation, Handle, Init, LatentShape};

/// A strided convolution, computed as a linear layer over patches. A patch lies within one frame.
#[derive(Debug)]
pub(crate) struct PatchEmbedding<const AXES: usize> {
    /// `[D, C, P, P]` for images, `[D, C, 1, P, P]` for videos.
    weight: Handle<AXES>,
    /// `[D]`.
    bias: Handle<1>,
    latent: LatentShape,
    patch: usize,
}

impl PatchEmbedding<4> {
    /// `proj` of diffusers' `PatchEmbed`.
    pub fn image(mut parts: Parts<'_>, latent: LatentShape, patch: usize, hidden: usize) -> Self {
        let shape = [hidden, latent.channels, patch, patch];
        Self::new(parts.under("proj"), latent, patch, shape)
    }
}

impl PatchEmbedding<5> {
    /// `patch_embedding` of diffusers' `WanTransformer3DModel`.
    pub fn video(parts: Parts<'_>, latent: LatentShape, patch: usize, hidden: usize) -> Self {
        let shape = [hidden, latent.channels, 1, patch, patch];
        Self::new(parts, latent, patch, shape)
    }
}

impl<const AXES: usize> PatchEmbedding<AXES> {
    fn new(mut parts: Parts<'_>, latent: LatentShape, patch: usize, shape: [usize; AXES]) -> Self {
        let hidden = shape[0];
        Self {
            weight: parts.param("weight", shape, Init::XavierUniform),
            bias: parts.param("bias", [hidden], Init::Zeros),
            latent,
            patch,
        }
    }

    /// `[B, N]` to `[B, S, D]`; tokens frame by frame, row by row.
    pub fn forward(&self, exec: &Exec<'_>, x_bn: Tensor<2>) -> Tensor<3> {
        let patches = patchify(x_bn, &self.latent, self.patch);
        let weight = exec.params().get(self.weight);
        let [hidden, values] = [weight.dims()[0], patches.dims()[2]];
        let weights = LinearWeights {
            low_precision: None,
            weight: weight.reshape([hidden, values]).into_dispatch(),
            bias: Some(exec.params().get(self.bias).into_dispatch()),
            adapter: None,
        };
        Tensor::from_dispatch(exec.kernels().ops().model.linear(
            &**exec.stash(),
            &patches.into_dispatch(),
            &weights,
            Activation::None,
        ))
    }
}

/// Rows and columns of patches, the frames below one another: `[C, F, H, W]` and `[C, F·H, W]` are the same values.
fn grid(latent: &LatentShape, patch: usize) -> (usize, usize) {
    (latent.frames * latent.height / patch, latent.width / patch)
}

/// `[B, N]` to `[B, S, C·P·P]`.
fn patchify(x_bn: Tensor<2>, latent: &LatentShape, patch: usize) -> Tensor<3> {
    let [batch, values] = x_bn.dims();
    assert_eq!(values, latent.values(), "values of one latent of {latent:?}");
    let (rows, columns) = grid(latent, patch);
    x_bn.reshape([batch, latent.channels, rows, patch, columns, patch])
        .permute([0, 2, 4, 1, 3, 5])
        .reshape([batch, rows * columns, latent.channels * patch * patch])
}

/// Side of the squares of latent values that are packed into one token (diffusers' `_pack_latents`).
pub(crate) const PACKING: usize = 2;

/// `[B, N]` to `[B, S, C·P·P]`: packed latents, as diffusers' pipelines of FLUX.1 and Qwen-Image have them (`_pack_latents`).
pub(crate) fn pack_latents(x_bn: Tensor<2>, latent: &LatentShape, patch: usize) -> Tensor<3> {
    patchify(x_bn, latent, patch)
}

/// The inverse of [`pack_latents`].
pub(crate) fn unpack_latents(y_bsd: Tensor<3>, latent: &LatentShape, patch: usize) -> Tensor<2> {
    let [batch, _, _] = y_bsd.dims();
    let (rows, columns) = grid(latent, patch);
    y_bsd
        .reshape([batch, rows, columns, latent.channels, patch, patch])
        .permute([0, 3, 1, 4, 2, 5])
        .reshape([batch, latent.values()])
}

/// `[B, S, P·P·C]`, channels innermost as diffusers has them, to `[B, N]`.
pub(crate) fn unpatchify(y_bsd: Tensor<3>, latent: &LatentShape, patch: usize) -> Tensor<2> {
    let [batch, _, _] = y_bsd.dims();
    let (rows, columns) = grid(latent, patch);
    y_bsd
        .reshape([batch, rows, columns, patch, patch, latent.channels])
        .permute([0, 5, 1, 3, 2, 4])
        .reshape([batch, latent.values()])
}
