//! Interrupted and resumed runs are the uninterrupted run, bit for bit.

use crate::distillation::{taught_by, weights_file};
use crate::losses::OF_GARDO;
use crate::records::preference_overrides;
use crate::support::{
    Left, RunTo, Visit, config, environment, expect_same_when_resumed, left, registries, with_trainer,
};
use flow_report::{Manifest, OnExists, RunDirectory, RunSummary};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::{Observer, Silent};
use flow_trainer::{TrainError, Trainer};
use std::path::Path;

const VARIANTS: [&[&str]; 13] = [
    &[
        "ema.enabled=true",
        "algorithm.kl={ kind = \"velocity\", beta = 0.1 }",
    ],
    &[
        "algorithm.kind=\"grpo-guard\"",
        "model.finetune=\"lora\"",
        "lora.targets=[\"to_q\"]",
        "ema.enabled=true",
    ],
    &[
        "algorithm.kind=\"nft\"",
        "scheduler.dynamics=\"ode\"",
        "algorithm.kl_beta=0.01",
    ],
    // The slower copy follows after each step, and samples from the third iteration on.
    &[
        "algorithm={ kind = \"dgpo\", kl_beta = 0.01, old_samples_after = 1 }",
        "optimizer.gradient_accumulation=2",
    ],
    // Two copies, which are neither each other nor the trained weights.
    &["algorithm={ kind = \"crd\", sampling_copy = { flat = 0, start = 0.5 } }"],
    // Members of a group part at steps that are drawn anew in each iteration.
    &[
        "scheduler.window={ kind = \"random\", count = 2 }",
        "sampling.micro_batch=2",
        "sampling.initial_noise=\"per_group\"",
        "sampling.branching={ kind = \"one-step\" }",
        "algorithm.step_weights=\"noise\"",
        "optimizer.gradient_accumulation=3",
    ],
    // Each group has a step of its own.
    &[
        "sampling.micro_batch=2",
        "sampling.branching={ kind = \"one-step-per-group\" }",
        "algorithm.step_weights=\"inverse-gradient\"",
        "optimizer.gradient_accumulation=3",
    ],
    // What the gate remembers, and a copy that becomes the trained weights every second iteration.
    &[
        "algorithm={ kind = \"gardo\", judges = [\"jpeg-compressibility\"], kl_beta = 1.0, \
         gate = { share = 0.5, share_range = [0.3, 0.8] }, renewal = { divergence = 1e3, iterations = 2 } }",
        OF_GARDO,
    ],
    // Another solver behind a window that moves.
    &[
        "scheduler.steps=8",
        "scheduler.window={ kind = \"sliding\", size = 2, hold = 1 }",
        "scheduler.after_window={ kind = \"dpm-solver\", share = 0.75 }",
    ],
    &[
        "algorithm={ kind = \"dppo\", mask = \"velocity\", inner_epochs = 2 }",
        "scheduler.dynamics=\"cps\"",
    ],
    // A slower copy samples and pulls.
    &[
        "algorithm={ kind = \"awm\", weighting = \"generalised-huber\", off_policy = true, old_policy_beta = 0.1, kl_beta = 0.01, \
         old_policy = { rate = 0.3 }, inner_epochs = 2 }",
        "scheduler.dynamics=\"ode\"",
    ],
    // Rows that are arranged anew.
    &[
        "algorithm={ kind = \"dpo\", inner_epochs = 2, train_timesteps = { count = 2 } }",
        "optimizer.gradient_accumulation=0",
    ],
    // Members of a group are leaves of a tree, and the step that is not trained moves.
    &[
        "sampling.initial_noise=\"per_group\"",
        "sampling.branching={ kind = \"tree\", splits = [0, 1], fusion = \"path-probability\", untrained_steps = [2], untrained_hold = 2 }",
    ],
];

#[test]
fn a_resumed_run_has_the_metrics_and_weights_of_an_uninterrupted_one() {
    let registries = registries();
    let environment = environment(&registries);
    for overrides in VARIANTS {
        let config = config(overrides);
        expect_same_when_resumed(&config, &environment, overrides);
    }
}

#[test]
fn neither_threads_nor_activation_checkpointing_change_a_bit_of_any_algorithm() {
    let registries = registries();
    let environment = environment(&registries);
    let ode = "scheduler.dynamics=\"ode\"";
    let whole = "optimizer.gradient_accumulation=0";
    let files = tempfile::tempdir().expect("a temporary directory");
    let teacher = weights_file(&environment, files.path(), &[], 5);
    let taught = taught_by("weights", &teacher, ", inner_epochs = 2");
    let pairs = preference_overrides(files.path());
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).chain([whole]).collect();
    let beside: [&[&str]; 6] = [
        &["algorithm={ kind = \"dmd2\", fake_score = { updates = 2 } }", ode],
        &["algorithm={ kind = \"tdm\", fake_score = { updates = 2 } }", ode],
        &[
            "algorithm={ kind = \"tdm-r1\", fake_score = { updates = 2 } }",
            ode,
            whole,
        ],
        &[
            "algorithm={ kind = \"sft\" }",
            "sampling.group_size=1",
            "sampling.prompts_per_step=12",
        ],
        &[&taught, ode, whole],
        &pairs[..],
    ];
    let run = |overrides: &[&str], threads: usize| {
        let config = config(overrides);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        let root = tempfile::tempdir().expect("a temporary directory");
        pool.install(|| {
            with_trainer(
                &config,
                &environment,
                RunTo {
                    root: root.path(),
                    resume: false,
                    until: 2,
                },
            )
        })
        .unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
    };
    for overrides in VARIANTS.into_iter().chain(beside) {
        let one = run(overrides, 1);
        for threads in [2, 5] {
            assert_eq!(one, run(overrides, threads), "{overrides:?} on {threads}");
        }
        let again = run(&[overrides, &["checkpointing.policy=\"full\""]].concat(), 2);
        assert!(again.weights == one.weights, "{overrides:?}, computed again");
    }
}

#[test]
fn a_checkpoint_of_another_model_or_algorithm_is_refused_by_name() {
    let registries = registries();
    let environment = environment(&registries);
    let root = tempfile::tempdir().expect("a temporary directory");
    let start = RunTo {
        root: root.path(),
        resume: false,
        until: 1,
    };
    with_trainer(&config(&[]), &environment, start).unwrap_or_else(|error| panic!("{error}"));
    let resume = |overrides: &[&str]| {
        let again = RunTo {
            root: root.path(),
            resume: true,
            until: 2,
        };
        with_trainer(&config(overrides), &environment, again)
            .expect_err("it does not fit")
            .to_string()
    };
    for (overrides, parts) in [
        (
            ["model.dit.hidden=24"],
            ["model.dit.hidden = 24, was 16", "the run has another model"],
        ),
        // No shape shows these.
        (
            ["model.dit.position=rope"],
            [
                "model.dit.position = rope, was sincos",
                "the run has another model",
            ],
        ),
        (
            ["model.dit.heads=4"],
            ["model.dit.heads = 4, was 2", "`model.dit.heads = 2`"],
        ),
        (["run.seed=4"], ["run.seed = 4, was 3", "prompts and noise"]),
        (
            ["algorithm.kind=\"grpo-guard\""],
            ["algorithm.kind = grpo-guard, was grpo", "another algorithm"],
        ),
        (
            ["rewards=[{ kind = \"digit-classifier\", weights = \"judge\" }]"],
            ["rewards[0].weights = judge", "rewards[1].kind = not set"],
        ),
        (
            ["ema.enabled=true"],
            ["the run began without an average", "`ema.enabled = false`"],
        ),
    ] {
        let text = resume(&overrides);
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
        assert!(text.len() < 900, "{text}");
    }
    // A loss that compares with the first weights, of which the run kept no copy.
    let text = resume(&["algorithm.kl={ kind = \"velocity\", beta = 0.1 }"]);
    assert!(
        text.contains("without a copy of its first weights") && text.len() < 600,
        "{text}"
    );
    let names = |folder: &str| {
        std::fs::read_dir(root.path().join(folder))
            .expect("a folder")
            .count()
    };
    assert_eq!(
        (
            names("run/checkpoints"),
            root.path().join("run/superseded").exists()
        ),
        (2, false)
    );
}

/// Resumes a run with what it heard on the way: of the newest checkpoint, or of the one at `from`.
struct GoOn<'a> {
    root: &'a Path,
    from: Option<&'a Path>,
    until: u64,
}

#[derive(Default)]
struct Heard(Vec<String>);

impl Observer for Heard {
    fn notice(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

impl Visit for GoOn<'_> {
    type Output = Result<(Left, Vec<String>), TrainError>;

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        trainer.settings.iterations = self.until;
        let directory = RunDirectory::open(self.root, "run", OnExists::Resume)?;
        let manifest = Manifest::new("run", vec!["again".into()], serde_json::Value::Null, self.root);
        let mut heard = Heard::default();
        let mut trainer = trainer.resume(directory, self.from, manifest, &mut heard)?;
        trainer.train(&mut Silent)?;
        Ok((left(&trainer), heard.0))
    }
}

#[test]
fn a_whole_checkpoint_is_enough_to_go_on_whatever_else_is_lost() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&["evaluation.every=0"]);
    let whole = tempfile::tempdir().expect("a temporary directory");
    let run = |root: &Path, until| {
        let start = RunTo {
            root,
            resume: false,
            until,
        };
        with_trainer(&config, &environment, start).unwrap_or_else(|error| panic!("{error}"))
    };
    let expected = run(whole.path(), 4);
    let lines: Vec<&str> = expected.metrics.split_inclusive('\n').collect();
    let losses: [&[&str]; 5] = [
        &["run.json"],
        &["metrics.jsonl"],
        &["timing.jsonl"],
        &[
            "run.json",
            "run.lock",
            "metrics.jsonl",
            "timing.jsonl",
            "summary.json",
        ],
        &["checkpoints moved", "run.json"],
    ];
    for lost in losses {
        let root = tempfile::tempdir().expect("a temporary directory");
        run(root.path(), 3);
        let folder = root.path().join("run");
        let mut from = None;
        for name in lost {
            let path = folder.join(name);
            if *name == "checkpoints moved" {
                let moved = root.path().join("elsewhere");
                std::fs::rename(folder.join("checkpoints"), &moved).expect("a folder");
                std::fs::rename(moved.join("step-000003.ckpt"), moved.join("000003.ckpt")).expect("saved");
                from = Some(moved.join("000003.ckpt"));
            } else {
                let removed = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
                removed.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        let go = GoOn {
            root: root.path(),
            from: from.as_deref(),
            until: 4,
        };
        let (left, heard) =
            with_trainer(&config, &environment, go).unwrap_or_else(|error| panic!("{lost:?}: {error}"));
        assert_eq!(left.weights, expected.weights, "{lost:?}");
        let kept = if lost.contains(&"metrics.jsonl") { 3 } else { 0 };
        assert_eq!(left.metrics, lines[kept..].concat(), "{lost:?}");
        for name in lost
            .iter()
            .filter(|name| ["run.json", "metrics.jsonl", "timing.jsonl"].contains(name))
        {
            assert!(
                heard.iter().any(|notice| notice.contains(name)),
                "{name}: {heard:?}"
            );
        }
        let manifest = RunDirectory::resume(root.path(), "run")
            .expect("a run")
            .read_manifest()
            .expect("whole");
        assert_eq!(manifest.resumes.len(), 1, "{lost:?}");
        // What went on is whole: it can be gone on with, and has its state where it belongs.
        assert!(folder.join("checkpoints/step-000004.ckpt").exists());
    }
}

#[test]
fn a_checkpoint_in_a_new_folder_begins_a_run_of_its_own_with_its_past() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&[]);
    let root = tempfile::tempdir().expect("a temporary directory");
    let first = RunTo {
        root: &root.path().join("a"),
        resume: false,
        until: 2,
    };
    with_trainer(&config, &environment, first).unwrap_or_else(|error| panic!("{error}"));
    let branch = root.path().join("b");
    let of_a = root.path().join("a/run/checkpoints/step-000001.ckpt");
    let go = |from: Option<&Path>, until| {
        let go = GoOn {
            root: &branch,
            from,
            until,
        };
        with_trainer(&config, &environment, go)
    };
    let (left, _) = go(Some(&of_a), 1).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        left.metrics
            .lines()
            .any(|line| line.contains("\"step\":0,\"kind\":\"eval\"")),
        "{}",
        left.metrics
    );
    // Its state was saved at once, so it goes on by itself, and the run it came from is no part of it.
    go(None, 2).unwrap_or_else(|error| panic!("{error}"));
    let error = go(Some(&of_a), 2).expect_err("another run").to_string();
    assert!(
        error.contains("it is of the run") && error.contains("--set run.name=NAME"),
        "{error}"
    );
}

#[test]
fn time_and_memory_are_those_of_all_processes_and_a_resumed_end_changes_nothing() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&[]);
    let root = tempfile::tempdir().expect("a temporary directory");
    let start = RunTo {
        root: root.path(),
        resume: false,
        until: 3,
    };
    with_trainer(&config, &environment, start).unwrap_or_else(|error| panic!("{error}"));
    let summary = || -> RunSummary {
        let directory = RunDirectory::resume(root.path(), "run").expect("a run");
        directory.read_summary().expect("readable").expect("written")
    };
    let go = |until| {
        let go = GoOn {
            root: root.path(),
            from: None,
            until,
        };
        with_trainer(&config, &environment, go).unwrap_or_else(|error| panic!("{error}"));
    };
    let first = summary();
    assert!(first.wall_s > 0.0 && first.images_per_s.is_some_and(|rate| rate > 0.0) && first.processes == 1);
    go(3);
    let again = summary();
    assert_eq!(again.processes, 2);
    assert!((again.wall_s - first.wall_s).abs() < 1e-9, "{first:?} {again:?}");
    assert!(again.peak_memory_gib[0].1 >= first.peak_memory_gib[0].1);
    assert_eq!(
        (again.rewards, again.images, again.images_per_s),
        (first.rewards, first.images, first.images_per_s)
    );
    // An iteration that was done twice took its time twice.
    std::fs::remove_file(root.path().join("run/checkpoints/step-000003.ckpt")).expect("saved");
    go(3);
    let twice = summary();
    let abandoned = twice.wall_parts.iter().find(|(part, _)| part == "abandoned");
    assert!(
        abandoned.is_some_and(|(_, wall_s)| *wall_s > 0.0) && twice.wall_s > first.wall_s,
        "{twice:?}"
    );
    assert_eq!((twice.processes, twice.images), (3, first.images));
}

#[test]
fn samples_and_prompts_go_on_where_they_were_when_the_geometry_changes() {
    let registries = registries();
    let environment = environment(&registries);
    let root = tempfile::tempdir().expect("a temporary directory");
    let fixed = [
        "evaluation.every=0",
        "optimizer.learning_rate=1e-12",
        "scheduler.window={ kind = \"all\" }",
    ];
    let rewards = |metrics: &str| -> Vec<f64> {
        let records = metrics
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a record"));
        records
            .map(|record| record["reward"].as_f64().expect("a reward"))
            .collect()
    };
    let start = RunTo {
        root: root.path(),
        resume: false,
        until: 2,
    };
    with_trainer(&config(&fixed), &environment, start).unwrap_or_else(|error| panic!("{error}"));
    for (geometry, until) in [("sampling.prompts_per_step=6", 3), ("sampling.group_size=2", 5)] {
        let go = GoOn {
            root: root.path(),
            from: None,
            until,
        };
        let config = config(&[&fixed[..], &[geometry]].concat());
        let (left, heard) = with_trainer(&config, &environment, go).unwrap_or_else(|error| panic!("{error}"));
        assert!(
            heard
                .iter()
                .any(|notice| notice.contains("go on where they were")),
            "{heard:?}"
        );
        // The weights stand still, so the same samples would have the same rewards: of any two iterations, and of halves.
        let seen = rewards(&left.metrics);
        for (at, reward) in seen.iter().enumerate() {
            for (before, other) in seen[..at].iter().enumerate() {
                assert!(
                    (reward - other).abs() > 1e-6,
                    "iterations {at} and {before} of {geometry}: {seen:?}"
                );
            }
        }
    }
}

#[test]
fn a_damaged_newest_checkpoint_is_passed_over() {
    let registries = registries();
    let environment = environment(&registries);
    let root = tempfile::tempdir().expect("a temporary directory");
    let config = config(&["evaluation.every=0"]);
    let go = |resume, until| {
        with_trainer(
            &config,
            &environment,
            RunTo {
                root: root.path(),
                resume,
                until,
            },
        )
    };
    go(false, 3).unwrap_or_else(|error| panic!("{error}"));
    let whole = {
        let other = tempfile::tempdir().expect("a temporary directory");
        with_trainer(
            &config,
            &environment,
            RunTo {
                root: other.path(),
                resume: false,
                until: 4,
            },
        )
        .unwrap_or_else(|error| panic!("{error}"))
    };
    let newest = root.path().join("run/checkpoints/step-000003.ckpt");
    let bytes = std::fs::read(&newest).expect("the checkpoint");
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).expect("a truncated checkpoint");
    let resumed = go(true, 4).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(whole, resumed);
}

#[test]
fn a_run_resumed_from_its_very_start_evaluates_it_once() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&[]);
    let root = tempfile::tempdir().expect("a temporary directory");
    let go = |name: &str, resume, until| {
        let root = root.path().join(name);
        with_trainer(
            &config,
            &environment,
            RunTo {
                root: &root,
                resume,
                until,
            },
        )
        .unwrap_or_else(|error| panic!("{error}"))
    };
    let whole = go("whole", false, 2);
    go("parts", false, 1);
    std::fs::remove_file(root.path().join("parts/run/checkpoints/step-000001.ckpt"))
        .expect("the run saved its end");
    assert_eq!(whole, go("parts", true, 2));
}
