//! Pictures and videos to latents, as the transformer has them.

use crate::{Pipeline, PipelineError, Size};
use burn::tensor::Tensor;
use flow_autoencoder::{Autoencoder, Options, Pictures};
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_core::{Backends, Weights};
use std::sync::Arc;

/// The autoencoder of a pipeline, loaded, in the direction of its encoder. Latents are in the transformer's units and order: scaled by the autoencoder's own numbers,
/// `[B, N]` with `N` in the order channels, frames, rows, columns.
#[derive(Debug)]
pub struct PictureEncoder {
    autoencoder: Autoencoder,
    weights: Weights,
    plan: Arc<Backends>,
    device: ComputeDevice,
}

impl PictureEncoder {
    /// Loads the autoencoder of `pipeline` to `device`; `plan` computes.
    ///
    /// # Errors
    /// As [`Pipeline::autoencoder`].
    pub fn load(
        pipeline: &Pipeline,
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Result<Self, PipelineError> {
        Ok(Self::new(pipeline.autoencoder(device)?, device, plan))
    }

    /// Of an autoencoder on `device` with its weights; `plan` computes.
    pub fn new(
        (autoencoder, weights): (Autoencoder, Weights),
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Self {
        Self {
            autoencoder,
            weights,
            plan: plan.clone(),
            device: device.clone(),
        }
    }

    /// The most likely latents `[B, N]` of pictures or videos of `size`: the means of what the encoder gives. `values` are in [-1, 1],
    /// one sample after another, each in the order channels, frames, rows, columns.
    ///
    /// # Errors
    /// [`PipelineError::Autoencoder`] for a size without a latent; [`PipelineError::Size`] if `values` are no whole number of samples.
    pub fn encode(&self, values: Vec<f32>, size: Size) -> Result<Tensor<2>, PipelineError> {
        let Size {
            width,
            height,
            frames,
        } = size;
        let channels = self.autoencoder.spec().colours_in;
        let of_sample = channels * frames * height * width;
        if values.is_empty() || of_sample == 0 || !values.len().is_multiple_of(of_sample) {
            return Err(PipelineError::Size {
                found: size.to_string(),
                problem: format!(
                    "{} values are no whole number of samples of {of_sample}",
                    values.len()
                ),
            });
        }
        let batch = values.len() / of_sample;
        let pictures = self
            .device
            .tensor(values, [batch, channels, frames, height, width]);
        let pass = InferencePass::new(&self.weights, self.plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let moments = self
            .autoencoder
            .encode(&exec, Pictures::new(pictures), &Options::default())?;
        Ok(self.autoencoder.scaling().scale(moments.mode()).into_rows())
    }
}
