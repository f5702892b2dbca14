//! The noise level as a vector.

use super::Parts;
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::exec::{DependsOn, Exec, Linear};
use flow_core::{Activation, Init, Rows};

/// Channels of the sinusoidal embedding in DiT (Peebles and Xie 2022, arXiv:2212.09748) and in SD3.
pub(crate) const TIMESTEP_CHANNELS: usize = 256;
/// Longest wavelength over 2π (the same).
const MAX_PERIOD: f32 = 10_000.0;
/// Timesteps of the scale on which the embedding was made: `timestep = 1000 · sigma`.
const TIMESTEPS: f32 = 1000.0;

/// What is multiplied first of `1000 · sigma · frequency`: at the highest frequency the two products differ by a unit in the last
/// place of up to 1000 radians, which gradients show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    /// `(1000 · sigma) · frequency`, as the pipelines of SD3, FLUX.1 and Wan have it.
    Timestep,
    /// `1000 · (sigma · frequency)`, diffusers' `get_timestep_embedding` with `scale = 1000`.
    Angle,
}

/// `linear(silu(linear(sinusoid(1000 · sigma))))`, named as diffusers' `TimestepEmbedding`.
#[derive(Debug)]
pub(crate) struct TimestepEmbedding {
    linear_1: Linear,
    linear_2: Linear,
    /// `[1, half of the sinusoidal embedding's channels]`.
    frequencies: Tensor<2>,
    first: Product,
}

impl TimestepEmbedding {
    /// Of an even number of sinusoidal `channels`.
    pub fn new(mut parts: Parts<'_>, channels: usize, hidden: usize, device: &ComputeDevice) -> Self {
        let mut parts = parts.applied_to(Rows::Sample);
        let half = channels / 2;
        // In f32 in this order, as diffusers' `get_timestep_embedding` does: the angles reach 1000, where one rounding
        // of a frequency is visible.
        let frequencies = (0..half).map(|i| libm::expf(-libm::logf(MAX_PERIOD) * i as f32 / half as f32));
        Self {
            linear_1: parts.linear("linear_1", channels, hidden, Init::Normal(0.02)),
            linear_2: parts.linear("linear_2", hidden, hidden, Init::Normal(0.02)),
            frequencies: device.tensor(frequencies.collect(), [1, half]),
            first: Product::Timestep,
        }
    }

    /// The same, of a model that takes noise levels and not timesteps, and multiplies by 1000 last: Qwen-Image.
    pub fn scaled_last(self) -> Self {
        Self {
            first: Product::Angle,
            ..self
        }
    }

    /// `[B]` to `[B, D]`. Everything on the device: a captured graph replays it with other noise levels.
    pub fn forward(&self, exec: &Exec<'_>, sigma_b: Tensor<1>) -> Tensor<2> {
        let embed = |exec: &Exec<'_>, sigma_b| self.embed(exec, sigma_b);
        exec.reusable("timestep_embedder", DependsOn::Sigma, sigma_b, embed)
    }

    /// As [`forward`](Self::forward), of guidance scales `[B]`, which FLUX.1 embeds as it does noise levels.
    pub fn of_guidance(&self, exec: &Exec<'_>, guidance_b: Tensor<1>) -> Tensor<2> {
        let embed = |exec: &Exec<'_>, guidance_b| self.embed(exec, guidance_b);
        exec.reusable("guidance_embedder", DependsOn::Condition, guidance_b, embed)
    }

    fn embed(&self, exec: &Exec<'_>, sigma_b: Tensor<1>) -> Tensor<2> {
        let [batch] = sigma_b.dims();
        let (sigma, frequencies) = (sigma_b.reshape([batch, 1]), self.frequencies.clone());
        let angle = match self.first {
            Product::Timestep => sigma.mul_scalar(TIMESTEPS) * frequencies,
            Product::Angle => (sigma * frequencies).mul_scalar(TIMESTEPS),
        };
        // Cosines first: diffusers' `flip_sin_to_cos`, which DiT, SD3 and Wan set.
        let sinusoid = Tensor::cat(vec![angle.clone().cos(), angle.sin()], 1);
        let inner = exec.linear_activated(&self.linear_1, sinusoid, Activation::Silu);
        exec.linear(&self.linear_2, inner)
    }
}
