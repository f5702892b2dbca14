//! Times of a forward-process loss that are the sampler's own: there must be as many as are asked for.

use flow_config::codes::RULE_TRAIN_TIMESTEPS;
use flow_config::{AlgorithmConfig, Config, Diagnostic, TimeSampling};

/// How far outside the range a step on its border may lie, by rounding.
const TOLERANCE: f64 = 1e-6;

/// Fewer of the sampler's `sigmas`, one per step, in the range than are asked for. What the steps alone rule out is the
/// config's own matter.
pub(crate) fn check(config: &Config, sigmas: &[f64]) -> Option<Diagnostic> {
    let AlgorithmConfig::Nft(nft) = &config.algorithm else {
        return None;
    };
    let times = &nft.train_timesteps;
    let left_out = match times.strategy {
        TimeSampling::Discrete | TimeSampling::DiscreteWithInit => 0,
        TimeSampling::DiscreteWithoutInit => 1,
        TimeSampling::Uniform | TimeSampling::LogitNormal => return None,
    };
    let [low, high] = times.range;
    let inside = (1.0 - high) - TOLERANCE..=(1.0 - low) + TOLERANCE;
    let within = sigmas.iter().filter(|sigma| inside.contains(*sigma)).count();
    let available = within.saturating_sub(left_out);
    if sigmas.is_empty()
        || low >= high
        || times.count + left_out > sigmas.len()
        || available >= times.count.max(1)
    {
        return None;
    }
    let first = if left_out == 1 { ", the first left out" } else { "" };
    let asked = match times.count {
        0 => "at least one is needed".to_owned(),
        count => format!("`algorithm.train_timesteps.count` is {count}"),
    };
    let message = format!(
        "{available} of the {} steps of the sampler lie in `algorithm.train_timesteps.range` [{low}, {high}]{first}, and \
         {asked}",
        sigmas.len()
    );
    let fractions: Vec<String> = sigmas.iter().map(|sigma| format!("{:.3}", 1.0 - sigma)).collect();
    Some(
        Diagnostic::error(RULE_TRAIN_TIMESTEPS, message)
            .path("algorithm.train_timesteps.range")
            .related([
                "algorithm.train_timesteps.count",
                "algorithm.train_timesteps.strategy",
                "scheduler.steps",
            ])
            .help(format!(
                "widen the range, or choose \"uniform\" or \"logit-normal\"; the steps stand at {}",
                fractions.join(", ")
            )),
    )
}
