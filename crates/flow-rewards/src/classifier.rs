//! A small convolutional classifier of 8×8 digits, in plain Rust: forward, backward, training, and weight files.
//!
//! conv 3×3 (1 → c₁) → ReLU → conv 3×3 stride 2 (c₁ → c₂) → ReLU → linear (16 c₂ → 10), zero padding by one pixel.
//! It needs no tensor library, runs on any thread, and gives the same bits on every run: every sum has a fixed order,
//! the random numbers are counter-based, and `exp` and `log` come from `libm` and not from the platform.

mod network;
mod store;
mod train;

use flow_data::Image;

use crate::error::RewardError;
use network::{Activations, CLASSES, Parameters, SIDE};

pub use train::{ClassifierTraining, TrainReport, train_classifier};

/// A trained classifier.
#[derive(Debug, Clone, PartialEq)]
pub struct Classifier {
    parameters: Parameters,
    training: ClassifierTraining,
}

impl Classifier {
    /// The classifier that comes with the crate, `assets/digits-classifier.safetensors`.
    ///
    /// # Errors
    /// None in practice; the file is read by the same checks as any other.
    pub fn built_in() -> Result<Self, RewardError> {
        let bytes = include_bytes!("../assets/digits-classifier.safetensors");
        Self::from_safetensors(bytes, "that come with flow-rewards (built-in)")
    }

    /// The second classifier that comes with the crate, `assets/digits-judge.safetensors`, for evaluation.
    ///
    /// # Errors
    /// None in practice; the file is read by the same checks as any other.
    pub fn judge() -> Result<Self, RewardError> {
        let bytes = include_bytes!("../assets/digits-judge.safetensors");
        Self::from_safetensors(bytes, "that come with flow-rewards (judge)")
    }

    /// The settings that it was trained with.
    pub fn training(&self) -> &ClassifierTraining {
        &self.training
    }

    /// Natural logarithms of the probabilities of the digits 0 to 9.
    ///
    /// The image has one channel and 8·n pixels a side; it is reduced to 8×8 by means, and values are clamped to
    /// [-1, 1], so that nothing outside the range of real images earns a reward.
    ///
    /// # Errors
    /// A sentence about the image's shape.
    pub fn log_probabilities(&self, image: &Image) -> Result<[f32; CLASSES], String> {
        let input = input_of(image)?;
        let mut activations = Activations::new(self.parameters.channels());
        activations.forward(&self.parameters, &input);
        Ok(network::log_softmax(&activations.logits))
    }

    /// The most likely digit; the smaller one of two equally likely ones.
    ///
    /// # Errors
    /// A sentence about the image's shape.
    pub fn predict(&self, image: &Image) -> Result<u8, String> {
        Ok(argmax(&self.log_probabilities(image)?))
    }

    /// The share of images that are read as their labels.
    ///
    /// # Errors
    /// A sentence about the first image whose shape does not fit.
    pub fn accuracy<'a>(&self, labelled: impl IntoIterator<Item = (&'a Image, u8)>) -> Result<f64, String> {
        let (mut right, mut all) = (0u64, 0u64);
        for (image, label) in labelled {
            right += u64::from(self.predict(image)? == label);
            all += 1;
        }
        Ok(right as f64 / all.max(1) as f64)
    }

    /// Name, shape and values of every parameter tensor, row-major, in the order of the weight file.
    ///
    /// Convolutions are [3, 3, in, out], the linear layer is [in, out] with inputs in the order row, column, channel.
    pub fn parameters(&self) -> Vec<(&'static str, Vec<usize>, &[f32])> {
        self.parameters.named()
    }

    /// Mean cross-entropy over labelled images and its gradient for every parameter, in the order of
    /// [`Classifier::parameters`].
    ///
    /// The targets are smoothed: `1 - label_smoothing` on the label plus `label_smoothing / 10` on every class
    /// (Szegedy et al. 2016, arXiv:1512.00567).
    ///
    /// # Errors
    /// A sentence about an image whose shape does not fit, or a label above 9.
    pub fn loss_and_gradients(
        &self,
        labelled: &[(&Image, u8)],
        label_smoothing: f32,
    ) -> Result<(f32, Vec<Vec<f32>>), String> {
        let mut inputs = Vec::with_capacity(labelled.len());
        for &(image, label) in labelled {
            if usize::from(label) >= CLASSES {
                return Err(format!("label {label} is not a digit from 0 to 9"));
            }
            inputs.push((input_of(image)?, label));
        }
        let mut gradients = Parameters::zeros(self.parameters.channels());
        let loss = network::loss_and_gradients(&self.parameters, &inputs, label_smoothing, &mut gradients);
        Ok((loss, gradients.tensors.into()))
    }
}

/// The 64 clamped values of an image of 8·n × 8·n.
fn input_of(image: &Image) -> Result<[f32; SIDE * SIDE], String> {
    let small = image.downscale_mean(image.height / SIDE);
    match small {
        Some(small) if small.channels == 1 && small.height == SIDE && small.width == SIDE => {
            Ok(std::array::from_fn(|i| small.pixels_chw[i].clamp(-1.0, 1.0)))
        }
        _ => Err(format!(
            "the classifier reads square images of one channel with a multiple of 8 pixels a side, and this one is {}",
            image.shape()
        )),
    }
}

fn argmax(values: &[f32; CLASSES]) -> u8 {
    (1..CLASSES).fold(0, |best, i| if values[i] > values[best] { i } else { best }) as u8
}
