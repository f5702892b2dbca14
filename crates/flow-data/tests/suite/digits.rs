//! The digits data set: the data as published, its captions, its splits and its prompt parser.

use flow_data::{
    CaptionedImages, DataError, Dataset, Digits, HELD_OUT_WEIGHT, PAD_TOKEN, PromptSpec, TokenizedPrompts,
    Weight,
};

fn digits() -> Digits {
    Digits::new().unwrap()
}

#[test]
fn the_vendored_data_are_the_published_ones() {
    let digits = digits();
    assert_eq!(digits.len(), 1797);
    // Class sizes as scikit-learn documents them for `load_digits`.
    let sizes: Vec<usize> = (0..10)
        .map(|digit| digits.labels().iter().filter(|&&label| label == digit).count())
        .collect();
    assert_eq!(sizes, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    // The first row begins 0, 0, 5, 13, 9, 1, 0, 0 and is a zero.
    let first = digits.example(0).unwrap();
    assert_eq!(
        first.image.pixels_chw[..8],
        [-1.0, -1.0, -0.375, 0.625, 0.125, -0.875, -1.0, -1.0]
    );
    assert!(matches!(first.prompt.spec, PromptSpec::Digit { digit: 0, .. }));
    let registry = flow_data::DatasetRegistry::with_built_in().unwrap();
    assert!(registry.iter().any(|factory| factory.name() == digits.name()));
}

#[test]
fn the_weights_of_a_digit_are_the_thirds_of_its_ink() {
    let digits = digits();
    for digit in 0..10u8 {
        let mut inks: [Vec<f64>; 3] = Default::default();
        for index in 0..digits.len() {
            let example = digits.example(index).unwrap();
            if let PromptSpec::Digit { digit: d, weight } = example.prompt.spec
                && d == digit
            {
                inks[weight as usize].push(example.image.pixels_chw.iter().map(|&v| f64::from(v)).sum());
                assert_eq!(digits.weight_of_image(digit, &example.image), Some(weight));
            }
        }
        let total: usize = inks.iter().map(Vec::len).sum();
        for part in &inks {
            assert!(
                part.len().abs_diff(total / 3) <= 6,
                "digit {digit}: {} of {total}",
                part.len()
            );
        }
        let largest = |v: &[f64]| v.iter().copied().fold(f64::MIN, f64::max);
        let smallest = |v: &[f64]| v.iter().copied().fold(f64::MAX, f64::min);
        assert!(largest(&inks[0]) < smallest(&inks[1]));
        assert!(largest(&inks[1]) < smallest(&inks[2]));
    }
    let image = &digits.images()[0];
    assert_eq!(digits.weight_of_image(10, image), None);
}

#[test]
fn every_prompt_has_its_position_as_id_and_two_tokens_that_spell_it() {
    let digits = digits();
    assert_eq!(digits.prompts().len(), 30);
    for (position, prompt) in digits.prompts().iter().enumerate() {
        assert_eq!(prompt.id as usize, position);
        assert_eq!(prompt.tokens.len(), digits.prompt_length());
        assert!(!prompt.tokens.contains(&PAD_TOKEN));
        let words: Vec<&str> = prompt
            .tokens
            .iter()
            .map(|&t| digits.vocabulary().word(t).unwrap())
            .collect();
        assert_eq!(words.join(" "), prompt.text);
        assert_eq!(digits.parse_prompt(&prompt.text).unwrap(), *prompt);
        assert_eq!(digits.prompt(prompt.id).unwrap(), prompt);
    }
    assert_eq!(digits.vocabulary().len(), 15);
    assert_eq!(digits.null_tokens(), [1, 1]);
    let error = digits.prompt(30).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data set `digits` has no prompt with id 30; its ids are 0 to 29"
    );
}

#[test]
fn each_digit_has_exactly_one_held_out_weight() {
    let digits = digits();
    let held_out = digits.held_out_prompts();
    assert_eq!(held_out.len(), 10);
    for (digit, prompt) in held_out.iter().enumerate() {
        assert_eq!(
            prompt.spec,
            PromptSpec::Digit {
                digit: digit as u8,
                weight: HELD_OUT_WEIGHT[digit]
            }
        );
    }
    for weight in Weight::ALL {
        assert!((3..=4).contains(&HELD_OUT_WEIGHT.iter().filter(|&&w| w == weight).count()));
    }
    let train = digits.train_prompts();
    assert_eq!(train.len(), 20);
    assert!(train.iter().all(|prompt| !held_out.contains(prompt)));
}

#[test]
fn a_split_is_stratified_disjoint_complete_and_follows_its_seed() {
    let digits = digits();
    let split = digits.split(0.2, 4).unwrap();
    let mut all = [split.train.clone(), split.validation.clone()].concat();
    all.sort_unstable();
    assert_eq!(all, (0..1797).collect::<Vec<u64>>());
    for digit in 0..10 {
        let of = |part: &[u64]| {
            part.iter()
                .filter(|&&i| digits.labels()[i as usize] == digit)
                .count()
        };
        let total = of(&split.train) + of(&split.validation);
        assert_eq!(of(&split.validation), (total as f64 * 0.2).round() as usize);
    }
    assert_eq!(digits.split(0.2, 4).unwrap(), split);
    assert_ne!(digits.split(0.2, 5).unwrap(), split);
    for bad in [0.0, 1.0, -0.1, f32::NAN] {
        assert!(
            matches!(digits.split(bad, 0), Err(DataError::Setting { .. })),
            "{bad}"
        );
    }
}

#[test]
fn a_prompt_may_be_written_in_any_case_and_order_and_with_number_words() {
    let digits = digits();
    let expected = digits.parse_prompt("bold 7").unwrap();
    assert_eq!(
        expected.spec,
        PromptSpec::Digit {
            digit: 7,
            weight: Weight::Bold
        }
    );
    for text in ["Bold Seven", " 7, BOLD ", "bold-seven"] {
        assert_eq!(digits.parse_prompt(text).unwrap(), expected, "{text}");
    }
}

#[test]
fn an_article_in_a_prompt_does_not_matter() {
    let digits = digits();
    for (text, plain) in [
        ("the bold 7", "bold 7"),
        ("A thin three", "thin 3"),
        ("an 8, medium", "medium 8"),
    ] {
        assert_eq!(
            digits.parse_prompt(text).unwrap(),
            digits.parse_prompt(plain).unwrap(),
            "{text}"
        );
    }
    let error = digits.parse_prompt("the").unwrap_err().to_string();
    assert!(
        error.contains("lacks a weight (thin, medium or bold) and a digit (0 to 9)"),
        "{error}"
    );
}

#[test]
fn a_prompt_that_cannot_be_read_says_which_word_and_the_nearest_one() {
    let digits = digits();
    let message = |text: &str| digits.parse_prompt(text).unwrap_err().to_string();
    let error = message("blod 7");
    assert!(
        error.contains("\"blod\" is not known (did you mean \"bold\"?)"),
        "{error}"
    );
    let error = message("thin sevn");
    assert!(error.contains("(did you mean \"seven\"?)"), "{error}");
    let error = message("bold 12");
    assert!(
        error.contains("\"12\" is not known; the words are: thin, medium, bold, 0"),
        "{error}"
    );
    assert_eq!(
        message("7"),
        "prompt \"7\" lacks a weight (thin, medium or bold); a prompt reads like \"bold 7\""
    );
    assert!(message("").contains("lacks a weight (thin, medium or bold) and a digit (0 to 9)"));
    assert_eq!(
        message("bold thin 7"),
        "prompt \"bold thin 7\" names the weight twice, \"bold\" and \"thin\"; keep one of them"
    );
}

#[test]
fn caption_noise_changes_the_digit_in_the_given_share_of_captions() {
    let digits = digits();
    let prompt = digits.parse_prompt("thin 3").unwrap();
    let n = 20_000;
    let mut counts = [0u32; 10];
    for index in 0..n {
        let noisy = digits.noisy_prompt(&prompt, 0.4, 9, index).unwrap();
        let PromptSpec::Digit {
            digit,
            weight: Weight::Thin,
        } = noisy.spec
        else {
            panic!("{noisy:?}")
        };
        counts[digit as usize] += 1;
        if noisy != prompt {
            assert_eq!(digits.noisy_prompt(&prompt, 0.7, 9, index).unwrap(), noisy);
        }
    }
    // Five standard deviations of binomials with n = 20,000.
    assert!(counts[3].abs_diff(12_000) < 347, "{counts:?}");
    for (digit, count) in counts.into_iter().enumerate() {
        assert!(digit == 3 || count.abs_diff(889) < 146, "{counts:?}");
    }
    for index in 0..50 {
        assert_eq!(digits.noisy_prompt(&prompt, 0.0, 9, index).unwrap(), prompt);
        assert_ne!(digits.noisy_prompt(&prompt, 1.0, 9, index).unwrap(), prompt);
    }
    assert!(matches!(
        digits.noisy_prompt(&prompt, 1.5, 9, 0),
        Err(DataError::Setting { .. })
    ));
    assert!(matches!(
        digits.noisy_prompt(&prompt, f32::NAN, 9, 0),
        Err(DataError::Setting { .. })
    ));
}

#[test]
fn an_index_beyond_the_end_is_an_error() {
    let error = digits().example(1797).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data set `digits` has 1797 examples (0 to 1796), and example 1797 was asked for"
    );
}

#[test]
fn a_damaged_csv_is_an_error_that_names_line_and_field() {
    let row = |pixel: &str, label: &str| format!("{},{pixel},{label}\n", vec!["0"; 63].join(","));
    let good = row("16", "9");
    let cases = [
        (row("17", "9"), "line 2: field 64 is \"17\"; a pixel is 0 to 16"),
        (row("x", "9"), "line 2: field 64 is \"x\""),
        (row("16", "10"), "line 2: field 65 is \"10\"; a label is 0 to 9"),
        (
            "1,2,3\n".to_owned(),
            "line 2: 3 fields, where 64 pixels and a label make 65",
        ),
    ];
    for (bad, expected) in cases {
        let error = Digits::from_csv(&format!("{good}{bad}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = Digits::from_csv(&good).unwrap_err().to_string();
    assert!(error.contains("digit 0 has 0 images"), "{error}");
}

#[test]
fn enlarged_digits_are_the_same_digits_with_the_same_captions() {
    let (small, large) = (digits(), Digits::with_image_size(24).unwrap());
    assert_eq!(large.image_shape().height, 24);
    for index in (0..1797).step_by(97) {
        let (a, b) = (small.example(index).unwrap(), large.example(index).unwrap());
        assert_eq!(a.prompt, b.prompt);
        assert_eq!(a.image, b.image.downscale_mean(3).unwrap());
        let PromptSpec::Digit { digit, weight } = b.prompt.spec else {
            panic!("{:?}", b.prompt)
        };
        assert_eq!(large.weight_of_image(digit, &b.image), Some(weight));
    }
    for bad in [0, 7, 12, 520] {
        let error = Digits::with_image_size(bad).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "`image_size = {bad}` is not allowed: digits have 8 pixels"
            )),
            "{error}"
        );
    }
}
