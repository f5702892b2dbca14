//! The trainer: everything a run is made of, and the loop.
//!
//! `setup` builds it from a config. It begins in a run folder ([`Trainer::start`], [`Trainer::resume`]) or beside the process that has one
//! ([`Trainer::join`]), and then trains ([`Trainer::train`]); `iteration` has the loop from top to bottom. What only measures needs no run
//! folder: [`Trainer::set_up`], then [`Trainer::audit`], [`Trainer::drift`] or [`Trainer::measure`].
//!
//! The loop is generic over [`Algorithm`] and knows no algorithm, model, reward or accelerator by name.

mod activity;
mod averaging;
mod checkpoint_load;
mod checkpoint_save;
mod comparison;
mod drift;
mod evaluation;
mod evaluation_shares;
mod exploration;
mod exported;
mod failed_rewards;
mod iteration;
mod layer_drift;
mod mean;
mod metrics;
mod micro_batches;
mod networks;
mod offline_batches;
mod on_policy_audit;
mod rearranged_batches;
mod resume;
mod reward_regressions;
mod reward_times;
mod rollout;
mod row_comparison;
mod run_counters;
mod run_files;
mod scoring;
mod settings;
mod stale_rollout;
mod state;
mod teachers;
mod update;
mod watch;

pub use drift::{Drift, DriftRun};
pub use evaluation::{Evaluation, Subject};
pub use exploration::Explorer;
pub use layer_drift::LayerDrift;
use resume::Beginning;
use run_counters::RunCounters;
use run_files::RunFiles;
pub use settings::{AuditMode, EvaluationSettings, RewardWeight, TrainerSettings, WeightedRewards};
pub use state::{PolicyWeights, TrainState, TrainedNetwork};
pub use watch::WatchSettings;

use crate::absent_file::AbsentFile;
use crate::algorithm::Algorithm;
use crate::conditions::Conditioner;
use crate::description::Description;
use crate::distributed::Distribution;
use crate::error::TrainError;
use crate::frozen::FrozenWeights;
use crate::geometry::PromptSampler;
use crate::records::Records;
use crate::rollout::Sampler;
use crate::scheduler::Schedule;
use crate::sizes::AtSize;
use flow_accel::{Acceleration, Arrangement};
use flow_checkpoint::planner::PlanRecord;
use flow_config::Catalog;
use flow_core::Backends;
use flow_data::{Dataset, Prompt};
use flow_report::{Manifest, MetricsStart, RunDirectory};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Everything a run is made of. It computes once its accelerators are set up with the weights it begins from: `S` is then an
/// [`Acceleration`].
pub struct Trainer<A, S = Arrangement> {
    /// Numbers and switches.
    pub settings: TrainerSettings,
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
    /// What a person should know before the run starts. See [`take_notices`](Self::take_notices).
    pub(crate) notices: Vec<String>,
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
    /// Rewards to train on; none where records are learnt from.
    pub rewards: WeightedRewards,
    /// Rewards to evaluate by.
    pub evaluation_rewards: WeightedRewards,
    /// How to evaluate.
    pub evaluation: EvaluationSettings,
    /// Weights, moments, counters.
    pub state: TrainState,
    /// Over which ranks the run is spread.
    pub distribution: Distribution,
    /// How far it has come.
    pub(crate) progress: Progress,
    /// The files that the run writes: of the first rank, once the run has begun. Others write none.
    pub(crate) files: Option<RunFiles>,
}

/// What is carried from iteration to iteration beside the [`TrainState`].
#[derive(Default)]
pub(crate) struct Progress {
    run_counters: RunCounters,
    /// Until when the time of rewards was counted.
    rewards_counted_to: Option<Instant>,
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
    named_regressions: BTreeSet<String>,
    /// Signs of an exploited reward that a person has been told of.
    named_signs: BTreeSet<String>,
    /// Kinds of attention call that the manifest names.
    named_attention: usize,
    /// Matrix products that the manifest names.
    named_products: BTreeSet<String>,
}

impl Progress {
    /// Of a run that begins.
    pub(crate) fn begun() -> Self {
        Self {
            run_counters: RunCounters::begun(),
            ..Self::default()
        }
    }
}

impl<A> Trainer<A> {
    /// Hands over what a person should know before the run starts, to a caller that shows it or has shown it.
    /// [`train`](Trainer::train) tells its observer what was not taken until then, and what [`set_up`](Trainer::set_up) added.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

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
    pub fn set_up(mut self) -> Result<Trainer<A, Acceleration>, TrainError> {
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
            return Err(TrainError::setting(
                "checkpoints of this run would hold the weights that are frozen, which no process has whole with \
                 `distributed.shard = \"weights\"`",
            )
            .with_help(
                "assemble the run from the config alone (`setup::trainer`), which looks at the file that gives them",
            )
            .about("distributed.shard"));
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
        Ok(Trainer {
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
            progress: self.progress,
            files: self.files,
        })
    }
}

impl<A> Trainer<A, Acceleration> {
    /// The plan of losses and evaluations.
    pub fn training_plan(&self) -> &Arc<Backends> {
        self.acceleration.training()
    }

    /// Where the run is written.
    ///
    /// # Panics
    /// If this trainer writes none: on another rank than the first ([`Trainer::join`]), and without a run folder.
    pub fn directory(&self) -> &RunDirectory {
        let files = self.files.as_ref();
        &files.expect("the first rank writes the run").directory
    }

    /// Whether this or another rank writes the run.
    fn is_written(&self) -> bool {
        self.files.is_some() || self.distribution.exchange.world().is_several()
    }
}

impl<A: Algorithm> Trainer<A> {
    /// Begins a run in a fresh `directory`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn start(
        self,
        directory: RunDirectory,
        manifest: &Manifest,
    ) -> Result<Trainer<A, Acceleration>, TrainError> {
        self.expect_files()?;
        let others = self.distribution.gather(&Beginning::Start)?;
        Beginning::expect_none(&others, &directory)?;
        let mut trainer = self.set_up()?;
        trainer.distribution.gather(&Beginning::Ready)?;
        directory.write_manifest(manifest)?;
        let logs = (directory.metrics(MetricsStart::Fresh)?, directory.timing()?);
        let mut files = RunFiles::open(directory, logs, None, (manifest.stamp(), &trainer.settings))?;
        files.describe(manifest, &trainer.evaluation_rewards.weights)?;
        trainer.files = Some(files);
        Ok(trainer)
    }
}
