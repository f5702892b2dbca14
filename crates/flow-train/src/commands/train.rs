//! `train`: a run from a config, or on from a checkpoint.

mod defaults;
mod finish;
mod open;

use super::{CommandContext, config_report::ConfigUse, plan, tokens};
use crate::arguments::{Purpose, TrainArguments};
use crate::failure::{Failure, OrFailure};
use crate::interrupt::Interrupt;
use crate::{progress, terminal};
use flow_report::RunStatus;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Observer;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_trainer::{TrainError, Trainer};
use open::Start;

/// Trains.
pub fn run(arguments: &TrainArguments, quiet: bool) -> Result<(), Failure> {
    if arguments.tui && cfg!(not(feature = "tui")) {
        return Err(Failure::Input(
            "this build has no full-screen view; leave `--tui` out, or build with `--features tui`".into(),
        ));
    }
    let folders = PipelineFolders::default();
    let goes_on = open::compare(arguments, &folders)?;
    let mut context = CommandContext::read_with(&arguments.config, ConfigUse::Training, &folders)?;
    if !arguments.dry_run {
        context.join(Purpose::Train)?;
    }
    let exchange = context.exchange.clone();
    // The others wait for this one.
    train(arguments, goes_on, context, quiet || !exchange.world().is_first())
        .inspect_err(|failure| exchange.abort(&failure.to_string()))
}

fn train(
    arguments: &TrainArguments,
    goes_on: bool,
    context: CommandContext,
    quiet: bool,
) -> Result<(), Failure> {
    let interrupt = if arguments.dry_run {
        Interrupt::default()
    } else {
        Interrupt::listen()?
    };
    let task = |environment: &Environment<'_>| {
        let tokens = tokens(context.config(), environment).or_bad_input()?;
        let train = Train {
            arguments,
            goes_on,
            quiet,
            context: &context,
            environment,
            interrupt,
        };
        train.with(setup::algorithm(context.config(), environment.plugins, tokens).or_bad_input()?)
    };
    if arguments.dry_run {
        context.inspect(context.config(), task)
    } else {
        context.compute(context.config(), task)
    }
}

struct Train<'a> {
    arguments: &'a TrainArguments,
    /// Whether there is a checkpoint, which holds the weights of files that are not there any more.
    goes_on: bool,
    quiet: bool,
    context: &'a CommandContext,
    environment: &'a Environment<'a>,
    interrupt: Interrupt,
}

impl Train<'_> {
    fn observer(&self) -> Result<Box<dyn Observer>, Failure> {
        let (iterations, every) = (
            self.context.config().run.steps as u64,
            self.context.config().logging.every as u64,
        );
        #[cfg(feature = "tui")]
        if self.arguments.tui {
            return Ok(Box::new(progress::Tui::open(iterations, self.interrupt.clone())?));
        }
        Ok(progress::observer(
            iterations,
            every,
            self.quiet,
            self.interrupt.clone(),
        ))
    }

    /// Says on standard error what a person should know before the run.
    fn tell(&self, observer: &mut dyn Observer, notices: &[String]) {
        notices.iter().for_each(|notice| observer.notice(notice));
    }
}

impl Train<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<(), Failure> {
        let (config, environment) = (self.context.config(), self.environment);
        let mut trainer = setup::trainer(config, environment, algorithm).or_bad_input()?;
        let is_first = self.context.exchange.world().is_first();
        // Where the first process may send a checkpoint, that is asked when it is known.
        let may_receive = !is_first && open::goes_on(self.arguments, config);
        if !self.goes_on && !may_receive {
            // Before the directory: an older run must not be moved aside for one that cannot begin.
            trainer.expect_files().or_bad_input()?;
        }
        // Those of accelerators were shown with their places when the config was read; those of the data could not be.
        drop(trainer.take_notices());
        let notes = trainer.dataset.notes();
        if !is_first {
            return self.join(trainer);
        }
        if self.arguments.dry_run {
            if !self.quiet {
                notes
                    .iter()
                    .for_each(|notice| terminal::note(&format!("note: {notice}")));
            }
            terminal::print(&plan::text(config, environment, &trainer)?)?;
            return terminal::line("dry run: everything was built, nothing was written");
        }
        let outline =
            setup::outline(config, &environment.plugins.models, &environment.device).or_bad_input()?;
        // Before the directory: what cannot be shown must not have moved an older run aside.
        let mut observer = self.observer()?;
        let start = open::directory(self.arguments, config)?;
        let checkpoint_plan = trainer.checkpoint_plan.clone();
        let headline = plan::headline(config, environment, &trainer);
        let mut trainer = match start {
            Start::Fresh(directory, notices) => {
                self.tell(&mut *observer, directory.notices());
                self.tell(&mut *observer, &notices);
                observer.notice(&format!("run: {}", directory.path().display()));
                let manifest = open::manifest(&directory, self.context, environment, &trainer.acceleration)?;
                trainer.start(directory, &manifest).or_failed()?
            }
            Start::Resume(directory, from) => {
                self.tell(&mut *observer, directory.notices());
                let manifest = open::manifest(&directory, self.context, environment, &trainer.acceleration)?;
                let resumed = trainer.resume(directory, from.as_deref(), manifest, &mut *observer);
                let trainer = match resumed {
                    // Another process failed: nothing is wrong with what this one was given.
                    Err(lost @ TrainError::Lost(_)) => return Err(Failure::Run(lost.to_string())),
                    resumed => resumed.or_bad_input()?,
                };
                let place = trainer.directory().path().display();
                observer.notice(&format!(
                    "resumed {place} after iteration {}",
                    trainer.state.iteration
                ));
                trainer
            }
        };
        observer.notice(&headline);
        self.tell(&mut *observer, &notes);
        if let Some(record) = &checkpoint_plan {
            plan::checkpoint::write(record, trainer.directory().path())?;
        }
        if self.context.exchange.world().is_several() {
            observer.notice(&format!("processes: {}", self.context.exchange.world().ranks));
        }
        let outcome = trainer.train(&mut *observer);
        // The terminal is the shell's again before anything else is said.
        drop(observer);
        let status = outcome.map_err(|error| {
            let place = trainer.directory().path().display();
            let text = format!("{error}\n  what was written is in {place}");
            match error {
                TrainError::Stopped(stopped) if stopped.is_defect() => Failure::Defect(text),
                _ => Failure::Run(text),
            }
        })?;
        match status {
            RunStatus::Interrupted { step } => {
                let resume = open::resume_command(self.arguments, config, &trainer.directory().name());
                let place = trainer.directory().path().display();
                terminal::note(&format!(
                    "interrupted after iteration {step}; the state is saved in {place}"
                ));
                terminal::note(&format!("to go on: {resume}"));
                Err(Failure::Interrupted)
            }
            _ => finish::run(&trainer, &*outline.model, config),
        }
    }
}

impl Train<'_> {
    /// Takes part in the run that the first process writes.
    fn join(&self, trainer: Trainer<Box<dyn Algorithm>>) -> Result<(), Failure> {
        let mut observer = self.observer()?;
        let config = self.context.config();
        let directory = config.run.dir.join(&config.run.name);
        let goes_on = open::goes_on_from_newest(self.arguments, config);
        let mut trainer = trainer.join(&directory, goes_on).or_failed()?;
        match trainer.train(&mut *observer) {
            Ok(RunStatus::Interrupted { .. }) => Err(Failure::Interrupted),
            Ok(_) => Ok(()),
            Err(TrainError::Stopped(stopped)) if stopped.is_defect() => {
                Err(Failure::Defect(stopped.to_string()))
            }
            Err(error) => Err(Failure::Run(error.to_string())),
        }
    }
}
