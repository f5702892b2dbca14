//! Going on from a checkpoint: finding it, seeing whether it is of this run, and putting its state back bit for bit.

use super::Trainer;
use super::checkpoint_save::{Meta, layout_of};
use super::state::TrainedNetwork;
use crate::algorithm::{Algorithm, NetworkRole};
use crate::description::{Change, Description, forbidden};
use crate::error::TrainError;
use crate::frozen::{FrozenSaved, FrozenWeights};
use crate::geometry_history::GeometryHistory;
use crate::state_sections::{
    FAKE_WEIGHTS, MOMENTS, NetworkSections, PREVIOUS_WEIGHTS, SURROGATE_WEIGHTS, Sections,
};
use flow_config::Catalog;
use flow_core::Weights;
use flow_exchange::Lanes;
use flow_report::{CheckpointReader, CheckpointStore, MetricsFound, MetricsWriter, RunDirectory, Traces};
use std::collections::BTreeMap;
use std::path::Path;

/// A checkpoint that is whole, and what it says of itself.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub reader: CheckpointReader,
    pub meta: Meta,
    /// Newer ones that cannot be used.
    pub skipped: Vec<String>,
}

impl Checkpoint {
    /// The one at `from`, or the newest usable one of the store.
    pub(super) fn find(store: &CheckpointStore, from: Option<&Path>) -> Result<Self, TrainError> {
        let (reader, skipped) = match from {
            Some(path) => (CheckpointReader::open(path)?, Vec::new()),
            None => {
                let latest = store.latest()?;
                let skipped: Vec<String> = latest.skipped.iter().map(|error| error.problem()).collect();
                let found = latest.found.ok_or_else(|| TrainError::NoCheckpoint {
                    directory: store.directory().to_owned(),
                    skipped: skipped.iter().map(|problem| format!("; {problem}")).collect(),
                })?;
                (found, skipped)
            }
        };
        Self::of(reader, skipped)
    }

    /// One that was read; `skipped` are newer ones that cannot be used.
    pub(super) fn of(reader: CheckpointReader, skipped: Vec<String>) -> Result<Self, TrainError> {
        let meta = serde_json::from_value(reader.meta().clone()).map_err(|error| {
            TrainError::CheckpointMismatch {
                path: reader.path().to_owned(),
                problem: format!("its description cannot be read: {error}"),
                help: "Use another checkpoint".into(),
            }
        })?;
        Ok(Self {
            reader,
            meta,
            skipped,
        })
    }

    fn mismatch(&self, problem: String, help: &str) -> TrainError {
        TrainError::CheckpointMismatch {
            path: self.reader.path().to_owned(),
            problem,
            help: help.into(),
        }
    }

    /// Whether the checkpoint is of the run in `directory`, as far as both say so.
    ///
    /// # Errors
    /// If they are of different runs.
    pub(super) fn check_run(&self, directory: &RunDirectory, traces: &Traces) -> Result<(), TrainError> {
        let branch = "To begin another run from it, give that one a name of its own (`--set run.name=NAME`); to go on with the \
                      run of this folder, use another checkpoint of it, `--resume latest` finds the newest";
        let real = |path: &Path| path.canonicalize().ok();
        let folder = self.reader.path().parent().and_then(real);
        let is_inside = folder.is_some() && folder == real(&directory.path().join("checkpoints"));
        match (&self.meta.run, traces.run_id()) {
            (Some(run), Some(id)) if run.id != *id => {
                let problem = format!(
                    "it is of the run {run}, and `{}` is of the run {}",
                    directory.path().display(),
                    id.short()
                );
                Err(self.mismatch(problem, branch))
            }
            (Some(_), Some(_)) => Ok(()),
            // Somebody put it among the checkpoints of this run, and nothing contradicts.
            (Some(_), None) if is_inside => Ok(()),
            // One side does not say which run it is. The log tells other runs apart, as far as it goes.
            _ => {
                let path = directory.path().join("metrics.jsonl");
                match MetricsWriter::compare(&path, self.meta.metrics)? {
                    MetricsFound::Same | MetricsFound::Missing => Ok(()),
                    MetricsFound::Other(problem) => {
                        let problem = format!("`{}` {problem}, so it may be another run's", path.display());
                        Err(self.mismatch(problem, branch))
                    }
                }
            }
        }
    }

    /// What the run is now that it was not when the checkpoint was saved.
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] with every key that may not change.
    pub(super) fn changes(
        &self,
        traces: &Traces,
        now: &Description,
        catalog: &Catalog,
    ) -> Result<Vec<Change>, TrainError> {
        let Some(before) = Description::of_checkpoint(self.reader.meta(), Some(traces)) else {
            return Ok(Vec::new());
        };
        let changes = before.changes(now, catalog);
        TrainError::if_other_run(self.reader.path(), &forbidden(&changes))?;
        Ok(changes)
    }

    /// Puts the state into `trainer`.
    pub(super) fn put_back<A: Algorithm>(&self, trainer: &mut Trainer<A>) -> Result<(), TrainError> {
        let meta = &self.meta;
        if meta.algorithm != trainer.algorithm.name() {
            let problem = format!(
                "it was written by algorithm `{}`, this run uses `{}`",
                meta.algorithm,
                trainer.algorithm.name()
            );
            return Err(self.mismatch(
                problem,
                "Set `algorithm.kind` back, or start a new run from the exported weights",
            ));
        }
        let layout = trainer.state.weights.current.layout().clone();
        self.check_weights(&layout_of(&layout))?;
        let described = meta.description.as_ref().and_then(FrozenWeights::of_file);
        let frozen = FrozenSaved::settle(meta.frozen, described, trainer.frozen, &trainer.absent);
        let frozen = frozen.map_err(|(problem, help)| self.mismatch(problem, &help))?;
        if frozen == FrozenWeights::InCheckpoint && trainer.state.has_frozen_parts() {
            return Err(self.mismatch(
                "it holds the weights that are frozen, which no process has whole with `distributed.shard = \"weights\"`".into(),
                "Set `distributed.shard` to \"optimizer\", or start a new run",
            ));
        }
        let geometry = trainer.settings.geometry;
        let mut history = match &meta.geometry {
            Some(history) if history.is_sound() => history.clone(),
            Some(_) => {
                return Err(self.mismatch(
                    "its geometries contradict each other".into(),
                    "Use another checkpoint",
                ));
            }
            None => GeometryHistory::after_samples(meta.iteration, meta.run_counters.images(), &geometry),
        };
        history.change(meta.iteration, &geometry);
        if !trainer.distribution.lanes_given {
            trainer.distribution.lanes = Lanes::new(meta.lanes.max(1));
        }
        trainer.distribution.fits(&geometry)?;

        let device = trainer.sampler.device.clone();
        let sections = Sections {
            reader: &self.reader,
            device: &device,
            help: "Use another checkpoint",
        };
        let kernels = trainer.sampler.kernels.clone();
        let trained = trainer.state.optimizer.trained().to_vec();
        let fill = |set: &str, weights: &mut Weights| -> Result<(), TrainError> {
            sections.weights(set, weights, |index| frozen.is_held(trained[index]))?;
            weights.settle(&*kernels);
            Ok(())
        };
        let weights = &mut trainer.state.weights;
        let wanted = [
            ("average", &mut weights.average),
            ("old", &mut weights.old),
            ("sampling", &mut weights.sampling),
            ("reference", &mut weights.reference),
        ];
        // Before anything is put back: which sets there must be.
        for (set, weights) in &wanted {
            self.check_set(set, weights.is_some())?;
        }
        self.check_networks(&trainer.state.networks)?;
        for (set, weights) in wanted {
            if let Some(weights) = weights {
                fill(set, weights)?;
            }
        }
        fill("current", &mut weights.current)?;
        // A run whose rollouts were not an update behind goes on from the weights it has.
        if trainer.settings.staleness > 0 && self.has_set(PREVIOUS_WEIGHTS) {
            let mut previous = weights.current.clone();
            sections.weights(PREVIOUS_WEIGHTS, &mut previous, |index| trained[index])?;
            previous.settle(&*kernels);
            weights.previous = Some(previous);
        }
        let moments = sections.moments(MOMENTS, &layout, &trainer.state.optimizer)?;
        let optimizer = &mut trainer.state.optimizer;
        device.with_persistent_allocation(|| optimizer.restore(meta.optimizer_steps, moments));
        for (role, network) in &mut trainer.state.networks {
            let names = NetworkSections::of(*role);
            sections.network(names, (network, meta.network_steps(*role)), &*kernels)?;
        }
        trainer.acceleration.restore(&meta.accelerators);
        trainer.state.iteration = meta.iteration;
        trainer.state.memory = meta.memory.clone();
        if let Some(records) = &mut trainer.records {
            let described = meta.description.as_ref();
            records.expect(described.and_then(Description::records));
        }
        trainer.frozen = frozen;
        trainer.prompt_sampler = trainer.prompt_sampler.clone().following(history);
        Ok(())
    }

    /// Names and shapes of weights, which an older checkpoint has instead of a description.
    fn check_weights(&self, ours: &[(String, Vec<usize>)]) -> Result<(), TrainError> {
        let theirs = &self.meta.weights;
        let help = "Set `[model]` and `[lora]` back to what the run was started with";
        if let Some(((name, shape), (other, other_shape))) = ours.iter().zip(theirs).find(|(a, b)| a != b) {
            let problem =
                format!("the model has weight `{name}` {shape:?} where it has `{other}` {other_shape:?}");
            return Err(self.mismatch(problem, help));
        }
        if ours.len() != theirs.len() {
            let problem = format!("the model has {} weights, it has {}", ours.len(), theirs.len());
            return Err(self.mismatch(problem, help));
        }
        Ok(())
    }

    /// Whether a set of weights is in the checkpoint.
    fn has_set(&self, set: &str) -> bool {
        let below = format!("{set}/");
        let mut sections = self.reader.sections().iter();
        sections.any(|section| section.name.starts_with(&below))
    }

    /// That the networks which are trained beside the student are in the checkpoint.
    fn check_networks(&self, networks: &BTreeMap<NetworkRole, TrainedNetwork>) -> Result<(), TrainError> {
        for (role, network) in networks {
            let names = NetworkSections::of(*role);
            self.check_set(names.weights, true)?;
            self.check_set(names.slow, network.slow.is_some())?;
        }
        Ok(())
    }

    /// That a set of weights is in the checkpoint, if it is wanted.
    fn check_set(&self, set: &str, wanted: bool) -> Result<(), TrainError> {
        if !wanted || self.has_set(set) {
            return Ok(());
        }
        let (problem, help) = match set {
            "average" => (
                "the run began without an average",
                "Set `ema.enabled = false`, or start a new run from the exported weights",
            ),
            "reference" => (
                "the run began without a copy of its first weights, with which its loss is to compare now",
                "Set `algorithm.kl` (of `nft`: `algorithm.kl_beta`) back, or with adapters `reference = \"lora-off\"`, or start \
                 a new run from the exported weights",
            ),
            FAKE_WEIGHTS => (
                "it has no fake score, with which its loss is to compare now",
                "Set `[algorithm]` back, or start a new run from the exported weights",
            ),
            SURROGATE_WEIGHTS => (
                "it has no surrogate of the reward, which its loss is to follow now",
                "Set `[algorithm]` back, or start a new run from the exported weights",
            ),
            _ => (
                "the run began without a slower copy of its weights, with which its loss is to compare or its rollouts to sample now",
                "Set `[algorithm]` back, or start a new run from the exported weights",
            ),
        };
        Err(self.mismatch(problem.into(), help))
    }
}
