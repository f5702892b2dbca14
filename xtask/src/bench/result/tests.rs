//! Summaries of measurements.

use super::{Contender, PARTS, median};
use serde_json::json;

#[test]
fn the_median_is_the_middle_value_or_the_mean_of_the_two() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!(median(&[]).is_nan());
}

#[test]
fn an_iteration_is_made_of_as_many_parts_as_the_job_has() {
    let mut contender = Contender::new("x");
    let times: serde_json::Map<String, serde_json::Value> = PARTS
        .iter()
        .zip(1..)
        .map(|((part, _), number)| ((*part).to_owned(), json!([number, number, 100])))
        .collect();
    contender
        .add(&json!({ "wall_ms": times, "peak_gib": 0.5 }), 0.0)
        .unwrap();
    let job = json!({ "per_iteration": { "rollouts": 4, "units": 16, "optimizer_steps": 2 } });
    // Rollout 1 ms, loss and backward 3 ms, optimizer 5 ms.
    assert_eq!(contender.series("iteration", &job), [4.0 + 48.0 + 10.0]);
}

#[test]
fn a_measurement_without_one_of_the_parts_is_an_error() {
    let error = Contender::new("x")
        .add(&json!({ "wall_ms": { "rollout": [1.0] } }), 0.0)
        .unwrap_err();
    assert!(error.to_string().contains("rollout_guided"), "{error}");
}
