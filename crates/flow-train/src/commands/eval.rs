//! `eval`: a model on the held-out prompts, with the noise of `evaluation.seed`.

use super::{CommandContext, config_report::ConfigUse, full_precision, weights};
use crate::arguments::EvalArguments;
use crate::failure::{Failure, OrFailure};
use crate::interrupt::Interrupt;
use crate::{progress, terminal};
use flow_exchange::Alone;
use flow_trainer::setup::{self, BuiltRewards, ScoredPrompts};
use flow_trainer::trainer::Subject;

/// Measures and prints one row per prompt, and the mean of each reward with its 95 % interval.
pub fn run(arguments: &EvalArguments, quiet: bool) -> Result<(), Failure> {
    let place = weights::instead(&arguments.config, arguments.weights.as_deref());
    let context = CommandContext::read(&place, ConfigUse::Inspection)?;
    let full = match arguments.without_low_precision {
        true => {
            let accelerators = &context.registries.accelerators;
            Some(full_precision::of(
                context.config(),
                accelerators,
                "--without-low-precision",
            )?)
        }
        false => None,
    };
    let config = full.as_ref().unwrap_or(context.config());
    weights::expect(config)?;
    let text = context.compute(config, |environment| {
        let common = setup::common(config, environment).or_bad_input()?;
        let common = common.set_up().or_bad_input()?;
        let scored = ScoredPrompts {
            dataset: &*common.dataset,
            prompts: &common.evaluation.prompts,
        };
        let rewards = setup::rewards(
            config.effective_eval_rewards(),
            environment,
            scored,
            1,
            &mut BuiltRewards::default(),
        )
        .or_bad_input()?;
        let mut observer = progress::observer(1, 1, quiet, Interrupt::default());
        let settings = &common.evaluation;
        let subject = Subject {
            weights: &common.model.weights,
            plan: common.acceleration.training(),
            conditioner: &common.conditioner,
            micro_batch: config.sampling.micro_batch,
            rewards: &rewards.workers,
            exchange: &Alone,
        };
        let evaluation = settings.measure(subject, 0, &mut *observer).or_failed()?;
        for undone in common.shortfalls("the evaluation").or_failed()? {
            observer.notice(&undone.to_string());
        }
        drop(observer);
        let names = rewards.weights.iter().map(|reward| reward.name.clone());
        let mut rows = vec![
            std::iter::once("prompt".to_owned())
                .chain(names)
                .collect::<Vec<_>>(),
        ];
        for (index, prompt) in settings.prompts.iter().enumerate() {
            let means = evaluation
                .prompt_means
                .iter()
                .map(|means| format!("{:.4}", means[index]));
            rows.push(std::iter::once(prompt.text.clone()).chain(means).collect());
        }
        let mut text = terminal::table(&rows, 1);
        text.push('\n');
        for (reward, interval) in rewards.weights.iter().zip(&evaluation.intervals) {
            text.push_str(&format!(
                "{}: {} over {} held-out prompts, {} images each\n",
                reward.name,
                interval.text(4),
                settings.prompts.len(),
                settings.images_per_prompt
            ));
        }
        Ok(text)
    })?;
    terminal::print(&text)
}
