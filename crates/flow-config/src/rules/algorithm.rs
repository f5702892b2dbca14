//! Rules on the algorithm, advantages, EMA and evaluation.

use super::Rules;
use crate::codes;
use crate::sections::{
    Aggregation, AlgorithmConfig, EvalWeights, Finetune, KlConfig, KlKind, NftConfig, Reference, TimeSampling,
};

pub(super) fn check(rules: &mut Rules<'_>) {
    match &rules.config.algorithm {
        AlgorithmConfig::Grpo(grpo) => {
            clip_range(rules, grpo.clip_range);
            kl(rules, &grpo.kl);
        }
        AlgorithmConfig::GrpoGuard(guard) => {
            clip_range(rules, guard.clip_range);
            kl(rules, &guard.kl);
        }
        AlgorithmConfig::Nft(nft) => self::nft(rules, nft),
    }
    let advantage = &rules.config.advantage;
    if advantage.aggregation == Aggregation::Gdpo && !advantage.global_std {
        rules
            .error(
                codes::RULE_AGGREGATION,
                &["advantage.global_std", "advantage.aggregation"],
                "`advantage.aggregation = \"gdpo\"` normalises over the batch, so `advantage.global_std` cannot be false",
            )
            .help("remove `advantage.global_std`, or set `advantage.aggregation = \"sum\"`");
    }
    evaluation(rules);
}

fn clip_range(rules: &mut Rules<'_>, [lo, hi]: [f64; 2]) {
    if !(lo <= 0.0 && 0.0 <= hi) {
        let message = format!("`algorithm.clip_range` is [{lo}, {hi}], but must have lo <= 0 <= hi");
        rules
            .error(codes::RULE_CLIP_RANGE, &["algorithm.clip_range"], message)
            .help("the ratio is clipped to [1 + lo, 1 + hi]; the usual range is [-1e-4, 1e-4]");
    }
}

fn kl(rules: &mut Rules<'_>, kl: &KlConfig) {
    match (kl.kind, kl.beta) {
        (KlKind::None, beta) if beta != 0.0 => {
            let message = format!("`algorithm.kl.beta` is {beta}, but `algorithm.kl.kind` is \"none\"");
            rules
                .error(
                    codes::RULE_KL,
                    &["algorithm.kl.beta", "algorithm.kl.kind"],
                    message,
                )
                .help("set `algorithm.kl.kind` to \"velocity\" or \"mean\", or remove the factor");
        }
        (KlKind::Velocity | KlKind::Mean, 0.0) => {
            rules
                .error(
                    codes::RULE_KL,
                    &["algorithm.kl.kind", "algorithm.kl.beta"],
                    "there is a KL term, but its factor `algorithm.kl.beta` is 0",
                )
                .help("set `algorithm.kl.beta`, or `algorithm.kl.kind = \"none\"`");
        }
        _ => {}
    }
    if kl.kind != KlKind::None {
        reference(rules, "algorithm.kl.reference", kl.reference);
    }
}

fn reference(rules: &mut Rules<'_>, key: &str, reference: Reference) {
    if reference == Reference::LoraOff && rules.config.model.finetune != Finetune::Lora {
        let message = format!("`{key} = \"lora-off\"` needs adapters, but `model.finetune` is \"full\"");
        rules
            .error(codes::RULE_REFERENCE, &[key, "model.finetune"], message)
            .help(format!(
                "set `{key} = \"snapshot\"`, or `model.finetune = \"lora\"`"
            ));
    }
}

fn nft(rules: &mut Rules<'_>, nft: &NftConfig) {
    if nft.kl_beta != 0.0 {
        reference(rules, "algorithm.reference", nft.reference);
    }
    let times = &nft.train_timesteps;
    let [lo, hi] = times.range;
    if lo >= hi {
        let message = format!("`algorithm.train_timesteps.range` is [{lo}, {hi}], but must have lo < hi");
        rules
            .error(
                codes::RULE_TRAIN_TIMESTEPS,
                &["algorithm.train_timesteps.range"],
                message,
            )
            .help("fractions run from noise (0) to image (1); Flow-Factory's is [0, 0.9]");
    }
    let steps = rules.config.scheduler.steps;
    let discrete = match times.strategy {
        TimeSampling::Discrete | TimeSampling::DiscreteWithInit => Some(steps),
        TimeSampling::DiscreteWithoutInit => Some(steps - 1),
        TimeSampling::Uniform | TimeSampling::LogitNormal => None,
    };
    if let Some(available) = discrete.filter(|available| times.count > *available || *available == 0) {
        let message = format!(
            "`algorithm.train_timesteps.count` is {}, but the scheduler has {available} such times",
            times.count
        );
        rules
            .error(
                codes::RULE_TRAIN_TIMESTEPS,
                &[
                    "algorithm.train_timesteps.count",
                    "algorithm.train_timesteps.strategy",
                    "scheduler.steps",
                ],
                message,
            )
            .help("lower it, raise `scheduler.steps`, or choose \"uniform\" or \"logit-normal\"");
    }
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
