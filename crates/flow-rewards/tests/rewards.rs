//! The other rewards and the registry.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{digit_prompt, digits, noisy, sample};
use flow_data::{Image, ImageShape, Prompt};
use flow_rewards::classifier::Classifier;
use flow_rewards::{Params, Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};
use serde_json::{Value, json};

fn build(name: &str, params: Value) -> Arc<dyn Reward> {
    RewardRegistry::with_built_in()
        .unwrap()
        .build(name, &table(params), Path::new("."))
        .unwrap()
}

/// Parameters from JSON; `null` stands for none.
fn table(params: Value) -> Params {
    match params {
        Value::Object(params) => params,
        Value::Null => Params::new(),
        other => panic!("{other} is no table"),
    }
}

/// The digits' classifier that comes with the crate.
fn built_in() -> Value {
    json!({ "weights": "built-in" })
}

fn refusal(name: &str, params: Value) -> String {
    let params = table(params);
    match RewardRegistry::with_built_in()
        .unwrap()
        .build(name, &params, Path::new("."))
    {
        Ok(_) => panic!("`{name}` accepted {params:?}"),
        Err(error) => error.to_string(),
    }
}

fn grey(side: usize, value: f32) -> Image {
    Image::filled(
        ImageShape {
            channels: 1,
            height: side,
            width: side,
        },
        value,
    )
}

fn rgb(side: usize, [r, g, b]: [f32; 3]) -> Image {
    let plane = side * side;
    let pixels_chw = [vec![r; plane], vec![g; plane], vec![b; plane]].concat();
    Image {
        channels: 3,
        height: side,
        width: side,
        pixels_chw,
    }
}

#[test]
fn the_digit_reward_is_the_classifiers_probability_of_the_prompted_digit() {
    let digits = digits();
    let classifier = Classifier::built_in().unwrap();
    let probability = build("digit-classifier", built_in());
    let log_probability = build(
        "digit-classifier",
        json!({ "weights": "built-in", "mode": "log-probability" }),
    );
    for digit in 0..10u8 {
        let prompt = digit_prompt(&format!("thin {digit}"));
        let image = &digits.images()[40];
        let expected = classifier.log_probabilities(image).unwrap()[usize::from(digit)];
        assert_eq!(
            log_probability.score(&[sample(image, &prompt)]).unwrap(),
            [expected]
        );
        let found = probability.score(&[sample(image, &prompt)]).unwrap()[0];
        assert!((f64::from(found) - f64::from(expected).exp()).abs() < 1e-6);
    }
}

#[test]
fn the_judge_is_another_classifier_that_agrees_on_real_images() {
    let digits = digits();
    let (policy, judge) = (
        build("digit-classifier", built_in()),
        build("digit-classifier", json!({ "weights": "judge" })),
    );
    let mut means = [0.0; 2];
    let mut differ = false;
    for index in (0..1797).step_by(9) {
        let prompt = digit_prompt(&format!("bold {}", digits.labels()[index]));
        let image = &digits.images()[index];
        let scores = [&policy, &judge].map(|reward| reward.score(&[sample(image, &prompt)]).unwrap()[0]);
        differ |= scores[0] != scores[1];
        means = [
            means[0] + f64::from(scores[0]) / 200.0,
            means[1] + f64::from(scores[1]) / 200.0,
        ];
    }
    assert!(differ);
    assert!(means.iter().all(|mean| *mean > 0.85), "{means:?}");
}

#[test]
fn the_digit_reward_refuses_prompts_of_scenes_and_missing_files() {
    let reward = build("digit-classifier", built_in());
    let image = &grey(8, 0.0);
    let scene = common::scene_prompt("one red circle");
    let error = reward.score(&[sample(image, &scene)]).unwrap_err().to_string();
    assert!(
        error.contains("\"one red circle\" asks for no digit") && error.contains("shapes-rules"),
        "{error}"
    );
    let error = refusal(
        "digit-classifier",
        json!({ "weights": "nowhere/juge.safetensors" }),
    );
    assert!(
        error.contains("`nowhere/juge.safetensors`: cannot be read"),
        "{error}"
    );
}

#[test]
fn a_plain_image_compresses_better_than_a_detailed_one_at_every_size() {
    let reward = build("jpeg-compressibility", Value::Null);
    let prompt = digit_prompt("bold 7");
    for image in [
        grey(8, 0.0),
        grey(11, 0.3),
        rgb(24, [0.5, -0.2, 0.1]),
        rgb(130, [0.0; 3]),
    ] {
        let images = [image.clone(), noisy(&image, 0.1, 1), noisy(&image, 0.5, 1)];
        let samples: Vec<_> = images.iter().map(|image| sample(image, &prompt)).collect();
        let scores = reward.score(&samples).unwrap();
        assert!(
            scores[0] > scores[1] && scores[1] > scores[2] && scores[0] < 0.0,
            "{scores:?}"
        );
        // The detail of the image must weigh more than the header does.
        assert!(scores[2] < 2.0 * scores[0], "{scores:?}");
    }
}

#[test]
fn the_jpeg_reward_is_the_size_of_a_jpeg_in_thousands_of_bytes() {
    let image = noisy(&rgb(24, [0.1; 3]), 0.4, 3);
    let prompt = digit_prompt("bold 7");
    let large = image.upscale_nearest(7);
    let mut file = Vec::new();
    let buffer = image::RgbImage::from_raw(168, 168, large.to_rgb8()).unwrap();
    buffer
        .write_with_encoder(image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 95))
        .unwrap();
    let reward = build("jpeg-compressibility", json!({ "quality": 95, "min_side": 128 }));
    assert_eq!(
        reward.score(&[sample(&image, &prompt)]).unwrap(),
        [-(file.len() as f32 / 1000.0)]
    );
    let coarse = build("jpeg-compressibility", json!({ "quality": 20 }));
    assert!(coarse.score(&[sample(&image, &prompt)]).unwrap()[0] > -(file.len() as f32 / 1000.0));
}

#[test]
fn the_colour_reward_is_minus_the_distance_of_the_mean() {
    let prompt = digit_prompt("bold 7");
    let score = |params: Value, image: &Image| {
        build("target-colour", params)
            .score(&[sample(image, &prompt)])
            .unwrap()[0]
    };
    let orange = json!({ "rgb": [1.0, 0.5, 0.0] });
    assert!(score(orange.clone(), &rgb(5, [1.0, 0.0, -1.0])).abs() < 1e-6);
    assert!((score(orange.clone(), &rgb(5, [1.0, 0.0, 1.0])) + 1.0).abs() < 1e-6);
    // Half black and half white is grey in the mean, and values out of range are clamped.
    let mut halves = grey(4, -9.0);
    halves.pixels_chw[..8].fill(9.0);
    assert!(score(json!({ "rgb": [0.5, 0.5, 0.5] }), &halves).abs() < 1e-6);
    // In Oklab black is (0, 0, 0) and white is (1, 0, 0); red is (0.62796, 0.22486, 0.12585) (Ottosson's table
    // rounds it to 0.628, 0.225, 0.126).
    let oklab = |target: [f64; 3], image: &Image| score(json!({ "rgb": target, "space": "oklab" }), image);
    assert!((oklab([0.0; 3], &grey(3, 1.0)) + 1.0).abs() < 1e-5);
    let red = (0.62796f64.powi(2) + 0.22486f64.powi(2) + 0.12585f64.powi(2)).sqrt();
    assert!((f64::from(oklab([0.0; 3], &rgb(3, [1.0, -1.0, -1.0]))) + red).abs() < 1e-4);
}

#[test]
fn ranks_run_from_zero_to_one_and_equal_scores_share_theirs() {
    let reward = build(
        "rank-in-group",
        json!({ "reward": "target-colour", "params": { "rgb": [0.0, 0.0, 0.0] } }),
    );
    assert_eq!(reward.kind(), RewardKind::Groupwise);
    let prompt = digit_prompt("bold 7");
    let rank = |values: &[f32]| {
        let images: Vec<Image> = values.iter().map(|&value| grey(4, value)).collect();
        let samples: Vec<_> = images.iter().map(|image| sample(image, &prompt)).collect();
        reward.score(&samples).unwrap()
    };
    assert_eq!(rank(&[0.5, -1.0, 1.0, 0.0, -0.5]), [0.25, 1.0, 0.0, 0.5, 0.75]);
    assert_eq!(rank(&[0.5, 0.5, -1.0]), [0.25, 0.25, 1.0]);
    assert_eq!(rank(&[0.5, 0.5]), [0.5, 0.5]);
    assert_eq!(rank(&[0.5]), [0.5]);
    assert_eq!(rank(&[]), [0.0; 0]);
}

#[test]
fn the_diversity_of_a_group_is_0_for_images_that_are_there_twice() {
    let reward = build("diversity-in-group", json!({ "side": 2 }));
    assert_eq!(reward.kind(), RewardKind::Groupwise);
    let prompt = digit_prompt("bold 7");
    let mut half = grey(4, 1.0);
    half.pixels_chw[..8].fill(-1.0);
    let images = [grey(4, 0.5), half, grey(4, 0.5), grey(4, -0.25)];
    let samples: Vec<_> = images.iter().map(|image| sample(image, &prompt)).collect();
    // Cells (-1, -1, 1, 1) are at right angles to those that are all the same, and black is opposite to white.
    assert_eq!(reward.score(&samples).unwrap(), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(reward.score(&samples[..1]).unwrap(), [0.0]);
}

#[test]
fn no_score_leaves_the_range_that_its_reward_names() {
    let infinite = f64::INFINITY;
    let cases = [
        ("digit-classifier", built_in(), (0.0, 1.0)),
        (
            "digit-classifier",
            json!({ "weights": "built-in", "mode": "log-probability" }),
            (-infinite, 0.0),
        ),
        ("jpeg-compressibility", json!({}), (-infinite, 0.0)),
        (
            "target-colour",
            json!({ "rgb": [1.0, 1.0, 1.0] }),
            (-(3.0_f64.sqrt()), 0.0),
        ),
        (
            "target-colour",
            json!({ "rgb": [1.0, 1.0, 1.0], "space": "oklab" }),
            (-infinite, 0.0),
        ),
        (
            "rank-in-group",
            json!({ "reward": "jpeg-compressibility" }),
            (0.0, 1.0),
        ),
        ("diversity-in-group", json!({}), (0.0, 2.0)),
        ("shapes-rules", json!({}), (0.0, 1.0)),
    ];
    let prompt = digit_prompt("thin 3");
    for (name, params, range) in cases {
        let reward = build(name, params);
        assert_eq!(reward.range(), range, "{name}");
        if name == "shapes-rules" {
            continue;
        }
        for image in [grey(8, -1.0), grey(8, 1.0), grey(8, 0.3)] {
            let score = f64::from(reward.score(&[sample(&image, &prompt)]).unwrap()[0]);
            assert!(range.0 <= score && score <= range.1, "{name}: {score}");
        }
    }
}

#[test]
fn every_reward_refuses_images_that_are_not_finite() {
    let prompt = digit_prompt("bold 7");
    let good = grey(8, 0.0);
    let mut bad = good.clone();
    bad.pixels_chw[63] = f32::INFINITY;
    for (name, params) in [
        ("digit-classifier", built_in()),
        ("jpeg-compressibility", Value::Null),
        ("target-colour", json!({ "rgb": [0.1, 0.2, 0.3] })),
        (
            "rank-in-group",
            json!({ "reward": "digit-classifier", "params": built_in() }),
        ),
        ("diversity-in-group", json!({ "side": 3 })),
    ] {
        let error = build(name, params)
            .score(&[sample(&good, &prompt), sample(&bad, &prompt)])
            .unwrap_err();
        let RewardError::Sample { index: 1, problem } = error else {
            panic!("{name}: {error:?}")
        };
        assert!(
            problem.contains("pixel value 63 of the image is inf"),
            "{problem}"
        );
    }
}

#[test]
fn an_unknown_reward_lists_what_exists_and_the_nearest_name() {
    let error = refusal("digit-clasifier", Value::Null);
    assert_eq!(
        error,
        "there is no reward `digit-clasifier`; available: digit-classifier, diversity-in-group, \
         jpeg-compressibility, rank-in-group, shapes-rules, target-colour. The nearest name is `digit-classifier`"
    );
    assert!(refusal("aesthetic", Value::Null).starts_with("there is no reward `aesthetic`; available: "));
    assert_eq!(build("Digit_Classifier", built_in()).name(), "digit-classifier");
}

#[test]
fn wrong_parameters_are_errors_that_name_them() {
    for (reward, params, words) in [
        (
            "jpeg-compressibility",
            json!({ "qualty": 3 }),
            ["reward `jpeg-compressibility`", "no key `qualty`", "`quality`"],
        ),
        (
            "jpeg-compressibility",
            json!({ "quality": "high" }),
            ["`params.quality`", "must be an integer", "`high`"],
        ),
        (
            "jpeg-compressibility",
            json!({ "quality": 0 }),
            ["`params.quality` is 0", "1", "100"],
        ),
        (
            "jpeg-compressibility",
            json!({ "min_side": 0 }),
            ["`params.min_side` is 0", "1", "4096"],
        ),
        (
            "target-colour",
            Value::Null,
            ["lacks `rgb`", "must be given", "add"],
        ),
        (
            "target-colour",
            json!({ "rgb": [0.0, 1.5, 0.0] }),
            ["`params.rgb.1` is 1.5", "0", "1"],
        ),
        (
            "shapes-rules",
            json!({ "mode": "men" }),
            ["`params.mode` cannot be `men`", "mean", "did you mean"],
        ),
        (
            "rank-in-group",
            json!({ "reward": "jpeg" }),
            ["there is no reward `jpeg`", "available", "jpeg-compressibility"],
        ),
    ] {
        let error = refusal(reward, params);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

/// A reward from outside the crate: the number of words of the prompt, times a factor.
struct Words {
    factor: f32,
}

impl Reward for Words {
    fn name(&self) -> &str {
        "words"
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let words = |prompt: &Prompt| prompt.text.split(' ').count() as f32;
        Ok(samples
            .iter()
            .map(|sample| self.factor * words(sample.prompt))
            .collect())
    }
}

#[test]
fn a_reward_from_outside_registers_itself_once() {
    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct WordsSettings {
        factor: f32,
    }
    fn factory() -> RewardFactory {
        RewardFactory::new::<WordsSettings>(
            "words",
            "The number of words of the prompt.",
            RewardKind::Pointwise,
            |_, WordsSettings { factor }| Ok(Arc::new(Words { factor })),
        )
    }
    let mut registry = RewardRegistry::with_built_in().unwrap();
    registry.register(factory()).unwrap();
    let names: Vec<_> = registry.iter().map(|factory| factory.name()).collect();
    assert_eq!(names.last(), Some(&"words"));
    assert_eq!(names.len(), 7);
    let reward = registry
        .build("words", &table(json!({ "factor": 0.5 })), Path::new("."))
        .unwrap();
    assert_eq!(
        reward
            .score(&[sample(&grey(8, 0.0), &digit_prompt("bold 7"))])
            .unwrap(),
        [1.0]
    );
    assert_eq!(
        registry.register(factory()).unwrap_err().to_string(),
        "there is a reward `words` already; register each name once"
    );
}
