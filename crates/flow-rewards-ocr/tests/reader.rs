//! The reader on two tiny networks of our own, which see as PP-OCR's do: a recogniser of colours (red `A`, green `b`, blue `C`, white
//! `é`, black a space) and a detector of what is bright.

mod common;

use common::{fixture, paint, scores};
use flow_data::{Image, ImageShape, Prompt};
use flow_rewards::{RewardError, RewardRegistry};
use flow_rewards_ocr::{OcrMode, OcrReward, OcrSettings, PaddleReader, ReadRequest, Reader};
use serde_json::json;
use std::path::Path;

/// The colour of a letter.
fn colour(letter: char) -> [f32; 3] {
    match letter {
        'A' => [1.0, -1.0, -1.0],
        'b' => [-1.0, 1.0, -1.0],
        'C' => [-1.0, -1.0, 1.0],
        ' ' => [-1.0; 3],
        _ => [1.0; 3],
    }
}

/// A black image with texts in colours at their places, `[top, left]`; letters are as wide as they are high.
fn image([height, width]: [usize; 2], side: usize, texts: &[(&str, [usize; 2])]) -> Image {
    let shape = ImageShape {
        channels: 3,
        height,
        width,
    };
    let mut image = Image::filled(shape, -1.0);
    for (text, [top, left]) in texts {
        for (index, letter) in text.chars().enumerate() {
            paint(&mut image, [*top, left + side * index], [side; 2], colour(letter));
        }
    }
    image
}

/// One line, without anything around it.
fn line(text: &str, side: usize) -> Image {
    image([side, side * text.chars().count()], side, &[(text, [0, 0])])
}

fn folder() -> std::path::PathBuf {
    fixture("")
}

fn without_detection() -> OcrSettings {
    OcrSettings {
        detect: false,
        ..OcrSettings::new(folder())
    }
}

fn texts(reader: &PaddleReader, images: &[Image]) -> Vec<Vec<String>> {
    let request = |image| ReadRequest { image, letters: &[] };
    let requests: Vec<_> = images.iter().map(request).collect();
    let lines = reader.read(&requests).unwrap();
    let texts = |lines: Vec<flow_rewards_ocr::ReadLine>| lines.into_iter().map(|line| line.text).collect();
    lines.into_iter().map(texts).collect()
}

#[test]
fn a_line_is_read_in_the_order_of_its_colours_whatever_its_size() {
    let reader = PaddleReader::open(&without_detection()).unwrap();
    // Shorter than what the network sees at least, as long, and longer; with a space; equal letters with one between.
    let images = [
        line("Ab", 20),
        line("CéA bbA", 48),
        line("A bA bA bCé", 9),
        line("A A", 31),
    ];
    assert_eq!(
        texts(&reader, &images),
        [["Ab"], ["CéA bA"], ["A bA bA bCé"], ["A A"]]
    );
    // Grey is repeated on three channels.
    let mut grey = common::grey(20, 40);
    grey.pixels_chw.fill(1.0);
    assert_eq!(texts(&reader, &[grey]), [["é"]]);
}

#[test]
fn lines_are_found_and_read_row_by_row() {
    let reader = PaddleReader::open(&OcrSettings::new(folder())).unwrap();
    let scene = image(
        [200, 240],
        24,
        &[("éC", [140, 60]), ("éAb", [24, 130]), ("Cé", [28, 20])],
    );
    let found = texts(&reader, &[scene, image([200, 240], 24, &[])]);
    // A box has a margin, whose black is a space.
    let trimmed: Vec<&str> = found[0].iter().map(|text| text.trim()).collect();
    assert_eq!(trimmed, ["Cé", "éAb", "éC"]);
    assert_eq!(found[1], Vec::<String>::new());
}

#[test]
fn bits_depend_neither_on_the_batch_nor_on_threads() {
    let words = [
        "Ab",
        "CéA",
        "A bA bA bCé",
        "b",
        "éééA",
        "CbA",
        "A A",
        "bC",
        "AbCAbCAbC",
    ];
    let images: Vec<Image> = words
        .iter()
        .enumerate()
        .map(|(index, word)| line(word, 17 + 3 * index))
        .collect();
    let letters = ['a', 'b', 'c', 'é'];
    let requests: Vec<_> = images
        .iter()
        .map(|image| ReadRequest {
            image,
            letters: &letters,
        })
        .collect();
    let reader = |batch| {
        let settings = OcrSettings {
            batch,
            ..without_detection()
        };
        PaddleReader::open(&settings).unwrap()
    };
    let one_by_one = reader(1);
    let alone: Vec<_> = requests
        .iter()
        .map(|request| one_by_one.read(&[*request]).unwrap().remove(0))
        .collect();
    assert!(
        alone
            .iter()
            .all(|lines| lines[0].probabilities.len() % 5 == 0 && !lines[0].probabilities.is_empty())
    );
    for batch in [2, 8, 64] {
        assert_eq!(reader(batch).read(&requests).unwrap(), alone, "batch {batch}");
    }
    let shared = reader(4);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| shared.read(&requests).unwrap()))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), alone);
        }
    });
}

#[test]
fn the_reward_of_the_registry_scores_by_the_files_that_the_config_names() {
    let mut registry = RewardRegistry::with_built_in().unwrap();
    flow_rewards_ocr::register(&mut registry).unwrap();
    let build = |mode: &str| {
        let params = json!({ "path": ".", "detect": false, "mode": mode, "target": "prompt" });
        registry
            .build("ocr", params.as_object().unwrap(), &folder())
            .unwrap()
    };
    let (right, wrong) = (line("AbC", 24), line("AAA", 24));
    let prompt = Prompt::free(0, "abc");
    let images = [(&right, &prompt), (&wrong, &prompt)];
    let distance = scores(&*build("distance"), &images).unwrap();
    assert!(
        (distance[0] - 1.0).abs() < 1e-6 && (distance[1] - 1.0 / 3.0).abs() < 1e-6,
        "{distance:?}"
    );
    assert_eq!(scores(&*build("exact"), &images).unwrap(), [1.0, 0.0]);
    let log = build("log-probability");
    let log_scores = scores(&*log, &images).unwrap();
    assert!(log_scores[0] > -0.1 && log_scores[1] < -4.0, "{log_scores:?}");
    let (low, high) = log.range();
    assert!(
        log_scores
            .iter()
            .all(|score| (low..=high).contains(&f64::from(*score)))
    );
    assert!(
        log.check_prompt(&Prompt::free(0, "abd"))
            .unwrap_err()
            .contains("never reads `d`")
    );
}

/// The error of files in a folder.
fn refused(settings: OcrSettings) -> String {
    let error = OcrReward::new(settings).unwrap_err();
    assert!(
        matches!(error, RewardError::File { .. } | RewardError::Params { .. }),
        "{error:?}"
    );
    error.to_string()
}

fn copy(name: &str, folder: &Path, to: &str) {
    std::fs::copy(fixture(name), folder.join(to)).unwrap();
}

#[test]
fn files_that_do_not_fit_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let usual = || OcrSettings::new(path);
    assert!(refused(OcrSettings::new(path.join("nowhere"))).contains("it is not there"));
    assert!(refused(usual()).contains("no ONNX file in it"));
    copy("tiny_rec.onnx", path, "my_rec.onnx");
    assert!(refused(usual()).contains("none has `det` in its name; name one as `detector`"));
    OcrReward::new(OcrSettings {
        detect: false,
        ..usual()
    })
    .unwrap();
    // The other network in the place of each.
    copy("tiny_rec.onnx", path, "det.onnx");
    assert!(refused(usual()).contains("det.onnx: it is no detector"));
    let swapped = OcrSettings {
        detect: false,
        ..OcrSettings::new(fixture("tiny_det.onnx"))
    };
    assert!(refused(swapped).contains("tiny_det.onnx: it is no recogniser"));
    copy("tiny_rec.onnx", path, "rec_b.onnx");
    assert!(refused(usual()).contains("`my_rec.onnx`, `rec_b.onnx`; name one as `path`"));
    OcrReward::new(OcrSettings {
        detector: Some(fixture("tiny_det.onnx")),
        mode: OcrMode::Exact,
        ..OcrSettings::new(path.join("rec_b.onnx"))
    })
    .unwrap();
    for (content, words) in [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:12",
            "git lfs pull",
        ),
        ("<html>", "cannot be read as an ONNX file"),
        ("", "cannot be read as an ONNX file"),
    ] {
        std::fs::write(path.join("rec_b.onnx"), content).unwrap();
        assert!(
            refused(OcrSettings::new(path.join("rec_b.onnx"))).contains(words),
            "{words}"
        );
    }
    std::fs::write(path.join("letters.txt"), "A\nb\nC\n").unwrap();
    let with_dictionary = |name: &str| OcrSettings {
        detect: false,
        dictionary: Some(path.join(name)),
        ..OcrSettings::new(path.join("my_rec.onnx"))
    };
    assert!(
        refused(with_dictionary("letters.txt")).contains("3 characters, and the recogniser has 6 classes")
    );
    std::fs::write(path.join("letters.txt"), "x\ny\nz\nw\n").unwrap();
    let reader = PaddleReader::open(&with_dictionary("letters.txt")).unwrap();
    assert_eq!(texts(&reader, &[line("AbCé", 20)]), [["xyzw"]]);
}

#[test]
fn a_pinned_file_is_verified_and_a_pin_of_no_file_is_told() {
    // As `sha256sum tests/fixtures/tiny_rec.onnx` prints.
    const SHA256: &str = "4399c5648f3580d750bbc96edc1d9bd088b2f94afdbea99ae0424346ccec382e";
    let pinned = |name: &str, hash: &str| OcrSettings {
        sha256: [(name.to_owned(), hash.to_owned())].into(),
        ..without_detection()
    };
    OcrReward::new(pinned("tiny_rec.onnx", SHA256)).unwrap();
    OcrReward::new(pinned("tiny_rec.onnx", &SHA256.to_uppercase())).unwrap();
    let other = refused(pinned("tiny_rec.onnx", &SHA256.replace('0', "1")));
    assert!(
        other.contains(SHA256) && other.contains("another file, or one that is damaged"),
        "{other}"
    );
    let none = refused(pinned("rec.onnx", SHA256));
    assert!(
        none.contains("`sha256` has `rec.onnx`") && none.contains("`tiny_rec.onnx`"),
        "{none}"
    );
}
