//! `kind = "prompts"`: a file of prompts as a data set.

use flow_data::{Dataset, DatasetRegistry, FREE_PROMPT_ID, Prompts, PromptsSettings};
use serde_json::json;
use std::path::{Path, PathBuf};

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn texts(prompts: &[flow_data::Prompt]) -> Vec<&str> {
    prompts.iter().map(|prompt| prompt.text.as_str()).collect()
}

#[test]
fn a_share_of_one_file_is_held_out_and_every_prompt_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..25).map(|number| format!("picture {number}")).collect();
    let path = write(folder.path(), "all.txt", &lines.join("\n"));
    let data = Prompts::read(&PromptsSettings::new(&path)).unwrap();
    assert_eq!(texts(data.prompts()), lines);
    let ids: Vec<u32> = data.prompts().iter().map(|prompt| prompt.id).collect();
    assert_eq!(ids, (0..25).collect::<Vec<_>>());
    // A tenth, rounded to the nearest number.
    let (train, test) = (data.train_prompts(), data.held_out_prompts());
    assert_eq!((train.len(), test.len()), (22, 3));
    assert!(test.iter().all(|prompt| !train.contains(prompt)));
    let fewer = PromptsSettings {
        test_count: Some(7),
        ..PromptsSettings::new(&path)
    };
    assert_eq!(Prompts::read(&fewer).unwrap().held_out_prompts().len(), 7);
}

#[test]
fn a_prompt_that_the_files_do_not_have_stands_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "all.txt", "a cat\n\n\na dog\n");
    let data = Prompts::read(&PromptsSettings::new(&path)).unwrap();
    let place = |text| data.place(&data.parse_prompt(text).unwrap());
    assert!(place("a dog").unwrap().ends_with("all.txt`, line 4"));
    assert_eq!(place("a cow"), None);
}

#[test]
fn a_second_file_is_for_evaluation_and_what_both_have_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let train = write(folder.path(), "train.txt", "a cat\na dog\na cat\n");
    let test = write(folder.path(), "test.txt", "a cow\na dog\n");
    let settings = PromptsSettings {
        test_path: Some(test),
        ..PromptsSettings::new(train)
    };
    let data = Prompts::read(&settings).unwrap();
    assert_eq!(texts(&data.train_prompts()), ["a cat", "a dog"]);
    assert_eq!(texts(&data.held_out_prompts()), ["a cow", "a dog"]);
    assert_eq!(data.prompt(3).unwrap().text, "a dog");
    let place = |id| data.place(data.prompt(id).unwrap()).unwrap();
    assert!(place(1).ends_with("train.txt`, line 2"), "{}", place(1));
    assert!(place(2).ends_with("test.txt`, line 1"), "{}", place(2));
    let notes = data.notes().join("\n");
    assert!(
        notes.contains("are there more than once and count once (line 3)"),
        "{notes}"
    );
    assert!(notes.contains("1 of 2 prompts of"), "{notes}");
}

#[test]
fn what_a_line_says_beside_its_prompt_reaches_rewards() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        json!({ "caption": "two cups", "count": 2, "tags": ["cup"] }),
        json!({ "caption": "eine Tür", "count": 1 }),
        json!({ "caption": "赤い車" }),
    ];
    let lines = lines.map(|line| line.to_string()).join("\n");
    let path = write(folder.path(), "all.jsonl", &lines);
    let settings = json!({ "path": "all.jsonl", "key": "caption", "test_count": 1 });
    let registry = DatasetRegistry::with_built_in().unwrap();
    let data = registry
        .build("prompts", settings.as_object().unwrap(), path.parent().unwrap())
        .unwrap();
    assert_eq!(data.prompts()[0].metadata["count"], json!(2));
    assert_eq!(data.prompts()[0].metadata["tags"], json!(["cup"]));
    assert_eq!(texts(data.prompts()), ["two cups", "eine Tür", "赤い車"]);
    assert!(data.tokenized().is_none() && data.captioned_images().is_none());
}

#[test]
fn any_text_is_a_prompt_and_one_of_the_list_is_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "all.txt", "a cat\na dog\n");
    let data = Prompts::read(&PromptsSettings::new(path)).unwrap();
    assert_eq!(data.parse_prompt("a dog").unwrap().id, 1);
    let free = data.parse_prompt("a zebra").unwrap();
    assert_eq!((free.id, free.text.as_str()), (FREE_PROMPT_ID, "a zebra"));
    assert!(!data.is_held_out(&free));
    let unknown = data.prompt(free.id).unwrap_err().to_string();
    assert!(unknown.contains("its ids are 0 to 1"), "{unknown}");
}

#[test]
fn a_file_that_cannot_be_used_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let problem = |name: &str, text: &str| {
        let path = write(folder.path(), name, text);
        Prompts::read(&PromptsSettings::new(path))
            .unwrap_err()
            .to_string()
    };
    let one = problem("one.txt", "a cat\n");
    assert!(
        one.contains("one.txt") && one.contains("`data.test_path`"),
        "{one}"
    );
    let empty = problem("empty.txt", "\n\n");
    assert!(empty.contains("there is no prompt in it"), "{empty}");
    let line = problem("bad.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\":\n");
    assert!(line.contains("line 2"), "{line}");
    let format = problem("prompts.pdf", "a cat\n");
    assert!(format.contains("`.txt` (one a line)"), "{format}");
}
