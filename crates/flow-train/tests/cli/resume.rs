//! Runs that are killed, interrupted or damaged, and go on as if nothing had been.

use crate::support::{Outcome, Place, contains};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What an uninterrupted run of the same config leaves.
fn reference(place: &Place, set: &[&str]) -> (Vec<u8>, Vec<u8>) {
    place.succeed(
        &[
            ["train", "tiny.toml", "--quiet", "--set", "run.dir=whole"].as_slice(),
            set,
        ]
        .concat(),
    );
    (
        place.bytes("whole/tiny/metrics.jsonl"),
        place.bytes("whole/tiny/weights/final.safetensors"),
    )
}

#[track_caller]
fn assert_same(place: &Place, folder: &str, (metrics, weights): &(Vec<u8>, Vec<u8>), what: &str) {
    let found = place.text(&format!("{folder}/tiny/metrics.jsonl"));
    assert_eq!(found, String::from_utf8_lossy(metrics), "{what}");
    assert!(
        place.bytes(&format!("{folder}/tiny/weights/final.safetensors")) == *weights,
        "{what}: other weights"
    );
}

/// A fixed sequence of fractions in `[0, 1)` (an additive recurrence with the golden ratio), so that kills are spread
/// evenly over the whole of a run.
pub fn fraction(index: u32) -> f64 {
    (0.5 + f64::from(index) * 0.618_033_988_749_895).fract()
}

/// The process, if it is still running after `wait`.
pub fn still_running(mut child: Child, wait: Duration) -> Result<Child, Outcome> {
    let end = Instant::now() + wait;
    loop {
        if child.try_wait().unwrap().is_some() {
            return Err(Outcome::of(child.wait_with_output().unwrap()));
        }
        if Instant::now() >= end {
            return Ok(child);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn a_run_killed_at_any_moment_resumes_to_the_same_bytes() {
    let place = Place::new();
    let set = ["--set", "run.steps=4"];
    let begin = Instant::now();
    let whole = reference(&place, &set);
    let length = begin.elapsed();
    let (mut kills, mut runs, mut starts) = (0u32, 0u32, 0u32);
    while kills < 24 {
        runs += 1;
        assert!(runs < 200, "{kills} kills only");
        let folder = format!("run.dir=killed-{runs}");
        loop {
            // There is a run to resume once it has been locked; before that, the first command is the one to repeat.
            let begun = place.path(format!("killed-{runs}/tiny/run.lock")).exists();
            let mut arguments = [
                ["train", "tiny.toml", "--quiet", "--set", &folder].as_slice(),
                &set,
            ]
            .concat();
            if begun {
                arguments.extend(["--resume", "latest"]);
            }
            let child = place
                .command(&arguments)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            starts += 1;
            match still_running(child, length.mul_f64(fraction(starts))) {
                Ok(mut child) => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    kills += 1;
                }
                Err(outcome) => {
                    assert_eq!(outcome.code, Some(0), "after {kills} kills: {outcome:#?}");
                    break;
                }
            }
        }
        assert_same(
            &place,
            &format!("killed-{runs}"),
            &whole,
            &format!("run {runs}, {kills} kills in all"),
        );
    }
}

/// What a command says that gets Ctrl-C once it has said `when`, and ends with 130.
#[cfg(unix)]
pub fn interrupted(place: &Place, arguments: &[&str], when: &str) -> String {
    let mut child = place
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains(when) {
        assert!(lines.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    lines.read_to_string(&mut seen).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{seen}");
    seen
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_exits_with_130_and_says_how_to_go_on() {
    let place = Place::new();
    // No checkpoint is due: the one that is resumed from is the interrupt's.
    let set = [
        "--set",
        "run.steps=80",
        "--set",
        "checkpoints.every=1000",
        "--set",
        "evaluation.every=40",
    ];
    let whole = reference(&place, &set);
    let arguments = [["train", "tiny.toml"].as_slice(), &set].concat();
    let seen = interrupted(&place, &arguments, "iteration 3/80");
    contains(
        &seen,
        &["finishing this iteration", "the state is saved in runs/tiny"],
    );
    assert!(
        !seen.contains("iteration 80/80"),
        "it was interrupted too late: {seen}"
    );

    let command = seen
        .lines()
        .find_map(|line| line.strip_prefix("to go on: flow-train "))
        .expect("how to go on");
    let arguments: Vec<&str> = command.split(' ').collect();
    assert_eq!(arguments[arguments.len() - 2..], ["--resume", "latest"]);
    place.succeed(&arguments);
    assert_same(&place, "runs", &whole, "after Ctrl-C");
}

/// Cuts a file in half.
fn truncate(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn a_truncated_newest_checkpoint_is_named_and_the_one_before_is_used() {
    let place = Place::new();
    let set = ["--set", "run.steps=3"];
    let whole = reference(&place, &set);
    let arguments = [["train", "tiny.toml"].as_slice(), &set].concat();
    place.succeed(&arguments);
    truncate(&place.path("runs/tiny/checkpoints/step-000003.ckpt"));
    let outcome = place.run(&[arguments.as_slice(), &["--resume", "latest"]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    contains(
        &outcome.stderr,
        &["step-000003.ckpt", "resumed runs/tiny after iteration 2"],
    );
    assert_same(&place, "runs", &whole, "after a damaged checkpoint");
}

#[test]
fn a_checkpoint_can_be_chosen_and_a_missing_one_is_an_error() {
    let place = Place::new();
    let whole = reference(&place, &[]);
    place.succeed(&["train", "tiny.toml"]);
    let first = "runs/tiny/checkpoints/step-000001.ckpt";
    let outcome = place.run(&["train", "tiny.toml", "--resume", first]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    contains(&outcome.stderr, &["resumed runs/tiny after iteration 1"]);
    assert_same(&place, "runs", &whole, "from the first checkpoint");
    let error = place.fail(
        2,
        &[
            "train",
            "tiny.toml",
            "--resume",
            "runs/tiny/checkpoints/step-000009.ckpt",
        ],
    );
    contains(&error, &["step-000009.ckpt", "--resume latest"]);
}

#[test]
fn a_checkpoint_of_another_run_changes_nothing_of_this_one() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--quiet"]);
    place.succeed(&["train", "tiny.toml", "--quiet", "--set", "run.name=other"]);
    let files = || {
        let names = place.files();
        let of_run = names.into_iter().filter(|name| name.starts_with("runs/tiny/"));
        let of_run = of_run.filter(|name| !name.ends_with("run.lock"));
        of_run.map(|name| (place.bytes(&name), name)).collect::<Vec<_>>()
    };
    let before = files();
    let other = "runs/other/checkpoints/step-000001.ckpt";
    let error = place.fail(2, &["train", "tiny.toml", "--resume", other]);
    // The same config to the last bit, and the same bytes of metrics: only its name for life tells it apart.
    contains(
        &error,
        &["it is of the run other", "runs/tiny", "--resume latest"],
    );
    let names = |files: &[(Vec<u8>, String)]| files.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&files()), names(&before));
    assert!(files() == before, "a file was changed");
}

#[test]
fn pictures_of_an_abandoned_future_are_moved_aside_and_not_reported() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--quiet", "--set", "run.steps=3"]);
    let first = "runs/tiny/checkpoints/step-000001.ckpt";
    place.succeed(&[
        "train",
        "tiny.toml",
        "--quiet",
        "--set",
        "run.steps=2",
        "--resume",
        first,
    ]);
    let images: Vec<String> = place
        .files()
        .into_iter()
        .filter(|name| name.ends_with(".png"))
        .collect();
    let image = |name: &str| format!("runs/tiny/images/{name}.png");
    let kept: Vec<String> = (0..3)
        .map(|step| image(&format!("eval-step-{step:06}")))
        .collect();
    let aside: Vec<String> = (2..4)
        .map(|step| image(&format!("superseded/eval-step-{step:06}")))
        .collect();
    assert_eq!(images, [kept, aside].concat());
    let report = place.text("runs/tiny/report.html");
    assert!(report.contains("eval-step-000002.png"));
    assert!(!report.contains("eval-step-000003.png"));
}

#[test]
fn a_resumed_run_with_exact_reuse_counts_as_one_that_was_not_stopped() {
    for algorithm in [
        "algorithm.kind=grpo",
        "algorithm.kl={ kind = \"mean\", beta = 0.1, reference = \"snapshot\" }",
    ] {
        let place = Place::new();
        let set = [
            "--set",
            algorithm,
            "--set",
            "sampling.initial_noise=per_group",
            "--set",
            "acceleration={ shared = [{ name = \"exact_reuse\" }] }",
        ];
        let whole = reference(&place, &set);
        let arguments = [["train", "tiny.toml", "--quiet"].as_slice(), &set].concat();
        place.succeed(&[&arguments[..], &["--set", "run.steps=1"]].concat());
        place.succeed(&[&arguments[..], &["--resume", "latest"]].concat());
        assert_same(&place, "runs", &whole, algorithm);
    }
}

#[test]
fn a_run_that_is_not_there_cannot_be_resumed() {
    let place = Place::new();
    contains(
        &place.fail(2, &["train", "tiny.toml", "--resume", "latest"]),
        &["there is no run", "runs/tiny"],
    );
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml"]);
    let wide = ["--set", "model.finetune=lora", "--resume", "latest"];
    let error = place.fail(2, &[["train", "tiny.toml"].as_slice(), &wide].concat());
    contains(
        &error,
        &["describes another run", "model.finetune = lora, was full"],
    );
    // Before weights are loaded: what is wrong is not that a file does not fit.
    let deep = ["--set", "model.dit.layers=4", "--resume", "latest"];
    let error = place.fail(2, &[["train", "tiny.toml"].as_slice(), &deep].concat());
    contains(
        &error,
        &["model.dit.layers = 4, was 2: the run has another model"],
    );
    assert!(error.len() < 600, "{error}");
}

/// Names and bytes of all files of the run but its lock.
fn files_of(place: &Place, folder: &str) -> Vec<(String, Vec<u8>)> {
    let names = place.files();
    let of_run = names
        .into_iter()
        .filter(|name| name.starts_with(folder) && !name.ends_with("run.lock"));
    of_run.map(|name| (name.clone(), place.bytes(&name))).collect()
}

#[test]
fn a_run_without_its_manifest_goes_on_and_loses_nothing() {
    let place = Place::new();
    let whole = reference(&place, &["--set", "run.steps=5"]);
    let train = ["train", "tiny.toml", "--set", "checkpoints.keep=2"];
    place.succeed(&[&train[..], &["--set", "run.steps=3"]].concat());
    let old = place.bytes("runs/tiny/checkpoints/step-000003.ckpt");
    std::fs::remove_file(place.path("runs/tiny/run.json")).unwrap();
    contains(
        &place.fail(2, &["report", "runs/tiny"]),
        &["has lost its run.json", "--resume latest"],
    );
    let outcome = place.run(&[&train[..], &["--set", "run.steps=5", "--resume", "latest"]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    contains(
        &outcome.stderr,
        &[
            "there is no `runs/tiny/run.json`",
            "resumed runs/tiny after iteration 3",
        ],
    );
    // The early end was evaluated, and that is the only record that the whole run has not: it evaluates each iteration.
    assert_same(&place, "runs", &whole, "without run.json");
    assert!(
        place.bytes("runs/tiny/checkpoints/step-000003.ckpt") == old,
        "what another process wrote stays"
    );
    assert!(place.path("runs/tiny/run.json").is_file());
}

#[test]
fn a_run_whose_checkpoints_were_moved_is_refused_and_named_ones_go_on() {
    let place = Place::new();
    let whole = reference(&place, &["--set", "run.steps=3"]);
    place.succeed(&["train", "tiny.toml", "--quiet"]);
    std::fs::rename(place.path("runs/tiny/checkpoints"), place.path("runs/tiny/ckpts")).unwrap();
    let before = files_of(&place, "runs/tiny");
    for how in [["--resume", "latest"], ["--on-exists", "resume"]] {
        let error = place.fail(2, &[&["train", "tiny.toml"][..], &how].concat());
        contains(
            &error,
            &[
                "ckpts/step-000002.ckpt",
                "--resume runs/tiny/ckpts/step-000002.ckpt",
                "--on-exists overwrite",
            ],
        );
        assert!(files_of(&place, "runs/tiny") == before, "a file was changed");
    }
    let named = [
        "--set",
        "run.steps=3",
        "--resume",
        "runs/tiny/ckpts/step-000002.ckpt",
    ];
    let outcome = place.run(&[&["train", "tiny.toml"][..], &named].concat());
    contains(&outcome.stderr, &["resumed runs/tiny after iteration 2"]);
    assert_same(&place, "runs", &whole, "from a moved checkpoint");
    let error = place.fail(2, &["train", "tiny.toml", "--resume", "runs/tiny"]);
    contains(
        &error,
        &["it is a folder; pass `--resume runs/tiny/checkpoints/step-000003.ckpt`"],
    );
}

#[test]
fn checkpoints_alone_are_a_run_on_another_machine() {
    let place = Place::new();
    let whole = reference(&place, &["--set", "run.steps=3"]);
    place.succeed(&["train", "tiny.toml", "--quiet"]);
    std::fs::create_dir(place.path("there")).unwrap();
    std::fs::create_dir(place.path("there/tiny")).unwrap();
    std::fs::rename(
        place.path("runs/tiny/checkpoints"),
        place.path("there/tiny/checkpoints"),
    )
    .unwrap();
    let outcome = place.run(&[
        "train",
        "tiny.toml",
        "--set",
        "run.dir=there",
        "--set",
        "run.steps=3",
        "--resume",
        "latest",
    ]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    contains(&outcome.stderr, &["metrics.jsonl", "after iteration 2"]);
    assert!(place.bytes("there/tiny/weights/final.safetensors") == whole.1);
    let summary: serde_json::Value = serde_json::from_slice(&place.bytes("there/tiny/summary.json")).unwrap();
    assert!(
        summary["wall_s"].as_f64().unwrap() > 0.0 && summary["processes"] == 2,
        "{summary}"
    );
}

#[test]
fn a_run_whose_weights_file_is_gone_goes_on_from_its_checkpoint_and_says_so() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--quiet", "--set", "run.dir=base"]);
    let weights = "model.weights=base/tiny/weights/final.safetensors";
    let set = ["--set", weights, "--set", "run.steps=3"];
    let whole = reference(&place, &set);
    place.succeed(&["train", "tiny.toml", "--quiet", "--set", weights]);
    std::fs::rename(place.path("base"), place.path("elsewhere")).unwrap();

    let before = files_of(&place, "runs/tiny");
    let anew = [&["train", "tiny.toml", "--on-exists", "overwrite"][..], &set].concat();
    contains(
        &place.fail(2, &anew),
        &["there are no weights at", "model.weights"],
    );
    assert!(
        files_of(&place, "runs/tiny") == before,
        "the older run stays where it is"
    );

    let outcome = place.run(&[&["train", "tiny.toml", "--resume", "latest"][..], &set].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    contains(
        &outcome.stderr,
        &["which `model.weights` names; its weights are taken from the checkpoint"],
    );
    assert_same(&place, "runs", &whole, "without the file that it began from");
}

#[test]
fn a_finished_run_that_is_resumed_says_the_same_of_itself() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml"]);
    let before = files_of(&place, "runs/tiny/weights");
    let summary =
        || serde_json::from_slice::<serde_json::Value>(&place.bytes("runs/tiny/summary.json")).unwrap();
    let first = summary();
    let said = place.succeed(&["train", "tiny.toml", "--resume", "latest"]);
    for key in ["status", "steps", "images", "rewards", "images_per_s", "audit"] {
        assert_eq!(summary()[key], first[key], "{key}");
    }
    assert!(
        !said.contains("time       -0.0") && !said.contains("()") && said.contains("in 2 processes"),
        "{said}"
    );
    assert!(
        files_of(&place, "runs/tiny/weights") == before,
        "the same weights are there once"
    );
}
