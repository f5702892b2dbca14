//! `check`: is a config right, and do its parts fit together?

use super::{Loaded, tokens};
use crate::arguments::{CheckArguments, Purpose};
use crate::diagnostics;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_config::Config;
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::setup::{self, Environment, WithAlgorithm};

/// Reads the config, builds what it describes, and says whether that worked.
pub fn run(arguments: &CheckArguments) -> Result<(), Failure> {
    let loaded = Loaded::read(&arguments.config)?;
    let config = match arguments.purpose {
        Purpose::Train => {
            diagnostics::settle(&loaded.resolved.check_training())?;
            loaded.config().clone()
        }
        Purpose::Pretrain => super::pretrain::fresh(loaded.config()),
    };
    loaded.inspect(&config, |environment| match arguments.purpose {
        Purpose::Train => {
            let tokens = tokens(&config, environment).or_bad_input()?;
            let build = Build {
                config: &config,
                environment,
            };
            setup::with_algorithm(&config, tokens, build)
                .and_then(|built| built)
                .or_bad_input()
        }
        Purpose::Pretrain => setup::common(&config, environment).map(|_| ()).or_bad_input(),
    })?;
    let given = loaded
        .resolved
        .sources
        .values()
        .filter(|source| **source != flow_config::Source::Default)
        .count();
    let all = loaded.resolved.sources.len();
    terminal::line(&format!(
        "{}: ok, {given} of {all} values given",
        arguments.config.config.display()
    ))
}

/// Builds the parts of a run and drops them.
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
