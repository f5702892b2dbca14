//! Rules on `[watch]`.

use super::Rules;
use crate::codes;

pub(super) fn check(rules: &mut Rules<'_>) {
    let config = rules.config;
    let watch = &config.watch;
    if watch.every == 0 {
        let written = rules.written_below("watch");
        if let Some(first) = written.iter().find(|key| *key != "watch.every") {
            let message = format!("`{first}` is not read: `watch.every` is 0");
            rules
                .warning(codes::RULE_UNUSED, &[first, "watch.every"], message)
                .help("set `watch.every`, or remove it");
        }
    }
    let known: Vec<&str> = config
        .effective_eval_rewards()
        .iter()
        .map(|reward| reward.name())
        .collect();
    for judge in &watch.judges {
        if known.contains(&judge.as_str()) {
            continue;
        }
        let message = format!("`watch.judges` names `{judge}`, and evaluation has no such reward");
        let help = match known.as_slice() {
            [] => "add it as an `[[eval_rewards]]` table".to_owned(),
            known => format!(
                "it has {}; a judge is an `[[eval_rewards]]` table with that name",
                known.join(", ")
            ),
        };
        rules
            .error(codes::NOT_ALLOWED, &["watch.judges", "eval_rewards"], message)
            .help(help);
    }
    if !watch.judges.is_empty() && config.evaluation.every == 0 {
        rules
            .warning(
                codes::RULE_UNUSED,
                &["watch.judges", "evaluation.every"],
                "judges score at evaluations, and `evaluation.every` is 0",
            )
            .help("set `evaluation.every`, or remove `watch.judges`");
    }
}
