//! Rules on the algorithm, EMA and evaluation.

use super::Rules;
use crate::codes;
use crate::sections::EvalWeights;

pub(super) fn check(rules: &mut Rules<'_>) {
    rules.check_algorithm();
    evaluation(rules);
}

fn evaluation(rules: &mut Rules<'_>) {
    let config = rules.config;
    if config.evaluation.weights == EvalWeights::Ema && !config.ema.enabled {
        rules
            .error(
                codes::RULE_EMA,
                &["evaluation.weights", "ema.enabled"],
                "`evaluation.weights = \"ema\"`, but no average is kept",
            )
            .help("set `ema.enabled = true`, or `evaluation.weights = \"current\"`");
    }
    if !config.ema.enabled {
        let written = rules.written_below("ema");
        if let Some(first) = written.iter().find(|key| *key != "ema.enabled") {
            rules
                .warning(
                    codes::RULE_UNUSED,
                    &[first, "ema.enabled"],
                    format!("`{first}` is not read: `ema.enabled` is false"),
                )
                .help("set `ema.enabled = true`, or remove it");
        }
    }
    let (columns, of_a_prompt) = (
        config.evaluation.grid.columns,
        config.evaluation.images_per_prompt,
    );
    if columns > of_a_prompt && !rules.written_below("evaluation.grid.columns").is_empty() {
        rules
            .warning(
                codes::RULE_UNUSED,
                &["evaluation.grid.columns", "evaluation.images_per_prompt"],
                format!("the grid has {columns} columns, but there are {of_a_prompt} images per prompt"),
            )
            .help("lower the one, or raise the other");
    }
    let grid = &config.evaluation.grid;
    if config.evaluation.every == 0 || grid.rows == 0 {
        return;
    }
    let Some(images) = rules.data_facts().and_then(|facts| facts.images) else {
        return;
    };
    let image = images.size.saturating_mul(grid.scale);
    for (key, count, margin) in [
        ("evaluation.grid.columns", columns.min(of_a_prompt), MARGIN),
        (
            "evaluation.grid.rows",
            grid.rows.min(config.evaluation.prompts),
            CAPTION,
        ),
    ] {
        let side = count.saturating_mul(image + margin);
        if side > LARGEST_GRID {
            rules
                .error(
                    codes::RULE_GRID,
                    &[key, "evaluation.grid.scale", "evaluation.grid"],
                    format!("the picture of an evaluation would have a side of {side} pixels; the most is {LARGEST_GRID}"),
                )
                .help(format!("lower `evaluation.grid.scale`, or `{key}`"));
        }
    }
}

/// Pixels of a picture's longest side, about those between two images, and those of a row's caption and scores (`flow-report`,
/// which draws it).
const LARGEST_GRID: usize = 1 << 15;
const MARGIN: usize = 16;
const CAPTION: usize = 80;
