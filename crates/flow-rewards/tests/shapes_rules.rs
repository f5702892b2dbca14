//! The rule checker: full marks for scenes as rendered, none for other scenes.

mod common;

use common::{noisy, sample, scene_prompt, shapes};
use flow_data::{Colour, Dataset, Image, ImageShape, Prompt, PromptSpec, Shapes, ShapesSettings};
use flow_rewards::shapes::{compare, find_objects};
use flow_rewards::{Reward, RewardError, RulesMode, ShapesRules, ShapesRulesSettings};
use flow_rng::{Purpose, Stream};

fn score(mode: RulesMode, image: &Image, prompt: &Prompt) -> f32 {
    let rules = ShapesRules::new(ShapesRulesSettings { mode });
    rules.score(&[sample(image, prompt)]).unwrap()[0]
}

/// Mean score of five scenes per prompt.
fn mean_score(shapes: &Shapes, mode: RulesMode, noise: f32) -> f64 {
    let mut scores = Vec::new();
    for prompt in shapes.prompts() {
        for index in 0..5 {
            let scene = shapes
                .scene_for(prompt, 77, u64::from(prompt.id) * 5 + index)
                .unwrap();
            let image = noisy(&scene.render(), noise, u64::from(prompt.id) * 5 + index);
            scores.push(f64::from(score(mode, &image, prompt)));
        }
    }
    scores.iter().sum::<f64>() / scores.len() as f64
}

#[test]
fn rendered_scenes_get_nearly_full_marks_at_every_size_and_with_noise() {
    for (size, noise) in [(24, 0.0), (24, 0.1), (24, 0.2), (32, 0.2), (37, 0.0), (64, 0.2)] {
        let shapes = Shapes::new(ShapesSettings {
            image_size: size,
            ..Default::default()
        })
        .unwrap();
        let mean = mean_score(&shapes, RulesMode::Mean, noise);
        assert!(mean >= 0.985, "size {size}, noise {noise}: {mean}");
        let strict = mean_score(&shapes, RulesMode::All, noise);
        assert!(strict >= 0.95, "size {size}, noise {noise}: {strict}");
    }
}

#[test]
fn each_part_is_judged_by_itself() {
    let shapes = shapes();
    let image = shapes
        .scene_for(&scene_prompt("two red circles"), 3, 1)
        .unwrap()
        .render();
    let objects = find_objects(&image).unwrap();
    let parts = |text: &str| compare(&scene_prompt(text), &objects).unwrap();
    let right = parts("two red circles");
    assert_eq!(
        (right.count, right.colour, right.shape, right.position),
        (1.0, 1.0, 1.0, None)
    );
    assert_eq!(parts("three red circles").count, 0.0);
    assert_eq!(parts("two blue circles").colour, 0.0);
    assert_eq!(parts("two red squares").shape, 0.0);
    assert_eq!(
        score(RulesMode::Mean, &image, &scene_prompt("two red squares")),
        2.0 / 3.0
    );
    assert_eq!(
        score(RulesMode::All, &image, &scene_prompt("two red squares")),
        0.0
    );
    assert_eq!(
        score(RulesMode::All, &image, &scene_prompt("two red circles")),
        1.0
    );
}

#[test]
fn a_position_counts_as_a_fourth_part() {
    let shapes = shapes();
    for (index, word) in ["on the left", "on the right", "at the top", "at the bottom"]
        .iter()
        .enumerate()
    {
        let text = format!("one green triangle {word}");
        let image = shapes
            .scene_for(&scene_prompt(&text), 8, index as u64)
            .unwrap()
            .render();
        assert_eq!(score(RulesMode::Mean, &image, &scene_prompt(&text)), 1.0);
        for other in ["on the left", "on the right", "at the top", "at the bottom"] {
            if other != *word {
                let prompt = scene_prompt(&format!("one green triangle {other}"));
                assert_eq!(score(RulesMode::Mean, &image, &prompt), 0.75);
                assert_eq!(score(RulesMode::All, &image, &prompt), 0.0);
            }
        }
    }
}

#[test]
fn scenes_of_other_prompts_score_as_often_as_their_parts_agree_by_chance() {
    let shapes = shapes();
    let plain: Vec<&Prompt> = shapes
        .prompts()
        .iter()
        .filter(|prompt| prompt.tokens[3] == 0)
        .collect();
    let mut stream = Stream::new(5, Purpose::Test).at(0, 0);
    let (mut total, mut expected, mut nothing_right) = (0.0, 0.0, Vec::new());
    let n = 2000;
    for index in 0..n {
        let mut draw = || plain[stream.below(plain.len() as u64) as usize];
        let (shown, asked) = (draw(), draw());
        let image = noisy(&shapes.scene_for(shown, 6, index).unwrap().render(), 0.1, index);
        let score = score(RulesMode::Mean, &image, asked);
        let (
            PromptSpec::Shapes {
                count, colour, shape, ..
            },
            PromptSpec::Shapes {
                count: c,
                colour: k,
                shape: s,
                ..
            },
        ) = (shown.spec, asked.spec)
        else {
            panic!("{shown:?} {asked:?}")
        };
        let agree = [count == c, colour == k, shape == s]
            .into_iter()
            .filter(|&agree| agree)
            .count();
        total += f64::from(score);
        expected += agree as f64 / 3.0;
        if agree == 0 {
            nothing_right.push(score);
        }
    }
    // Chance is (1/3 + 1/6 + 1/3) / 3.
    assert!((total - expected).abs() / (n as f64) < 0.01, "{total} {expected}");
    let mean_of_nothing = nothing_right.iter().sum::<f32>() / nothing_right.len() as f32;
    assert!(mean_of_nothing < 0.01, "{mean_of_nothing}");
}

#[test]
fn images_without_objects_and_plain_noise_score_nearly_nothing() {
    let prompt = scene_prompt("one red circle");
    let shape = ImageShape {
        channels: 3,
        height: 24,
        width: 24,
    };
    for value in [-1.0, -0.8, 0.0, 1.0] {
        assert_eq!(score(RulesMode::Mean, &Image::filled(shape, value), &prompt), 0.0);
    }
    // Nor is an image filled with red one red square.
    let mut red = Image::filled(shape, -0.8);
    red.pixels_chw[..24 * 24].fill(0.8);
    assert_eq!(score(RulesMode::Mean, &red, &scene_prompt("one red square")), 0.0);
    let scores = (0..200).map(|seed| {
        score(
            RulesMode::Mean,
            &noisy(&Image::filled(shape, 0.0), 0.8, seed),
            &prompt,
        )
    });
    let mean = scores.sum::<f32>() / 200.0;
    assert!(mean < 0.1, "{mean}");
}

#[test]
fn an_object_of_another_colour_or_outline_has_no_name() {
    let shape = ImageShape {
        channels: 3,
        height: 24,
        width: 24,
    };
    let bar = |rgb: [f32; 3], rows: std::ops::Range<usize>, columns: std::ops::Range<usize>| {
        let mut image = Image::filled(shape, -0.8);
        for (channel, value) in rgb.into_iter().enumerate() {
            for row in rows.clone() {
                for column in columns.clone() {
                    image.pixels_chw[(channel * 24 + row) * 24 + column] = value;
                }
            }
        }
        find_objects(&image).unwrap()
    };
    let white = bar([0.8; 3], 5..12, 5..12);
    assert_eq!((white.len(), white[0].colour), (1, None));
    let long = bar(Colour::Red.rgb(), 10..12, 1..23);
    assert_eq!(
        (long.len(), long[0].colour, long[0].shape),
        (1, Some(Colour::Red), None)
    );
    assert!(bar(Colour::Red.rgb(), 10..12, 10..12).is_empty());
}

#[test]
fn prompts_and_images_of_another_kind_are_errors_that_name_the_sample() {
    let rules = ShapesRules::default();
    let shapes = shapes();
    let good = scene_prompt("one red circle");
    let image = shapes.scene_for(&good, 0, 0).unwrap().render();
    let digit = common::digit_prompt("bold 7");
    let error = rules
        .score(&[sample(&image, &good), sample(&image, &digit)])
        .unwrap_err();
    let RewardError::Sample { index: 1, problem } = error else {
        panic!("{error:?}")
    };
    assert!(
        problem.contains("\"bold 7\" asks for no scene") && problem.contains("digit-classifier"),
        "{problem}"
    );
    for (channels, height, width) in [(1, 24, 24), (3, 24, 23), (3, 4, 4), (3, 0, 0)] {
        let wrong = Image::filled(
            ImageShape {
                channels,
                height,
                width,
            },
            0.0,
        );
        assert!(matches!(
            rules.score(&[sample(&wrong, &good)]),
            Err(RewardError::Sample { index: 0, .. })
        ));
    }
    let mut broken = image.clone();
    broken.pixels_chw[9] = f32::NAN;
    let error = rules.score(&[sample(&broken, &good)]).unwrap_err().to_string();
    assert!(
        error.contains("sample 0: pixel value 9 of the image is NaN"),
        "{error}"
    );
}
