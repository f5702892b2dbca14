//! Seconds of a run's iterations, from its `timing.jsonl`.

use flow_report::Metrics;
use std::collections::BTreeMap;

/// What an iteration spends its time on.
const PARTS: [&str; 3] = ["rollout_s", "rewards_s", "update_s"];

/// Seconds of each iteration, by its number; evaluations are none of it.
pub(super) fn seconds(timing: &Metrics) -> BTreeMap<u64, f64> {
    let mut by_step = BTreeMap::new();
    for part in PARTS {
        for (step, seconds) in timing.series("timing", part) {
            *by_step.entry(step).or_default() += seconds;
        }
    }
    by_step
}
