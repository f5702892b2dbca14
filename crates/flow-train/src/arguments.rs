//! The command line.

use crate::named_devices::NamedDevice;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// Fine-tunes flow-matching diffusion transformers by reinforcement learning.
///
/// Exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted (the state is saved).
#[derive(Debug, Parser)]
#[command(name = "flow-train", version, max_term_width = 110, propagate_version = true)]
pub struct Arguments {
    /// Only results and errors: no progress, no notes
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Least severity of log messages
    #[arg(long, global = true, value_enum, default_value_t = LogLevel::Warn, value_name = "LEVEL")]
    pub log: LogLevel,
    #[command(subcommand)]
    pub command: Command,
}

/// Severity of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model by reinforcement learning
    Train(TrainArguments),
    /// Train on several processes of this machine, as one run
    ///
    /// Starts `flow-train COMMAND` so many times with the variables that torchrun sets, puts `[RANK]` before what each says, passes on
    /// requests to stop, and ends when all have ended; if one fails, the others end, too. torchrun, srun and mpirun do as well.
    Launch(LaunchArguments),
    /// Train a model from scratch by flow matching, for reinforcement learning to start from
    Pretrain(PretrainArguments),
    /// Generate images
    Sample(SampleArguments),
    /// Encode pictures to latents by the autoencoder of a diffusers folder, and prompts to embeddings
    ///
    /// Writes a safetensors file with `latents` in the units of the folder's transformer, `[B, C, H, W]`, or `[B, C, F, H, W]` of a
    /// pipeline that makes videos; and, of prompts, `prompt_embeds` and so on as `text.kind = "file"` reads them. Pictures are PNG,
    /// JPEG or WebP: EXIF's orientation is applied, and what is transparent lies over white. Each is resized with its proportions
    /// until it covers the size, and its longer side is cropped at both ends alike.
    Encode(EncodeArguments),
    /// Decode latents, as `encode` writes them, to pictures, or to videos as animated PNG
    Decode(DecodeArguments),
    /// Measure a model on the held-out prompts
    Eval(EvalArguments),
    /// Check a config and build its parts without training
    Check(CheckArguments),
    /// Show what a run would do: geometry, calls, parameters, cost, schedule
    Plan(PlanArguments),
    /// Compare the ratios of a rollout and of training, for every lossless combination of what computes
    ///
    /// Takes so many combinations that every two values of different columns occur together: some 15, about a minute for
    /// `configs/digits-grpo.toml`. `--all` takes each of several hundred and as many times as long.
    Audit(AuditArguments),
    /// Show what the accelerators of the rollout change and save, or weights in low precision: the same samples with and without
    Drift(DriftArguments),
    /// Measure what the policies `magcache` and `teacache` must know of a model, and write it as TOML
    Calibrate(CalibrateArguments),
    /// Print the JSON schema of the config
    Schema,
    /// List what a config can ask for by name
    List {
        /// Which list, with what each name means; without it, the names of all
        #[arg(value_enum)]
        what: Option<Listed>,
    },
    /// Explain a key of the config, a parameter of an accelerator, or the code of an error or warning
    Explain {
        /// A key such as `optimizer.learning_rate`, of which the section may be left out, or a code such as
        /// `acceleration::refused`
        key: String,
    },
    /// Write a config that runs, with its weights and its schema, into a folder
    Init(InitArguments),
    /// Look at this build and this machine, check that computing works, and say what to do about what is missing
    ///
    /// Exit code 1 if something that this build is for does not work.
    Doctor,
    /// Make the report of a run again, or compare the runs of a folder on one page
    Report {
        /// The run's directory, or one that holds runs
        run: PathBuf,
    },
    /// Bring an older config up to date; comments are kept
    Migrate {
        /// The config
        config: PathBuf,
        /// Change the file; the old one is kept beside it
        #[arg(long)]
        write: bool,
    },
    /// Turn a config of Flow-Factory (YAML) into one of ours
    Import {
        /// The YAML
        yaml: PathBuf,
        /// Write the TOML to this file; without it, it is printed
        #[arg(long, value_name = "FILE.toml", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
        /// Say what became of each key, and not only of those that change the result
        #[arg(long)]
        all_notes: bool,
        #[command(flatten)]
        there: ThereAlready,
    },
    /// Download a model from the Hugging Face hub into a folder, as diffusers has it
    ///
    /// Takes the configs, vocabularies and safetensors that the model is read from, of one commit, and checks each file by the hub's
    /// hash. A download that was stopped goes on where it was. The variable HF_TOKEN is the token for gated and private models,
    /// HF_ENDPOINT names a mirror; HTTPS_PROXY and NO_PROXY count, too. No other command opens a connection.
    Fetch(FetchArguments),
    /// Print a completion script
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// A config with overrides.
#[derive(Clone, Debug, Args)]
pub struct ConfigArguments {
    /// The config (TOML)
    pub config: PathBuf,
    /// Override a value of the config; may be given several times
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Weights in the place of the config's, of the commands that take some.
    #[arg(skip)]
    pub weights: Option<PathBuf>,
}

/// What becomes of a file that stands where one is to be written.
#[derive(Clone, Copy, Debug, Args)]
pub struct ThereAlready {
    /// What to do if a file to be written exists already
    #[arg(long = "on-exists", value_enum, default_value_t = ExistingFile::Error, value_name = "POLICY")]
    pub on_exists: ExistingFile,
}

/// What to do if a file exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExistingFile {
    /// Stop with an error, before the work
    Error,
    /// Move it aside, to FILE.old, and write
    Overwrite,
    /// Write to the next free name
    New,
}

#[derive(Debug, Args)]
pub struct PretrainArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Go on with a pretraining that was stopped: from what is beside its weights, or from a checkpoint file
    #[arg(long, value_name = "latest|PATH", value_hint = ValueHint::FilePath, conflicts_with = "on_exists")]
    pub resume: Option<PathBuf>,
    /// Time between two savings of the state beside the weights
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub save_every: u64,
    #[command(flatten)]
    pub there: ThereAlready,
}

#[derive(Debug, Args)]
pub struct FetchArguments {
    /// The model's repository, such as `stabilityai/stable-diffusion-3.5-medium`; or `words` or `ocr`: what `configs/words-grpo.toml` needs,
    /// or the reader alone, of known packages
    #[arg(value_name = "ORGANISATION/NAME")]
    pub repository: String,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main")]
    pub revision: String,
    /// Weights of a variant, such as fp16 or bf16, where a component has them; without it, those of no variant
    #[arg(long)]
    pub variant: Option<String>,
    /// The folder; it is made if it is not there. Without it, NAME in the working directory; of `words` and `ocr` models/NAME
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct InitArguments {
    /// The folder; it is made if it is not there
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// What to do if one of the files exists already
    #[arg(long, value_enum, default_value_t = InTheWay::Error, value_name = "POLICY")]
    pub on_exists: InTheWay,
}

/// What to do if a file of several that go together exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InTheWay {
    /// Stop with an error, before anything is written
    Error,
    /// Move it aside, to FILE.old, and write
    Overwrite,
}

impl From<InTheWay> for ExistingFile {
    fn from(policy: InTheWay) -> Self {
        match policy {
            InTheWay::Error => Self::Error,
            InTheWay::Overwrite => Self::Overwrite,
        }
    }
}

#[derive(Debug, Args)]
pub struct PlanArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Write what a budget of activation checkpointing keeps into this folder, as plan.json and plan.svg
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// How to print the plan, or what is found to be wrong
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    #[command(flatten)]
    pub there: ThereAlready,
    #[command(flatten)]
    pub target: TargetArguments,
}

#[derive(Debug, Args)]
pub struct LaunchArguments {
    /// How many processes
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub processes: u16,
    /// What each of them runs: `train CONFIG` with its options
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct TrainArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Go on with a run: from its newest usable checkpoint, or from a checkpoint file
    #[arg(long, value_name = "latest|PATH", value_hint = ValueHint::FilePath, conflicts_with = "on_exists")]
    pub resume: Option<PathBuf>,
    /// What to do if the run exists already; without it, `run.on_exists` of the config
    #[arg(long, value_enum, value_name = "POLICY")]
    pub on_exists: Option<Existing>,
    /// Build everything, show what would run, write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Show a full-screen view of the run
    #[cfg_attr(feature = "tui", arg(long))]
    #[cfg_attr(not(feature = "tui"), arg(long, hide = true))]
    pub tui: bool,
}

/// What to do if a run exists already.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Existing {
    /// Stop with an error
    Error,
    /// Go on from its newest checkpoint
    Resume,
    /// Move it aside and start afresh
    Overwrite,
    /// Write to the next free name
    New,
}

#[derive(Debug, Args)]
pub struct SampleArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// What to generate; may be given several times
    #[arg(long, required = true, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// Images of each prompt
    #[arg(short = 'n', long, default_value_t = 4, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub count: u16,
    /// Seed of the noise; without it, `evaluation.seed`
    #[arg(long)]
    pub seed: Option<u64>,
    /// Weights instead of `model.weights`: a model or a LoRA, as file or folder, or the folder of a finished run
    #[arg(long, visible_alias = "lora", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub weights: Option<PathBuf>,
    /// Steps of the sampler; without it, `evaluation.steps`, or the default of the diffusers folder's pipeline
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub steps: Option<u16>,
    /// Guidance scale; without it, `evaluation.guidance_scale`, or the default of the diffusers folder's pipeline. Of the folder of
    /// FLUX.1-dev it is the scale that the model embeds
    #[arg(long, value_name = "SCALE")]
    pub guidance: Option<f64>,
    /// Scale of classifier-free guidance, by a second branch, beside the one that the model of the folder embeds (FLUX.1-dev); without
    /// it 1, no second branch. It is `true_cfg_scale` of diffusers
    #[arg(long, value_name = "SCALE", value_parser = guidance_scale)]
    pub true_cfg: Option<f64>,
    /// What the second branch of guidance is told; without it, `text.negative_prompt`
    #[arg(long, value_name = "TEXT")]
    pub negative_prompt: Option<String>,
    /// Size in pixels of what a diffusers folder makes; without it, that of its pipeline
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = crate::picture_size::PictureSize::parse)]
    pub size: Option<crate::picture_size::PictureSize>,
    /// Where the picture goes; without it, `sample.png` or the next free name like it
    #[arg(long, value_name = "FILE.png", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    /// Write every image (videos as animated PNG) to a file of its own, too, beside the picture and at its full size:
    /// FILE-prompt-001-sample-001.png
    #[arg(long)]
    pub each: bool,
    /// Write videos as GIF, of 256 colours a frame, rather than as animated PNG
    #[arg(long, requires = "each")]
    pub gif: bool,
    #[command(flatten)]
    pub there: ThereAlready,
}

/// A guidance scale, with the bounds of `sampling.guidance_scale`.
fn guidance_scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if (0.0..=100.0).contains(&scale) => Ok(scale),
        _ => Err(format!(
            "`{text}` is no guidance scale; name a number from 0 to 100, such as 3.5"
        )),
    }
}

#[derive(Debug, Args)]
pub struct EncodeArguments {
    /// The diffusers folder, or a config with `model.path`; and overrides
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Pictures, or folders of pictures, which are taken with all folders in them and sorted by path
    #[arg(value_name = "PICTURE", value_hint = ValueHint::AnyPath)]
    pub pictures: Vec<PathBuf>,
    /// Size in pixels that pictures are resized and cropped to; without it, that of the pipeline (1024x1024, of Wan 832x480)
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = crate::picture_size::PictureSize::parse)]
    pub size: Option<crate::picture_size::PictureSize>,
    /// Take the pictures, in their order, as the frames of one video: 1, 5, 9, … of them
    #[arg(long, requires = "pictures")]
    pub video: bool,
    /// Encode the prompts of this file, too (.txt, .jsonl, .csv), and the negative prompt
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub prompts: Option<PathBuf>,
    /// The negative prompt; without it, `text.negative_prompt`, which is empty
    #[arg(long, value_name = "TEXT", requires = "prompts")]
    pub negative_prompt: Option<String>,
    /// Where the tensors go; without it, `latents.safetensors` or the next free name like it
    #[arg(long, value_name = "FILE.safetensors", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub there: ThereAlready,
}

#[derive(Debug, Args)]
pub struct DecodeArguments {
    /// The diffusers folder, or a config with `model.path`; and overrides
    #[command(flatten)]
    pub config: ConfigArguments,
    /// A safetensors file with the tensor `latents`
    #[arg(value_name = "FILE.safetensors", value_hint = ValueHint::FilePath)]
    pub latents: PathBuf,
    /// Where the picture goes, and of several latents FILE-001.png and so on; without it, the name of the latents with `.png`, or the
    /// next free name like it. Videos are animated PNG, or GIF in FILE.gif
    #[arg(long, value_name = "FILE.png", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub there: ThereAlready,
}

#[derive(Debug, Args)]
pub struct EvalArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Weights instead of `model.weights`: a model or a LoRA, as file or folder, or the folder of a finished run
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub weights: Option<PathBuf>,
    /// Evaluate on the weights of the file, without what `acceleration.shared` has to store them in fewer bits
    #[arg(long)]
    pub without_low_precision: bool,
}

#[derive(Debug, Args)]
pub struct DriftArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Rollouts to compare, each with prompts and noise of its own
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub rollouts: u64,
    /// Compare with the weights of the file what `acceleration.shared` has to store them in fewer bits, rather than the rollout's
    /// accelerators; and each block's outputs
    #[arg(long)]
    pub low_precision: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AuditArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Only combinations with this value in a column of the table; columns narrow it down, values of one add up
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub only: Vec<String>,
    /// Every combination, rather than every two values together at least once
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct CalibrateArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// The policy
    #[arg(long, value_enum)]
    pub policy: MeasuredPolicy,
    /// A file for the entry, rather than the terminal
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub there: ThereAlready,
}

/// A policy of `feature_cache` that must be measured on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MeasuredPolicy {
    /// Ratios of the magnitudes of successive residuals.
    Magcache,
    /// The polynomial from a change of the modulated input to one of the output.
    Teacache,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// The command that the config is meant for
    #[arg(long = "for", value_enum, default_value_t = Purpose::Train, value_name = "COMMAND")]
    pub purpose: Purpose,
    /// Number of processes that are to train as one run
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub ranks: u16,
    /// How to print what is found
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    #[command(flatten)]
    pub target: TargetArguments,
}

/// The device that a config is meant for, if it is not this machine's.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct TargetArguments {
    /// Take this device in the place of the config's, whether or not this machine has it
    #[arg(long, value_enum, ignore_case = true, value_name = "NAME")]
    pub device: Option<NamedDevice>,
    /// Memory of the device; without it, that of `--device`, or this machine's
    #[arg(long, value_name = "GIB", value_parser = memory_gib)]
    pub memory_gib: Option<f64>,
}

/// An amount of memory in GiB.
fn memory_gib(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gib) if gib > 0.0 && gib <= 1e6 => Ok(gib),
        _ => Err("write a number of GiB above 0, for example 80".into()),
    }
}

/// How diagnostics are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people; what is wrong is on standard error, with the lines concerned
    Human,
    /// For programs: one JSON document on standard output, whatever is found
    Json,
}

/// What a config is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    Train,
    Pretrain,
}

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    Models,
    Rewards,
    Kernels,
    Attention,
    Accelerators,
    /// Policies of the accelerator `feature_cache`.
    CachePolicies,
    /// Policies of activation checkpointing.
    Policies,
    Algorithms,
    Schedulers,
    Data,
    Text,
    Presets,
    /// Devices that `check` and `plan` know by name.
    Devices,
    Codes,
    /// Every prompt of every data set, in the order of its ids.
    Prompts,
}
