//! `calibrate`: what `magcache` and `teacache` must know of a model, measured in one rollout of the config.

use super::{CommandContext, config_report::ConfigUse, tokens};
use crate::arguments::{CalibrateArguments, MeasuredPolicy};
use crate::failure::{Failure, OrFailure};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::{progress, terminal};
use flow_cache::{MagnitudeRatios, SignalChanges, fit_polynomial};
use flow_config::Config;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::setup::{self, Environment};
use flow_trainer::undone::{settle, shortfalls};
use std::fmt::Write;
use std::sync::Arc;

/// Degree of the polynomial of `teacache` (Liu et al. 2024, arXiv:2411.19108).
const DEGREE: usize = 4;

/// Measures, and writes the entry of `[acceleration]` or prints it.
pub fn run(arguments: &CalibrateArguments, quiet: bool) -> Result<(), Failure> {
    // Before the work, and not after it.
    let policy = arguments.there.on_exists;
    let output = arguments.out.as_ref();
    let output = output.map(|path| Output::at(path, "--out", policy)).transpose()?;
    let context = CommandContext::read(&arguments.config, ConfigUse::Inspection)?;
    let config = context.config();
    let values = context.compute(config, |environment| {
        let tokens = tokens(config, environment).or_bad_input()?;
        let measuring = Measuring {
            config,
            environment,
            policy: arguments.policy,
            quiet,
        };
        measuring.with(setup::algorithm(config, environment.plugins, tokens).or_bad_input()?)
    })?;
    let (name, key, digits) = match arguments.policy {
        MeasuredPolicy::Magcache => ("magcache", "ratios", 5),
        MeasuredPolicy::Teacache => ("teacache", "coefficients", 8),
    };
    if values.is_empty() {
        return Err(Failure::Input(
            "the rollout determines nothing: it needs at least as many changes from step to step as there are \
             coefficients. Raise `scheduler.steps`, or `sampling.prompts_per_step`"
                .into(),
        ));
    }
    let values: Vec<String> = values.iter().map(|value| format!("{value:.digits$}")).collect();
    let mut text = String::new();
    let images = config.sampling.images_per_step();
    let steps = config.scheduler.steps;
    let described =
        format!("# Measured by `flow-train calibrate` over {images} trajectories of {steps} steps.\n");
    write!(
        text,
        "{described}[[acceleration.rollout]]\nname = \"feature_cache\"\n\n[acceleration.rollout.params]\npolicy = \
         \"{name}\"\n{key} = [{}]\n",
        values.join(", ")
    )
    .or_failed()?;
    match output {
        None => terminal::print(&text),
        Some(output) => {
            output.make_room_and_say()?;
            let path = output.path();
            flow_report::atomic_write(path, "measured values", |out| out.write_all(text.as_bytes()))
                .or_failed()?;
            terminal::line(&format!(
                "wrote {}; put it at the end of a config of this model",
                path.display()
            ))
        }
    }
}

struct Measuring<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
    policy: MeasuredPolicy,
    quiet: bool,
}

impl Measuring<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<Vec<f64>, Failure> {
        // What is to be measured for is not in force yet.
        let mut config = self.config.clone();
        config.acceleration.rollout.clear();
        let trainer = setup::model(&config, self.environment).and_then(|model| {
            setup::trainer_with_model(&config, self.environment, model, algorithm)?.set_up()
        });
        let trainer = trainer.or_bad_input()?;
        let mut observer = progress::observer(1, 1, self.quiet, Interrupt::default());
        let values = match self.policy {
            MeasuredPolicy::Magcache => {
                let measured = Arc::new(MagnitudeRatios::new());
                trainer.measure(measured.clone(), &mut *observer);
                measured.ratios()
            }
            MeasuredPolicy::Teacache => {
                let measured = Arc::new(SignalChanges::new(false));
                trainer.measure(measured.clone(), &mut *observer);
                fit_polynomial(&measured.points(), DEGREE).unwrap_or_default()
            }
        };
        let fell_short = shortfalls(
            &trainer.acceleration.take_activity(),
            "the rollout that is measured",
        );
        for undone in settle(fell_short, config.acceleration.strict).or_failed()? {
            observer.notice(&undone.to_string());
        }
        Ok(values)
    }
}
