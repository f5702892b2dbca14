//! The digit classifier: its mathematics against an independent f64 reference, and what it can read.

mod common;

use common::{digits, noisy};
use flow_data::{Digits, Image, ImageShape};
use flow_rewards::RewardError;
use flow_rewards::classifier::{Classifier, ClassifierTraining, train_classifier};
use proptest::prelude::*;

/// Few channels and one pass, so that many trainings are cheap.
fn small_training() -> ClassifierTraining {
    ClassifierTraining {
        channels: [3, 5],
        epochs: 1,
        ..Default::default()
    }
}

fn labelled(digits: &Digits) -> impl Iterator<Item = (&Image, u8)> {
    digits.images().iter().zip(digits.labels().iter().copied())
}

/// Log-probabilities by the definition, with zero padding and loops over output, in f64.
fn reference_log_probabilities(parameters: &[Vec<f64>], channels: [usize; 2], image: &[f64]) -> Vec<f64> {
    let conv = |input: &dyn Fn(isize, isize, usize) -> f64,
                c_in: usize,
                weight: &[f64],
                bias: &[f64],
                stride: usize,
                side: usize| {
        let mut output = Vec::new();
        for row in 0..side {
            for column in 0..side {
                for (o, bias) in bias.iter().enumerate() {
                    let mut sum = *bias;
                    for ky in 0..3 {
                        for kx in 0..3 {
                            for i in 0..c_in {
                                let y = (row * stride + ky) as isize - 1;
                                let x = (column * stride + kx) as isize - 1;
                                sum += input(y, x, i)
                                    * weight[((ky * 3 + kx) * c_in + i) * bias_len(weight, c_in) + o];
                            }
                        }
                    }
                    output.push(sum.max(0.0));
                }
            }
        }
        output
    };
    fn bias_len(weight: &[f64], c_in: usize) -> usize {
        weight.len() / 9 / c_in
    }
    let inside = |y: isize, x: isize| (0..8).contains(&y) && (0..8).contains(&x);
    let from_image = |y: isize, x: isize, _: usize| {
        if inside(y, x) {
            image[(y * 8 + x) as usize]
        } else {
            0.0
        }
    };
    let hidden1 = conv(&from_image, 1, &parameters[0], &parameters[1], 1, 8);
    let c1 = channels[0];
    let from_hidden = |y: isize, x: isize, i: usize| {
        if inside(y, x) {
            hidden1[(y * 8 + x) as usize * c1 + i]
        } else {
            0.0
        }
    };
    let hidden2 = conv(&from_hidden, c1, &parameters[2], &parameters[3], 2, 4);
    let logits: Vec<f64> = (0..10)
        .map(|class| {
            let terms = hidden2
                .iter()
                .enumerate()
                .map(|(i, x)| x * parameters[4][i * 10 + class]);
            parameters[5][class] + terms.sum::<f64>()
        })
        .collect();
    let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    logits.iter().map(|logit| logit - log_sum).collect()
}

fn reference_loss(
    parameters: &[Vec<f64>],
    channels: [usize; 2],
    batch: &[(&Image, u8)],
    smoothing: f64,
) -> f64 {
    let losses = batch.iter().map(|(image, label)| {
        let pixels: Vec<f64> = image.pixels_chw.iter().map(|&v| f64::from(v)).collect();
        let log_probabilities = reference_log_probabilities(parameters, channels, &pixels);
        let uniform = log_probabilities.iter().sum::<f64>() / 10.0;
        -(1.0 - smoothing) * log_probabilities[*label as usize] - smoothing * uniform
    });
    losses.sum::<f64>() / batch.len() as f64
}

fn parameters_f64(classifier: &Classifier) -> Vec<Vec<f64>> {
    classifier
        .parameters()
        .iter()
        .map(|(_, _, values)| values.iter().map(|&v| f64::from(v)).collect())
        .collect()
}

#[test]
fn log_probabilities_and_loss_are_those_of_the_definition_in_f64() {
    let digits = digits();
    let classifier = Classifier::built_in().unwrap();
    let channels = classifier.training().channels;
    let parameters = parameters_f64(&classifier);
    let batch: Vec<_> = labelled(&digits).step_by(211).collect();
    for (image, _) in &batch {
        let pixels: Vec<f64> = image.pixels_chw.iter().map(|&v| f64::from(v)).collect();
        let expected = reference_log_probabilities(&parameters, channels, &pixels);
        for (found, expected) in classifier
            .log_probabilities(image)
            .unwrap()
            .into_iter()
            .zip(expected)
        {
            assert!(
                (f64::from(found) - expected).abs() < 2e-5 * (1.0 + expected.abs()),
                "{found} {expected}"
            );
        }
    }
    let (loss, _) = classifier.loss_and_gradients(&batch, 0.1).unwrap();
    let expected = reference_loss(&parameters, channels, &batch, f64::from(0.1f32));
    assert!((f64::from(loss) - expected).abs() < 1e-5, "{loss} {expected}");
}

#[test]
fn gradients_are_the_finite_differences_of_the_f64_loss() {
    let digits = digits();
    let (classifier, _) = train_classifier(&small_training(), &digits).unwrap();
    let channels = classifier.training().channels;
    let batch: Vec<_> = labelled(&digits).skip(5).step_by(301).collect();
    let (_, gradients) = classifier.loss_and_gradients(&batch, 0.05).unwrap();
    let mut parameters = parameters_f64(&classifier);
    for tensor in 0..parameters.len() {
        let scale = gradients[tensor].iter().fold(0.0f32, |m, g| m.max(g.abs()));
        assert!(scale > 0.0);
        // A prime stride meets every kernel place and channel.
        for index in (0..parameters[tensor].len()).step_by(if parameters[tensor].len() > 60 { 7 } else { 1 })
        {
            let value = parameters[tensor][index];
            let h = 1e-6;
            let mut loss_at = |shifted: f64| {
                parameters[tensor][index] = shifted;
                reference_loss(&parameters, channels, &batch, f64::from(0.05f32))
            };
            let expected = (loss_at(value + h) - loss_at(value - h)) / (2.0 * h);
            parameters[tensor][index] = value;
            let found = f64::from(gradients[tensor][index]);
            assert!(
                (found - expected).abs() < 1e-4 * f64::from(scale) + 1e-7,
                "{tensor}[{index}]: {found} {expected}"
            );
        }
    }
}

#[test]
fn the_committed_weights_are_what_their_settings_train_bit_for_bit() {
    let digits = digits();
    let committed = [
        (
            &include_bytes!("../assets/digits-classifier.safetensors")[..],
            ClassifierTraining::default(),
        ),
        (
            &include_bytes!("../assets/digits-judge.safetensors")[..],
            ClassifierTraining::judge(),
        ),
    ];
    for (bytes, settings) in committed {
        let (classifier, report) = train_classifier(&settings, &digits).unwrap();
        assert_eq!(classifier.training(), &settings);
        assert!(
            classifier.to_safetensors().unwrap() == bytes,
            "the weight file differs from the training's"
        );
        assert!(bytes.len() <= 150 * 1024);
        assert!(report.val_accuracy >= 0.97, "{report:?}");
        assert!(report.noisy_val_accuracy >= 0.97, "{report:?}");
        assert!(report.epoch_losses.last() < report.epoch_losses.first());
        assert_eq!(
            report.val_images,
            digits.split(0.2, settings.split_seed).unwrap().validation.len()
        );
    }
}

#[test]
fn unclean_images_are_still_read() {
    let digits = digits();
    let classifier = Classifier::built_in().unwrap();
    let split = digits.split(0.2, classifier.training().split_seed).unwrap();
    let accuracy = |change: &dyn Fn(&Image, u64) -> Image| {
        let images: Vec<_> = split
            .validation
            .iter()
            .map(|&i| change(&digits.images()[i as usize], i))
            .collect();
        let labels = split.validation.iter().map(|&i| digits.labels()[i as usize]);
        classifier.accuracy(images.iter().zip(labels)).unwrap()
    };
    let map = |image: &Image, f: &dyn Fn(f32) -> f32| Image {
        pixels_chw: image.pixels_chw.iter().map(|&v| f(v)).collect(),
        ..image.clone()
    };
    assert!(accuracy(&|image, i| noisy(image, 0.4, i)) >= 0.95);
    assert!(accuracy(&|image, _| map(image, &|v| 0.65 * (v + 1.0) - 1.0)) >= 0.95);
    assert!(accuracy(&|image, i| noisy(&map(image, &|v| 1.4 * v), 0.2, i)) >= 0.95);
}

#[test]
fn blank_and_random_images_are_not_read_surely() {
    let classifier = Classifier::built_in().unwrap();
    let shape = ImageShape {
        channels: 1,
        height: 8,
        width: 8,
    };
    let surest = |image: &Image| {
        classifier
            .log_probabilities(image)
            .unwrap()
            .into_iter()
            .fold(f32::MIN, f32::max)
            .exp()
    };
    let blank = surest(&Image::filled(shape, -1.0));
    assert!(blank < 0.9, "{blank}");
    let grey = Image::filled(shape, 0.0);
    let mean = (0..100)
        .map(|seed| f64::from(surest(&noisy(&grey, 0.7, seed))))
        .sum::<f64>()
        / 100.0;
    assert!(mean < 0.8, "{mean}");
}

#[test]
fn values_out_of_range_count_as_the_ends_of_the_range_and_large_images_are_reduced() {
    let digits = digits();
    let classifier = Classifier::judge().unwrap();
    let image = &digits.images()[17];
    let mut wild = image.clone();
    wild.pixels_chw
        .iter_mut()
        .filter(|v| **v == -1.0)
        .for_each(|v| *v = -7.0);
    assert_eq!(
        classifier.log_probabilities(&wild),
        classifier.log_probabilities(image)
    );
    assert_eq!(
        classifier.log_probabilities(&image.upscale_nearest(3)),
        classifier.log_probabilities(image)
    );
    for (channels, height, width) in [(3, 8, 8), (1, 8, 16), (1, 12, 12), (1, 7, 7), (1, 0, 0)] {
        let error = classifier
            .predict(&Image::filled(
                ImageShape {
                    channels,
                    height,
                    width,
                },
                0.0,
            ))
            .unwrap_err();
        assert!(
            error.ends_with(&format!("this one is {channels}×{height}×{width}")),
            "{error}"
        );
    }
}

#[test]
fn a_weight_file_is_read_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let (classifier, _) = train_classifier(&small_training(), &digits()).unwrap();
    classifier.save(&path).unwrap();
    assert_eq!(Classifier::load(&path).unwrap(), classifier);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = classifier
        .save(&folder.path().join("missing").join("weights"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot be written"), "{error}");
    let error = Classifier::load(&folder.path().join("judge.safetensors"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot be read") && error.contains("`built-in` or `judge`"),
        "{error}"
    );
}

#[test]
fn a_damaged_weight_file_is_an_error_that_says_what_is_wrong() {
    let good = include_bytes!("../assets/digits-classifier.safetensors");
    let message = |bytes: &[u8]| {
        Classifier::from_safetensors(bytes, "`x`")
            .unwrap_err()
            .to_string()
    };
    for length in [0, 4, 100, good.len() / 2, good.len() - 1] {
        let error = message(&good[..length]);
        assert!(
            error.contains("classifier weights `x`: not a whole safetensors file"),
            "{error}"
        );
        assert!(error.contains("--example train_classifier"), "{error}");
    }
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = good.to_vec();
        let at = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes())
            .unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        message(&bytes)
    };
    let error = replaced("conv2.bias", "conv9.bias");
    assert!(error.contains("unknown tensor `conv9.bias`"), "{error}");
    let error = replaced("flow_rewards.digit", "flow_reward_.digit");
    assert!(error.contains("the metadata have no entry"), "{error}");
    let error = replaced("[16,32]", "[17,32]");
    assert!(
        error.contains("tensor `conv1.weight` is F32 [3, 3, 1, 16], expected F32 [3, 3, 1, 17]"),
        "{error}"
    );
    let error = replaced("[16,32]", "[00,32]");
    assert!(
        error.contains("metadata `flow_rewards.digit_classifier`"),
        "{error}"
    );
    let mut bytes = good.to_vec();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(message(&bytes).contains("values that are not finite"));
}

#[test]
fn settings_out_of_range_are_errors_that_name_them() {
    let base = small_training;
    let cases = [
        (
            "channels",
            ClassifierTraining {
                channels: [0, 5],
                ..base()
            },
        ),
        ("epochs", ClassifierTraining { epochs: 0, ..base() }),
        (
            "batch_size",
            ClassifierTraining {
                batch_size: 0,
                ..base()
            },
        ),
        (
            "max_shift",
            ClassifierTraining {
                max_shift: 3,
                ..base()
            },
        ),
        (
            "learning_rate",
            ClassifierTraining {
                learning_rate: f32::NAN,
                ..base()
            },
        ),
        (
            "weight_decay",
            ClassifierTraining {
                weight_decay: -1.0,
                ..base()
            },
        ),
        (
            "noise",
            ClassifierTraining {
                noise: f32::INFINITY,
                ..base()
            },
        ),
        (
            "label_smoothing",
            ClassifierTraining {
                label_smoothing: 1.0,
                ..base()
            },
        ),
        (
            "validation_fraction",
            ClassifierTraining {
                validation_fraction: 1.0,
                ..base()
            },
        ),
    ];
    let digits = digits();
    for (name, settings) in cases {
        match train_classifier(&settings, &digits) {
            Err(RewardError::Setting { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let classifier = Classifier::built_in().unwrap();
    assert!(
        classifier
            .loss_and_gradients(&[(&digits.images()[0], 10)], 0.0)
            .is_err()
    );
}

proptest! {
    #[test]
    fn no_change_to_a_weight_file_makes_the_reader_panic(
        changes in prop::collection::vec((0usize..700, any::<u8>()), 1..4),
        length in 0usize..40_424,
    ) {
        let mut bytes = include_bytes!("../assets/digits-classifier.safetensors").to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        for bytes in [&bytes[..], &bytes[..length]] {
            if let Ok(classifier) = Classifier::from_safetensors(bytes, "`x`") {
                // What is accepted can be used.
                let image = Image::filled(ImageShape { channels: 1, height: 8, width: 8 }, 0.5);
                prop_assert!(classifier.log_probabilities(&image).unwrap().iter().all(|value| value.is_finite()));
            }
        }
    }
}
