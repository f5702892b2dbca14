//! `kind = "images"`: captioned pictures as a data set.

use flow_data::{DataError, Dataset, Images, ImagesSettings, TokenizedPrompts};
use image::{ImageFormat, Rgb, RgbImage};
use std::path::Path;

/// Writes a PNG of 6 by 5 pixels of one grey.
fn picture(folder: &Path, name: &str, grey: u8) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(6, 5, Rgb([grey; 3]))
        .save_with_format(path, ImageFormat::Png)
        .unwrap();
}

fn write(folder: &Path, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn settings(path: &Path) -> ImagesSettings {
    ImagesSettings {
        width: Some(4),
        height: Some(3),
        ..ImagesSettings::new(path)
    }
}

fn refused(settings: &ImagesSettings) -> String {
    match Images::read(settings) {
        Err(DataError::Pictures { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

/// Captions and the grey of their pictures, as pretraining is given them.
fn shown(data: &Images) -> Vec<(String, u8)> {
    let images = data.captioned_images().unwrap();
    (0..images.len())
        .map(|index| {
            let example = images.example(index).unwrap();
            let grey = (example.image.pixels_chw[0] + 1.0) * 127.5;
            (example.prompt.text, grey.round() as u8)
        })
        .collect()
}

#[test]
fn an_imagefolder_of_hugging_face_is_read_with_its_marks_and_line_ends() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    picture(at, "a.png", 10);
    picture(at, "deep/b.png", 20);
    // A byte order mark, line ends of Windows, an empty line, the same line twice, two captions of one picture.
    write(
        at,
        "metadata.jsonl",
        "\u{feff}{\"file_name\": \"a.png\", \"text\": \"a cat\", \"style\": \"ink\"}\r\n\r\n\
         {\"file_name\": \"deep/b.png\", \"text\": \"ein Würfel\"}\r\n\
         {\"file_name\": \"deep/b.png\", \"text\": \"ein Würfel\"}\r\n\
         {\"file_name\": \"a.png\", \"text\": \"an animal\"}\r\n",
    );
    let data = Images::read(&settings(at)).unwrap();
    let wanted = [("a cat", 10), ("ein Würfel", 20), ("an animal", 10)];
    assert_eq!(shown(&data), wanted.map(|(text, grey)| (text.to_owned(), grey)));
    assert_eq!(data.prompts()[0].metadata["style"], "ink");
    assert!(!data.prompts()[0].metadata.contains_key("file_name"));
    let notes = data.notes().join("\n");
    assert!(
        notes.contains("line 4") && notes.contains("1 picture(s)"),
        "{notes}"
    );
    // Pictures as files, for whoever encodes them.
    let pictures = data.captioned_pictures().unwrap();
    assert_eq!(
        pictures.bytes(1).unwrap(),
        std::fs::read(at.join("deep/b.png")).unwrap()
    );
    assert!(pictures.place(1).unwrap().contains("line 3"));
    assert!(matches!(
        pictures.bytes(3),
        Err(DataError::IndexOutOfRange { .. })
    ));
}

#[test]
fn text_files_beside_pictures_are_their_captions() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (name, grey) in [("b/two.png", 2), ("a/one.png", 1), (".hidden.png", 9)] {
        picture(at, name, grey);
    }
    write(at, "a/one.txt", "\u{feff}a cat,\r\n  sleeping\r\n");
    write(at, "b/two.txt", "a dog");
    write(at, "b/readme.md", "not a picture");
    let data = Images::read(&settings(at)).unwrap();
    let wanted = [("a cat, sleeping", 1), ("a dog", 2)];
    assert_eq!(shown(&data), wanted.map(|(text, grey)| (text.to_owned(), grey)));
    assert!(
        data.notes().join("\n").contains("1 file(s)"),
        "{:?}",
        data.notes()
    );
    // Captions that are missing, empty or of another encoding are all told at once.
    picture(at, "c.png", 3);
    picture(at, "d.png", 4);
    picture(at, "e.png", 5);
    write(at, "d.txt", " \n");
    write(at, "e.txt", b"line\nW\xfcrfel");
    let problem = refused(&settings(at));
    for wanted in [
        "3 of 5",
        "`c.txt`",
        "`d.txt` is empty",
        "`e.txt`: line 2",
        "UTF-8",
    ] {
        assert!(problem.contains(wanted), "{wanted}: {problem}");
    }
}

#[test]
fn every_line_whose_picture_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    picture(at, "a.png", 10);
    write(at, "empty.png", "");
    write(at, "page.png", "<html>");
    let lines = [
        r#"{"image": "a.png", "caption": "right"}"#,
        r#"{"image": "b.png", "caption": "missing"}"#,
        r#"{"image": "empty.png", "caption": "empty"}"#,
        r#"{"image": "page.png", "caption": "a page"}"#,
        r#"{"image": "https://example.org/a.png", "caption": "an address"}"#,
        r#"{"image": "~/a.png", "caption": "a home"}"#,
        r#"{"image": "sub\\a.png", "caption": "of Windows"}"#,
        r#"{"image": 7, "caption": "a number"}"#,
        r#"{"imgae": "a.png", "caption": "mistyped"}"#,
    ];
    write(at, "list.jsonl", lines.join("\n"));
    let problem = refused(&settings(&at.join("list.jsonl")));
    let wanted = [
        "list.jsonl",
        "8 of 9",
        "line 2: ",
        "no such file",
        "line 3: ",
        "it is empty",
        "line 4: ",
        "HTML",
        "line 5: ",
        "nothing is downloaded",
        "line 6: ",
        "`~` is not expanded",
        "line 7: ",
        "joined by `/`",
        "line 8: ",
        "is 7",
        "line 9: ",
        "did you mean `imgae`?",
    ];
    for wanted in wanted {
        assert!(problem.contains(wanted), "{wanted}: {problem}");
    }
    // Lines that are no captions, before any picture is looked at.
    write(
        at,
        "list.jsonl",
        "{\"image\": \"a.png\", \"caption\": \" \"}\n{\"image\": \"a.png\"}\nno json\n",
    );
    let problem = refused(&settings(&at.join("list.jsonl")));
    for wanted in [
        "line 1: ",
        "empty",
        "line 2: ",
        "no `caption`",
        "line 3: ",
        "no JSON",
    ] {
        assert!(problem.contains(wanted), "{wanted}: {problem}");
    }
    let nothing = refused(&settings(&at.join("none")));
    assert!(nothing.contains("there is nothing there"), "{nothing}");
    let both = tempfile::tempdir().unwrap();
    write(both.path(), "metadata.jsonl", "");
    write(both.path(), "metadata.csv", "");
    assert!(refused(&settings(both.path())).contains("keep one of them"));
    let none = tempfile::tempdir().unwrap();
    assert!(refused(&settings(none.path())).contains("no picture in it"));
}

#[test]
fn a_picture_that_is_cut_off_is_named_with_its_line_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    picture(at, "a.png", 10);
    let bytes = std::fs::read(at.join("a.png")).unwrap();
    write(at, "a.png", &bytes[..bytes.len() / 2]);
    write(at, "list.csv", "image,caption\na.png,a cat\n");
    let data = Images::read(&settings(&at.join("list.csv"))).unwrap();
    let error = data
        .captioned_images()
        .unwrap()
        .example(0)
        .unwrap_err()
        .to_string();
    for wanted in ["a.png", "line 2 of", "list.csv", "damaged or cut off"] {
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

/// Twenty-five pictures with captions, two of each caption but the last.
fn many(at: &Path) {
    let mut lines = String::new();
    for number in 0..25 {
        picture(at, &format!("{number}.png"), number);
        lines.push_str(&format!(
            "{{\"file_name\": \"{number}.png\", \"text\": \"picture {}\"}}\n",
            number / 2
        ));
    }
    write(at, "metadata.jsonl", lines);
}

#[test]
fn held_out_captions_are_not_trained_on_with_any_picture() {
    let folder = tempfile::tempdir().unwrap();
    many(folder.path());
    let data = Images::read(&settings(folder.path())).unwrap();
    // A tenth of 13, rounded down.
    let (train, test) = (data.train_prompts(), data.held_out_prompts());
    assert_eq!((train.len(), test.len()), (12, 1));
    let captions: Vec<String> = shown(&data).into_iter().map(|(caption, _)| caption).collect();
    assert!(!captions.contains(&test[0].text));
    assert!(captions.len() >= 23);
    let count = |settings| Images::read(&settings).unwrap().held_out_prompts().len();
    let base = settings(folder.path());
    assert_eq!(
        count(ImagesSettings {
            test_count: Some(5),
            ..base.clone()
        }),
        5
    );
    let too_many = refused(&ImagesSettings {
        test_count: Some(13),
        ..base.clone()
    });
    assert!(too_many.contains("data.test_count"), "{too_many}");
    // Nothing is held out: evaluation has the captions of training, and this is told.
    let all = Images::read(&ImagesSettings {
        test_fraction: 0.0,
        ..base.clone()
    })
    .unwrap();
    assert_eq!(shown(&all).len(), 25);
    assert_eq!(all.held_out_prompts(), all.train_prompts());
    assert!(
        all.notes()
            .join("\n")
            .contains("evaluation measures captions that are trained on")
    );
    let other = tempfile::tempdir().unwrap();
    picture(other.path(), "x.png", 1);
    write(other.path(), "x.txt", "picture 3");
    let two = Images::read(&ImagesSettings {
        test_path: Some(other.path().to_owned()),
        ..base
    })
    .unwrap();
    assert_eq!(shown(&two).len(), 25);
    assert!(
        two.notes().join("\n").contains("1 of 1 captions"),
        "{:?}",
        two.notes()
    );
}

#[test]
fn words_of_captions_are_tokens_where_a_model_learns_them() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    picture(at, "a.png", 1);
    picture(at, "b.png", 2);
    write(at, "a.txt", "Ein Würfel, rot!");
    write(at, "b.txt", "ein Ball");
    assert!(Images::read(&settings(at)).unwrap().tokenized().is_none());
    let data = Images::read(&ImagesSettings {
        words: true,
        ..settings(at)
    })
    .unwrap();
    let tokens = data.tokenized().unwrap();
    assert_eq!(tokens.vocabulary().words()[2..], ["ball", "ein", "rot", "würfel"]);
    assert_eq!(data.prompts()[0].tokens, [3, 5, 4]);
    assert_eq!(data.prompts()[1].tokens, [3, 2, 0]);
    let unknown = data.parse_prompt("EIN rott Ball").unwrap_err().to_string();
    assert!(unknown.contains("did you mean \"rot\"?"), "{unknown}");
    assert_eq!(data.parse_prompt("rot Ball").unwrap().tokens, [4, 2, 0]);
    assert!(data.parse_prompt("ein ein ein ein").is_err());
    assert_eq!(data.prompt_length(), 3);
}

#[test]
fn wrong_captions_are_those_of_other_pictures_and_always_the_same() {
    let folder = tempfile::tempdir().unwrap();
    many(folder.path());
    let data = Images::read(&settings(folder.path())).unwrap();
    let images = data.captioned_images().unwrap();
    let prompt = images.example(4).unwrap().prompt;
    let noisy = |fraction, index| images.noisy_prompt(&prompt, fraction, 3, index).unwrap();
    assert!((0..50).all(|index| noisy(0.0, index) == prompt));
    let all: Vec<_> = (0..200).map(|index| noisy(1.0, index)).collect();
    assert!(
        all.iter()
            .all(|other| *other != prompt && !data.is_held_out(other))
    );
    let different: std::collections::HashSet<&str> = all.iter().map(|other| other.text.as_str()).collect();
    assert_eq!(different.len(), 11, "every other caption that is trained on");
    assert!((0..200).all(|index| noisy(1.0, index) == all[index as usize]));
    // What is noisy at a fraction is noisy in the same way at a larger one.
    let half = (0..200).filter(|index| noisy(0.5, *index) != prompt);
    let half: Vec<u64> = half.collect();
    assert!((60..140).contains(&half.len()));
    assert!(
        half.iter()
            .all(|index| noisy(0.5, *index) == all[*index as usize])
    );
}
