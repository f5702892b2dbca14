//! Errors of a run.

use crate::audit::Deviation;
use crate::description::Change;
use crate::optimizer::NonFiniteGradient;
use flow_config::Diagnostic;
use flow_registry::Refusal;
use std::path::{Path, PathBuf};

/// Changes that are listed at most.
const LISTED: usize = 8;

impl TrainError {
    /// A setting that fits no other: what is wrong, in the user's names and values, without a full stop.
    pub fn setting(problem: impl Into<Refusal>) -> Self {
        Self::Setting {
            key: None,
            refusal: problem.into(),
        }
    }

    /// A [`Setting`](Self::Setting) that the rules of configs refuse.
    pub(crate) fn refused(found: Diagnostic) -> Self {
        let refusal = Refusal {
            why: found.message,
            help: found.help,
        };
        Self::setting(refusal).about(found.path)
    }

    /// A [`Setting`](Self::Setting) with what to do; any other error has said it already.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        if let Self::Setting { refusal, .. } = &mut self {
            refusal.help = Some(help.into());
        }
        self
    }

    /// A [`Setting`](Self::Setting) with the key of the config that it is about; any other error knows its own.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        if let Self::Setting { key, .. } = &mut self {
            *key = Some(about.into());
        }
        self
    }

    /// What is wrong, and how to mend it where the error says that apart.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::NoWeights { file, help } => no_weights(file, help),
            Self::Setting { refusal, .. } => refusal.clone(),
            Self::Reward(error) => error.refusal(),
            Self::Checkpoint(error) => Refusal {
                why: error.problem(),
                help: error.help().map(str::to_owned),
            },
            error => Refusal::because(error.to_string()),
        }
    }

    /// The error that changes which a run does not survive are, if there are any.
    pub fn if_other_run(checkpoint: &Path, forbidden: &[&Change]) -> Result<(), Self> {
        if forbidden.is_empty() {
            return Ok(());
        }
        let listed = forbidden.iter().take(LISTED);
        let mut changes: String = listed.clone().map(|change| format!("\n  {change}")).collect();
        let mut back: Vec<String> = listed.map(|change| change.set_back()).collect();
        if forbidden.len() > LISTED {
            changes.push_str(&format!("\n  and {} more", forbidden.len() - LISTED));
            back.push("the others".into());
        }
        Err(Self::OtherRun {
            path: checkpoint.to_owned(),
            changes,
            back: back.join(", "),
        })
    }
}

fn no_weights(file: &Path, help: &str) -> Refusal {
    let why = format!(
        "there are no weights at `{}`, which `model.weights` names",
        file.display()
    );
    Refusal::new(why, help)
}

/// Why a run stopped. Every message says what, where, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss does not see the policy that sampled.
    #[error(
        "the on-policy audit failed in iteration {iteration}: {deviation}; the ratio must be exactly 1, and the rest the \
         same bits. The plan is `{plan}`, which promises to be lossless, so this is a defect of a kernel or of the plan; \
         please report it. To train nevertheless, set `audit.on_policy = \"warn\"`"
    )]
    OffPolicy {
        /// Iteration, from 1.
        iteration: u64,
        /// The largest deviation.
        deviation: Deviation,
        /// The plan in words.
        plan: String,
    },
    /// A loss that is infinite or not a number.
    #[error(
        "the loss of iteration {iteration} is not finite ({value}) in micro-batch {micro_batch} at {position}; the \
         weights are those after the last optimizer step. Lower `optimizer.learning_rate`, or resume from an earlier \
         checkpoint"
    )]
    NonFiniteLoss {
        /// Iteration, from 1.
        iteration: u64,
        /// Micro-batch, from 0.
        micro_batch: usize,
        /// Where on the trajectory.
        position: String,
        /// The value.
        value: f32,
    },
    /// A diffusers folder, its encoders, or the prompts that they encoded.
    #[error(transparent)]
    Pipeline(#[from] flow_pipeline::PipelineError),
    /// An autoencoder.
    #[error(transparent)]
    Autoencoder(#[from] flow_autoencoder::AutoencoderError),
    /// Accelerators that cannot be in force.
    #[error("`[acceleration]` cannot be put in force:{}", .0.iter().map(|finding| format!("\n  {finding}")).collect::<String>())]
    Acceleration(Vec<flow_validate::Diagnostic>),
    /// A model whose attention the device does not compute.
    #[error("{0}")]
    NoKernel(Box<flow_validate::Diagnostic>),
    /// A policy of activation checkpointing that the model cannot follow.
    #[error("`[checkpointing]` cannot be followed: {0}")]
    Checkpointing(#[from] flow_checkpoint::PolicyError),
    /// A budget of activation checkpointing that cannot be kept.
    #[error(transparent)]
    CheckpointPlan(#[from] flow_checkpoint::planner::PlanError),
    /// An accelerator that failed when it was used.
    #[error(transparent)]
    Accelerator(#[from] flow_accel::AccelerationError),
    /// An accelerator without effect.
    #[error(
        "the accelerator `{name}` did nothing in {within}: {why}. Or set `acceleration.strict = false` to make this a warning"
    )]
    IdleAccelerator {
        /// The accelerator.
        name: String,
        /// Where it was in force, in words: `iteration 3`, `the evaluation`.
        within: String,
        /// Why that may be, without a full stop.
        why: String,
    },
    /// An accelerator that did less than it is in force for.
    #[error(
        "the accelerator `{name}` did not do all it is in force for in {within}: {why}. Or set `acceleration.strict = false` to \
         make this a warning"
    )]
    AcceleratorFellShort {
        /// The accelerator.
        name: String,
        /// Where it was in force, in words: `iteration 3`, `the evaluation`.
        within: String,
        /// What happened and what to change, without a full stop.
        why: String,
    },
    /// A computation that stopped from within.
    #[error(transparent)]
    Stopped(#[from] flow_core::Stopped),
    /// The file of weights is not there.
    #[error("{}", no_weights(file, help))]
    NoWeights {
        /// The file or folder.
        file: PathBuf,
        /// What to do.
        help: String,
    },
    /// The adapter is not there.
    #[error("there is no adapter at `{}`, which `model.adapter` names; {start}", file.display())]
    NoAdapter {
        /// The file or folder.
        file: PathBuf,
        /// Where a relative path starts.
        start: String,
    },
    /// The file of a teacher is not there.
    #[error("there is nothing at `{}`, which `{key}` names for the teacher `{name}`; {start}", file.display())]
    NoTeacher {
        /// The teacher.
        name: String,
        /// The key that names the file.
        key: String,
        /// The file or folder.
        file: PathBuf,
        /// Where a relative path starts.
        start: String,
    },
    /// A teacher that cannot be read, or is of another architecture.
    #[error("the teacher `{name}` cannot be read from `{}`: {source}", file.display())]
    Teacher {
        /// The teacher.
        name: String,
        /// The key that names the file.
        key: String,
        /// The file or folder.
        file: PathBuf,
        /// What is wrong with it.
        source: Box<flow_models::ModelError>,
    },
    /// Latents that are infinite or not a number.
    #[error(
        "sample {sample} of iteration {iteration} (prompt `{prompt}`) came out of the sampler with a value that is \
         not finite; the weights have probably diverged. Lower `optimizer.learning_rate`, or resume from an earlier \
         checkpoint"
    )]
    NonFiniteSample {
        /// Iteration, from 1.
        iteration: u64,
        /// The sample.
        sample: u64,
        /// What it was asked for.
        prompt: String,
    },
    /// A gradient that is infinite or not a number.
    #[error("iteration {iteration}: {source}")]
    NonFiniteGradient {
        /// Iteration, from 1.
        iteration: u64,
        /// Which weight.
        source: NonFiniteGradient,
    },
    /// A checkpoint of another model or algorithm.
    #[error("checkpoint `{path}` does not fit this run: {problem}. {help}")]
    CheckpointMismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        problem: String,
        /// How to mend it.
        help: String,
    },
    /// The config describes another run than the checkpoint's.
    #[error(
        "the config describes another run than checkpoint `{path}` is of:{changes}\n  help: set {back}, or begin a run of its own \
         from the exported weights, under another `run.name`"
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs, a line each.
        changes: String,
        /// What is to be set back.
        back: String,
    },
    /// Another rank is lost, or has stopped.
    #[error(transparent)]
    Lost(#[from] flow_exchange::Lost),
    /// Ranks whose weights are not the same any more.
    #[error(
        "after iteration {iteration} the weights of rank {rank} are not those of rank 0: one of the machines computes other bits. Run \
         the same build on like machines, and resume from the newest checkpoint"
    )]
    ReplicasDiffer {
        /// The first that differs.
        rank: usize,
        /// Iterations done.
        iteration: u64,
    },
    /// Nothing to resume from.
    #[error(
        "there is no usable checkpoint in `{directory}`{skipped}. Start the run anew with `--on-exists overwrite`"
    )]
    NoCheckpoint {
        /// Where was looked.
        directory: PathBuf,
        /// What was found and could not be used.
        skipped: String,
    },
    /// A checkpoint that the process that decides does not see.
    #[error(
        "process {rank} sees the checkpoint `{path}` of iteration {iteration}, and process 0, which decides what the run goes on from, sees \
         none in `{directory}`. Start the processes so that process 0 is on that machine, or copy the file into that folder; to begin \
         anew, pass `--on-exists overwrite`"
    )]
    CheckpointElsewhere {
        /// The process that sees it.
        rank: usize,
        /// The file.
        path: PathBuf,
        /// Its iteration.
        iteration: u64,
        /// Where the first process looked.
        directory: PathBuf,
    },
    /// A setting that fits no other.
    #[error("{}", refusal.sentence())]
    Setting {
        /// The key of the config that it is about, where it is about one: `model.path`.
        key: Option<String>,
        /// What is wrong, and how to mend it where somebody knows.
        refusal: Refusal,
    },
    /// A reward that cannot be built, or failed outside of a run's iterations.
    #[error(transparent)]
    Reward(#[from] flow_rewards::RewardError),
    /// Rewards failed in the middle of a run, on this rank or another. Nothing was learnt from their images.
    #[error("{problem}")]
    Unscored {
        /// What the reward said, on several ranks with the process that it failed in.
        problem: String,
    },
    /// The data set.
    #[error(transparent)]
    Data(#[from] flow_data::DataError),
    /// The model or its weights.
    #[error(transparent)]
    Model(#[from] flow_models::ModelError),
    /// Advantages.
    #[error(transparent)]
    Advantage(#[from] crate::advantage::AdvantageError),
    /// The schedule.
    #[error(transparent)]
    Schedule(#[from] crate::scheduler::SchedulerError),
    /// The geometry.
    #[error(transparent)]
    Geometry(#[from] crate::geometry::GeometryError),
    /// A file of the run.
    #[error(transparent)]
    Report(#[from] flow_report::ReportError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] flow_report::CheckpointError),
    /// Intervals.
    #[error(transparent)]
    Statistics(#[from] flow_report::StatisticsError),
    /// Devices and weights.
    #[error(transparent)]
    Core(#[from] flow_core::CoreError),
}
