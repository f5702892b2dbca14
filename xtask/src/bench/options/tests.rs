//! What counts as an effect of an option, and what is read of a run.

use super::outcome::{Measured, Outcome, Run, Verdict, noise, table, verdict};
use super::{ON_A_GPU, ON_A_PROCESSOR, Setting, first_line};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn outcome(name: &str, iterations_s: &[f64], metrics: &str) -> Outcome {
    let mut outcome = Outcome::new(name);
    for (seed, iteration_s) in iterations_s.iter().enumerate() {
        outcome.add(Measured::Ran(Run {
            iteration_s: *iteration_s,
            start_s: 3.0,
            peak_gib: None,
            metrics: format!("{metrics} of seed {seed}"),
        }));
    }
    outcome
}

fn baselines() -> [Outcome; 2] {
    [
        outcome("no option", &[0.100, 0.200], "metrics"),
        outcome("no option", &[0.102, 0.200], "metrics"),
    ]
}

fn judged(iterations_s: &[f64]) -> Verdict {
    let [first, second] = baselines();
    verdict(&outcome("x = 1", iterations_s, "metrics"), &first, &second)
}

#[test]
fn an_effect_is_what_every_seed_shows_by_more_than_chance() {
    let [first, second] = baselines();
    assert!((noise(&first, &second) - 0.02).abs() < 1e-9);
    assert!(matches!(judged(&[0.090, 0.180]), Verdict::Faster(least, most) if least > 0.09 && most < 0.12));
    assert!(matches!(judged(&[0.110, 0.210]), Verdict::Slower(..)));
    // One seed says so and the other does not; both say so, but no louder than chance; they contradict each other.
    for neither in [[0.090, 0.200], [0.100, 0.197], [0.090, 0.230]] {
        assert_eq!(judged(&neither), Verdict::NoEffect, "{neither:?}");
    }
}

#[test]
fn baselines_that_agree_by_chance_do_not_make_a_small_difference_an_effect() {
    let first = outcome("no option", &[0.1, 0.2], "metrics");
    let tried = outcome("x = 1", &[0.0996, 0.1992], "metrics");
    assert_eq!(verdict(&tried, &first, &first), Verdict::NoEffect);
}

#[test]
fn other_metrics_are_told_before_any_gain() {
    let [first, second] = baselines();
    let faster = outcome("x = 1", &[0.05, 0.10], "other metrics");
    assert_eq!(verdict(&faster, &first, &second), Verdict::OtherBits);
    let text = table(&[first.clone(), second.clone(), faster]);
    assert!(
        text.contains("computes something else") && text.contains("Recommended: no option."),
        "{text}"
    );
    let other = outcome("no option", &[0.1, 0.2], "other metrics");
    assert!(table(&[first, other]).contains("computes something else"));
}

#[test]
fn the_table_recommends_what_helps_and_says_what_is_not_here() {
    let [first, second] = baselines();
    let mut refused = Outcome::new("y = 2");
    refused.add(Measured::Refused("nothing in this build reads `y`".into()));
    let text = table(&[first, second, outcome("x = 1", &[0.05, 0.10], "metrics"), refused]);
    for said in [
        "| `x = 1` | 50.00, 100.00 | 3.00, 3.00 | – | **50.0 to 50.5 % less time** |",
        "| `y = 2` | – | – | – | not here: nothing in this build reads `y` |",
        "differ by 2.0 % at most",
        "Recommended: `x = 1`.",
    ] {
        assert!(text.contains(said), "`{said}` is not in:\n{text}");
    }
}

fn write(folder: &Path, iterations: &[(f64, f64)]) {
    let lines = iterations.iter().zip(1..).map(|((rollout, update), step)| {
        format!(
            "{{\"step\":{step},\"kind\":\"timing\",\"rollout_s\":{rollout},\"rewards_s\":0.5,\"update_s\":{update}}}\n\
             {{\"step\":{step},\"kind\":\"device_memory\",\"rollout_gib\":{step},\"update_gib\":1.5}}\n"
        )
    });
    fs::write(folder.join("timing.jsonl"), lines.collect::<String>()).expect("it can be written");
    fs::write(
        folder.join("metrics.jsonl"),
        "{\"step\":1,\"kind\":\"train\",\"reward\":0.5}\n",
    )
    .expect("it can be written");
}

#[test]
fn a_run_is_read_from_its_last_half_and_the_rest_of_its_process_is_the_start() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write(folder.path(), &[(20.0, 30.0), (2.0, 9.0), (1.0, 2.5), (1.0, 1.5)]);
    let Measured::Ran(run) = Measured::read(folder.path(), 90.0).expect("a run") else {
        panic!("it ran");
    };
    assert_eq!(run.iteration_s, 3.5);
    assert_eq!(run.start_s, 90.0 - 3.0 * 3.5 - 3.0);
    assert_eq!(run.peak_gib, Some(4.0));
    write(folder.path(), &[]);
    assert!(Measured::read(folder.path(), 90.0).is_err());
}

#[test]
fn a_setting_brings_what_it_needs_and_a_refusal_is_told_in_one_line() {
    let folder = Path::new("/there");
    let none = BTreeMap::new();
    assert!(
        Setting(None)
            .arguments(&none, folder)
            .expect("nothing")
            .is_empty()
    );
    let cache = Setting::parse("cubecl.compilation.cache = true").expect("a setting");
    assert_eq!(cache.name(), "cubecl.compilation.cache = true");
    assert_eq!(
        cache.arguments(&none, folder).expect("arguments"),
        [
            "--set",
            "runtime.options={ \"cubecl.compilation.cache\" = true, \"cubecl.environment.path\" = { directory = \"/there/cache\" } }"
        ]
    );
    // What the config asks for anyway stays, and is what runs without an option have.
    let base = BTreeMap::from([("cubecl.streaming.max_streams".to_owned(), Value::from(2))]);
    let kept = Setting(None).arguments(&base, folder).expect("arguments");
    assert_eq!(
        kept,
        [
            "--set",
            "runtime.options={ \"cubecl.streaming.max_streams\" = 2 }"
        ]
    );
    let log = Setting::of("burn.autodiff.logger.level", "\"full\"").arguments(&base, folder);
    let log = log.expect("arguments");
    assert!(log[1].contains("\"cubecl.streaming.max_streams\" = 2"), "{log:?}");
    assert!(
        log[1].contains("\"burn.autodiff.logger.file\" = \"/there/log\""),
        "{log:?}"
    );
    assert!(Setting::parse("cubecl.compilation.cache").is_err());
    let said = "runtime::missing-feature\n\n  × nothing in this build reads `x`: it lacks \"cubecl\"\n   ╭─[--set:1:1]";
    assert_eq!(
        first_line(said),
        "nothing in this build reads `x`: it lacks \"cubecl\""
    );
}

#[test]
fn every_setting_that_is_tried_unasked_is_an_option_that_there_is() {
    let text = fs::read_to_string("../crates/flow-runtime/OPTIONS.md");
    let text = text.expect("the list of options");
    for (option, value) in ON_A_GPU.iter().chain(&ON_A_PROCESSOR) {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{option}` |")));
        let row = row.unwrap_or_else(|| panic!("there is no option `{option}`"));
        let is_number = value.parse::<u64>().is_ok();
        assert!(
            is_number || *value == "true" || row.contains(value),
            "{option} = {value}: {row}"
        );
    }
}
