//! The data set of words: what is asked for, what is held out, and what is drawn.

use flow_data::{CaptionedImages, Dataset, FREE_PROMPT_ID, WORD_LETTERS, Words, WordsSettings};
use std::collections::BTreeMap;

fn words(words: usize) -> Words {
    Words::new(WordsSettings {
        words,
        images: 500,
        ..WordsSettings::default()
    })
    .unwrap()
}

#[test]
fn words_are_different_and_of_every_length_and_a_tenth_of_them_is_held_out() {
    let data = words(400);
    let mut of_length: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
    let mut texts = Vec::new();
    for prompt in data.prompts() {
        let word = data.word(prompt).unwrap();
        assert!(WORD_LETTERS.contains(&word.len()) && word.bytes().all(|letter| letter.is_ascii_lowercase()));
        let spelt: Vec<String> = word.chars().map(String::from).collect();
        assert_eq!(prompt.text, format!("the word \"{}\"", spelt.join(" ")));
        of_length.entry(word.len()).or_default()[usize::from(data.is_held_out(prompt))] += 1;
        texts.push(&prompt.text);
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 400);
    assert!(
        of_length
            .values()
            .all(|[train, test]| train + test == 100 && *test > 0),
        "{of_length:?}"
    );
    assert_eq!(data.held_out_prompts().len(), 40);
}

#[test]
fn pictures_and_wrong_captions_show_no_word_that_is_held_out() {
    let data = words(40);
    let mut wrong = 0;
    for index in 0..data.len() {
        let example = data.example(index).unwrap();
        assert!(!data.is_held_out(&example.prompt));
        let noisy = data.noisy_prompt(&example.prompt, 0.4, 7, index).unwrap();
        assert!(!data.is_held_out(&noisy));
        if noisy != example.prompt {
            wrong += 1;
            assert_eq!(noisy.text.len(), example.prompt.text.len(), "as many letters");
            let all = data.noisy_prompt(&example.prompt, 1.0, 7, index).unwrap();
            assert_eq!(all, noisy, "noisy in the same way at every larger share");
        }
        let all = data.noisy_prompt(&example.prompt, 1.0, 7, index).unwrap();
        assert_ne!(all, example.prompt);
    }
    // 200 expected of 500, with a standard deviation of 11.
    assert!((150..250).contains(&wrong), "{wrong}");
}

#[test]
fn a_picture_is_a_function_of_its_number_and_all_of_its_word_is_inside() {
    for (width, height) in [(64, 32), (48, 24), (33, 17), (128, 128)] {
        let settings = WordsSettings {
            width,
            height,
            words: 80,
            images: 60,
            seed: 3,
        };
        let data = Words::new(settings.clone()).unwrap();
        let again = Words::new(settings).unwrap();
        for index in 0..data.len() {
            let example = data.example(index).unwrap();
            assert_eq!(example, again.example(index).unwrap());
            let pixels = &example.image.pixels_chw;
            assert_eq!(pixels.len(), 3 * width * height);
            assert!(pixels.iter().all(|value| (-1.0..=1.0).contains(value)));
            let plane = width * height;
            assert_eq!(pixels[..plane], pixels[plane..2 * plane]);
            let ink: f32 = pixels[..plane].iter().map(|value| (1.0 - value) / 2.0).sum();
            let share = ink / plane as f32;
            assert!((0.005..0.6).contains(&share), "{share} of {index} is ink");
            // A margin stays free: the outermost columns are paper.
            let column = |x: usize| (0..height).map(|y| pixels[y * width + x]).fold(1.0f32, f32::min);
            assert!(
                column(0) > 0.0 && column(width - 1) > 0.0,
                "{width} x {height}, {index}"
            );
        }
    }
}

#[test]
fn any_word_can_be_asked_for_in_three_ways_and_what_is_none_is_refused_with_the_reason() {
    let data = words(40);
    let listed = &data.prompts()[5];
    let word = data.word(listed).unwrap().to_owned();
    for text in [listed.text.clone(), word.to_uppercase(), format!("\"{word}\"")] {
        assert_eq!(data.parse_prompt(&text).unwrap(), *listed, "{text}");
    }
    let free = data.parse_prompt("River").unwrap();
    assert_eq!(
        (free.id, free.text.as_str()),
        (FREE_PROMPT_ID, "the word \"r i v e r\"")
    );
    for (text, part) in [
        ("go", "the word has 2 letters"),
        ("rivière", "is no letter from a to z"),
        ("the word \"river", "its double quote is not closed"),
        ("riverside", "the word has 9 letters"),
    ] {
        let refused = data.parse_prompt(text).unwrap_err().to_string();
        assert!(
            refused.contains(part) && refused.contains("r i v e r"),
            "{refused}"
        );
    }
    let foreign = data.noisy_prompt(&free, 0.5, 0, 0).unwrap_err().to_string();
    assert!(foreign.contains("does not belong"), "{foreign}");
}

#[test]
fn settings_outside_their_range_are_refused_by_name() {
    let refused = |settings| Words::new(settings).unwrap_err().to_string();
    let usual = WordsSettings::default;
    for (settings, part) in [
        (WordsSettings { width: 31, ..usual() }, "`width = 31`"),
        (WordsSettings { height: 8, ..usual() }, "`height = 8`"),
        (
            WordsSettings {
                words: 9000,
                ..usual()
            },
            "`words = 9000`",
        ),
        (WordsSettings { images: 0, ..usual() }, "`images = 0`"),
    ] {
        let text = refused(settings);
        assert!(text.contains(part), "{text}");
    }
}
