//! A run that lost what it had learned says so; one that wavers, rises or never rose does not.

use flow_report::{MetricRecord, Metrics, MetricsStart, MetricsWriter, RewardRegression, StatisticsError};

/// Evaluations of some prompts, by step, as a run writes and reads them.
fn metrics<const PROMPTS: usize>(evaluations: &[(u64, [f64; PROMPTS])]) -> Metrics {
    let evaluations: Vec<_> = evaluations
        .iter()
        .map(|(step, values)| (*step, &values[..]))
        .collect();
    of_any(&evaluations)
}

/// Evaluations of any number of prompts.
fn of_any(evaluations: &[(u64, &[f64])]) -> Metrics {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path, MetricsStart::Fresh).unwrap();
    for (step, values) in evaluations {
        let train = MetricRecord::new(*step, "train").with("prompts/rules", vec![9.0; 5]);
        writer.append(&train).unwrap();
        let record = MetricRecord::new(*step, "eval").with("prompts/rules", values.to_vec());
        writer.append(&record).unwrap();
    }
    Metrics::read(&path).unwrap()
}

const BEFORE: [f64; 5] = [0.50, 0.61, 0.72, 0.55, 0.68];
const BEST: [f64; 5] = [0.81, 0.90, 0.95, 0.88, 0.93];

#[test]
fn the_best_evaluation_is_named_where_the_last_one_is_clearly_below_it() {
    let last = [0.02, 0.0, 0.1, 0.05, 0.03];
    let found = RewardRegression::of(
        &metrics(&[(0, BEFORE), (10, BEST), (20, [0.7; 5]), (30, last)]),
        "rules",
    );
    let found = found.unwrap().expect("0.89 became 0.04");
    assert_eq!((found.best_step, found.last_step), (10, 30));
    assert!((found.best_mean - 0.894).abs() < 1e-12);
    assert!((found.difference.interval.mean - (0.04 - 0.894)).abs() < 1e-12);
    assert_eq!(found.difference.worsened, 5);
}

#[test]
fn falling_below_the_beginning_counts_though_nothing_was_gained() {
    let found = RewardRegression::of(&metrics(&[(0, BEST), (10, BEFORE)]), "rules").unwrap();
    assert_eq!(
        found.map(|found| (found.best_step, found.last_step)),
        Some((0, 10))
    );
}

#[test]
fn a_run_that_wavers_or_rises_or_was_not_evaluated_has_none() {
    // Lower for every prompt, but by less than a third of what was gained.
    let near = BEST.map(|value| value - 0.05);
    // Lower by more than that, but not for every prompt, so that the interval includes 0.
    let mixed = [0.95, 0.30, 1.0, 1.0, 0.40];
    for evaluations in [
        Vec::new(),
        vec![(0, BEST)],
        vec![(0, BEFORE), (10, BEST)],
        vec![(0, BEFORE), (10, BEST), (20, near)],
        vec![(0, BEFORE), (10, BEST), (20, mixed)],
        vec![(0, BEST), (10, BEST)],
    ] {
        assert_eq!(
            RewardRegression::of(&metrics(&evaluations), "rules"),
            Ok(None),
            "{evaluations:?}"
        );
    }
    let falls = metrics(&[(0, BEST), (10, BEFORE)]);
    assert_eq!(RewardRegression::of(&falls, "another reward"), Ok(None));
}

#[test]
fn evaluations_of_another_number_of_prompts_are_not_compared() {
    let falls: [(u64, &[f64]); 2] = [(0, &BEST), (10, &BEFORE[..4])];
    assert_eq!(RewardRegression::of(&of_any(&falls), "rules"), Ok(None));
    let falls: [(u64, &[f64]); 3] = [(0, &BEST[..4]), (10, &BEST), (20, &BEFORE)];
    let found = RewardRegression::of(&of_any(&falls), "rules").unwrap();
    assert_eq!(found.map(|found| found.best_step), Some(10));
}

#[test]
fn a_value_that_is_not_finite_is_an_error() {
    let mut lost = BEST;
    lost[2] = f64::NAN;
    let found = RewardRegression::of(&metrics(&[(0, BEFORE), (10, lost), (20, BEST)]), "rules");
    assert!(
        matches!(found, Err(StatisticsError::NotFinite { index: 2, .. })),
        "{found:?}"
    );
}
