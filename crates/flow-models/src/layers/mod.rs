//! Parts that the architectures share. Each holds weight handles and constants, never tensors of a call.
//!
//! Legend: `B` batch, `S` tokens, `D` channels of the residual stream, `H` heads, `C` latent channels, `N` values of a
//! latent, `P` side of a patch.

pub(crate) mod adaln_zero;
mod attention;
mod feed_forward;
mod parts;
mod patch;
mod position;
mod timestep;
mod two_streams;

pub(crate) use attention::{Projection, SelfAttention, heads_to_width};
pub(crate) use feed_forward::feed_forward;
pub(crate) use parts::Parts;
pub(crate) use patch::{PACKING, PatchEmbedding, pack_latents, unpack_latents, unpatchify};
pub(crate) use position::{
    RotaryAxis, RotaryTable, WAVELENGTH_BASE, add_positions, rotary_2d, rotary_table, sincos_2d,
};
pub(crate) use timestep::{TIMESTEP_CHANNELS, TimestepEmbedding};
pub(crate) use two_streams::{Place, StreamNames, TwoStreamBlock, TwoStreamSettings};

use burn::tensor::Tensor;
use flow_core::exec::{DependsOn, Exec, Linear};
use flow_core::ops::NormChunks;

/// Epsilon of every layer norm and RMS norm, as in DiT and SD3 (diffusers 0.42.1, `models/attention.py`).
pub(crate) const NORM_EPSILON: f32 = 1e-6;

/// The modulated layer norm of these chunks.
pub(crate) const fn norm(shift: usize, scale: usize) -> NormChunks {
    NormChunks {
        shift,
        scale,
        epsilon: NORM_EPSILON,
    }
}

/// The modulation `[B, chunks, D]` from the activated conditioning `[B, D]`; `name` is its own within the block.
pub(crate) fn modulation(
    exec: &Exec<'_>,
    name: &'static str,
    layer: &Linear,
    c_bd: Tensor<2>,
    chunks: usize,
) -> Tensor<3> {
    exec.reusable(name, DependsOn::SigmaAndCondition, c_bd, |exec, c_bd| {
        let [batch, _] = c_bd.dims();
        let flat = exec.linear(layer, c_bd);
        let width = flat.dims()[1] / chunks;
        flat.reshape([batch, chunks, width])
    })
}
