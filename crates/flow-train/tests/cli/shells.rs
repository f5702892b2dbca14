//! Completions in the shell itself.

use crate::support::Place;
use std::process::Command;

/// What bash completes after `words`, of which the last is being typed.
fn completed(script: &str, words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.len() - 1;
    // As readline calls it: the function that `complete` was told, with command, word and the word before.
    let program = format!(
        "{script}\n[[ $(complete -p flow-train) =~ -F\\ ([^ ]+) ]] || exit 3\n\
         COMP_WORDS=({}); COMP_CWORD={last}\n\
         ${{BASH_REMATCH[1]}} flow-train \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{}]}}\" 2>/dev/null\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        last.saturating_sub(1)
    );
    let output = Command::new("bash")
        .args(["--norc", "-c", &program])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn bash_completes_commands_options_values_and_keys() {
    if Command::new("bash").arg("--version").output().is_err() {
        println!("skipped: bash_completes: there is no bash");
        return;
    }
    let script = Place::bare().succeed(&["completions", "bash"]);
    let cases: [(&[&str], &[&str], &[&str]); 9] = [
        (&["flow-train", "pre"], &["pretrain"], &["plan"]),
        (
            &["flow-train", "train", "a.toml", "--on"],
            &["--on-exists"],
            &["--only"],
        ),
        (
            &["flow-train", "train", "a.toml", "--on-exists", ""],
            &["error", "resume", "overwrite", "new"],
            &["a.toml"],
        ),
        (
            &["flow-train", "audit", "a.toml", "--"],
            &["--only", "--all"],
            &["--resume"],
        ),
        (&["flow-train", "list", "acc"], &["accelerators"], &["models"]),
        (&["flow-train", "completions", "b"], &["bash"], &["zsh"]),
        (
            &["flow-train", "-q", "check", "a.toml", "--device", "h"],
            &["h100", "h200"],
            &["a100"],
        ),
        (
            &["flow-train", "train", "a.toml", "--set", "optimizer.lea"],
            &["optimizer.learning_rate="],
            &["run.steps="],
        ),
        (
            &["flow-train", "explain", "device::"],
            &["device::unavailable"],
            &[],
        ),
    ];
    for (words, wanted, not) in cases {
        let found = completed(&script, words);
        for one in wanted {
            assert!(
                found.iter().any(|found| found == one),
                "{words:?}: {one} is not in {found:?}"
            );
        }
        for one in not {
            assert!(
                !found.iter().any(|found| found == one),
                "{words:?}: {one} is in {found:?}"
            );
        }
    }
    // Where a file is wanted bash is left to complete files.
    for words in [&["flow-train", "train", ""][..], &["flow-train", "train", "a"]] {
        assert_eq!(completed(&script, words), [""; 0], "{words:?}");
    }
}
