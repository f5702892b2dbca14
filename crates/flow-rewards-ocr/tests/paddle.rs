//! PP-OCR's own files, where they are: `FLOW_TRAIN_OCR_MODELS` names a folder with them. Without it each test says that it is skipped.

mod common;

use common::{picture, scores};
use flow_data::{Image, Prompt};
use flow_rewards::Reward;
use flow_rewards_ocr::{OcrMode, OcrReward, OcrSettings, PaddleReader, ReadRequest, Reader};
use std::path::PathBuf;
use std::time::Instant;

const WORDS: [&str; 6] = ["2024", "Jumping", "OPEN", "Quartz", "lantern", "river"];

fn models() -> Option<PathBuf> {
    let folder = std::env::var_os("FLOW_TRAIN_OCR_MODELS").map(PathBuf::from);
    if folder.is_none() {
        test_support::skipped("FLOW_TRAIN_OCR_MODELS names no folder with PP-OCR's ONNX files");
    }
    folder
}

fn word(word: &str) -> (Image, Prompt) {
    let prompt = Prompt::free(0, format!("the word \"{word}\""));
    (picture(&format!("word-{word}.png")), prompt)
}

fn lines(folder: PathBuf, mode: OcrMode, batch: usize) -> OcrSettings {
    OcrSettings {
        detect: false,
        mode,
        batch,
        ..OcrSettings::new(folder)
    }
}

#[test]
fn rendered_words_are_read() {
    let Some(folder) = models() else { return };
    let begun = Instant::now();
    let reward = OcrReward::new(lines(folder.clone(), OcrMode::Distance, 6)).unwrap();
    println!("opened in {:?}", begun.elapsed());
    let words: Vec<_> = WORDS.iter().map(|text| word(text)).collect();
    let samples: Vec<_> = words.iter().map(|(image, prompt)| (image, prompt)).collect();
    let begun = Instant::now();
    assert_eq!(scores(&reward, &samples).unwrap(), [1.0; 6]);
    println!("{:?} an image in a batch of 6", begun.elapsed() / 6);
    let log = OcrReward::new(lines(folder, OcrMode::LogProbability, 6)).unwrap();
    let right = scores(&log, &samples).unwrap();
    let others: Vec<_> = words
        .iter()
        .zip(words.iter().cycle().skip(1))
        .map(|(a, b)| (&a.0, &b.1))
        .collect();
    let wrong = scores(&log, &others).unwrap();
    println!("log-probability per letter: {right:?}; of another word: {wrong:?}");
    assert!(right.iter().all(|score| *score > -0.5) && wrong.iter().all(|score| *score < -5.0));
}

#[test]
fn words_are_read_without_the_columns_that_paddleocr_adds() {
    let Some(folder) = models() else { return };
    let words: Vec<_> = WORDS.iter().map(|text| word(text)).collect();
    let samples: Vec<_> = words.iter().map(|(image, prompt)| (image, prompt)).collect();
    for min_width in [320, 96, 8] {
        let settings = OcrSettings {
            min_width,
            ..lines(folder.clone(), OcrMode::Exact, 6)
        };
        let reward = OcrReward::new(settings).unwrap();
        let begun = Instant::now();
        assert_eq!(scores(&reward, &samples).unwrap(), [1.0; 6], "{min_width} columns");
        println!("{min_width} columns: {:?} an image", begun.elapsed() / 6);
    }
}

#[test]
fn bits_depend_neither_on_the_batch_nor_on_threads() {
    let Some(folder) = models() else { return };
    let images: Vec<Image> = WORDS.iter().map(|text| word(text).0).collect();
    let letters: Vec<char> = "eimnoprv2".chars().collect();
    let requests: Vec<_> = images
        .iter()
        .map(|image| ReadRequest {
            image,
            letters: &letters,
        })
        .collect();
    let open = |batch| PaddleReader::open(&lines(folder.clone(), OcrMode::Distance, batch)).unwrap();
    let reader = open(1);
    let begun = Instant::now();
    let alone = reader.read(&requests).unwrap();
    println!("{:?} an image one by one", begun.elapsed() / 6);
    for batch in [2, 3, 6] {
        assert_eq!(open(batch).read(&requests).unwrap(), alone, "batch {batch}");
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| reader.read(&requests).unwrap()))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), alone);
        }
    });
}

#[test]
fn the_lines_of_a_sign_are_found_and_read() {
    let Some(folder) = models() else { return };
    let reader = PaddleReader::open(&OcrSettings::new(folder.clone())).unwrap();
    let sign = picture("sign.png");
    let request = ReadRequest {
        image: &sign,
        letters: &[],
    };
    let begun = Instant::now();
    let lines = reader.read(&[request]).unwrap().remove(0);
    println!("{:?} for {}: {lines:?}", begun.elapsed(), sign.shape());
    let text: String = lines.iter().map(|line| line.text.replace(' ', "")).collect();
    assert_eq!(text, "SpringSaleCollection2024");
    let reward = OcrReward::new(OcrSettings::new(folder)).unwrap();
    let prompt = Prompt::free(0, "a shop sign that says \"Spring Sale Collection 2024\"");
    let other = Prompt::free(0, "a shop sign that says \"Autumn\"");
    let found = scores(&reward, &[(&sign, &prompt), (&sign, &other)]).unwrap();
    assert_eq!((found[0], found[1]), (1.0, 0.0));
    let empty = common::grey(128, 200);
    assert_eq!(scores(&reward, &[(&empty, &prompt)]).unwrap(), [0.0]);
    assert_eq!(reward.range(), (0.0, 1.0));
}
