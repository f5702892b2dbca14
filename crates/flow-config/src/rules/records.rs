//! Rules on runs that learn from records of the data set: they make no rollout, so that what concerns rollouts alone is not read.

use super::Rules;
use crate::codes;

/// What only a rollout or its rewards read.
const OF_ROLLOUTS: [&str; 6] = [
    "advantage",
    "audit.drift_groups",
    "audit.drift_every",
    "sampling.initial_noise",
    "scheduler.after_window",
    "watch.every",
];

pub(super) fn check(rules: &mut Rules<'_>) {
    let Some(rows) = rules.rows_of_record() else {
        return;
    };
    let config = rules.config;
    let (sampling, kind) = (&config.sampling, &config.algorithm.kind);
    if sampling.group_size != rows {
        let record = match rows {
            1 => "one image".to_owned(),
            rows => format!("{rows} images"),
        };
        let message = format!(
            "`sampling.group_size` is {}, and a record of the data set from which `algorithm.kind = \"{kind}\"` learns has {record}",
            sampling.group_size
        );
        rules
            .error(
                codes::RULE_GROUP_SIZE,
                &["sampling.group_size", "algorithm.kind"],
                message,
            )
            .help(format!(
                "set `sampling.group_size = {rows}`; `sampling.prompts_per_step` is the number of records of an iteration"
            ));
    }
    if !sampling.micro_batch.is_multiple_of(rows) {
        let message = format!(
            "`sampling.micro_batch` is {}, and `algorithm.kind = \"{kind}\"` compares the {rows} images of a record in one call of the model",
            sampling.micro_batch
        );
        rules
            .error(
                codes::RULE_BATCH_GEOMETRY,
                &["sampling.micro_batch", "algorithm.kind"],
                message,
            )
            .help(format!("set it to a multiple of {rows}"));
    }
    if !config.acceleration.rollout.is_empty() {
        let message = format!(
            "`algorithm.kind = \"{kind}\"` learns from the data set and makes no rollout, so accelerators of `acceleration.rollout` have \
             nothing to do"
        );
        rules
            .error(
                codes::RULE_NO_ROLLOUT,
                &["acceleration.rollout", "algorithm.kind"],
                message,
            )
            .help("remove them; those of `acceleration.shared` are in force in training, too");
    }
    if config.exploration.is_on() {
        let message = format!(
            "`exploration.candidates` samples and scores candidates, and `algorithm.kind = \"{kind}\"` learns from the data set"
        );
        rules
            .error(
                codes::RULE_NO_ROLLOUT,
                &["exploration.candidates", "algorithm.kind"],
                message,
            )
            .help("remove `exploration`");
    }
    for key in OF_ROLLOUTS {
        if let Some(first) = rules.written_below(key).first() {
            let message = format!(
                "`{first}` is not read: `algorithm.kind = \"{kind}\"` learns from the data set, and there is no rollout to score"
            );
            rules
                .warning(codes::RULE_UNUSED, &[first, "algorithm.kind"], message)
                .help("remove it");
        }
    }
}
