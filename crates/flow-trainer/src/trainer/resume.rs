//! Going on with a run: from its newest checkpoint, or from one that was named.
//!
//! A whole checkpoint is enough. What else of the run is missing is said, and begins anew; what is there and is not this run's
//! stops before anything is changed.

use super::checkpoint_load::Checkpoint;
use super::run_counters::RunCounters;
use super::{Progress, RunFiles, Trainer};
use crate::absent_file::AbsentFile;
use crate::algorithm::Algorithm;
use crate::description::Change;
use crate::description::rules::Rule;
use crate::distributed::Distribution;
use crate::error::TrainError;
use crate::observer::Observer;
use crate::shared_checkpoint::{self, Offer};
use flow_accel::Acceleration;
use flow_report::{
    CheckpointStore, Continuation, ContinuedMetrics, ContinuedTiming, Manifest, ManifestFound, Opened,
    RunDirectory, RunStamp, Traces,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::Path;

/// Processes that are listed at most.
const LISTED: usize = 8;

impl<A: Algorithm> Trainer<A> {
    /// Goes on with the newest usable checkpoint of `directory`, or with the one at `from`, wherever that is. `manifest` is that
    /// of this process: its command and config are noted in the run's own `run.json`, or it becomes that file where there is none.
    /// A directory in which nothing was begun becomes a run of its own.
    ///
    /// # Errors
    /// If there is none, or it belongs to another model, algorithm or run: then nothing was changed.
    pub fn resume(
        mut self,
        directory: RunDirectory,
        from: Option<&Path>,
        manifest: Manifest,
        observer: &mut dyn Observer,
    ) -> Result<Trainer<A, Acceleration>, TrainError> {
        let traces = directory.traces()?;
        let store = directory.checkpoints(self.settings.checkpoints_kept);
        if from.is_none() && traces.continuation(directory.path())? == Continuation::FromStart {
            return Err(TrainError::NoCheckpoint {
                directory: store.directory().to_owned(),
                skipped: String::new(),
            });
        }
        let checkpoint = Checkpoint::find(&store, from)?;
        checkpoint.check_run(&directory, &traces)?;
        let changes = checkpoint.changes(&traces, &self.description, &self.catalog)?;
        let mut told = share(&checkpoint, &store, &self.distribution)?;
        checkpoint.put_back(&mut self)?;
        let mut trainer = self.set_up()?;
        // Nobody reads any more what is changed now.
        trainer.distribution.gather(&Beginning::Ready)?;

        // From here on files are changed.
        let is_branch = *directory.opened() == Opened::Created;
        told.extend(passed_over(&checkpoint, &trainer.absent));
        let mut own = own_manifest(
            &directory,
            &traces,
            &checkpoint,
            (&manifest, is_branch),
            &mut told,
        )?;
        let step = trainer.state.iteration;
        let run = RunStamp {
            name: directory.name(),
            ..own.stamp()
        };
        told.extend(clear_the_way(&directory, &traces, &store, &run, step)?);
        let (metrics, timing) = continued_logs(&directory, &checkpoint, is_branch, step)?;
        told.extend(metrics.notices.into_iter().chain(timing.notices));
        told.extend(
            changes
                .iter()
                .map(|change| format!("changed since the checkpoint: {change}")),
        );
        told.iter().for_each(|notice| observer.notice(notice));

        let processes = own.resumes.len() as u64 + 2;
        let mut run_counters = checkpoint.meta.run_counters.clone();
        run_counters.resumed(processes, step, &timing.after, checkpoint.meta.timing.is_none());
        note_changes(&mut run_counters, &changes, metrics.lost, step);
        let here = std::env::current_dir().unwrap_or_default();
        let place = checkpoint.reader.path().display().to_string();
        let notices = directory.notices().iter().cloned().chain(told).collect();
        own.add_resume(step, &place, manifest.command, &manifest.config, &here, notices);
        directory.write_manifest(&own)?;
        let unsaved = !is_same_file(checkpoint.reader.path(), &store.path_of(step));
        let mut files = RunFiles::open(
            directory,
            (metrics.writer, timing.writer),
            Some(step),
            (run, &trainer.settings),
        )?;
        files.describe(&own, &trainer.evaluation_rewards.weights)?;
        trainer.files = Some(files);
        trainer.progress = Progress {
            run_counters,
            resumed: true,
            unsaved,
            evaluation_due: checkpoint.meta.evaluation_due,
            ..Progress::default()
        };
        Ok(trainer)
    }
}

/// What is said of checkpoints that cannot be used, and of files that the checkpoint stands in for.
fn passed_over(checkpoint: &Checkpoint, absent: &[AbsentFile]) -> Vec<String> {
    let skipped = checkpoint.skipped.iter();
    let skipped = skipped.map(|problem| format!("a checkpoint was passed over: {problem}"));
    let absent = absent.iter().map(|absent| {
        let (key, file) = absent.named();
        format!(
            "there is nothing at `{}`, which `{key}` names; its weights are taken from the checkpoint",
            file.display()
        )
    });
    skipped.chain(absent).collect()
}

/// The logs of the run, opened to go on after `step`. A branch takes over metrics and begins its times.
fn continued_logs(
    directory: &RunDirectory,
    checkpoint: &Checkpoint,
    is_branch: bool,
    step: u64,
) -> Result<(ContinuedMetrics, ContinuedTiming), TrainError> {
    if is_branch {
        directory.copy_metrics(checkpoint.reader.path(), checkpoint.meta.metrics)?;
    }
    let metrics = directory.continue_metrics(checkpoint.meta.metrics, step)?;
    let timing = if is_branch {
        ContinuedTiming::begun(directory.timing()?)
    } else {
        directory.continue_timing(checkpoint.meta.timing)?
    };
    if metrics.lost {
        // They were made of records that there are no more.
        for name in ["summary.json", "report.html"] {
            directory.supersede_file(name)?;
        }
    }
    Ok((metrics, timing))
}

/// What the summary says of changes of the config, and of metrics that are `lost`.
fn note_changes(run_counters: &mut RunCounters, changes: &[Change], lost: bool, step: u64) {
    if changes
        .iter()
        .any(|change| matches!(change.rule, Rule::Measures(_)))
    {
        run_counters.evaluations_change(step);
    }
    if lost {
        run_counters.note(format!(
            "metrics up to iteration {step} were lost; there is no comparison with evaluations before"
        ));
    }
}

/// What ranks tell each other of how the run begins.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Beginning {
    /// The first: from its first iteration.
    Start,
    /// The first: from this checkpoint.
    Checkpoint(Offer),
    /// Another one, with step and path of the newest checkpoint that it sees, if it is to go on from the newest.
    Joins(Option<(u64, String)>),
    /// What is to be read is read.
    Ready,
}

impl Beginning {
    /// That nobody who is to go on sees a checkpoint where the first rank has none.
    ///
    /// # Errors
    /// [`TrainError::CheckpointElsewhere`] of the first rank that does.
    pub(super) fn expect_none(others: &[Self], directory: &RunDirectory) -> Result<(), TrainError> {
        for (rank, other) in others.iter().enumerate() {
            if let Self::Joins(Some((iteration, path))) = other {
                return Err(TrainError::CheckpointElsewhere {
                    rank,
                    path: path.into(),
                    iteration: *iteration,
                    directory: directory.path().join("checkpoints"),
                });
            }
        }
        Ok(())
    }
}

/// Offers the checkpoint to the other ranks, and sends it to those that do not see it. Gives what is to be said of that.
fn share(
    checkpoint: &Checkpoint,
    store: &CheckpointStore,
    distribution: &Distribution,
) -> Result<Vec<String>, TrainError> {
    let reader = &checkpoint.reader;
    let others = distribution.gather(&Beginning::Checkpoint(Offer::of(reader)))?;
    let own_newest = store.list()?.first().map(|(step, _)| *step);
    let mut told: Vec<String> = Vec::from_iter(unlike(&others, own_newest, checkpoint.meta.iteration));
    let sent = shared_checkpoint::give(&*distribution.exchange, reader)?;
    if sent > 0 {
        told.push(format!(
            "the checkpoint was sent to {sent} of {} processes, which do not see the disk that it is on",
            others.len()
        ));
    }
    Ok(told)
}

/// That ranks see another newest checkpoint than the first one, `own_newest`, which goes on after `iteration`.
fn unlike(others: &[Beginning], own_newest: Option<u64>, iteration: u64) -> Option<String> {
    let found = others.iter().enumerate().filter_map(|(rank, other)| match other {
        Beginning::Joins(Some((step, path))) if Some(*step) != own_newest => {
            Some(format!("process {rank} sees `{path}` of iteration {step}"))
        }
        _ => None,
    });
    let found: Vec<String> = found.take(LISTED).collect();
    (!found.is_empty()).then(|| {
        format!(
            "processes see different newest checkpoints, and all go on with that of process 0, after iteration {iteration}: {}",
            found.join(", ")
        )
    })
}

impl<A: Algorithm> Trainer<A> {
    /// Takes part in a run that the first rank starts or resumes; of the run's files only the checkpoint is touched, and read. `directory` is
    /// the run's folder as this process sees it, on whatever disk: a checkpoint that the first rank alone has is kept there until it is
    /// read. `goes_on` says that the run is to go on from its newest checkpoint.
    ///
    /// # Errors
    /// If the checkpoint can be neither read nor received here, does not fit, or another rank stops.
    pub fn join(mut self, directory: &Path, goes_on: bool) -> Result<Trainer<A, Acceleration>, TrainError> {
        let store = CheckpointStore::new(directory.join("checkpoints"), NonZeroUsize::MIN);
        // A folder that cannot be listed has nothing to say; the first rank decides.
        let newest = store.list().unwrap_or_default().into_iter().next();
        let newest = newest.filter(|_| goes_on).map(|(step, path)| {
            let path = std::path::absolute(&path).unwrap_or(path);
            (step, path.to_string_lossy().into_owned())
        });
        let joins = Beginning::Joins(newest);
        let first = self.distribution.gather(&joins)?.swap_remove(0);
        let resumed = matches!(first, Beginning::Checkpoint(_));
        if let Beginning::Checkpoint(offer) = first {
            let exchange = self.distribution.exchange.clone();
            let places = [offer.path().to_owned(), store.path_of(offer.step())];
            // A folder for each process: others of this machine may receive at the same time.
            let rank = exchange.world().rank;
            let file = directory.join(format!("received/rank-{rank}/checkpoint"));
            let reader = shared_checkpoint::take(&*exchange, &offer, &places, &file)?;
            Checkpoint::of(reader, Vec::new())?.put_back(&mut self)?;
        } else {
            self.expect_files()?;
        }
        let mut trainer = self.set_up()?;
        trainer.distribution.gather(&Beginning::Ready)?;
        trainer.progress.resumed = resumed;
        Ok(trainer)
    }
}

/// The run's manifest: its own, or where that is missing one made of what the checkpoint and `process`, the manifest of this
/// process, know.
fn own_manifest(
    directory: &RunDirectory,
    traces: &Traces,
    checkpoint: &Checkpoint,
    (process, is_branch): (&Manifest, bool),
    told: &mut Vec<String>,
) -> Result<Manifest, TrainError> {
    let stamp = checkpoint.meta.run.as_ref();
    let begun = stamp.filter(|_| !is_branch);
    let path = directory.path().join("run.json");
    let path = path.display();
    match &traces.manifest {
        ManifestFound::Whole(own) => {
            let mut own = (**own).clone();
            let id = begun.map(|stamp| &stamp.id).or(process.run_id.as_ref());
            own.run_id = own.run_id.or_else(|| id.cloned());
            return Ok(own);
        }
        ManifestFound::Missing if is_branch => {}
        ManifestFound::Missing => told.push(format!(
            "there is no `{path}`: it was made anew, and its command, machine and versions are those of this process"
        )),
        ManifestFound::Damaged(problem) => {
            let moved = directory.supersede_file("run.json")?;
            let moved = moved.map_or_else(String::new, |moved| format!(" The old one is now `{}`", moved.display()));
            told.push(format!("{problem}; it was made anew.{moved}"));
        }
    }
    let mut own = process.clone();
    if let Some(begun) = begun {
        own.run_id = Some(begun.id.clone());
        own.started_at = begun.started_at.clone();
    }
    if let Some(description) = &checkpoint.meta.description
        && description.config != own.config
    {
        // Where its values came from, nobody knows any more.
        own.config = description.config.clone();
        own.config_sources.clear();
    }
    if is_branch {
        let (run, step) = (stamp.map(ToString::to_string), checkpoint.meta.iteration);
        let from = json!({ "run": run, "iteration": step, "checkpoint": checkpoint.reader.path().display().to_string() });
        own.extra.insert("branched_from".into(), from);
    }
    Ok(own)
}

/// Moves aside what would be taken for the state of this run after `step` or for its future, and says so of other runs' files.
fn clear_the_way(
    directory: &RunDirectory,
    traces: &Traces,
    store: &CheckpointStore,
    run: &RunStamp,
    step: u64,
) -> Result<Vec<String>, TrainError> {
    let mut told = Vec::new();
    store.supersede_after(step)?;
    directory.supersede_grids_after(step)?;
    for found in traces.checkpoints.iter().filter(|found| found.step <= step) {
        if found.run.as_ref().is_some_and(|other| other.id != run.id) {
            let moved = store.move_aside(&found.path)?;
            told.push(format!(
                "a checkpoint of another run was moved to `{}`",
                moved.display()
            ));
        }
    }
    Ok(told)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}
