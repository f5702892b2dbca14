//! Rules on rollouts that are sampled an update ahead.

use super::Rules;
use crate::codes::RULE_STALENESS;

const KEY: &str = "sampling.staleness";

pub(super) fn check(rules: &mut Rules<'_>) {
    let config = rules.config;
    if config.sampling.staleness == 0 {
        return;
    }
    if rules.algorithm_facts().is_some_and(|facts| !facts.is_coupled) {
        let message = format!(
            "a rollout that is an update behind is corrected by the ratio to its recorded log-probabilities, which the loss of \
             `algorithm.kind = \"{}\"` does not read",
            config.algorithm.kind
        );
        rules
            .error(RULE_STALENESS, &[KEY, "algorithm.kind"], message)
            .help("set `algorithm.kind` to \"grpo\", \"grpo-guard\", \"dppo\" or \"gardo\", or remove `sampling.staleness`");
    }
    if config.exploration.is_on() {
        let message = "exploration waits for the rewards of its candidates before it samples the rollout, so nothing would run beside the \
                       update but the rewards of those that are kept";
        rules
            .error(RULE_STALENESS, &[KEY, "exploration.candidates"], message)
            .help("remove `exploration` or `sampling.staleness`");
    }
}
