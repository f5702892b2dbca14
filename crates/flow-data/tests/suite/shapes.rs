//! The shapes data set: scenes that show what the prompt says, everywhere and every time.

use std::collections::HashSet;

use flow_data::{
    BACKGROUND, CaptionedImages, Colour, DataError, Dataset, Digits, HELD_OUT_COLOUR, Position, Prompt,
    PromptSpec, Shape, Shapes, ShapesSettings, TokenizedPrompts,
};
use proptest::prelude::*;

fn shapes() -> Shapes {
    Shapes::new(ShapesSettings::default()).unwrap()
}

fn parts(prompt: &Prompt) -> (u8, Colour, Shape, Option<Position>) {
    match prompt.spec {
        PromptSpec::Shapes {
            count,
            colour,
            shape,
            position,
        } => (count, colour, shape, position),
        PromptSpec::Digit { .. } | PromptSpec::Text => panic!("{prompt:?}"),
    }
}

#[test]
fn every_prompt_has_its_position_as_id_and_reads_back_from_its_text() {
    let shapes = shapes();
    assert_eq!(shapes.prompts().len(), 126);
    let mut texts = HashSet::new();
    let mut tokens = HashSet::new();
    for (position, prompt) in shapes.prompts().iter().enumerate() {
        assert_eq!(prompt.id as usize, position);
        assert_eq!(prompt.tokens.len(), 4);
        assert!(
            prompt
                .tokens
                .iter()
                .all(|&token| (token as usize) < shapes.vocabulary().len())
        );
        assert_eq!(shapes.parse_prompt(&prompt.text).unwrap(), *prompt);
        texts.insert(&prompt.text);
        tokens.insert(&prompt.tokens);
    }
    assert_eq!((texts.len(), tokens.len()), (126, 126));
    assert_eq!(shapes.vocabulary().len(), 18);
    let text = |id: u32| shapes.prompt(id).unwrap().text.clone();
    assert_eq!(text(36), "three red circles");
    assert_eq!(text(54 + 2 * 3 + 1), "one blue square on the left");
}

#[test]
fn the_held_out_combinations_leave_every_pair_of_parts_in_training() {
    let shapes = shapes();
    let held_out = shapes.held_out_prompts();
    // Nine combinations; the three single ones also with four positions.
    assert_eq!(held_out.len(), 9 + 3 * 4);
    let mut pairs = (HashSet::new(), HashSet::new(), HashSet::new());
    for prompt in shapes.train_prompts() {
        let (count, colour, shape, _) = parts(&prompt);
        assert_ne!(HELD_OUT_COLOUR[usize::from(count) - 1][shape as usize], colour);
        pairs.0.insert((count, colour));
        pairs.1.insert((count, shape));
        pairs.2.insert((colour, shape));
    }
    assert_eq!((pairs.0.len(), pairs.1.len(), pairs.2.len()), (18, 9, 18));
}

#[test]
fn a_model_can_be_kept_from_ever_seeing_the_held_out_combinations() {
    let settings = ShapesSettings {
        pretrain_on_held_out: false,
        images: 3000,
        ..Default::default()
    };
    let shapes = Shapes::new(settings).unwrap();
    for index in 0..3000 {
        assert!(!shapes.is_held_out(&shapes.example(index).unwrap().prompt));
    }
    let with = self::shapes();
    assert!((0..300).any(|index| with.is_held_out(&with.example(index).unwrap().prompt)));
}

#[test]
fn examples_depend_on_seed_and_index_only() {
    let shapes = shapes();
    let forward: Vec<_> = (0..20).map(|index| shapes.example(index).unwrap()).collect();
    for index in (0..20).rev() {
        assert_eq!(self::shapes().example(index).unwrap(), forward[index as usize]);
    }
    let other = Shapes::new(ShapesSettings {
        seed: 1,
        ..Default::default()
    })
    .unwrap();
    assert_ne!(other.example(0).unwrap(), forward[0]);
    let error = shapes.example(20_000).unwrap_err();
    assert!(matches!(error, DataError::IndexOutOfRange { index: 20_000, .. }));
}

#[test]
fn counts_are_equally_frequent_and_half_of_the_single_objects_have_a_position() {
    let shapes = shapes();
    let mut counts = [0u32; 3];
    let mut placed = 0;
    for index in 0..6000 {
        let (count, _, _, position) = parts(&shapes.example(index).unwrap().prompt);
        counts[usize::from(count) - 1] += 1;
        placed += u32::from(position.is_some());
    }
    // Five standard deviations of binomials with n = 6000 and n = 2000.
    assert!(
        counts.iter().all(|count| count.abs_diff(2000) < 183),
        "{counts:?}"
    );
    assert!(placed.abs_diff(1000) < 145, "{placed}");
}

#[test]
fn the_painted_area_is_the_area_of_the_objects() {
    let shapes = shapes();
    for (id, index) in (0..126).zip(0..) {
        let scene = shapes.scene_for(shapes.prompt(id).unwrap(), 5, index).unwrap();
        let image = scene.render();
        let colour = scene.colour.rgb();
        for channel in 0..3 {
            let painted: f64 = (0..24 * 24)
                .map(|i| f64::from(image.at(channel, i / 24, i % 24)) - f64::from(BACKGROUND[channel]))
                .sum();
            let area: f64 = scene
                .objects
                .iter()
                .map(|o| std::f64::consts::PI * f64::from(o.radius).powi(2))
                .sum();
            let expected = area * f64::from(colour[channel] - BACKGROUND[channel]);
            // 4×4 samples per pixel leave a few per cent along the outline of a small object.
            assert!(
                (painted - expected).abs() <= 0.06 * expected.abs() + 1e-3,
                "{painted} {expected}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_scene_shows_what_its_prompt_asks_for(id in 0u32..126, size in 16usize..80, seed: u64, index: u64) {
        let shapes = Shapes::new(ShapesSettings { image_size: size, ..Default::default() }).unwrap();
        let prompt = shapes.prompt(id).unwrap();
        let (count, colour, shape, position) = parts(prompt);
        let scene = shapes.scene_for(prompt, seed, index).unwrap();
        prop_assert_eq!(scene.objects.len(), usize::from(count));
        prop_assert_eq!(scene.colour, colour);
        let side = size as f32;
        for (i, object) in scene.objects.iter().enumerate() {
            prop_assert_eq!(object.shape, shape);
            let [left, top, right, bottom] = object.bounds();
            prop_assert!(left > 0.0 && top > 0.0 && right < side && bottom < side);
            for other in &scene.objects[..i] {
                let [l, t, r, b] = other.bounds();
                prop_assert!(r < left || right < l || b < top || bottom < t);
            }
            let (dx, dy) = (object.center_x / side - 0.5, object.center_y / side - 0.5);
            match position {
                None => {}
                Some(Position::Left) => prop_assert!(dx <= -0.149 && dy.abs() <= 0.101),
                Some(Position::Right) => prop_assert!(dx >= 0.149 && dy.abs() <= 0.101),
                Some(Position::Top) => prop_assert!(dy <= -0.149 && dx.abs() <= 0.101),
                Some(Position::Bottom) => prop_assert!(dy >= 0.149 && dx.abs() <= 0.101),
            }
        }
        let image = scene.render();
        prop_assert!(image.pixels_chw.iter().all(|v| (-0.801..=0.801).contains(v)));
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,60}", words in prop::collection::vec(
        prop::sample::select(vec!["one", "two", "3", "red", "blue", "circles", "square", "left", "top", "bold", "7"]),
        0..6,
    )) {
        let digits = Digits::new().unwrap();
        for text in [text, words.join(" ")] {
            for dataset in [&shapes() as &dyn Dataset, &digits] {
                if let Ok(prompt) = dataset.parse_prompt(&text) {
                    prop_assert_eq!(dataset.prompt(prompt.id).unwrap(), &prompt);
                }
            }
        }
    }
}

#[test]
fn a_prompt_may_be_written_freely() {
    let shapes = shapes();
    for (free, canonical) in [
        ("3 red circles", "three red circles"),
        ("A Blue square, left", "one blue square on the left"),
        ("on the left side a blue square", "one blue square on the left"),
        ("one triangle cyan top", "one cyan triangle at the top"),
    ] {
        assert_eq!(shapes.parse_prompt(free).unwrap().text, canonical);
    }
}

#[test]
fn a_prompt_that_cannot_be_read_says_why() {
    let shapes = shapes();
    let message = |text: &str| shapes.parse_prompt(text).unwrap_err().to_string();
    let error = message("three red cirles");
    assert!(
        error.contains("\"cirles\" is not known (did you mean \"circle\"?)"),
        "{error}"
    );
    let error = message("four red circles");
    assert!(
        error.contains("\"four\" is not known; the words are: one, two, three, red"),
        "{error}"
    );
    let error = message("red circles");
    assert!(
        error.contains("lacks a count (one, two or three); a prompt reads like \"three red"),
        "{error}"
    );
    let error = message("two red blue circles");
    assert!(
        error.contains("names the colour twice, \"red\" and \"blue\""),
        "{error}"
    );
    let error = message("two red circles on the left");
    assert!(
        error.contains("a position (\"left\") goes with one object, and the count is \"two\""),
        "{error}"
    );
}

#[test]
fn a_noisy_caption_differs_in_one_part() {
    let shapes = shapes();
    let mut changed = [0u32; 3];
    for id in [7, 40, 54 + 7] {
        let prompt = shapes.prompt(id).unwrap();
        let (count, colour, shape, position) = parts(prompt);
        for index in 0..2000 {
            let noisy = shapes.noisy_prompt(prompt, 1.0, 2, index).unwrap();
            assert_eq!(shapes.prompt(noisy.id).unwrap(), &noisy);
            let (c, k, s, p) = parts(&noisy);
            let differs = [c != count, k != colour, s != shape];
            assert_eq!(differs.iter().filter(|&&d| d).count(), 1);
            assert_eq!(p, if c == 1 { position } else { None });
            for (sum, differs) in changed.iter_mut().zip(differs) {
                *sum += u32::from(differs);
            }
            assert_eq!(shapes.noisy_prompt(prompt, 0.0, 2, index).unwrap(), *prompt);
        }
    }
    assert!(
        changed.iter().all(|count| count.abs_diff(2000) < 183),
        "{changed:?}"
    );
}

#[test]
fn prompts_of_another_data_set_are_refused() {
    let shapes = shapes();
    let foreign = Digits::new().unwrap().parse_prompt("bold 7").unwrap();
    let error = shapes.noisy_prompt(&foreign, 0.5, 0, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "prompt \"bold 7\" does not belong to data set `shapes`"
    );
    assert!(shapes.scene_for(&foreign, 0, 0).is_err());
    assert!(!shapes.is_held_out(&foreign));
}

#[test]
fn settings_out_of_range_are_errors_that_name_them() {
    let message = |settings| Shapes::new(settings).unwrap_err().to_string();
    let error = message(ShapesSettings {
        image_size: 8,
        ..Default::default()
    });
    assert!(
        error.starts_with("`image_size = 8` is not allowed: images have 16 to 1024 pixels"),
        "{error}"
    );
    let error = message(ShapesSettings {
        images: 0,
        ..Default::default()
    });
    assert!(error.starts_with("`images = 0` is not allowed"), "{error}");
}
