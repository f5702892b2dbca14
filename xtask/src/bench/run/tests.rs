//! Curves of runs: what is read of ours and of PyTorch's, and the table; and what both start from.

use super::curve::{Curve, Point, table};
use super::{Weights, expect_labels};
use flow_report::LineChart;
use std::fs;

/// A run of two iterations with 12 images each, evaluated before and after.
fn our_run(folder: &std::path::Path) {
    let config = r#"{ "config": { "sampling": { "prompts_per_step": 3, "group_size": 4 } } }"#;
    fs::write(folder.join("run.json"), config).unwrap();
    let metrics = r#"{"step":0,"kind":"eval","reward/all-right":0.5}
{"step":1,"kind":"train","reward":0.6}
{"step":2,"kind":"train","reward":0.7}
{"step":2,"kind":"eval","reward/all-right":0.9}
"#;
    fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    let timing = r#"{"step":0,"kind":"timing","evaluation_s":8.0}
{"step":1,"kind":"timing","rollout_s":4.0,"rewards_s":0.5,"update_s":1.5}
{"step":2,"kind":"timing","rollout_s":1.0,"rewards_s":0.25,"update_s":0.75}
{"step":2,"kind":"timing","evaluation_s":3.0}
"#;
    fs::write(folder.join("timing.jsonl"), timing).unwrap();
}

const LINES: &str = r#"{"kind": "about", "program": "torch"}
{"kind": "eval", "step": 0, "images": 0, "seconds": 0.0, "reward": {"all-right": 0.5}}
{"kind": "train", "step": 1, "images": 12, "seconds": 9.0}
{"kind": "train", "step": 2, "images": 24, "seconds": 11.0}
{"kind": "eval", "step": 2, "images": 24, "seconds": 11.0, "reward": {"all-right": 0.8}}
"#;

#[test]
fn an_evaluation_counts_into_the_seconds_of_the_next_and_not_into_its_own() {
    let folder = tempfile::tempdir().unwrap();
    our_run(folder.path());
    let curve = Curve::read("ours", folder.path(), "all-right").unwrap();
    let series = curve.series(|point: &Point| point.seconds);
    assert_eq!(series.points, [(0.0, 0.5), (16.0, 0.9)]);
    assert_eq!(
        curve.series(|point| point.images).points,
        [(0.0, 0.5), (24.0, 0.9)]
    );
    let error = Curve::read("ours", folder.path(), "none").unwrap_err();
    assert!(error.to_string().contains("`none`"), "{error}");
}

#[test]
fn the_table_says_when_the_goal_was_reached_and_how_fast_iterations_are() {
    let folder = tempfile::tempdir().unwrap();
    our_run(folder.path());
    let lines = folder.path().join("peer.jsonl");
    fs::write(&lines, LINES).unwrap();
    let curves = [
        Curve::read("ours", folder.path(), "all-right").unwrap(),
        Curve::read("peer", &lines, "all-right").unwrap(),
    ];
    let table = table(&curves, 0.9);
    assert!(
        table.contains("| ours | 0.500 → 0.900 | 24, 16.0 s | 24, 16.0 s |"),
        "{table}"
    );
    // The first iteration holds the evaluation before it.
    assert!(
        table.contains("| peer | 0.500 → 0.800 | – | 24, 11.0 s | 2.000 s | 6 |"),
        "{table}"
    );
    let charts = [0, 1].map(|_| LineChart::new("t", "x", "y").with(curves[0].series(|point| point.images)));
    assert_eq!(
        LineChart::row("both", &charts).matches("class=\"paper\"").count(),
        2
    );
}

#[test]
fn a_curve_that_is_drawn_against_images_alone_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    our_run(folder.path());
    let curves = [Curve::read("ours", folder.path(), "all-right").unwrap()];
    assert!(expect_labels(&curves, &["ours".to_owned()]).is_ok());
    let error = expect_labels(&curves, &["our".to_owned()])
        .unwrap_err()
        .to_string();
    assert!(error.contains("`our`") && error.contains("`ours`"), "{error}");
}

/// A config in a folder of its own that starts from `../weights.safetensors`, and what is said of its weights.
fn weights_of(folder: &std::path::Path, output: &str) -> anyhow::Result<Weights> {
    let text = format!(
        "config_version = 1\n[model]\nweights = \"../weights.safetensors\"\n[pretrain]\noutput = \"{output}\"\n"
    );
    let config = flow_config::parse_named(&flow_config::Catalog::open(), "a.toml", &text, &[])
        .expect("valid")
        .config;
    Weights::of(&folder.join("configs").join("a.toml"), &config)
}

#[test]
fn weights_that_are_not_there_are_made_by_the_config_whose_pretraining_writes_them_only() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("configs")).unwrap();
    for same in ["../weights.safetensors", ".././configs/../weights.safetensors"] {
        assert!(weights_of(folder.path(), same).unwrap().missing, "{same}");
    }
    let error = weights_of(folder.path(), "../others.safetensors")
        .unwrap_err()
        .to_string();
    for word in [
        "weights.safetensors",
        "others.safetensors",
        "a.toml",
        "`flow-train pretrain CONFIG`",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    // Weights that are there may come from anywhere.
    fs::write(folder.path().join("weights.safetensors"), "").unwrap();
    let found = weights_of(folder.path(), "../others.safetensors").unwrap();
    assert!(!found.missing && found.file.exists());
}

#[test]
fn a_config_without_weights_says_what_to_name() {
    let catalog = flow_config::Catalog::open();
    let config = catalog.defaults().clone();
    let error = Weights::of(std::path::Path::new("a.toml"), &config).unwrap_err();
    assert!(error.to_string().contains("`model.weights`"), "{error}");
}
