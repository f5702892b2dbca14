//! The commands of the book's tutorial, run as they stand there, with fewer steps.

use crate::support::{Outcome, Place, contains};
use std::path::Path;
use std::process::{Command, Stdio};

/// Blocks of code of a page, in order: language and content.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(language), false) => {
                found.push((language.to_owned(), String::new()));
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => {
                if let Some((_, content)) = found.last_mut() {
                    content.push_str(&format!("{line}\n"));
                }
            }
            (None, false) => {}
        }
    }
    found
}

/// What a shell knows before the commands: the installed program, which takes few steps, and may refuse what `check` is shown
/// for.
const PRELUDE: &str = r#"
set -e
few="--set run.steps=2 --set evaluation.prompts=2 --set evaluation.images_per_prompt=2"
cargo() { test "$*" = "install --path crates/flow-train --locked"; }
flow-train() {
    case $1 in
        train) command flow-train "$@" $few ;;
        pretrain) command flow-train "$@" --set pretrain.steps=2 --set pretrain.warmup=1 ;;
        check) command flow-train "$@" || test $? = 2 ;;
        *) command flow-train "$@" ;;
    esac
}
"#;

/// Runs a block in `folder`.
fn shell(folder: &Path, block: &str) -> Outcome {
    let program = Path::new(env!("CARGO_BIN_EXE_flow-train"));
    let script = format!("PATH=\"$PROGRAMS:$PATH\"\n{PRELUDE}\n{block}");
    let output = Command::new("bash")
        .args(["--norc", "-c", &script])
        .env("PROGRAMS", program.parent().expect("a folder"))
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    Outcome::of(output.expect("bash runs"))
}

#[test]
fn the_commands_of_the_tutorial_do_what_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/tutorial.md");
    let (Ok(page), Ok(_)) = (
        std::fs::read_to_string(page),
        Command::new("bash").arg("--version").output(),
    ) else {
        test_support::skipped("there is no tutorial beside this crate, or no bash");
        return;
    };
    let place = Place::bare();
    let mut folder = place.path(".");
    let mut said = String::new();
    for (language, block) in blocks(&page) {
        match language.as_str() {
            "sh" => {
                let outcome = shell(&folder, &block);
                assert_eq!(outcome.code, Some(0), "{block}\n{outcome:#?}");
                said.push_str(&format!("{}{}", outcome.stdout, outcome.stderr));
                if block.contains("cd first") {
                    folder = place.path("first");
                }
            }
            "toml" => {
                let path = folder.join("grey.toml");
                let config = std::fs::read_to_string(&path).expect("it was copied");
                let from = config.find("[[rewards]]").expect("a table");
                let to = from + config[from..].find("\n\n").expect("an end");
                let config = format!("{}{}{}", &config[..from], block.trim_end(), &config[to..]);
                let config = config.replacen("name = \"digits-grpo\"", "name = \"grey\"", 1);
                std::fs::write(&path, config).expect("written");
            }
            _ => {}
        }
    }
    contains(
        &said,
        &[
            "did you mean `learning_rate`?",
            "schedule of iteration 1",
            "trained    reads-as-digit: ",
            "trained    mid-grey: ",
            "digits-prompt-002-sample-008.png",
        ],
    );
    for file in [
        "runs/digits-grpo/report.html",
        "runs/digits-grpo-2/report.html",
        "runs/grey/report.html",
        "digits.png",
        "digits-prompt-001-sample-001.png",
        "my/digits.safetensors",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
}
