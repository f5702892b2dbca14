//! Pictures and videos as an autoencoder has them, in -1 to 1, and as people have them.

use crate::AutoencoderError;
use burn::tensor::Tensor;
use flow_core::cpu::to_host;
use flow_core::tensors::plain;

/// Pictures or videos, `[B, 3, F, H, W]`: batch, colours, frames, rows, columns. Black is -1 and white is 1.
///
/// What a decoder gave is as it gave it: the decoders of AutoencoderKL and TAESD go beyond that range, the causal ones stop
/// at its ends.
#[derive(Clone, Debug)]
pub struct Pictures(Tensor<5>);

impl Pictures {
    /// Of values in -1 to 1, `[B, 3, F, H, W]`.
    pub fn new(tensor: Tensor<5>) -> Self {
        Self(tensor)
    }

    /// Of values in 0 to 1, `[B, 3, F, H, W]`.
    pub fn of_unit(tensor: Tensor<5>) -> Self {
        Self(tensor * 2.0 - 1.0)
    }

    /// Values as the decoder gave them, `[B, 3, F, H, W]`.
    pub fn tensor(&self) -> &Tensor<5> {
        &self.0
    }

    /// Values as the decoder gave them, `[B, 3, F, H, W]`.
    pub fn into_tensor(self) -> Tensor<5> {
        self.0
    }

    /// Values in 0 to 1, `[B, 3, F, H, W]`: `x / 2 + 1/2`, what lies beyond the range at its ends (diffusers'
    /// `VaeImageProcessor.denormalize`). Gradients pass within the range only.
    pub fn unit(&self) -> Tensor<5> {
        (self.0.clone() * 0.5 + 0.5).clamp(0.0, 1.0)
    }

    /// The first frames, in 0 to 1, `[B, 3, H, W]`.
    pub fn unit_pictures(&self) -> Tensor<4> {
        self.unit().narrow(2, 0, 1).squeeze_dim(2)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.0.dims()[0]
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frames of sample `index` as bytes, each `H · W · 3` of them, pixel by pixel: red, green, blue. Halves are rounded
    /// to even, as NumPy does.
    ///
    /// # Errors
    /// [`AutoencoderError::Shape`] if there is no such sample.
    pub fn frames(&self, index: usize) -> Result<Vec<Vec<u8>>, AutoencoderError> {
        let [batch, colours, frames, height, width] = self.0.dims();
        if index >= batch {
            return Err(AutoencoderError::Shape {
                what: "a batch of pictures [B, 3, F, H, W]",
                found: self.0.dims().to_vec(),
                problem: format!("there is no sample number {index}, counted from 0"),
            });
        }
        let sample = Self(self.0.clone().narrow(0, index, 1));
        let values = sample.unit().permute([0, 2, 3, 4, 1]);
        let values = to_host(&plain(&values.into_dispatch()));
        let bytes: Vec<u8> = values
            .iter()
            .map(|value| (value * 255.0).round_ties_even() as u8)
            .collect();
        let frame = height * width * colours;
        Ok((0..frames)
            .map(|at| bytes[at * frame..][..frame].to_vec())
            .collect())
    }
}
