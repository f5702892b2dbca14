//! What is written down of a rollout's images changes nothing else, and is the same after a resume and on several ranks.

use crate::support::{Left, RunTo, Visit, config, environment, left, registries, with_parts};
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Silent;
use flow_trainer::trainer::{Parts, Session};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn run(overrides: &[&str], root: &Path, resume: bool, until: u64) -> Left {
    let registries = registries();
    let run = RunTo { root, resume, until };
    with_parts(&config(overrides), &environment(&registries), run)
        .unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
}

/// The records of a run, apart from what is watched and with it.
fn records(left: &Left) -> Vec<(Map<String, Value>, Map<String, Value>)> {
    let record = |line: &str| -> Map<String, Value> { serde_json::from_str(line).expect("a record") };
    let halves = |line: &str| {
        record(line)
            .into_iter()
            .partition(|(key, _)| key.starts_with("watch/"))
    };
    left.metrics.lines().map(halves).collect()
}

#[test]
fn looks_are_written_in_their_iterations_and_change_nothing_else() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let without = run(&[], &root.path().join("off"), false, 4);
    assert!(!without.metrics.contains("watch/"));
    let with = run(&["watch.every=2"], &root.path().join("on"), false, 4);
    assert_eq!(with.weights, without.weights);
    let (with, without) = (records(&with), records(&without));
    assert_eq!(with.len(), without.len());
    for ((watched, rest), (_, whole)) in with.iter().zip(&without) {
        assert_eq!(rest, whole);
        let is_look = rest["kind"] == "train" && rest["step"].as_u64().expect("a step").is_multiple_of(2);
        // The digits are grey, so that they have no saturation.
        let keys = [
            "watch/clipped",
            "watch/diversity",
            "watch/edge_energy",
            "watch/entropy_bits",
        ];
        let expected: Vec<&str> = keys.into_iter().filter(|_| is_look).collect();
        let mut found: Vec<&str> = watched.keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
        for (key, most) in [
            ("watch/clipped", 1.0),
            ("watch/diversity", 1.0),
            ("watch/entropy_bits", 8.0),
        ] {
            let value = watched.get(key).map(|value| value.as_f64().expect("a number"));
            assert!(
                value.is_none_or(|value| (0.0..=most).contains(&value)),
                "{key}: {value:?}"
            );
        }
    }
}

#[test]
fn a_resumed_run_has_the_looks_of_an_uninterrupted_one() {
    const WATCHED: &[&str] = &["watch.every=1", "watch.window=4"];
    let root = tempfile::tempdir().expect("a temporary directory");
    let whole = run(WATCHED, &root.path().join("whole"), false, 4);
    let parts = root.path().join("parts");
    run(WATCHED, &parts, false, 3);
    // The evaluation at the early end is not part of the whole run, so go back to the checkpoint before it.
    std::fs::remove_file(parts.join("run/checkpoints/step-000003.ckpt")).expect("the run saved its end");
    assert_eq!(run(WATCHED, &parts, true, 4), whole);
    assert_eq!(whole.metrics.matches("watch/diversity").count(), 4);
}

/// One rank of a run in `root`.
struct Rank<'a> {
    root: &'a Path,
    is_first: bool,
}

impl Visit for Rank<'_> {
    type Output = Option<Left>;

    fn visit<A: Algorithm + 'static>(self, mut parts: Parts<A>) -> Option<Left> {
        parts.settings.iterations = 2;
        if !self.is_first {
            let mut session =
                Session::join(parts, &self.root.join("run"), false).expect("the first rank begins");
            session.run(&mut Silent).expect("the run ends");
            return None;
        }
        let directory = RunDirectory::open(self.root, "run", OnExists::Error).expect("a new folder");
        let manifest = Manifest::new("run", vec![], Value::Null, self.root);
        let mut session = Session::start(parts, directory, &manifest).expect("the run begins");
        session.run(&mut Silent).expect("the run ends");
        Some(left(&session))
    }
}

#[test]
fn looks_have_the_same_bits_on_several_ranks_that_share_a_group() {
    // Groups of 4 in micro-batches of 2, of which each rank has one of an update's two.
    const SPREAD: &[&str] = &[
        "watch.every=1",
        "sampling.micro_batch=2",
        "optimizer.gradient_accumulation=2",
        "distributed.lanes=2",
    ];
    let root = tempfile::tempdir().expect("a temporary directory");
    let of_ranks = |ranks: usize| -> Left {
        let root = root.path().join(ranks.to_string());
        let threads: Vec<_> = flow_exchange::in_process(ranks, Duration::from_secs(300))
            .into_iter()
            .enumerate()
            .map(|(rank, exchange)| {
                let root = root.clone();
                std::thread::spawn(move || {
                    let registries = registries();
                    let mut environment = environment(&registries);
                    environment.exchange = Arc::clone(&exchange);
                    let rank = Rank {
                        root: &root,
                        is_first: rank == 0,
                    };
                    with_parts(&config(SPREAD), &environment, rank)
                })
            })
            .collect();
        let mut all = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let first = all.next().flatten().expect("the first rank writes the run");
        assert_eq!(all.flatten().count(), 0);
        first
    };
    let (alone, two) = (of_ranks(1), of_ranks(2));
    assert!(alone.metrics.contains("watch/diversity"));
    assert_eq!(two, alone);
}
