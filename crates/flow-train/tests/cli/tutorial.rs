//! The commands of the book's tutorial, run as they stand there, with fewer steps, and the words job with small models in the place of
//! those that are fetched.

use crate::support::{Outcome, Place, contains};
use crate::words;
use std::fs;
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

/// What a shell knows before the commands: the installed program, which takes few steps, finds the models fetched, and may refuse what
/// `check` is shown for.
const PRELUDE: &str = r#"
set -e
few="--set run.steps=2 --set evaluation.prompts=2 --set evaluation.images_per_prompt=2"
cargo() { test "$*" = "install --path crates/flow-train --locked"; }
flow-train() {
    case $1 in
        train) command flow-train "$@" $few ;;
        pretrain) command flow-train "$@" --set pretrain.steps=2 --set pretrain.warmup=1 ;;
        check) command flow-train "$@" || test $? = 2 ;;
        fetch) test "$*" = "fetch words" ;;
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

/// Where the reader is put to ask in the place of Tesseract, which not every machine has.
const JUDGE: &str = "crates/flow-rewards-remote/examples";

/// A folder as the tutorial finds the repository: digits as they are, words as small models make them.
fn repository(root: &Path) -> Place {
    let place = words::place();
    place.succeed(&["pretrain", "words.toml", "--quiet"]);
    for folder in ["configs", "assets", JUDGE] {
        fs::create_dir_all(place.path(folder)).expect("a folder");
    }
    for file in ["configs/digits-grpo.toml", "assets/digits-dit.safetensors"] {
        fs::copy(root.join(file), place.path(file)).expect("copied");
    }
    for (from, to) in [
        ("reward_command.py", "tesseract_judge.py"),
        ("reward_server.py", "reward_server.py"),
    ] {
        fs::copy(root.join(JUDGE).join(from), place.path(JUDGE).join(to)).expect("copied");
    }
    let mut config = place.text("words.toml");
    for (from, to) in [
        ("name = \"words\"", "name = \"words-nft\""),
        ("\"taesd\"", "\"../taesd\""),
        ("path = \"bert\"", "path = \"../bert\""),
        ("\"words.safetensors\"", "\"../words.safetensors\""),
        (
            "[scheduler]\n",
            "[algorithm]\nkind = \"nft\"\n\n[scheduler]\ndynamics = \"ode\"\n",
        ),
        (
            "[optimizer]\n",
            "[optimizer]\nschedule = { kind = \"cosine\", steps = 200 }\n",
        ),
    ] {
        assert!(config.contains(from), "{from}");
        config = config.replace(from, to);
    }
    fs::write(place.path("configs/words-nft.toml"), config).expect("written");
    place
}

/// Does to the configs what the page says of a block of TOML.
fn edit(folder: &Path, block: &str) {
    let configs = folder.join("configs");
    if block.starts_with("[[eval_rewards]]") {
        let path = configs.join("words-judge.toml");
        let config = fs::read_to_string(&path).expect("it was copied");
        fs::write(&path, format!("{config}\n{block}")).expect("written");
        return;
    }
    let path = configs.join("grey.toml");
    let config = fs::read_to_string(&path).expect("it was copied");
    let from = config.find("[[rewards]]").expect("a table");
    let to = from + config[from..].find("\n\n").expect("an end");
    let config = format!("{}{}{}", &config[..from], block.trim_end(), &config[to..]);
    let config = config.replacen("name = \"digits-grpo\"", "name = \"grey\"", 1);
    fs::write(&path, config).expect("written");
}

/// Whether a command is there to be run.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn the_commands_of_the_tutorial_do_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/src/tutorial.md"));
    let (Ok(page), true) = (page, has("bash") && has("python3")) else {
        test_support::skipped("there is no tutorial beside this crate, no bash, or no python3");
        return;
    };
    let place = repository(&root);
    let folder = place.path(".");
    let mut said = String::new();
    for (language, block) in blocks(&page) {
        match language.as_str() {
            // `bash` is what needs a GPU.
            "sh" => {
                let outcome = shell(&folder, &block);
                assert_eq!(outcome.code, Some(0), "{block}\n{outcome:#?}");
                said.push_str(&format!("{}{}", outcome.stdout, outcome.stderr));
            }
            "toml" => edit(&folder, &block),
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
            "tesseract: ",
            "words-prompt-002-sample-008.png",
        ],
    );
    for file in [
        "runs/digits-grpo/report.html",
        "runs/digits-grpo-2/report.html",
        "runs/words-nft/report.html",
        "runs/words-nft-2/report.html",
        "runs/comparison.html",
        "runs/grey/report.html",
        "early.png",
        "words.png",
        "words-prompt-001-sample-001.png",
        "my/digits.safetensors",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
}
