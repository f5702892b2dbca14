//! Files of prompts, as people write them and as programs damage them.

use flow_data::{PromptFormat, PromptList, PromptListError, PromptNote, TestShare};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::fs;
use std::path::Path;

fn parse(name: &str, bytes: impl AsRef<[u8]>) -> Result<PromptList, PromptListError> {
    let path = Path::new(name);
    PromptList::parse(
        path,
        bytes.as_ref(),
        PromptFormat::from_path(path).unwrap(),
        "prompt",
    )
}

fn texts(list: &PromptList) -> Vec<&str> {
    list.entries().iter().map(|entry| entry.text.as_str()).collect()
}

fn refused(name: &str, bytes: impl AsRef<[u8]>, parts: &[&str]) {
    let words = parse(name, bytes).unwrap_err().to_string();
    for part in parts {
        assert!(words.contains(part), "`{part}` is not in: {words}");
    }
}

#[test]
fn one_prompt_a_line_in_any_language_whatever_ends_the_lines() {
    let wanted = [
        "a cat",
        "一只猫坐在红色的沙发上",
        "قطة على الأريكة",
        "🙂 \"quoted\", and commas",
        "# no comment",
    ];
    for end in ["\n", "\r\n", "\r"] {
        for mark in ["", "\u{feff}"] {
            let text = format!(
                "{mark}{}{end}{end}  {end}\t",
                wanted.join(&format!("{end}{end}  "))
            );
            let list = parse("p.txt", text).unwrap();
            assert_eq!(texts(&list), wanted);
            let lines: Vec<usize> = list.entries().iter().map(|entry| entry.line).collect();
            assert_eq!(lines, [1, 3, 5, 7, 9]);
            assert!(list.notes().is_empty());
            assert!(list.entries().iter().all(|entry| entry.metadata.is_empty()));
        }
    }
    // What Python's `splitlines` would take for the end of a line is a part of the prompt.
    let list = parse("p.txt", "one\u{2028}two\u{85}three\u{b}four").unwrap();
    assert_eq!(list.len(), 1);
}

#[test]
fn metadata_of_json_lines_are_kept_as_they_are() {
    let text = concat!(
        "\u{feff}{\"tag\": \"counting\", \"include\": [{\"class\": \"wine glass\", \"count\": 2}], \"prompt\": \"two glasses\", \"x\": 1.50}\r\n",
        "\r\n",
        "\"a text alone\"\n",
        "{\"prompt\": \" spaces are kept \", \"width\": 512, \"height\": null}",
    );
    let list = parse("p.jsonl", text).unwrap();
    assert_eq!(texts(&list), ["two glasses", "a text alone", " spaces are kept "]);
    let first = &list.entries()[0];
    assert_eq!(first.metadata.keys().collect::<Vec<_>>(), ["tag", "include", "x"]);
    assert_eq!(
        first.metadata["include"],
        json!([{"class": "wine glass", "count": 2}])
    );
    assert_eq!(list.entries()[1].metadata, Map::new());
    assert_eq!(list.entries()[2].metadata["height"], Value::Null);
    assert_eq!((list.entries()[2].line, list.entries()[2].id), (4, 2));
    let named = PromptList::parse(
        Path::new("p.jsonl"),
        b"{\"caption\": \"a\"}",
        PromptFormat::JsonLines,
        "caption",
    );
    assert_eq!(texts(&named.unwrap()), ["a"]);
}

#[test]
fn every_bad_line_of_json_is_named_by_its_number() {
    let text = "{\"prompt\": \"good\"}\n{\"prompt\": \"cut off\n\n{\"prompts\": \"b\", \"tag\": 1}\n{\"prompt\": 7}\n[1]\n{\"prompt\": \"  \"}\n";
    refused(
        "p.jsonl",
        text,
        &[
            "5 line(s) cannot be read",
            "line 2: no JSON",
            "at column 19",
            "line 4: there is no `prompt` among `prompts`, `tag` (did you mean `prompts`?)",
            "line 5: `prompt` is 7, and a prompt is a text",
            "line 6: it is a list",
            "line 7: the prompt is empty",
        ],
    );
    let many: String = (0..50).map(|_| "{\n").collect();
    refused("p.jsonl", many, &["50 line(s)", "and 30 more"]);
    refused(
        "p.jsonl",
        "[\n  {\"prompt\": \"a\"}\n]",
        &["one piece of JSON over several lines", "jq -c"],
    );
}

#[test]
fn a_key_that_is_twice_in_a_line_of_json_is_refused_where_the_last_would_count() {
    let text = "{\"prompt\": \"a\", \"box\": {\"x\": 1}}\n\
                {\"prompt\": \"a\", \"n\": 1, \"prompt\": \"b\"}\n\
                {\"prompt\": \"c\", \"n\": 1, \"\\u006e\": 1}\n";
    refused(
        "p.jsonl",
        text,
        &[
            "2 line(s) cannot be read",
            "line 2: `prompt` is there twice; keep one of them",
            "line 3: `n` is there twice",
        ],
    );
}

#[test]
fn tables_are_read_with_quotes_and_line_breaks_and_any_delimiter() {
    let wanted = ["a cat, sitting", "say \"hi\"", "two\nlines", "plain"];
    let table =
        "tag,prompt\r\n1,\"a cat, sitting\"\r\n2,\"say \"\"hi\"\"\"\r\n\r\n3,\"two\r\nlines\"\r\n,plain";
    let list = parse("p.csv", table).unwrap();
    assert_eq!(texts(&list), wanted);
    let lines: Vec<usize> = list.entries().iter().map(|entry| entry.line).collect();
    assert_eq!(lines, [2, 3, 5, 7]);
    assert_eq!(list.entries()[3].metadata["tag"], json!(""));
    let tabs = parse("p.tsv", "Prompt\tCategory\na cat, sitting\tAnimals\n5\" nails\tX").unwrap();
    assert_eq!(texts(&tabs), ["a cat, sitting", "5\" nails"]);
    assert_eq!(tabs.entries()[0].metadata["Category"], json!("Animals"));
    let semicolons = parse("p.csv", "prompt;note\na, b;c").unwrap();
    assert_eq!(texts(&semicolons), ["a, b"]);
    assert_eq!(texts(&parse("p.csv", "prompt\na\nb\n").unwrap()), ["a", "b"]);
}

#[test]
fn what_would_make_other_prompts_of_a_table_is_named_by_its_line() {
    refused(
        "p.csv",
        "tag,prompt\n1,a cat, sitting\n2,b\n3,\n",
        &[
            "line 2: 3 column(s), and the first row names 2",
            "double quotes",
            "line 4: the prompt is empty",
        ],
    );
    refused(
        "p.csv",
        "prompt\na\n\"never closed\nb\nc\n",
        &["line 3: a quote begins here and is never closed"],
    );
    refused(
        "p.csv",
        "prompt,x\n\"a\"b,1\n",
        &["line 2: behind a closing quote stands `b`"],
    );
    refused(
        "p.csv",
        "promt,x\na,1\n",
        &[
            "line 1: there is no `prompt` among `promt`, `x` (did you mean `promt`?)",
            "first row",
        ],
    );
}

#[test]
fn bytes_that_are_no_utf8_are_named_by_line_and_place() {
    let latin = b"a cat\ncaf\xe9 at night\nnoir\nna\xefve\n";
    refused(
        "p.txt",
        latin,
        &[
            "2 line(s)",
            "line 2: byte 4 (0xe9) is no UTF-8, behind \"caf\"",
            "line 4: byte 3 (0xef)",
            "save the file in UTF-8",
        ],
    );
    let utf16: Vec<u8> = "\u{feff}a cat\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    refused("p.txt", &utf16, &["it is in UTF-16"]);
    refused("p.txt", &utf16[2..], &["zero bytes"]);
}

#[test]
fn files_that_are_no_prompts_are_named_by_what_they_are() {
    refused(
        "p.txt",
        b"version https://git-lfs.github.com/spec/v1\noid",
        &["pointer of Git LFS"],
    );
    refused("p.jsonl", b"PAR1...", &["Parquet"]);
    refused("p.csv", b"PK\x03\x04", &["spreadsheet"]);
    refused("p.txt", b"\x1f\x8b\x08", &["gzip"]);
    refused("p.txt", b"<!DOCTYPE html>", &["HTML"]);
    for (name, text) in [
        ("p.txt", ""),
        ("p.txt", " \n\r\n"),
        ("p.jsonl", "\n"),
        ("p.csv", "prompt\n"),
        ("p.csv", ""),
    ] {
        refused(name, text, &["there is no prompt in it"]);
    }
    let words = PromptList::read(Path::new("prompts.parquet"), "prompt")
        .unwrap_err()
        .to_string();
    assert!(words.contains("`.jsonl`") && words.contains("`.csv`"), "{words}");
    let words = PromptList::read(Path::new("no-such.txt"), "prompt")
        .unwrap_err()
        .to_string();
    assert!(words.contains("cannot read the prompts `no-such.txt`"), "{words}");
}

#[test]
fn repetitions_count_once_unless_their_metadata_differ() {
    let list = parse("p.txt", "a\nb\na\n a \nc\n").unwrap();
    assert_eq!(texts(&list), ["a", "b", "c"]);
    assert_eq!(list.notes(), [PromptNote::Repeated(vec![3, 4])]);
    assert!(list.notes()[0].to_string().contains("(line 3, 4)"));
    let list = parse(
        "p.jsonl",
        "{\"prompt\":\"a\",\"t\":1}\n{\"prompt\":\"a\",\"t\":2}\n{\"prompt\":\"a\",\"t\":1}\n",
    )
    .unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(
        list.notes(),
        [PromptNote::Repeated(vec![3]), PromptNote::SeveralMetadata(1)]
    );
}

#[test]
fn a_split_depends_on_seed_and_texts_alone() {
    let lines: Vec<String> = (0..200).map(|number| format!("prompt {number}")).collect();
    let split = |lines: &[String], seed| {
        let list = parse("p.txt", lines.join("\n")).unwrap();
        let (train, test) = list.split(TestShare::Fraction(0.1), seed).unwrap();
        assert_eq!(train.len() + test.len(), lines.len());
        let ids = train.entries().iter().chain(test.entries()).map(|entry| entry.id);
        assert_eq!(ids.collect::<HashSet<_>>().len(), lines.len());
        test.entries()
            .iter()
            .map(|entry| entry.text.clone())
            .collect::<HashSet<String>>()
    };
    let tests = split(&lines, 7);
    assert_eq!(tests.len(), 20);
    let reversed: Vec<String> = lines.iter().rev().cloned().collect();
    assert_eq!(split(&reversed, 7), tests);
    assert_ne!(split(&lines, 8), tests);
    // Ten more prompts put one more into the tests, and take out as many as they are themselves.
    let more: Vec<String> = (0..210).map(|number| format!("prompt {number}")).collect();
    let stayed = split(&more, 7).intersection(&tests).count();
    assert!(stayed >= 15, "{stayed} of 20");
}

#[test]
fn a_text_is_on_one_side_of_a_split_whatever_its_metadata() {
    let lines: String = (0..60)
        .map(|number| format!("{{\"prompt\":\"p{}\",\"n\":{number}}}\n", number % 20))
        .collect();
    let (train, test) = parse("p.jsonl", lines)
        .unwrap()
        .split(TestShare::Count(5), 1)
        .unwrap();
    assert_eq!((train.len(), test.len()), (45, 15));
    assert!(train.shared_with(&test).is_empty());
}

#[test]
fn a_split_that_leaves_a_side_empty_is_refused() {
    let list = || parse("p.txt", "a\nb\nc").unwrap();
    for (share, part) in [
        (TestShare::Count(0), "from 1 to 2 can"),
        (TestShare::Count(3), "from 1 to 2 can"),
        (TestShare::Fraction(0.0), "above 0 and below 1"),
        (TestShare::Fraction(f64::NAN), "above 0 and below 1"),
        (TestShare::Fraction(0.99), "3 of 3 different prompts"),
    ] {
        let words = list().split(share, 0).unwrap_err().to_string();
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(list().split(TestShare::Fraction(0.01), 0).unwrap().1.len(), 1);
    assert!(
        parse("p.txt", "only")
            .unwrap()
            .split(TestShare::Count(1), 0)
            .is_err()
    );
}

#[test]
fn prompts_of_a_test_file_that_are_trained_on_are_found() {
    let train = parse("train.txt", "a\nb\nc").unwrap();
    let test = parse("test.jsonl", "{\"prompt\":\"x\"}\n{\"prompt\":\"b\",\"tag\":1}").unwrap();
    assert_eq!(train.shared_with(&test), [2]);
}

#[test]
fn a_file_is_read_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.JSONL");
    fs::write(&path, "{\"prompt\": \"a cat\"}\n").unwrap();
    let list = PromptList::read(&path, "prompt").unwrap();
    assert_eq!((texts(&list), list.path()), (vec!["a cat"], path.as_path()));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), text in "[\"\\\\,;\\t\\n\\r{}:a-c ]{0,60}") {
        for name in ["p.txt", "p.jsonl", "p.csv"] {
            let _ = parse(name, &bytes);
            let _ = parse(name, &text);
            let _ = parse(name, format!("prompt,x\n{text}"));
        }
    }

    #[test]
    fn prompts_come_back_from_each_format(prompts in prop::collection::hash_set("[^\\x00]{1,12}", 1..6)) {
        let prompts: Vec<String> = prompts.into_iter().filter(|it| !it.trim().is_empty() && !it.contains(['\r'])).collect();
        prop_assume!(!prompts.is_empty());
        let json: String = prompts.iter().map(|it| json!({ "prompt": it, "n": 1 }).to_string() + "\n").collect();
        let list = parse("p.jsonl", json).unwrap();
        prop_assert_eq!(texts(&list), prompts.iter().map(String::as_str).collect::<Vec<_>>());
        let rows: String = prompts.iter().map(|it| format!("1,\"{}\"\n", it.replace('"', "\"\""))).collect();
        let table = parse("p.csv", format!("n,prompt\n{rows}")).unwrap();
        prop_assert_eq!(texts(&table), prompts.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
