//! Rewards by name.

use super::Environment;
use super::paths::start_in_config;
use crate::error::TrainError;
use crate::trainer::{EvaluationSettings, RewardWeight, WeightedRewards};
use flow_config::{Config, RewardConfig};
use flow_data::{Dataset, Prompt};
use flow_registry::Refusal;
use flow_report::ValueRange;
use flow_rewards::{Lent, NamedReward, Params, Reward, RewardError, RewardWorkers};
use flow_rewards_models::Computation;
use std::path::Path;
use std::sync::Arc;

/// Threads for rewards: half of a process's share of the processor, since generation goes on beside them.
pub(super) fn threads(local_ranks: usize) -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 2 / local_ranks).max(1)
}

/// An error about weights that are not there, with where their path starts.
fn located(error: RewardError, config: &RewardConfig, environment: &Environment<'_>) -> RewardError {
    let factory = environment.plugins.rewards.get(&config.kind).ok();
    let missing = factory.and_then(|factory| factory.plugin().missing_path(&config.params, environment.base));
    let Some(path) = missing else {
        return error;
    };
    let with_start = |problem: Refusal| {
        let start = start_in_config(Path::new(&path), environment.base);
        Refusal::new(problem.sentence(), start)
    };
    match error {
        RewardError::Weights { file, problem } => RewardError::Weights {
            file,
            problem: with_start(problem),
        },
        RewardError::Network { reward, problem } => RewardError::Network {
            reward,
            problem: with_start(problem),
        },
        RewardError::File {
            reward,
            file,
            problem,
        } => RewardError::File {
            reward,
            file,
            problem: with_start(problem),
        },
        error => error,
    }
}

/// The prompts whose images a run will score.
#[derive(Clone, Copy)]
pub struct ScoredPrompts<'a> {
    /// Where they are from.
    pub dataset: &'a dyn Dataset,
    /// The prompts.
    pub prompts: &'a [Prompt],
}

impl ScoredPrompts<'_> {
    /// Asks a reward about every prompt, so that a run does not end at the first image of one that cannot be scored.
    fn check(&self, name: &str, reward: &dyn Reward) -> Result<(), RewardError> {
        let problem = |prompt: &Prompt| {
            let problem = reward.check_prompt(prompt).err()?;
            let place = self.dataset.place(prompt);
            let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
            Some(format!("{place}`{}`: {problem}", excerpt(&prompt.text)))
        };
        let problems: Vec<String> = self.prompts.iter().filter_map(problem).collect();
        if problems.is_empty() {
            return Ok(());
        }
        Err(RewardError::Prompts {
            reward: name.to_owned(),
            problems,
            asked: self.prompts.len(),
        })
    }
}

/// The first words of a prompt, by which a person finds it.
fn excerpt(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Rewards that were built, so that what a run both trains on and is evaluated by is loaded once.
#[derive(Default)]
pub struct BuiltRewards(Vec<(String, Params, Arc<dyn Reward>)>);

impl BuiltRewards {
    /// The reward of this kind and with these parameters; built if there is none.
    fn reward(
        &mut self,
        config: &RewardConfig,
        environment: &Environment<'_>,
    ) -> Result<Arc<dyn Reward>, RewardError> {
        let is_it =
            |(kind, params, _): &&(String, Params, _)| *kind == config.kind && *params == config.params;
        if let Some((.., reward)) = self.0.iter().find(is_it) {
            return Ok(reward.clone());
        }
        let lent = Lent::default().with(Computation {
            device: environment.device.clone(),
            plan: environment.plan.clone(),
        });
        let registry = &environment.plugins.rewards;
        let reward = registry.build_with(&config.kind, &config.params, environment.base, &lent);
        let reward = reward.map_err(|error| located(error, config, environment))?;
        self.0
            .push((config.kind.clone(), config.params.clone(), reward.clone()));
        Ok(reward)
    }
}

/// Builds rewards that are not `built` yet and starts their threads.
///
/// # Errors
/// A parameter or file that does not fit, a prompt whose images a reward cannot score, or no reward at all.
pub fn rewards(
    configs: &[RewardConfig],
    environment: &Environment<'_>,
    scored: ScoredPrompts<'_>,
    threads: usize,
    built: &mut BuiltRewards,
) -> Result<WeightedRewards, TrainError> {
    let mut named = Vec::new();
    let mut weights = Vec::new();
    for config in configs {
        let reward = built.reward(config, environment)?;
        scored.check(config.name(), &*reward)?;
        let (low, high) = reward.range();
        named.push(NamedReward {
            name: config.name().into(),
            reward,
        });
        weights.push(RewardWeight {
            name: config.name().into(),
            weight: config.weight,
            range: ValueRange::new(low, high),
        });
    }
    Ok(WeightedRewards {
        workers: RewardWorkers::new(named, threads)?,
        weights,
    })
}

/// The rewards that a run trains on, and those that it is evaluated by, for the prompts of the one and of the other. Records are scored
/// by nobody; evaluation needs no reward where there is none.
pub(super) fn of_run(
    config: &Config,
    environment: &Environment<'_>,
    dataset: &dyn Dataset,
    (prompts, evaluation): (&[Prompt], &EvaluationSettings),
    learns_records: bool,
) -> Result<(WeightedRewards, WeightedRewards), TrainError> {
    let threads = threads(environment.exchange.world().local_ranks);
    let mut built = BuiltRewards::default();
    let trained_on = match learns_records {
        true => WeightedRewards::none()?,
        false => {
            let scored = ScoredPrompts { dataset, prompts };
            rewards(&config.rewards, environment, scored, threads, &mut built)?
        }
    };
    let evaluated_by = match config.effective_eval_rewards() {
        [] if learns_records && evaluation.every == 0 => WeightedRewards::none()?,
        eval_rewards => {
            let prompts = &evaluation.prompts[..];
            let scored = ScoredPrompts { dataset, prompts };
            rewards(eval_rewards, environment, scored, threads, &mut built)?
        }
    };
    Ok((trained_on, evaluated_by))
}
