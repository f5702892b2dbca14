//! Interrupted and resumed runs are the uninterrupted run, bit for bit.

use crate::support::{RunTo, config, environment, registries, with_parts};

const VARIANTS: [&[&str]; 3] = [
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
];

#[test]
fn a_resumed_run_has_the_metrics_and_weights_of_an_uninterrupted_one() {
    let registries = registries();
    let environment = environment(&registries);
    for overrides in VARIANTS {
        let config = config(overrides);
        let root = tempfile::tempdir().expect("a temporary directory");
        let go = |name: &str, resume, until| {
            let root = root.path().join(name);
            with_parts(
                &config,
                &environment,
                RunTo {
                    root: &root,
                    resume,
                    until,
                },
            )
            .unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
        };
        let whole = go("whole", false, 4);
        go("parts", false, 3);
        // The evaluation at the early end is not part of the whole run, so go back to the checkpoint before it.
        let newest = root.path().join("parts/run/checkpoints/step-000003.ckpt");
        std::fs::remove_file(&newest).expect("the run saved its end");
        let resumed = go("parts", true, 4);
        assert_eq!(whole, resumed, "{overrides:?}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(VARIANTS[0]);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        let root = tempfile::tempdir().expect("a temporary directory");
        pool.install(|| {
            with_parts(
                &config,
                &environment,
                RunTo {
                    root: root.path(),
                    resume: false,
                    until: 2,
                },
            )
        })
        .unwrap_or_else(|error| panic!("{error}"))
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
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
    with_parts(&config(&[]), &environment, start).unwrap_or_else(|error| panic!("{error}"));
    let resume = |overrides: &[&str]| {
        let again = RunTo {
            root: root.path(),
            resume: true,
            until: 2,
        };
        with_parts(&config(overrides), &environment, again)
            .expect_err("it does not fit")
            .to_string()
    };
    let text = resume(&["model.dit.hidden=24"]);
    assert!(text.contains("[2") && text.contains("[model]"), "{text}");
    let text = resume(&["algorithm.kind=\"grpo-guard\""]);
    assert!(text.contains("`grpo`") && text.contains("`grpo-guard`"), "{text}");
}

#[test]
fn a_damaged_newest_checkpoint_is_passed_over() {
    let registries = registries();
    let environment = environment(&registries);
    let root = tempfile::tempdir().expect("a temporary directory");
    let config = config(&["evaluation.every=0"]);
    let go = |resume, until| {
        with_parts(
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
        with_parts(
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
        with_parts(
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
