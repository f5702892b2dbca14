//! `check`: is a config right, and do its parts fit together?

use super::survey::{Survey, Use};
use super::{Loaded, pretrain, refusal, tokens};
use crate::arguments::{CheckArguments, Format, Purpose};
use crate::diagnostics;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_config::{Config, Report, Severity};
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::setup::{self, Environment, WithAlgorithm};
use serde_json::json;

/// Reads the config, builds what it describes, and says everything that is wrong.
pub fn run(arguments: &CheckArguments) -> Result<(), Failure> {
    let wanted = match arguments.purpose {
        Purpose::Train => Use::Training,
        Purpose::Pretrain => Use::Pretraining,
    };
    let Survey { mut report, loaded } = Survey::of(&arguments.config, wanted, arguments.memory_gib)?;
    if let (Some(loaded), false) = (&loaded, report.has_errors()) {
        // What only the parts themselves know: files, and what is in them.
        if let Err(error) = build(loaded, arguments.purpose)? {
            let found = report
                .diagnostics
                .iter()
                .cloned()
                .chain(refusal::diagnostics(&error));
            report = loaded.resolved.located(found.collect::<Vec<_>>());
        }
    }
    let name = arguments.config.config.display().to_string();
    match arguments.format {
        Format::Json => {
            terminal::line(&json_text(&name, &report).or_failed()?)?;
            if report.has_errors() {
                Err(Failure::Said)
            } else {
                Ok(())
            }
        }
        Format::Human => {
            diagnostics::settle(&report)?;
            let sources = loaded.iter().flat_map(|loaded| loaded.resolved.sources.values());
            let (mut given, mut all) = (0, 0);
            for source in sources {
                given += usize::from(*source != flow_config::Source::Default);
                all += 1;
            }
            terminal::line(&format!("{name}: ok, {given} of {all} values given"))
        }
    }
}

/// The report as JSON: `docs/src/config.md` describes it. `format` counts changes that a reader would stumble over.
fn json_text(name: &str, report: &Report) -> Result<String, serde_json::Error> {
    let count = |severity| {
        report
            .diagnostics
            .iter()
            .filter(|one| one.severity == severity)
            .count()
    };
    serde_json::to_string_pretty(&json!({
        "format": 1,
        "config": name,
        "ok": !report.has_errors(),
        "errors": count(Severity::Error),
        "warnings": count(Severity::Warning),
        "diagnostics": report.diagnostics,
    }))
}

/// Builds the parts of a run and drops them.
fn build(loaded: &Loaded, purpose: Purpose) -> Result<Result<(), TrainError>, Failure> {
    let config = match purpose {
        Purpose::Train => loaded.config().clone(),
        Purpose::Pretrain => pretrain::fresh(loaded.config()),
    };
    loaded.inspect(&config, |environment| {
        Ok(match purpose {
            Purpose::Train => tokens(&config, environment).and_then(|tokens| {
                let build = Build {
                    config: &config,
                    environment,
                };
                setup::with_algorithm(&config, tokens, build).and_then(|built| built)
            }),
            Purpose::Pretrain => setup::common(&config, environment).map(|_| ()),
        })
    })
}

struct Build<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
}

impl WithAlgorithm for Build<'_> {
    type Output = Result<(), TrainError>;

    fn with<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
        setup::parts(self.config, self.environment, algorithm).map(|_| ())
    }
}
