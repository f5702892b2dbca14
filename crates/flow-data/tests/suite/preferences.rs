//! `kind = "preferences"`: pairs of pictures as a data set.

use flow_data::{DataError, Dataset, Preferences, PreferencesSettings};
use image::{ImageFormat, Rgb, RgbImage};
use std::path::Path;

/// Writes a PNG of one grey.
fn picture(folder: &Path, name: &str, (width, height): (u32, u32), grey: u8) {
    RgbImage::from_pixel(width, height, Rgb([grey; 3]))
        .save_with_format(folder.join(name), ImageFormat::Png)
        .unwrap();
}

fn settings(folder: &Path, lines: &str) -> PreferencesSettings {
    let path = folder.join("pairs.jsonl");
    std::fs::write(&path, lines).unwrap();
    PreferencesSettings {
        width: Some(4),
        height: Some(3),
        ..PreferencesSettings::new(path)
    }
}

fn refused(settings: &PreferencesSettings) -> String {
    match Preferences::read(settings) {
        Err(DataError::Pictures { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_each_pair_the_better_picture_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (name, grey) in [("a.png", 10), ("b.png", 20), ("c.png", 30)] {
        picture(at, name, (6, 5), grey);
    }
    // The second line has the first one's prompt and one of its pictures; the third is the first again.
    let settings = settings(
        at,
        "{\"prompt\": \"a cat\", \"chosen\": \"a.png\", \"rejected\": \"b.png\", \"judge\": 7}\n\
         {\"prompt\": \"a cat\", \"chosen\": \"c.png\", \"rejected\": \"a.png\"}\n\
         {\"prompt\": \"a cat\", \"chosen\": \"a.png\", \"rejected\": \"b.png\", \"judge\": 7}\n\
         {\"prompt\": \"a dog\", \"chosen\": \"b.png\", \"rejected\": \"c.png\"}\n",
    );
    let data = Preferences::read(&settings).unwrap();
    let pairs = data.preferences().unwrap();
    let images = pairs.images.unwrap();
    let shown: Vec<(String, u8)> = (0..images.len())
        .map(|index| {
            let example = images.example(index).unwrap();
            let grey = (example.image.pixels_chw[0] + 1.0) * 127.5;
            (example.prompt.text, grey.round() as u8)
        })
        .collect();
    let wanted = [
        ("a cat", 10),
        ("a cat", 20),
        ("a cat", 30),
        ("a cat", 10),
        ("a dog", 20),
        ("a dog", 30),
    ];
    assert_eq!(shown, wanted.map(|(text, grey)| (text.to_owned(), grey)));
    assert_eq!(pairs.pictures.len(), 6);
    assert!(pairs.pictures.place(3).unwrap().contains("line 2"));
    let texts: Vec<&str> = data.prompts().iter().map(|prompt| prompt.text.as_str()).collect();
    assert_eq!(texts, ["a cat", "a dog"]);
    assert_eq!(data.prompts()[0].metadata["judge"], 7);
    assert!(!data.prompts()[0].metadata.contains_key("chosen"));
    assert!(data.notes().join("\n").contains("line 3"), "{:?}", data.notes());
    // Pairs are nothing to imitate.
    assert!(data.captioned_images().is_none() && data.captioned_pictures().is_none());
}

#[test]
fn every_line_that_is_no_pair_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    picture(at, "a.png", (6, 5), 10);
    picture(at, "b.png", (6, 5), 20);
    picture(at, "copy.png", (6, 5), 10);
    picture(at, "tall.png", (5, 6), 30);
    std::fs::write(at.join("text.png"), "no picture").unwrap();
    let problem = refused(&settings(
        at,
        "{\"prompt\": \"right\", \"chosen\": \"a.png\", \"rejected\": \"b.png\"}\n\
         {\"prompt\": \"gone\", \"chosen\": \"none.png\", \"rejected\": \"nothing.png\"}\n\
         {\"prompt\": \"itself\", \"chosen\": \"a.png\", \"rejected\": \"a.png\"}\n\
         {\"prompt\": \"copy\", \"chosen\": \"a.png\", \"rejected\": \"copy.png\"}\n\
         {\"prompt\": \"unlike\", \"chosen\": \"tall.png\", \"rejected\": \"a.png\"}\n\
         {\"prompt\": \"lacking\", \"choosen\": \"a.png\", \"rejected\": \"b.png\"}\n\
         {\"prompt\": \"number\", \"chosen\": 3, \"rejected\": \"text.png\"}\n",
    ));
    for wanted in [
        "8 problem(s) in 7 lines",
        "line 2: `chosen`, `",
        "none.png",
        "line 2: `rejected`, `",
        "nothing.png",
        "line 3: `chosen` and `rejected` are the same picture",
        "line 4: `chosen` and `rejected` are the same picture",
        "line 5: `chosen` has 5 x 6 pixels and `rejected` 6 x 5",
        "line 6: there is no `chosen`",
        "did you mean `choosen`",
        "line 7: `chosen` is 3",
        "line 7: `rejected`, `",
    ] {
        assert!(problem.contains(wanted), "{wanted}: {problem}");
    }
    assert!(!problem.contains("line 1"), "{problem}");
    let missing = refused(&PreferencesSettings::new(at.join("none.jsonl")));
    assert!(missing.contains("there is nothing there"), "{missing}");
    let folder = refused(&PreferencesSettings::new(at));
    assert!(folder.contains("no `.jsonl` or `.csv`"), "{folder}");
}

#[test]
fn held_out_prompts_take_their_pairs_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    picture(at, "a.png", (6, 5), 10);
    picture(at, "b.png", (6, 5), 20);
    let line = |prompt: usize| {
        format!("{{\"prompt\": \"prompt {prompt}\", \"chosen\": \"a.png\", \"rejected\": \"b.png\"}}\n")
    };
    let lines: String = (0..20).map(line).collect();
    let data = Preferences::read(&settings(at, &lines)).unwrap();
    assert_eq!(data.held_out_prompts().len(), 2);
    assert_eq!(data.preferences().unwrap().pictures.len(), 36);
    // Prompts of a file of their own; all pairs are trained on then.
    std::fs::write(at.join("tests.jsonl"), "{\"prompt\": \"another\"}\n").unwrap();
    let with_tests = PreferencesSettings {
        test_path: Some(at.join("tests.jsonl")),
        ..settings(at, &lines)
    };
    let data = Preferences::read(&with_tests).unwrap();
    assert_eq!(data.held_out_prompts()[0].text, "another");
    assert_eq!(data.preferences().unwrap().pictures.len(), 40);
}
