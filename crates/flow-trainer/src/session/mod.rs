//! A run: rollout, reward, advantage, update, and everything it leaves on disk.
//!
//! The loop is generic over [`Algorithm`] and knows no algorithm, model, reward or accelerator by name.

mod arranged;
mod audited;
mod compared;
mod drift;
mod evaluate;
mod evaluation_shares;
mod explore;
mod exported;
mod falls;
mod iterate;
mod mean;
mod micro_batches;
mod networks;
mod record;
mod records;
mod restore;
mod resume;
mod reward_times;
mod rollouts;
mod saved;
mod stale;
mod state;
mod tally;
mod teachers;
mod unscored;
mod update;
mod watch;

pub use drift::{Drift, DriftRun};
pub use evaluate::{Evaluation, Subject};
pub use explore::Explorer;
use resume::Beginning;
use stale::RolledAhead;
pub use state::{PolicyWeights, TrainState, TrainedNetwork};
use tally::Tally;
pub use watch::WatchSettings;

use crate::absent_file::AbsentFile;
use crate::advantage::AdvantageOptions;
use crate::algorithm::Algorithm;
use crate::conditions::Conditioner;
use crate::decoder::ImageDecoder;
use crate::description::Description;
use crate::distributed::Distribution;
use crate::ema::EmaPlan;
use crate::error::TrainError;
use crate::frozen::FrozenWeights;
use crate::geometry::{Geometry, PromptSampler};
use crate::observer::Observer;
use crate::records::Records;
use crate::rollout::Sampler;
use crate::scheduler::Schedule;
use crate::sizes::{AtSize, PromptSizes};
use flow_accel::{Acceleration, Arrangement};
use flow_checkpoint::planner::PlanRecord;
use flow_config::{Branching, Catalog, InitialNoise};
use flow_core::{Backends, device::ComputeDevice, stopped};
use flow_data::{Dataset, Prompt};
use flow_report::{
    CheckpointStore, EventWriter, Manifest, MetricsStart, MetricsWriter, RunDirectory, RunStamp, RunStatus,
    Stopwatch, ValueRange,
};
use flow_rewards::RewardWorkers;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What to do about a ratio that is not 1 where it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditMode {
    /// Stop the run.
    Stop,
    /// Say so and go on.
    Warn,
    /// Do not look.
    Off,
}

/// A named reward with its weight in the sum.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardWeight {
    /// Name in metrics.
    pub name: String,
    /// Weight.
    pub weight: f64,
    /// Between which ends its scores lie.
    pub range: ValueRange,
}

/// How held-out prompts are measured.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// Iterations between two evaluations; 0 for none at all.
    pub every: u64,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Images of each.
    pub images_per_prompt: usize,
    /// The sampler: guidance and seed of evaluation.
    pub sampler: Sampler,
    /// Its steps, deterministic.
    pub schedule: Schedule,
    /// From latents to images, in training, too.
    pub decoder: ImageDecoder,
    /// The sizes of pictures, of which the sampler, the schedule and the decoder have the first.
    pub sizes: PromptSizes,
    /// Those of the others.
    pub others: Vec<AtSize>,
    /// Whether to measure the moving average instead of the trained weights.
    pub with_average: bool,
    /// Rows and columns of the picture, and its scale.
    pub grid: (usize, usize, u32),
}

/// Numbers and switches of a run.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Seed of everything random.
    pub seed: u64,
    /// Iterations in all.
    pub iterations: u64,
    /// Prompts, group size, micro-batches.
    pub geometry: Geometry,
    /// Whether the members of a group start from the same latent.
    pub initial_noise: InitialNoise,
    /// Where the members of a group part.
    pub branching: Branching,
    /// Updates that a rollout is behind: 0 or 1.
    pub staleness: usize,
    /// From rewards to advantages.
    pub advantage: AdvantageOptions,
    /// The moving average, if one is kept.
    pub average: Option<EmaPlan>,
    /// The on-policy audit.
    pub audit: AuditMode,
    /// Groups of a rollout that are sampled once more without its accelerators, to see what these change.
    pub drift_groups: usize,
    /// Iterations between two such comparisons; 0 for none.
    pub drift_every: u64,
    /// Signs of an exploited reward that are watched for.
    pub watch: WatchSettings,
    /// Whether the accelerators promise bit-exact ratios.
    pub lossless: bool,
    /// Whether an accelerator that did nothing in an iteration, or not all it is in force for, stops the run.
    pub strict: bool,
    /// Iterations between checkpoints; 0 for one at the end only.
    pub checkpoint_every: u64,
    /// Checkpoints kept.
    pub checkpoints_kept: NonZeroUsize,
    /// Iterations between TensorBoard records; 0 for no TensorBoard files.
    pub tensorboard_every: u64,
    /// Whether to write `report.html`.
    pub html_report: bool,
}

/// Everything a run is made of. It computes once its accelerators are set up with the weights it begins from: `S` is then an
/// [`Acceleration`].
pub struct Parts<A, S = Arrangement> {
    /// Numbers and switches.
    pub settings: SessionSettings,
    /// The config that all of this was made from, and the contents of its files.
    pub description: Description,
    /// Where the weights can be had again that are not trained.
    pub frozen: FrozenWeights,
    /// What a config may say of the program's plug-ins: it reads the config of a checkpoint.
    pub catalog: Catalog,
    /// The algorithm.
    pub algorithm: A,
    /// The accelerators, and with them the plans of rollouts and losses.
    pub acceleration: S,
    /// What a person should know before the run starts.
    pub notices: Vec<String>,
    /// Files of weights that are not there: what stands in their place is no model.
    pub absent: Vec<AbsentFile>,
    /// How a budget of activation checkpointing is spent, if there is one.
    pub checkpoint_plan: Option<PlanRecord>,
    /// The sampler of the rollout.
    pub sampler: Sampler,
    /// Its schedule.
    pub schedule: Schedule,
    /// What rollouts and losses have in their places for other sizes of pictures than the first of [`EvaluationSettings::sizes`].
    pub others: Vec<AtSize>,
    /// What chooses among candidates before a rollout, if anything does.
    pub explorer: Option<Explorer<S>>,
    /// From prompts to conditions.
    pub conditioner: Conditioner,
    /// Prompts to train on.
    pub prompts: Vec<Prompt>,
    /// Which of them an iteration takes.
    pub prompt_sampler: PromptSampler,
    /// The data set.
    pub dataset: Arc<dyn Dataset>,
    /// The records to learn from instead of rollouts, if the algorithm does.
    pub records: Option<Records>,
    /// Rewards to train on, with their weights; none where records are learnt from.
    pub rewards: (RewardWorkers, Vec<RewardWeight>),
    /// Rewards to evaluate by.
    pub evaluation_rewards: (RewardWorkers, Vec<RewardWeight>),
    /// How to evaluate.
    pub evaluation: EvaluationSettings,
    /// Weights, moments, counters.
    pub state: TrainState,
    /// Over which ranks the run is spread.
    pub distribution: Distribution,
}

impl<A> Parts<A> {
    /// That every file of weights is there, without which a run cannot begin.
    ///
    /// # Errors
    /// The first that is not.
    pub fn expect_files(&self) -> Result<(), TrainError> {
        self.absent.first().map_or(Ok(()), |absent| Err(absent.error()))
    }

    /// Encodes the pictures of records and the prompts, and sets the accelerators up with the weights there are: no weight may change
    /// before they compute.
    ///
    /// # Errors
    /// If a picture cannot be read, text encoders fail, or an accelerator cannot work with these weights.
    pub fn set_up(mut self) -> Result<Parts<A, Acceleration>, TrainError> {
        let mut captions = Vec::new();
        if let Some(records) = &mut self.records {
            self.notices.extend(records.prepare()?);
            self.description.add_records(records.contents());
            captions = records.captions()?;
        }
        let asked = self
            .prompts
            .iter()
            .chain(&self.evaluation.prompts)
            .chain(&captions);
        let prepared = self.conditioner.prepare(asked)?;
        self.notices.extend(prepared);
        if self.frozen == FrozenWeights::InCheckpoint && self.state.has_frozen_parts() {
            return Err(TrainError::Setting(
                "checkpoints of this run would hold the weights that are frozen, which no process has whole with \
                 `distributed.shard = \"weights\"`; assemble the run from the config alone (`setup::parts`), which looks at the file that \
                 gives them"
                    .into(),
            ));
        }
        self.state.share_frozen()?;
        if self.settings.staleness > 0 {
            // Of a run that goes on they are those of its checkpoint.
            let PolicyWeights {
                previous, current, ..
            } = &mut self.state.weights;
            previous.get_or_insert_with(|| current.clone());
        }
        let weights = &self.state.weights.current;
        let acceleration = self.acceleration.set_up(weights)?;
        let explorer = self.explorer.map(|explorer| explorer.set_up(weights));
        let explorer = explorer.transpose()?;
        Ok(Parts {
            acceleration,
            settings: self.settings,
            description: self.description,
            frozen: self.frozen,
            catalog: self.catalog,
            algorithm: self.algorithm,
            notices: self.notices,
            absent: self.absent,
            checkpoint_plan: self.checkpoint_plan,
            sampler: self.sampler,
            schedule: self.schedule,
            others: self.others,
            explorer,
            conditioner: self.conditioner,
            prompts: self.prompts,
            prompt_sampler: self.prompt_sampler,
            dataset: self.dataset,
            records: self.records,
            rewards: self.rewards,
            evaluation_rewards: self.evaluation_rewards,
            evaluation: self.evaluation,
            state: self.state,
            distribution: self.distribution,
        })
    }
}

impl<A> Parts<A, Acceleration> {
    /// The plan of losses and evaluations.
    pub fn training_plan(&self) -> &Arc<Backends> {
        self.acceleration.training()
    }
}

/// A run under way.
pub struct Session<A> {
    parts: Parts<A, Acceleration>,
    /// Of the first rank; the others write none.
    files: Option<Files>,
    tally: Tally,
    /// The rollout of the next iteration, of a run whose rollouts are an update behind.
    ahead: Option<RolledAhead>,
    resumed: bool,
    /// Whether the run's folder does not hold the state that it goes on from.
    unsaved: bool,
    /// The iteration of the newest checkpoint in the run's folder, as far as this process knows.
    saved_at: Option<u64>,
    /// Whether the evaluation of the current iteration is still to be done, since its rewards failed.
    evaluation_due: bool,
    /// Accelerators, and what a person has been told that they did not do; none for nothing at all.
    named_undone: BTreeSet<(String, Option<Cow<'static, str>>)>,
    /// Rewards of which a person has been told that they fell.
    named_falls: BTreeSet<String>,
    /// Signs of an exploited reward that a person has been told of.
    named_signs: BTreeSet<String>,
    /// Kinds of attention call that the manifest names.
    named_attention: usize,
    /// Matrix products that the manifest names.
    named_products: BTreeSet<String>,
}

/// The files that a run writes.
struct Files {
    /// Which run this is.
    run: RunStamp,
    directory: RunDirectory,
    checkpoints: CheckpointStore,
    metrics: MetricsWriter,
    timing: MetricsWriter,
    events: Option<EventWriter>,
}

impl<A: Algorithm> Session<A> {
    /// Starts in a fresh `directory`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn start(parts: Parts<A>, directory: RunDirectory, manifest: &Manifest) -> Result<Self, TrainError> {
        parts.expect_files()?;
        let others = parts.distribution.gather(&Beginning::Start)?;
        Beginning::expect_none(&others, &directory)?;
        let parts = parts.set_up()?;
        parts.distribution.gather(&Beginning::Ready)?;
        directory.write_manifest(manifest)?;
        let logs = (directory.metrics(MetricsStart::Fresh)?, directory.timing()?);
        let mut files = Files::open(directory, logs, None, (manifest.stamp(), &parts.settings))?;
        files.describe(manifest, &parts.evaluation_rewards.1)?;
        Ok(Self::of(parts, Some(files), Tally::begun()))
    }

    fn of(parts: Parts<A, Acceleration>, files: Option<Files>, tally: Tally) -> Self {
        Self {
            parts,
            files,
            tally,
            ahead: None,
            resumed: false,
            unsaved: false,
            saved_at: None,
            evaluation_due: false,
            named_undone: BTreeSet::new(),
            named_falls: BTreeSet::new(),
            named_signs: BTreeSet::new(),
            named_attention: 0,
            named_products: BTreeSet::new(),
        }
    }

    /// Where the run is written.
    ///
    /// # Panics
    /// On another rank than the first ([`Session::join`]), which writes nothing.
    pub fn directory(&self) -> &RunDirectory {
        &self
            .files
            .as_ref()
            .expect("the first rank writes the run")
            .directory
    }

    /// Weights, moments, counters.
    pub fn state(&self) -> &TrainState {
        &self.parts.state
    }

    /// The device.
    pub fn device(&self) -> &ComputeDevice {
        &self.parts.sampler.device
    }

    /// Runs to the end, or until the observer interrupts, and writes checkpoint, summary and report.
    ///
    /// # Errors
    /// Whatever stops the run; what was written before stays.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<RunStatus, TrainError> {
        let outcome = stopped::caught(|| self.iterations(observer)).unwrap_or_else(|why| Err(why.into()));
        if let Err(error) = &outcome {
            self.parts.distribution.exchange.abort(&error.to_string());
        }
        let status = match &outcome {
            Ok(status) => status.clone(),
            Err(error) => RunStatus::Failed {
                cause: error.to_string(),
            },
        };
        self.finish(status, observer)?;
        outcome
    }

    fn iterations(&mut self, observer: &mut dyn Observer) -> Result<RunStatus, TrainError> {
        for notice in &self.parts.notices {
            observer.notice(notice);
        }
        // The rank that writes knows; all give it what they have.
        let unsaved = std::mem::take(&mut self.unsaved);
        if self.parts.distribution.any(unsaved)? {
            self.save()?;
        }
        if self.resumed {
            self.saved_at = Some(self.parts.state.iteration);
        }
        // The rewards of this evaluation failed, and the run stopped.
        let is_due = std::mem::take(&mut self.evaluation_due);
        if self.parts.distribution.any(is_due)? && self.parts.evaluation.every > 0 {
            self.evaluate_or_save(observer)?;
        }
        // A checkpoint of the start holds the first evaluation already.
        if !self.resumed && self.parts.state.iteration == 0 && self.parts.evaluation.every > 0 {
            self.evaluate(observer)?;
            self.save()?;
        }
        while self.parts.state.iteration < self.parts.settings.iterations {
            let watch = Stopwatch::start();
            let mut summary = match self.iterate(observer) {
                Ok(summary) => summary,
                Err(error) => return Err(self.saved_before(error, observer)),
            };
            summary.wall_s = watch.wall_s();
            observer.iteration(&summary);
            let done = self.parts.state.iteration;
            let last = done == self.parts.settings.iterations;
            let every = self.parts.distribution.check_every;
            if every > 0 && (done.is_multiple_of(every) || last) {
                self.parts.distribution.compare_replicas(&self.parts.state)?;
            }
            let every = self.parts.evaluation.every;
            if every > 0 && (done.is_multiple_of(every) || last) {
                self.evaluate_or_save(observer)?;
            }
            let interrupted = self.parts.distribution.any(observer.interrupted())? && !last;
            let every = self.parts.settings.checkpoint_every;
            if (every > 0 && done.is_multiple_of(every)) || last || interrupted {
                self.save()?;
            }
            if interrupted {
                return Ok(RunStatus::Interrupted { step: done });
            }
        }
        Ok(RunStatus::Finished)
    }
}

impl Files {
    fn open(
        directory: RunDirectory,
        (metrics, timing): (MetricsWriter, MetricsWriter),
        resumed_from: Option<u64>,
        (run, settings): (RunStamp, &SessionSettings),
    ) -> Result<Self, TrainError> {
        let events = (settings.tensorboard_every > 0)
            .then(|| directory.events(resumed_from))
            .transpose()?;
        Ok(Self {
            run,
            checkpoints: directory.checkpoints(settings.checkpoints_kept),
            directory,
            metrics,
            timing,
            events,
        })
    }

    /// Tells TensorBoard what the run is, and how to draw its evaluations.
    fn describe(&mut self, manifest: &Manifest, rewards: &[RewardWeight]) -> Result<(), TrainError> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        let names: Vec<&str> = rewards.iter().map(|reward| reward.name.as_str()).collect();
        events.configuration(manifest)?;
        events.layout(&names, true)?;
        Ok(())
    }
}
