//! One run on several processes: the same bytes on any number of them, and words when one is lost.

use super::support::{Outcome, Place, contains};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Two updates of four micro-batches of three samples, and groups that processes have parts of.
const SET: [&str; 12] = [
    "--set",
    "sampling.prompts_per_step=4",
    "--set",
    "sampling.group_size=6",
    "--set",
    "sampling.micro_batch=3",
    "--set",
    "optimizer.gradient_accumulation=4",
    "--set",
    "distributed.lanes=4",
    "--set",
    "distributed.check_replicas_every=1",
];

/// `flow-train launch -n PROCESSES train tiny.toml …`, or without `launch` for one.
pub fn arguments<'a>(processes: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = match processes {
        "1" => vec![],
        _ => vec!["launch", "-n", processes],
    };
    words.extend(["train", "tiny.toml"]);
    words.extend(SET);
    words.extend(more);
    words
}

/// What a run computed, of its folder.
pub fn left(place: &Place, name: &str) -> (String, Vec<u8>) {
    left_in(place, name, "weights")
}

/// As [`left`], of a run that wrote its weights to this folder.
fn left_in(place: &Place, name: &str, folder: &str) -> (String, Vec<u8>) {
    let run = format!("runs/{name}");
    let metrics = place.text(&format!("{run}/metrics.jsonl"));
    let weights = place.path(&run).join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&weights)
        .unwrap_or_else(|error| panic!("{}: {error}", weights.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{name} left no weights");
    // The header names the run; the values follow on it.
    let values = files.iter().flat_map(|file| {
        let bytes = std::fs::read(file).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].to_vec()
    });
    (metrics, values.collect())
}

#[test]
fn one_two_and_four_processes_write_the_same_bytes_and_a_run_goes_on_with_another_number() {
    let place = Place::new();
    for processes in ["1", "2", "4"] {
        let name = format!("run.name=on-{processes}");
        place.succeed(&arguments(processes, &["--set", &name]));
    }
    let one = left(&place, "on-1");
    for other in ["on-2", "on-4"] {
        let (metrics, weights) = left(&place, other);
        assert_eq!(metrics, one.0, "{other}");
        assert!(weights == one.1, "{other} has other weights");
    }
    // A file each, and one only.
    let checkpoints = std::fs::read_dir(place.path("runs/on-4/checkpoints"))
        .unwrap()
        .count();
    assert_eq!(
        checkpoints,
        std::fs::read_dir(place.path("runs/on-1/checkpoints"))
            .unwrap()
            .count()
    );
    // The first iteration on four processes, the second on two.
    let part = ["--set", "run.name=changed", "--set", "run.steps=1", "--quiet"];
    place.succeed(&arguments("4", &part));
    place.succeed(&arguments(
        "2",
        &["--set", "run.name=changed", "--resume", "latest", "--quiet"],
    ));
    let (metrics, weights) = left(&place, "changed");
    assert_eq!(metrics, one.0);
    assert!(weights == one.1, "resumed with another number of processes");
}

#[test]
fn processes_that_share_the_optimizer_write_the_bytes_of_one_that_has_it_alone_and_go_on_with_another_number()
{
    let place = Place::new();
    let shared = ["--quiet", "--set", "distributed.shard=\"optimizer\"", "--set"];
    place.succeed(&arguments("1", &["--quiet", "--set", "run.name=alone"]));
    let alone = left(&place, "alone");
    for processes in ["2", "4"] {
        let name = format!("run.name=shared-{processes}");
        place.succeed(&arguments(processes, &[&shared[..], &[name.as_str()]].concat()));
        assert!(
            left(&place, &format!("shared-{processes}")) == alone,
            "{processes}"
        );
    }
    // The first iteration on four processes, the second on two.
    let part = ["run.name=changed", "--set", "run.steps=1"];
    place.succeed(&arguments("4", &[&shared[..], &part].concat()));
    let part = ["run.name=changed", "--resume", "latest"];
    place.succeed(&arguments("2", &[&shared[..], &part].concat()));
    assert!(
        left(&place, "changed") == alone,
        "resumed with another number of processes"
    );
}

#[test]
fn two_processes_multiply_activations_and_gradients_in_fp8_to_the_bytes_of_one() {
    let place = Place::new();
    let products = "acceleration.shared=[{ name = \"low_precision\", params = { compute = \"fp8\", format = \"fp8\", data_gradient = \"fp8\" } }]";
    for (finetune, folder) in [("lora", "weights/adapter"), ("full", "weights")] {
        let left_by = |processes: &str, shard: &str| {
            let run = format!("{finetune}-on-{processes}-{shard}");
            let own = [
                format!("model.finetune={finetune}"),
                format!("distributed.shard=\"{shard}\""),
                format!("run.name={run}"),
            ];
            let own = own.iter().flat_map(|key| ["--set", key.as_str()]);
            let more: Vec<&str> = ["--quiet", "--set", products].into_iter().chain(own).collect();
            place.succeed(&arguments(processes, &more));
            left_in(&place, &run, folder)
        };
        let one = left_by("1", "none");
        assert!(left_by("2", "none") == one, "{finetune}: other bytes");
        // Each process steps a part of what is trained.
        assert!(left_by("2", "optimizer") == one, "{finetune}: shared out");
    }
}

/// Adapters over weights of which each process has a part.
const IN_PARTS: [&str; 6] = [
    "--quiet",
    "--set",
    "model.finetune=lora",
    "--set",
    "checkpointing.policy=full",
    "--set",
];

#[test]
fn processes_that_share_the_frozen_weights_write_the_bytes_of_one_that_has_them_whole_and_go_on_with_another_number()
 {
    let place = Place::new();
    let weights = "distributed.shard=\"weights\"";
    place.succeed(&arguments("1", &[&IN_PARTS[..], &["run.name=alone"]].concat()));
    let adapter = |name: &str| left_in(&place, name, "weights/adapter");
    let alone = adapter("alone");
    for processes in ["2", "4"] {
        let name = format!("run.name=parts-{processes}");
        let more = [&IN_PARTS[..], &[weights, "--set", &name]].concat();
        place.succeed(&arguments(processes, &more));
        assert!(adapter(&format!("parts-{processes}")) == alone, "{processes}");
    }
    // A feature cache leaves blocks out where it may, and an evaluation has other numbers of prompts on each process.
    let cached = [
        "--set",
        "acceleration.rollout={ name = \"feature_cache\", params = { policy = \"first_block\", threshold = 9.0, warmup_steps = 0, \
         scope = \"outside_sde_window\" } }",
        "--set",
        "scheduler.window={ kind = \"list\", steps = [2] }",
        "--set",
        "scheduler.steps=6",
    ];
    place.succeed(&arguments(
        "1",
        &[&IN_PARTS[..], &["run.name=cached-alone"], &cached].concat(),
    ));
    let more = [&IN_PARTS[..], &[weights, "--set", "run.name=cached"], &cached].concat();
    place.succeed(&arguments("4", &more));
    assert!(
        adapter("cached") == adapter("cached-alone"),
        "with a feature cache"
    );
    // The first iteration on four processes, the second on two.
    for (processes, steps, resume) in [("4", "run.steps=1", None), ("2", "run.steps=2", Some("latest"))] {
        let mut more = [
            &IN_PARTS[..],
            &[weights, "--set", "run.name=changed", "--set", steps],
        ]
        .concat();
        more.extend(resume.into_iter().flat_map(|from| ["--resume", from]));
        place.succeed(&arguments(processes, &more));
    }
    assert!(
        adapter("changed") == alone,
        "resumed with another number of processes"
    );
}

#[test]
fn processes_that_share_trained_weights_export_the_files_of_one_that_has_them_whole() {
    let place = Place::new();
    let full = ["--quiet", "--set", "checkpointing.policy=full", "--set"];
    place.succeed(&arguments("1", &[&full[..], &["run.name=alone"]].concat()));
    let weights = ["distributed.shard=\"weights\"", "--set", "run.name=parts"];
    place.succeed(&arguments("2", &[&full[..], &weights].concat()));
    assert!(left(&place, "parts") == left(&place, "alone"));
}

#[test]
fn what_cannot_be_done_with_weights_in_parts_is_refused_before_anything_is_written() {
    let place = Place::new();
    let check = |more: &[&str]| {
        let mut words = vec!["check", "tiny.toml", "--ranks", "2"];
        words.extend(SET);
        words.extend(["--set", "distributed.shard=weights"]);
        words.extend(more);
        place.run(&words)
    };
    for (more, part) in [
        (&["--set", "model.finetune=full"][..], "checkpointing.policy"),
        (&["--set", "model.finetune=lora"], "checkpointing.policy"),
    ] {
        let Outcome { code, stderr, .. } = check(more);
        assert_eq!(code, Some(2), "{more:?}: {stderr}");
        contains(&stderr, &["distributed::refused", part]);
    }
    let right = [
        "--set",
        "model.finetune=lora",
        "--set",
        "checkpointing.policy=full",
    ];
    let outcome = check(&right);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(!place.path("runs").exists());
}

#[test]
fn a_pretraining_with_weights_in_parts_is_refused_before_processes_meet() {
    let place = Place::bare();
    let shard = ["--set", "distributed.shard=\"weights\""];
    let with = |words: &[&'static str]| [words, &shard].concat();
    let check = with(&["check", "tiny.toml", "--for", "pretrain", "--ranks", "2"]);
    contains(
        &place.fail(2, &check),
        &["distributed::refused", "distributed.shard", "\"optimizer\""],
    );
    let launched = with(&["launch", "-n", "2", "pretrain", "tiny.toml"]);
    let Outcome { code, stderr, .. } = place.run(&launched);
    assert_ne!(code, Some(0));
    contains(&stderr, &["distributed::refused", "distributed.shard"]);
    assert_eq!(place.files(), ["tiny.toml"]);
}

#[test]
fn what_accelerators_did_is_counted_over_all_processes() {
    let place = Place::new();
    let shared = [
        "--set",
        "acceleration.shared=[{ name = \"attention_backend\", params = { backend = \"reference\" } }]",
    ];
    for processes in ["1", "2", "4"] {
        let name = format!("run.name=on-{processes}");
        place.succeed(&arguments(
            processes,
            &[&shared[..], &["--quiet", "--set", &name]].concat(),
        ));
    }
    let one = left(&place, "on-1");
    assert!(one.0.contains("acceleration/attention_backend/"), "{}", one.0);
    for other in ["on-2", "on-4"] {
        let (metrics, weights) = left(&place, other);
        assert_eq!(metrics, one.0, "{other}");
        assert!(weights == one.1, "{other} has other weights");
    }
}

#[test]
fn a_pretraining_writes_the_same_bytes_on_any_number_of_processes() {
    let place = Place::bare();
    let pretrain = |processes: &str, output: &str, more: &[&str]| {
        let output = format!("pretrain.output={output}.safetensors");
        let mut words = match processes {
            "1" => vec![],
            _ => vec!["launch", "-n", processes],
        };
        words.extend(["pretrain", "tiny.toml", "--quiet", "--set", "pretrain.batch=12"]);
        words.extend(["--set", "distributed.lanes=4", "--set", &output]);
        words.extend(more);
        place.run(&words)
    };
    let steps = ["--set", "pretrain.steps=30"];
    for processes in ["1", "2", "4"] {
        let outcome = pretrain(processes, &format!("on-{processes}"), &steps);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    }
    let shared = [&steps[..], &["--set", "distributed.shard=\"optimizer\""]].concat();
    let outcome = pretrain("4", "shared", &shared);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let one = place.bytes("on-1.safetensors");
    for other in ["on-2", "on-4", "shared"] {
        assert!(place.bytes(&format!("{other}.safetensors")) == one, "{other}");
    }
    let outcome = pretrain("4", "other", &["--set", "pretrain.batch=10"]);
    assert_ne!(outcome.code, Some(0));
    assert!(
        outcome
            .stderr
            .contains("`pretrain.batch = 10` cannot be cut into 4 equal lanes"),
        "{}",
        outcome.stderr
    );
    assert!(!place.path("other.safetensors").exists());
}

/// A process of a run, by the variables that a launcher sets.
fn start(place: &Place, (rank, ranks): (usize, usize), port: &str, more: &[&str]) -> Child {
    start_on_machine(place, (rank, rank, ranks), port, more)
}

/// As [`start`]; the second number is that of the process among those of its machine.
pub fn start_on_machine(
    place: &Place,
    (rank, local_rank, ranks): (usize, usize, usize),
    port: &str,
    more: &[&str],
) -> Child {
    let (rank, local_rank) = (rank.to_string(), local_rank.to_string());
    place
        .command(&arguments("1", more))
        .envs([
            ("RANK", rank.as_str()),
            ("LOCAL_RANK", &local_rank),
            ("MASTER_PORT", port),
        ])
        .envs([("WORLD_SIZE", ranks.to_string())])
        .env("MASTER_ADDR", "127.0.0.1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A port that was free a moment ago.
pub fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

#[test]
fn a_process_that_is_killed_ends_the_others_within_seconds_and_the_run_goes_on_without_it() {
    killed_in_the_middle("distributed.shard=\"none\"");
}

#[test]
fn a_process_that_is_killed_with_its_share_of_the_optimizer_ends_the_others_and_the_run_goes_on_without_it() {
    killed_in_the_middle("distributed.shard=\"optimizer\"");
}

#[test]
fn a_process_that_is_killed_with_its_part_of_the_weights_ends_the_others_within_seconds() {
    let place = Place::new();
    let more = [
        "--set",
        "model.finetune=lora",
        "--set",
        "checkpointing.policy=full",
        "--set",
        "distributed.shard=weights",
        "--set",
        "run.steps=2000",
        "--set",
        "evaluation.every=0",
    ];
    one_of_two_is_killed(&place, &more, 2);
}

/// Starts two processes of 2,000 iterations and kills one once `after` are done: the other ends within seconds and says why.
#[track_caller]
fn one_of_two_is_killed(place: &Place, more: &[&str], after: usize) {
    let port = free_port();
    let mut ranks: Vec<Child> = (0..2).map(|rank| start(place, (rank, 2), &port, more)).collect();
    let mut said = BufReader::new(ranks[0].stderr.take().unwrap());
    let (mut line, mut iterations) = (String::new(), 0);
    while iterations < after {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the run ended early");
        iterations += usize::from(line.contains("/2000"));
    }
    ranks[1].kill().unwrap();
    let killed = Instant::now();
    let rest = thread::spawn(move || {
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        rest
    });
    let code = ranks[0].wait().unwrap().code();
    assert!(
        killed.elapsed() < Duration::from_secs(30),
        "{:?}",
        killed.elapsed()
    );
    ranks[1].wait().unwrap();
    let rest = rest.join().unwrap();
    assert_eq!(code, Some(1), "{rest}");
    contains(&rest, &["rank 1 of 2 is gone", "--resume latest"]);
}

fn killed_in_the_middle(shard: &str) {
    let place = Place::new();
    let more = [
        "--set",
        shard,
        "--set",
        "run.steps=2000",
        "--set",
        "evaluation.every=0",
        "--set",
        "run.name=lost",
    ];
    // In the middle: once three iterations are done.
    one_of_two_is_killed(&place, &more, 3);

    // What was saved goes on, alone, and comes to what a run alone comes to.
    let metrics = place.text("runs/lost/metrics.jsonl");
    let done = metrics.lines().filter(|line| line.contains("\"train\"")).count() + 2;
    let steps = format!("run.steps={done}");
    let end = ["--set", "evaluation.every=0", "--quiet", "--set", steps.as_str()];
    place.succeed(&arguments(
        "1",
        &[&end[..], &["--set", "run.name=lost", "--resume", "latest"]].concat(),
    ));
    place.succeed(&arguments(
        "1",
        &[&end[..], &["--set", "run.name=alone"]].concat(),
    ));
    assert!(left(&place, "lost") == left(&place, "alone"));
}

#[test]
fn what_is_not_right_on_several_processes_is_refused_before_anything_is_written() {
    let place = Place::new();
    let cases: [(&[&str], &[&str]); 6] = [
        (
            &[
                "--set",
                "acceleration.rollout={ name = \"feature_cache\", params = { policy = \"auto\", scope = \"outside_sde_window\" } }",
                "--set",
                "scheduler.window={ kind = \"list\", steps = [2] }",
                "--set",
                "scheduler.steps=6",
            ],
            &["distributed::refused", "take another policy than `auto`"],
        ),
        (
            &["--set", "distributed.lanes=2"],
            &["2 lanes cannot be shared by 3 processes", "distributed::lanes"],
        ),
        (
            &["--set", "distributed.order=nccl"],
            &["distributed::refused", "here the host adds them"],
        ),
        (
            &["--set", "audit.drift_groups=1"],
            &["distributed::refused", "sampled twice"],
        ),
        (
            &[
                "--set",
                "rewards=[{ kind = \"rank-in-group\", reward = \"jpeg-compressibility\" }]",
            ],
            &["whole groups"],
        ),
        (
            &[
                "--set",
                "rewards=[{ kind = \"remote\", servers = [\"http://localhost:8000\"], groupwise = true }]",
            ],
            &["whole groups"],
        ),
    ];
    for (set, wanted) in cases {
        // Six micro-batches of two samples; a process of three has four samples, and groups have six.
        let geometry = [
            "--set",
            "sampling.micro_batch=2",
            "--set",
            "sampling.prompts_per_step=2",
        ];
        let rest = ["--set", "sampling.group_size=6"];
        let words = [&["check", "tiny.toml", "--ranks", "3"], &geometry[..], &rest, set].concat();
        let Outcome { code, stderr, .. } = place.run(&words);
        assert_eq!(code, Some(2), "{set:?}: {stderr}");
        for part in wanted {
            assert!(stderr.contains(part), "{set:?}: {stderr}");
        }
    }
    let variables = place
        .command(&["train", "tiny.toml"])
        .env("RANK", "0")
        .output()
        .unwrap();
    let outcome = Outcome::of(variables);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome.stderr.contains("RANK=0 is set and WORLD_SIZE is not"),
        "{}",
        outcome.stderr
    );
    assert!(!place.path("runs").exists());
}

#[test]
fn an_error_of_the_first_process_ends_the_launch_with_its_words_and_code() {
    let place = Place::new();
    place.succeed(&arguments("1", &["--quiet"]));
    // The run is there already.
    let Outcome { code, stderr, .. } = place.run(&arguments("2", &[]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("[0] ") && stderr.contains("process 0"),
        "{stderr}"
    );
}

#[cfg(unix)]
#[test]
fn a_request_to_stop_reaches_all_processes_which_save_and_go_on_later() {
    let place = Place::new();
    let more = [
        "--set",
        "run.steps=2000",
        "--set",
        "evaluation.every=0",
        "--set",
        "run.name=asked",
    ];
    let mut launch = place
        .command(&arguments("2", &more))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(launch.stderr.take().unwrap());
    let (mut line, mut iterations) = (String::new(), 0);
    while iterations < 2 {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the run ended early");
        iterations += usize::from(line.starts_with("[0] iteration"));
    }
    let asked = std::process::Command::new("kill")
        .args(["-TERM", &launch.id().to_string()])
        .status();
    assert!(asked.unwrap().success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(launch.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("the state is saved"), "{rest}");
}
