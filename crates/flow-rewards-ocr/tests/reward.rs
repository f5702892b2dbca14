//! The reward's arithmetic, with a reader that is told what it reads.

mod common;

use common::{grey, scores};
use flow_data::{Image, Prompt};
use flow_rewards::{Reward, RewardError};
use flow_rewards_ocr::{
    OcrMode, OcrReward, OcrSettings, OcrTarget, ReadError, ReadLine, ReadRequest, Reader, distance,
    distance_score, normalised,
};
use serde::Deserialize;
use serde_json::json;
use std::sync::{Arc, Mutex};

/// Reads the lines that it is told, in an image as wide as their place; knows no `q`.
#[derive(Default)]
struct Told {
    lines: Vec<Vec<ReadLine>>,
    calls: Mutex<Vec<usize>>,
}

impl Reader for Told {
    fn read(&self, requests: &[ReadRequest<'_>]) -> Result<Vec<Vec<ReadLine>>, ReadError> {
        self.calls.lock().unwrap().push(requests.len());
        let read = |(index, request): (usize, &ReadRequest<'_>)| {
            let problem = "it is too wide".to_owned();
            let lines = self.lines.get(request.image.width - 1);
            lines.cloned().ok_or(ReadError { index, problem })
        };
        requests.iter().enumerate().map(read).collect()
    }

    fn unknown_letters(&self, letters: &[char]) -> Vec<char> {
        letters.iter().copied().filter(|letter| *letter == 'q').collect()
    }
}

fn line(text: &str, confidence: f32) -> ReadLine {
    ReadLine {
        text: text.into(),
        confidence,
        probabilities: vec![],
    }
}

fn told(settings: OcrSettings, lines: Vec<Vec<ReadLine>>) -> OcrReward {
    let reader = Told {
        lines,
        ..Told::default()
    };
    OcrReward::with_reader(settings, Arc::new(reader)).unwrap()
}

fn with_mode(mode: OcrMode) -> OcrSettings {
    OcrSettings {
        mode,
        ..OcrSettings::new("not-read")
    }
}

/// Score of one image in which `lines` are read.
fn score(settings: OcrSettings, lines: Vec<ReadLine>, prompt: &Prompt) -> Result<f32, RewardError> {
    let reward = told(settings, vec![lines]);
    scores(&reward, &[(&grey(4, 1), prompt)]).map(|scores| scores[0])
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    recognised: String,
    target: String,
    distance: usize,
    score: f64,
}

#[test]
fn scores_are_those_of_flow_grpos_formula_in_python() {
    let cases = std::fs::read_to_string(common::fixture("cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&cases).unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let read = normalised(&case.recognised);
        assert_eq!(distance(&read, &case.target), case.distance, "{}", case.prompt);
        assert!((f64::from(distance_score(&read, &case.target)) - case.score).abs() < 1e-7);
        // The same through the reward, in two lines.
        let middle = case
            .recognised
            .char_indices()
            .nth(case.recognised.chars().count() / 2);
        let (first, second) = case.recognised.split_at(middle.map_or(0, |(place, _)| place));
        let lines = vec![line(first, 0.9), line(second, 0.9)];
        let found = score(with_mode(OcrMode::Distance), lines, &Prompt::free(0, case.prompt)).unwrap();
        assert!((f64::from(found) - case.score).abs() < 1e-7);
    }
}

#[test]
fn exact_is_the_text_and_nothing_beside_it() {
    let prompt = Prompt::free(0, "\"Open Now\"");
    for (text, wanted) in [("open NOW", 1.0), ("OPENNOW", 1.0), ("open now!", 0.0), ("", 0.0)] {
        let found = score(with_mode(OcrMode::Exact), vec![line(text, 1.0)], &prompt).unwrap();
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn unsure_lines_are_left_out_where_text_is_looked_for() {
    let prompt = Prompt::free(0, "\"ab\"");
    let read = |detect, min_confidence| {
        let settings = OcrSettings {
            detect,
            min_confidence,
            ..OcrSettings::new("not-read")
        };
        score(settings, vec![line("a", 0.5), line("b", 0.49)], &prompt).unwrap()
    };
    assert_eq!(read(true, None), 0.5);
    assert_eq!(read(false, None), 1.0);
    assert_eq!(read(true, Some(0.0)), 1.0);
    assert_eq!(read(false, Some(0.6)), 0.0);
}

#[test]
fn the_log_probability_is_that_of_the_lines_one_behind_the_other() {
    // Columns: no letter, `e`, `o`. The text is `oee` in two lines; both `e` need the end of a line between them.
    let of = |probabilities: &[f32]| ReadLine {
        probabilities: probabilities.to_vec(),
        ..line("", 0.0)
    };
    let lines = vec![of(&[0.1, 0.1, 0.8, 0.3, 0.6, 0.1]), of(&[0.25, 0.5, 0.25])];
    let found = score(
        with_mode(OcrMode::LogProbability),
        lines,
        &Prompt::free(0, "\"Oe E\""),
    )
    .unwrap();
    let wanted = (0.8_f64 * 0.6 * 0.5).ln() / 3.0;
    assert!((f64::from(found) - wanted).abs() < 1e-6, "{found}, not {wanted}");
    // Nothing was found in the image: the least score there is, within the range.
    let reward = told(with_mode(OcrMode::LogProbability), vec![vec![]]);
    let least = scores(&reward, &[(&grey(4, 1), &Prompt::free(0, "\"oe\""))]).unwrap()[0];
    assert!(
        least.is_finite() && f64::from(least) >= reward.range().0 && least < -23.0,
        "{least}"
    );
}

#[test]
fn the_target_is_between_quotes_or_the_prompt_or_in_the_metadata() {
    let mut prompt = Prompt::free(0, "say \"ab\" or \"cd\"");
    prompt.metadata.insert("text".into(), json!("E F"));
    prompt.metadata.insert("count".into(), json!(3));
    let target = |target: &str| OcrSettings {
        target: OcrTarget::try_from(target.to_owned()).unwrap(),
        mode: OcrMode::Exact,
        ..OcrSettings::new("not-read")
    };
    for (key, text) in [
        ("quotes", "AB"),
        ("prompt", "say\"ab\"or\"cd\""),
        ("metadata:text", "ef"),
    ] {
        let found = score(target(key), vec![line(text, 1.0)], &prompt).unwrap();
        assert_eq!(found, 1.0, "{key}");
        assert_eq!(target(key).target.to_string(), key);
    }
    for wrong in ["quote", "metadata:", "metadata", ""] {
        let problem = OcrTarget::try_from(wrong.to_owned()).unwrap_err();
        assert!(problem.contains("metadata:KEY"), "{problem}");
    }
    let problem = |key: &str, prompt: &Prompt| {
        let reward = told(target(key), vec![vec![]]);
        let problem = reward.check_prompt(prompt).unwrap_err();
        // Where nobody asked before, the sample is refused and gets no score.
        let error = scores(&reward, &[(&grey(4, 1), prompt)]).unwrap_err().to_string();
        assert!(
            error.starts_with("sample 0: ") && error.contains(&problem),
            "{error}"
        );
        problem
    };
    let free = |text: &str| Prompt::free(0, text);
    assert!(problem("quotes", &free("a fox")).contains("no text in double quotes"));
    assert!(problem("quotes", &free("a sign “Open”")).contains("typographic"));
    assert!(problem("quotes", &free("a 5\" screen")).contains("not closed"));
    assert!(problem("quotes", &free("a sign \" \"")).contains("empty"));
    assert!(problem("metadata:txt", &prompt).contains("no `txt`, but `text`, `count`"));
    assert!(problem("metadata:count", &prompt).contains("is 3, and no text"));
    assert!(problem("metadata:text", &free("\"a\"")).contains("no metadata"));
}

#[test]
fn a_text_that_can_never_be_read_is_refused_but_where_parts_count() {
    let prompt = Prompt::free(0, "the word \"Queue\"");
    for mode in [OcrMode::Exact, OcrMode::LogProbability] {
        let problem = told(with_mode(mode), vec![]).check_prompt(&prompt).unwrap_err();
        assert!(problem.contains("never reads `q`"), "{problem}");
    }
    assert_eq!(
        told(with_mode(OcrMode::Distance), vec![]).check_prompt(&prompt),
        Ok(())
    );
    let found = score(with_mode(OcrMode::Distance), vec![line("ueue", 1.0)], &prompt).unwrap();
    assert_eq!(found, 0.8);
}

#[test]
fn images_are_read_in_batches_and_an_error_names_the_sample() {
    let lines: Vec<Vec<ReadLine>> = ["a", "ab", "abc", "abcd", ""]
        .map(|text| vec![line(text, 1.0)])
        .to_vec();
    let reader = Arc::new(Told {
        lines,
        ..Told::default()
    });
    let settings = OcrSettings {
        batch: 2,
        ..OcrSettings::new("not-read")
    };
    let reward = OcrReward::with_reader(settings, reader.clone()).unwrap();
    let prompt = Prompt::free(0, "\"abcd\"");
    let images: Vec<Image> = (1..=6).map(|width| grey(3, width)).collect();
    let samples: Vec<(&Image, &Prompt)> = images.iter().map(|image| (image, &prompt)).collect();
    assert_eq!(
        scores(&reward, &samples[..5]).unwrap(),
        [0.25, 0.5, 0.75, 1.0, 0.0]
    );
    assert_eq!(*reader.calls.lock().unwrap(), [2, 2, 1]);
    let error = scores(&reward, &samples).unwrap_err().to_string();
    assert_eq!(error, "sample 5: it is too wide");
    let mut broken = grey(3, 1);
    broken.pixels_chw[2] = f32::NAN;
    let error = scores(&reward, &[samples[0], samples[1], (&broken, &prompt)]).unwrap_err();
    assert!(matches!(error, RewardError::Sample { index: 2, .. }), "{error}");
}

#[test]
fn parameters_outside_their_range_are_refused_by_name() {
    let usual = || OcrSettings::new("not-read");
    let wrong = |settings: OcrSettings| {
        let error = OcrReward::with_reader(settings, Arc::new(Told::default())).unwrap_err();
        error.to_string()
    };
    let batch = OcrSettings { batch: 0, ..usual() };
    assert!(wrong(batch).contains("`batch`: 0 is not from 1 to 256"));
    for min_width in [7, 321] {
        let width = OcrSettings {
            min_width,
            ..usual()
        };
        assert!(wrong(width).contains("is not from 8 to 320"));
    }
    let confidence = OcrSettings {
        min_confidence: Some(f32::NAN),
        ..usual()
    };
    assert!(wrong(confidence).contains("`min_confidence`"));
    let sha256 = OcrSettings {
        sha256: [("rec.onnx".to_owned(), "12ab".to_owned())].into(),
        ..usual()
    };
    assert!(wrong(sha256).contains("64 hexadecimal digits"));
}
