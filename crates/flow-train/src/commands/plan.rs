//! `plan`: what a run would do, and about what it would cost. No weights are made, so a plan of any size is made anywhere.

pub mod checkpoint;
mod cost;
mod described;
mod json;

use super::config_report::{ConfigReport, ConfigUse, Target};
use super::{CommandContext, json_report, memory, tokens};
use crate::arguments::{ExistingFile, Format, PlanArguments};
use crate::failure::{Failure, OrFailure, settle};
use crate::output::{self, Output};
use crate::terminal;
use described::{Computing, Described, finetune};
use flow_config::Config;
use flow_train::checkpoint::{Policy, planner::PlanRecord};
use flow_trainer::Trainer;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::geometry::BatchGeometry;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_validate::{Load, TrainerKind, checkpoint_policy};
use serde_json::Value;
use std::path::Path;

/// Prints the plan. The weights need not exist yet.
pub fn run(arguments: &PlanArguments) -> Result<(), Failure> {
    let folders = PipelineFolders::default();
    let found = || {
        ConfigReport::of(
            &arguments.config,
            (ConfigUse::Inspection, 1),
            &arguments.target,
            &folders,
        )
    };
    if arguments.format == Format::Json {
        return json_report::print(&arguments.config.config, || {
            let ConfigReport { report, context, .. } = found()?;
            let plan = match context {
                Some(context) if !report.has_errors() => planned(arguments, &context)?.json,
                _ => Value::Null,
            };
            Ok((report, vec![("plan", plan)]))
        });
    }
    let ConfigReport { report, context, .. } = found()?;
    settle(&report)?;
    let context = context.ok_or_else(|| Failure::Input(report.render()))?;
    terminal::print(&planned(arguments, &context)?.text)
}

/// Makes the plan, and writes its files if there are to be some.
fn planned(arguments: &PlanArguments, context: &CommandContext) -> Result<Planned, Failure> {
    let mut config = context.config().clone();
    config.model.weights = None;
    config.model.adapter = None;
    let policy = checkpoint_policy(&config);
    let measures = matches!(policy, Policy::Budget { .. }) && context.target == Target::Here;
    if let (Some(folder), false) = (&arguments.out, measures) {
        return Err(Failure::Input(nothing_to_write(folder, &policy)));
    }
    let on_exists = arguments.there.on_exists;
    let folder = arguments.out.as_ref().map(|folder| match on_exists {
        ExistingFile::New => output::free(folder),
        _ => folder.clone(),
    });
    let files = (folder.as_deref()).map(|folder| -> Result<_, Failure> {
        let place = |name: &str| Output::at(&folder.join(name), "--out", on_exists);
        Ok((folder, place("plan.json")?, place("plan.svg")?))
    });
    let files = files.transpose()?;
    let stand_in = context.stand_in(&config);
    let describe = |environment: &Environment<'_>| {
        let tokens = tokens(&stand_in, environment).or_bad_input()?;
        let describe = Describe {
            config: &config,
            stand_in: &stand_in,
            environment,
            target: context.target,
            measures,
        };
        describe.with(setup::algorithm(&config, environment.plugins, tokens).or_bad_input()?)
    };
    let planned = if measures {
        context.compute(&config, describe)?
    } else {
        context.inspect(&stand_in, describe)?
    };
    if let (Some(record), Some((folder, json, svg))) = (&planned.record, &files) {
        json.make_room_and_say()?;
        svg.make_room_and_say()?;
        checkpoint::write(record, folder)?;
    }
    Ok(planned)
}

/// Why there is no plan for `--out`.
fn nothing_to_write(folder: &Path, policy: &Policy) -> String {
    let name = folder.display();
    match policy {
        Policy::Budget { .. } => format!(
            "there is no plan to write to `{name}`: blocks are measured on the device itself, and it is not this machine's. \
             Leave `--out` away"
        ),
        _ => format!(
            "there is no plan to write to `{name}`: `checkpointing.policy = \"{}\"` needs none. Add `--set \
             'checkpointing={{ policy = \"budget\", peak_gib = 1.0 }}'`, or leave `--out` away",
            policy.name()
        ),
    }
}

/// A plan in words and for programs.
struct Planned {
    text: String,
    json: Value,
    /// How a budget of activation checkpointing is spent, if there is one.
    record: Option<PlanRecord>,
}

struct Describe<'a> {
    config: &'a Config,
    /// The config with a device that is here.
    stand_in: &'a Config,
    environment: &'a Environment<'a>,
    target: Target,
    measures: bool,
}

impl Describe<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<Planned, Failure> {
        let (config, environment) = (self.config, self.environment);
        if self.measures {
            let model = setup::model(config, environment).or_bad_input()?;
            let trainer = setup::trainer_with_model(config, environment, model, algorithm).or_bad_input()?;
            return Ok(Planned {
                text: text(config, environment, &trainer)?,
                json: json::of_trainer(config, environment, &trainer),
                record: trainer.checkpoint_plan,
            });
        }
        let outline =
            setup::outline(self.stand_in, &environment.plugins.models, &environment.device).or_bad_input()?;
        let spec = outline.model.spec();
        let dataset = setup::dataset(config, environment).or_bad_input()?;
        setup::fits(config, environment.base, spec, &*dataset).or_bad_input()?;
        let trainer = TrainerKind {
            name: algorithm.name().into(),
            paradigm: Some(algorithm.paradigm()),
        };
        let here = match self.target {
            Target::Here => {
                let (acceleration, _) =
                    setup::acceleration(config, environment, spec, &trainer).or_bad_input()?;
                Computing::of(&acceleration, environment, config)
            }
            elsewhere => Computing::elsewhere(elsewhere, config),
        };
        let (catalog, of_model) = (environment.plugins.catalog(), (&*outline.layout, spec));
        let load = Load::of_run(config, &catalog, environment.accelerators, of_model, 1);
        let around = memory::Around::of(environment);
        let companions = memory::companions(config, around, (spec, &load)).or_bad_input()?;
        let described = Described {
            spec,
            layout: &outline.layout,
            trained: &outline.trained,
            geometry: &BatchGeometry::from_config(&config.sampling, &config.optimizer).or_bad_input()?,
            schedule: &setup::schedule(config, spec.tokens).or_bad_input()?,
            data: dataset.name(),
            prompts: dataset.train_prompts().len(),
            evaluated: setup::evaluation_prompts(&*dataset, config.evaluation.prompts).len(),
            text_tokens: load.text_tokens,
            load,
            companions,
            here,
        };
        Ok(Planned {
            text: described.text(config, &algorithm),
            json: described.json(config, &algorithm),
            record: None,
        })
    }
}

/// What is trained, by what and where, in a sentence; and that a loss near 0 is no fault, where there will be one.
pub fn headline<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    trainer: &Trainer<A>,
) -> String {
    let spec = trainer.sampler.policy.model.spec();
    let layout = trainer.state.weights.current.layout();
    let text = format!(
        "{} of {} M weights, {} trained, by {} on {}, {}",
        spec.architecture,
        millions(layout.count_values(|_| true)),
        finetune(config),
        trainer.algorithm.name(),
        environment.device.name(),
        config.device.dtype.name()
    );
    let one_step = trainer.settings.geometry.updates() == 1 && trainer.algorithm.inner_epochs() == 1;
    if trainer.algorithm.paradigm() == flow_accel::Paradigm::Coupled && one_step {
        return format!(
            "{text}; with one optimizer step per rollout the ratios are 1 and the advantages of a group add up to 0, so the loss \
             is near 0 whatever is learned: look at the reward"
        );
    }
    text
}

fn millions(count: usize) -> String {
    format!("{:.2}", count as f64 / 1e6)
}

/// The plan of a run whose trainer is there.
pub fn text<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    trainer: &Trainer<A>,
) -> Result<String, Failure> {
    let mut text = Described::of_trainer(config, environment, trainer).text(config, &trainer.algorithm);
    if let Some(record) = &trainer.checkpoint_plan {
        text.push_str(&checkpoint::text(record));
    }
    Ok(text)
}
