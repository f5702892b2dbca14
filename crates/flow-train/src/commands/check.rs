//! `check`: is a config right, and do its parts fit together?

use super::config_report::{ConfigReport, ConfigUse, Target};
use super::{CommandContext, buckets, json_report, memory, pretrain, setup_diagnostics, tokens};
use crate::arguments::{CheckArguments, Format, Purpose};
use crate::failure::{Failure, OrFailure, settle};
use crate::terminal;
use flow_config::{Config, Diagnostic};
use flow_pipeline::PictureBuckets;
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::setup::{self, BuiltRewards, Environment, PipelineFolders, ScoredPrompts};
use serde_json::Value;

/// Reads the config, builds what it describes, and says everything that is wrong.
pub fn run(arguments: &CheckArguments) -> Result<(), Failure> {
    let config = &arguments.config.config;
    if arguments.format == Format::Json {
        return json_report::print(config, || {
            let (ConfigReport { report, memory, .. }, buckets) = examine(arguments)?;
            let memory = memory.as_ref().map_or(Value::Null, memory::json);
            let buckets = buckets.as_ref().map_or(Value::Null, buckets::json);
            Ok((report, vec![("memory", memory), ("buckets", buckets)]))
        });
    }
    let (found, buckets) = examine(arguments)?;
    let ConfigReport {
        report,
        context,
        memory,
    } = found;
    // Of models that others made, whose sizes nobody chose: also where it does not fit.
    if let (Some(table), Some(context)) = (&memory, &context)
        && memory::is_of_published_models(context.config())
    {
        let device = match context.target {
            Target::Here => "the device".to_owned(),
            elsewhere => elsewhere.to_string(),
        };
        terminal::print(&memory::text(table, &device))?;
    }
    if let (Some(buckets), Some(context)) = (&buckets, &context) {
        terminal::print(&buckets::text(buckets, context.config().pretrain.batch))?;
    }
    settle(&report)?;
    let sources = context
        .iter()
        .flat_map(|context| context.resolved.sources.values());
    let (mut given, mut all) = (0, 0);
    for source in sources {
        given += usize::from(*source != flow_config::Source::Default);
        all += 1;
    }
    let place = context.map_or(Target::Here, |context| context.target);
    let place = match place {
        Target::Here => String::new(),
        elsewhere => format!(
            "\nfor {elsewhere}, which is not here: what accelerators refuse on the device itself was not asked"
        ),
    };
    let name = config.display();
    terminal::line(&format!("{name}: ok, {given} of {all} values given{place}"))
}

/// Everything that is wrong, and which sizes pictures are fitted to, if to several.
fn examine(arguments: &CheckArguments) -> Result<(ConfigReport, Option<PictureBuckets>), Failure> {
    let wanted = match arguments.purpose {
        Purpose::Train => ConfigUse::Training,
        Purpose::Pretrain => ConfigUse::Pretraining,
    };
    let folders = PipelineFolders::default();
    let ranks = usize::from(arguments.ranks);
    let ConfigReport {
        mut report,
        context,
        memory,
    } = ConfigReport::of(&arguments.config, (wanted, ranks), &arguments.target, &folders)?;
    if let (Some(context), false) = (&context, report.has_errors()) {
        let more = context.refused_on(ranks, arguments.purpose);
        let found = report.diagnostics.iter().cloned().chain(more);
        report = context.resolved.located(found.collect::<Vec<_>>());
    }
    let mut buckets = None;
    if let (Some(context), false) = (&context, report.has_errors()) {
        // What only the parts themselves know: files, and what is in them.
        match build(context, arguments.purpose)? {
            Ok(found) => buckets = found,
            Err(more) => {
                let found = report.diagnostics.iter().cloned().chain(more);
                report = context.resolved.located(found.collect::<Vec<_>>());
            }
        }
    }
    let found = ConfigReport {
        report,
        context,
        memory,
    };
    Ok((found, buckets))
}

/// What the parts of a run say of their pictures, or refuse.
type Built = Result<Option<PictureBuckets>, Vec<Diagnostic>>;

/// Builds the parts of a run and drops them.
fn build(context: &CommandContext, purpose: Purpose) -> Result<Built, Failure> {
    let config = match purpose {
        Purpose::Train => context.config().clone(),
        Purpose::Pretrain => pretrain::fresh(context.config()),
    };
    let config = context.stand_in(&config);
    let pool = flow_train::worker_pool(&config).or_bad_input()?;
    pool.install(|| {
        let environment = context.try_environment(&config);
        let environment = match environment {
            Ok(environment) => environment,
            Err(error) => return Ok(Err(setup_diagnostics::of_environment(&error))),
        };
        let environment = &environment;
        let built = match (context.target, purpose) {
            (Target::Here, Purpose::Train) => tokens(&config, environment).and_then(|tokens| {
                let build = Build {
                    config: &config,
                    environment,
                };
                build.with(setup::algorithm(&config, environment.plugins, tokens)?)?;
                Ok(None)
            }),
            (Target::Here, Purpose::Pretrain) => setup::common(&config, environment)
                .and_then(|common| setup::has_examples(&config, environment, &*common.dataset)),
            (Target::Elsewhere { .. }, _) => {
                build_for_elsewhere((&config, context.config()), environment, purpose)
            }
        };
        Ok(built.map_err(|error| setup_diagnostics::diagnostics(&error)))
    })
}

/// Builds what a processor can build of a run for another device: no optimizer, and weights only where they fit. `config` is one that
/// computes here in place of `asked`.
fn build_for_elsewhere(
    (config, asked): (&Config, &Config),
    environment: &Environment<'_>,
    purpose: Purpose,
) -> Result<Option<PictureBuckets>, TrainError> {
    const BYTES_PER_GIB: f64 = (1u64 << 30) as f64;
    let outline = setup::outline(config, &environment.plugins.models, &environment.device)?;
    let weights_gib = 4.0 * outline.layout.count_values(|_| true) as f64 / BYTES_PER_GIB;
    let room_gib = flow_report::Host::detect().memory_gib.unwrap_or(8.0) / 2.0;
    if weights_gib < room_gib {
        setup::common(config, environment)?;
    } else {
        setup::fits(
            config,
            environment.base,
            outline.model.spec(),
            &*setup::dataset(config, environment)?,
        )?;
        terminal::note(&format!(
            "note: the weights were not read: they take {weights_gib:.0} GiB, and this machine has {:.0}",
            2.0 * room_gib
        ));
    }
    let dataset = setup::dataset(config, environment)?;
    if purpose == Purpose::Pretrain {
        return setup::has_examples(config, environment, &*dataset);
    }
    setup::algorithm_fits(asked, environment, outline.model.spec().tokens, &dataset)?;
    let dataset = &*dataset;
    let of = |prompts| ScoredPrompts { dataset, prompts };
    let trained_on = dataset.train_prompts();
    let mut built = BuiltRewards::default();
    // Without rewards, a run learns from records of the data set: another rule says where one is missing.
    if !config.rewards.is_empty() {
        setup::rewards(&config.rewards, environment, of(&trained_on), 1, &mut built)?;
    }
    let evaluated = setup::evaluation_prompts(dataset, config.evaluation.prompts);
    let eval_rewards = config.effective_eval_rewards();
    if !eval_rewards.is_empty() {
        setup::rewards(eval_rewards, environment, of(&evaluated), 1, &mut built)?;
    }
    Ok(None)
}

struct Build<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
}

impl Build<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<(), TrainError> {
        let (config, environment) = (self.config, self.environment);
        setup::trainer_with_model(config, environment, setup::model(config, environment)?, algorithm)
            .map(|_| ())
    }
}
