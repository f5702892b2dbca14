//! Training of the classifier: augmentation, AdamW, a report; the same bits for the same settings.

use flow_data::{Digits, DigitsSplit, Image};
use flow_rng::{Draws, Purpose, Stream};

use super::network::{self, Parameters, SIDE};
use super::{Classifier, input_of};
use crate::error::RewardError;

/// Noise of the images on which the report measures robustness.
const REPORT_NOISE: f32 = 0.2;

/// Settings of [`train_classifier`]; they are stored with the weights.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifierTraining {
    /// Seed of the initial weights, the order of the images and the augmentation.
    pub seed: u64,
    /// Output channels of the two convolutions, 1 to 256 each.
    pub channels: [usize; 2],
    /// Passes over the training images, at least 1.
    pub epochs: u32,
    /// Images per update, at least 1.
    pub batch_size: usize,
    /// Largest step of AdamW; it falls to 0 along half a cosine.
    pub learning_rate: f32,
    /// Decoupled weight decay, on weights and not on biases.
    pub weight_decay: f32,
    /// Share of the target that is spread evenly over the classes, from 0 to below 1.
    ///
    /// It keeps log-probabilities of wrong readings finite and comparable, which a reward needs.
    pub label_smoothing: f32,
    /// Half of the images are moved by up to this many pixels in each direction, 0 to 2.
    pub max_shift: i32,
    /// Each image gets normal noise of a standard deviation drawn evenly from 0 to this, on the scale of [-1, 1].
    pub noise: f32,
    /// Share of the images kept for validation.
    pub validation_fraction: f32,
    /// Seed of the split.
    pub split_seed: u64,
}

impl Default for ClassifierTraining {
    fn default() -> Self {
        Self {
            seed: 0,
            channels: [16, 32],
            epochs: 60,
            batch_size: 32,
            learning_rate: 3e-3,
            weight_decay: 0.1,
            label_smoothing: 0.05,
            max_shift: 1,
            noise: 0.4,
            validation_fraction: 0.2,
            split_seed: 0,
        }
    }
}

impl ClassifierTraining {
    /// The settings of the second classifier, which judges held-out images: wider, with another seed and another
    /// split.
    pub fn judge() -> Self {
        Self {
            seed: 1,
            channels: [20, 48],
            split_seed: 1,
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), RewardError> {
        let fail = |setting, value: String, allowed| {
            Err(RewardError::Setting {
                setting,
                value,
                allowed,
            })
        };
        if self.channels.iter().any(|c| !(1..=256).contains(c)) {
            return fail(
                "channels",
                format!("{:?}", self.channels),
                "two numbers from 1 to 256",
            );
        }
        if self.epochs == 0 {
            return fail(
                "epochs",
                "0".to_owned(),
                "there must be at least one pass over the images",
            );
        }
        if self.batch_size == 0 {
            return fail(
                "batch_size",
                "0".to_owned(),
                "there must be at least one image per update",
            );
        }
        if !(0..=2).contains(&self.max_shift) {
            return fail(
                "max_shift",
                self.max_shift.to_string(),
                "images are moved by 0 to 2 pixels",
            );
        }
        let not_negative = [
            ("learning_rate", self.learning_rate),
            ("weight_decay", self.weight_decay),
            ("noise", self.noise),
        ];
        for (setting, value) in not_negative {
            if !(value.is_finite() && value >= 0.0) {
                return fail(setting, value.to_string(), "it is a finite number of at least 0");
            }
        }
        if !(0.0..1.0).contains(&self.label_smoothing) {
            return fail(
                "label_smoothing",
                self.label_smoothing.to_string(),
                "it is from 0 to below 1",
            );
        }
        Ok(())
    }
}

/// What came of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainReport {
    /// Mean loss of each epoch.
    pub epoch_losses: Vec<f32>,
    /// Share of the training images, as they are, that are read right.
    pub train_accuracy: f64,
    /// Share of the validation images that are read right.
    pub val_accuracy: f64,
    /// The same with normal noise of standard deviation 0.2 added to the images.
    pub noisy_val_accuracy: f64,
    /// Number of validation images.
    pub val_images: usize,
    /// Number of updates.
    pub steps: u64,
}

/// Trains a classifier on the training part of the digits.
///
/// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with β = (0.9, 0.999), ε = 1e-8; initial weights normal with
/// variance 2 / fan-in (He et al. 2015, arXiv:1502.01852).
/// The result is a function of the settings and the data, bit for bit.
///
/// # Errors
/// [`RewardError::Setting`] for a setting outside its range.
pub fn train_classifier(
    settings: &ClassifierTraining,
    digits: &Digits,
) -> Result<(Classifier, TrainReport), RewardError> {
    settings.check()?;
    let split = digits
        .split(settings.validation_fraction, settings.split_seed)
        .map_err(|_| RewardError::Setting {
            setting: "validation_fraction",
            value: settings.validation_fraction.to_string(),
            allowed: "it is the share of images kept for validation, above 0 and below 1",
        })?;
    let inputs = inputs_of(digits)?;
    let mut parameters = initial(settings);
    let mut optimizer = AdamW::new(settings);
    let mut order = split.train.clone();
    let updates_per_epoch = order.len().div_ceil(settings.batch_size) as u64;
    let updates = updates_per_epoch * u64::from(settings.epochs);
    let mut epoch_losses = Vec::new();
    for epoch in 0..settings.epochs {
        order.copy_from_slice(&split.train);
        Stream::new(settings.seed, Purpose::ClassifierOrder)
            .at(u64::from(epoch), 0)
            .shuffle(&mut order);
        let mut epoch_loss = 0.0;
        for members in order.chunks(settings.batch_size) {
            let batch: Vec<_> = members
                .iter()
                .map(|&index| {
                    let (input, label) = &inputs[index as usize];
                    let draw = u64::from(epoch) * inputs.len() as u64 + index;
                    let mut stream = Stream::new(settings.seed, Purpose::ClassifierAugmentation).at(draw, 0);
                    (augment(input, settings, &mut stream), *label)
                })
                .collect();
            let mut gradients = Parameters::zeros(settings.channels);
            let loss =
                network::loss_and_gradients(&parameters, &batch, settings.label_smoothing, &mut gradients);
            epoch_loss += loss * members.len() as f32;
            let progress = optimizer.steps as f64 / updates as f64;
            let cosine = (0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))) as f32;
            optimizer.step(settings.learning_rate * cosine, &gradients, &mut parameters);
        }
        epoch_losses.push(epoch_loss / order.len().max(1) as f32);
    }
    let classifier = Classifier {
        parameters,
        training: settings.clone(),
    };
    let report = report(&classifier, digits, &split, epoch_losses, optimizer.steps)?;
    Ok((classifier, report))
}

fn report(
    classifier: &Classifier,
    digits: &Digits,
    split: &DigitsSplit,
    epoch_losses: Vec<f32>,
    steps: u64,
) -> Result<TrainReport, RewardError> {
    let labelled = |&index: &u64| (&digits.images()[index as usize], digits.labels()[index as usize]);
    let noisy: Vec<Image> = split
        .validation
        .iter()
        .map(|&index| {
            let mut stream = Stream::new(classifier.training.seed, Purpose::ClassifierReport).at(index, 0);
            let mut image = digits.images()[index as usize].clone();
            image
                .pixels_chw
                .iter_mut()
                .for_each(|value| *value += REPORT_NOISE * stream.normal() as f32);
            image
        })
        .collect();
    let noisy_labels = split
        .validation
        .iter()
        .map(|&index| digits.labels()[index as usize]);
    Ok(TrainReport {
        epoch_losses,
        train_accuracy: classifier
            .accuracy(split.train.iter().map(labelled))
            .map_err(unreadable)?,
        val_accuracy: classifier
            .accuracy(split.validation.iter().map(labelled))
            .map_err(unreadable)?,
        noisy_val_accuracy: classifier
            .accuracy(noisy.iter().zip(noisy_labels))
            .map_err(unreadable)?,
        val_images: split.validation.len(),
        steps,
    })
}

fn inputs_of(digits: &Digits) -> Result<Vec<([f32; SIDE * SIDE], u8)>, RewardError> {
    let labelled = digits.images().iter().zip(digits.labels());
    labelled
        .map(|(image, &label)| Ok((input_of(image).map_err(unreadable)?, label)))
        .collect()
}

fn unreadable(problem: String) -> RewardError {
    RewardError::Params {
        reward: "digit-classifier".to_owned(),
        problem: problem.into(),
    }
}

fn initial(settings: &ClassifierTraining) -> Parameters {
    let mut parameters = Parameters::zeros(settings.channels);
    let shapes = network::shapes(settings.channels);
    for (index, (tensor, shape)) in parameters.tensors.iter_mut().zip(&shapes).enumerate() {
        // Biases, the tensors with one dimension, start at 0.
        let [fan_in_dims @ .., _] = shape.as_slice() else {
            continue;
        };
        if fan_in_dims.is_empty() {
            continue;
        }
        let fan_in: usize = fan_in_dims.iter().product();
        let deviation = (2.0 / fan_in as f32).sqrt();
        let mut stream = Stream::new(settings.seed, Purpose::ClassifierWeights).at(index as u64, 0);
        tensor
            .iter_mut()
            .for_each(|value| *value = deviation * stream.normal() as f32);
    }
    parameters
}

/// A moved, rescaled and noisy copy; what moves in from outside is blank.
fn augment(
    input: &[f32; SIDE * SIDE],
    settings: &ClassifierTraining,
    stream: &mut Draws,
) -> [f32; SIDE * SIDE] {
    let places = 2 * settings.max_shift.unsigned_abs() + 1;
    // Half of the images stay where they are: the digits fill their 8×8 pixels, and moving one cuts off its edge.
    let moved = stream.below(2) == 1;
    let mut shift = || stream.below(u64::from(places)) as i32 - settings.max_shift;
    let (down, right) = if moved { (shift(), shift()) } else { (0, 0) };
    // Generated strokes are often fainter than real ones.
    let contrast = stream.uniform_in(0.6, 1.1);
    let deviation = stream.uniform_in(0.0, settings.noise);
    std::array::from_fn(|i| {
        let (row, column) = ((i / SIDE) as i32 - down, (i % SIDE) as i32 - right);
        let inside = (0..SIDE as i32).contains(&row) && (0..SIDE as i32).contains(&column);
        let ink = if inside {
            input[row as usize * SIDE + column as usize] + 1.0
        } else {
            0.0
        };
        (contrast * ink - 1.0 + deviation * stream.normal() as f32).clamp(-1.0, 1.0)
    })
}

struct AdamW {
    weight_decay: f32,
    mean: Parameters,
    square: Parameters,
    /// β₁ᵗ and β₂ᵗ as running products, because the precision of `powi` is not specified.
    beta_powers: [f64; 2],
    steps: u64,
}

const BETA_1: f32 = 0.9;
const BETA_2: f32 = 0.999;
const EPSILON: f32 = 1e-8;

impl AdamW {
    fn new(settings: &ClassifierTraining) -> Self {
        let zeros = Parameters::zeros(settings.channels);
        Self {
            weight_decay: settings.weight_decay,
            mean: zeros.clone(),
            square: zeros,
            beta_powers: [1.0; 2],
            steps: 0,
        }
    }

    fn step(&mut self, learning_rate: f32, gradients: &Parameters, parameters: &mut Parameters) {
        self.steps += 1;
        self.beta_powers = [
            self.beta_powers[0] * f64::from(BETA_1),
            self.beta_powers[1] * f64::from(BETA_2),
        ];
        let [correction_1, correction_2] = self.beta_powers.map(|power| (1.0 / (1.0 - power)) as f32);
        let moments = self.mean.tensors.iter_mut().zip(&mut self.square.tensors);
        let tensors = parameters.tensors.iter_mut().zip(&gradients.tensors);
        for (index, ((values, gradients), (means, squares))) in tensors.zip(moments).enumerate() {
            // Weights and biases alternate.
            let decay = if index % 2 == 0 {
                1.0 - learning_rate * self.weight_decay
            } else {
                1.0
            };
            let moments = means.iter_mut().zip(squares.iter_mut());
            for ((value, &gradient), (mean, square)) in values.iter_mut().zip(gradients).zip(moments) {
                *mean = BETA_1 * *mean + (1.0 - BETA_1) * gradient;
                *square = BETA_2 * *square + (1.0 - BETA_2) * gradient * gradient;
                let denominator = (*square * correction_2).sqrt() + EPSILON;
                *value = *value * decay - learning_rate * (*mean * correction_1) / denominator;
            }
        }
    }
}
