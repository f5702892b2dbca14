//! What an encoder gives: a normal distribution over latents.

use crate::Latent;
use burn::tensor::Tensor;

/// Bounds of the logarithm of a variance (diffusers' `DiagonalGaussianDistribution`).
const LOG_VARIANCE: (f32, f32) = (-30.0, 20.0);

/// A normal distribution for each value of a latent. Kingma and Welling 2014, arXiv:1312.6114.
#[derive(Clone, Debug)]
pub struct Moments {
    tensor: Tensor<5>,
}

impl Moments {
    /// Of means and logarithms of variances, `[B, 2 C, F, H, W]`, one after the other along the channels.
    pub(crate) fn new(tensor: Tensor<5>) -> Self {
        Self { tensor }
    }

    /// Means and logarithms of variances as the network gives them, `[B, 2 C, F, H, W]`.
    pub fn tensor(&self) -> &Tensor<5> {
        &self.tensor
    }

    fn half(&self, which: usize) -> Tensor<5> {
        let channels = self.tensor.dims()[1] / 2;
        self.tensor.clone().narrow(1, which * channels, channels)
    }

    /// The most likely latents: the means.
    pub fn mode(&self) -> Latent {
        Latent::new(self.half(0))
    }

    /// Standard deviations, `[B, C, F, H, W]`; of the logarithm of a variance what lies within -30 and 20 counts.
    pub fn deviation(&self) -> Tensor<5> {
        let (low, high) = LOG_VARIANCE;
        (self.half(1).clamp(low, high) * 0.5).exp()
    }

    /// Latents drawn by `noise`, standard normal values of `[B, C, F, H, W]`.
    ///
    /// # Panics
    /// If `noise` has another shape.
    pub fn sample(&self, noise: Tensor<5>) -> Latent {
        Latent::new(self.half(0) + self.deviation() * noise)
    }
}
