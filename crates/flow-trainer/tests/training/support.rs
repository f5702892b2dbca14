//! A tiny run on the digits: 2 blocks of width 16, 4 sampling steps.

use flow_accel::{Acceleration, AcceleratorRegistry};
use flow_config::Config;
use flow_core::rng::{Purpose, Stream};
use flow_core::{Backends, Kernels, Weights, device::ComputeDevice};
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Observer;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_trainer::{Plugins, TrainError, Trainer};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

pub const BASE: &str = r#"
config_version = 1
[run]
seed = 3
steps = 4
[model.dit]
hidden = 16
layers = 2
heads = 2
conditioning = { kind = "tokens", vocabulary = 15, max_tokens = 2 }
[data]
kind = "digits"
[[rewards]]
kind = "digit-classifier"
weights = "built-in"
[[rewards]]
kind = "jpeg-compressibility"
weight = 0.1
[sampling]
prompts_per_step = 3
group_size = 4
micro_batch = 6
[scheduler]
steps = 4
[optimizer]
learning_rate = 1e-3
gradient_accumulation = 1
[evaluation]
every = 2
prompts = 2
images_per_prompt = 2
[checkpoints]
every = 1
keep = 3
[logging]
html_report = false
"#;

/// The model of the base config, to be replaced by another.
pub const DIT: &str = r#"[model.dit]
hidden = 16
layers = 2
heads = 2
conditioning = { kind = "tokens", vocabulary = 15, max_tokens = 2 }
"#;

/// As many patches and blocks as [`DIT`]; the first block attends twice.
pub const MMDIT: &str = r#"[model]
architecture = "mmdit"
[model.mmdit]
sample_size = 8
in_channels = 1
out_channels = 1
num_layers = 2
attention_head_dim = 8
num_attention_heads = 2
joint_attention_dim = 12
caption_projection_dim = 16
pooled_projection_dim = 10
pos_embed_max_size = 6
dual_attention_layers = [0]
"#;

/// The base config with some values set, each `key=value`.
pub fn config(overrides: &[&str]) -> Config {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    test_catalog::parse_named("test.toml", BASE, &overrides)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

pub struct Registries {
    pub plugins: Plugins,
    pub accelerators: AcceleratorRegistry,
}

pub fn registries() -> Registries {
    Registries {
        plugins: test_catalog::PLUGINS.clone(),
        accelerators: AcceleratorRegistry::default(),
    }
}

pub fn environment(registries: &Registries) -> Environment<'_> {
    environment_with(registries, Arc::new(flow_kernels::CpuKernels::default()))
}

pub fn environment_with(registries: &Registries, kernels: Arc<dyn Kernels>) -> Environment<'_> {
    Environment {
        device: ComputeDevice::cpu(),
        plan: Arc::new(Backends::new(Arc::new(flow_attention::CpuAttention), kernels)),
        accelerators: &registries.accelerators,
        plugins: &registries.plugins,
        base: Path::new("."),
        memory_probe: None,
        folders: PipelineFolders::default(),
        exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
    }
}

/// Random weights: a fresh DiT predicts 0 everywhere, which would hide most mistakes.
pub fn scramble(weights: &mut Weights, seed: u64) {
    let layout = weights.layout().clone();
    for (index, spec) in layout.specs().iter().enumerate() {
        if spec.kind == flow_core::ParamKind::Buffer {
            continue;
        }
        let mut values = weights.host(index);
        let mut draws = Stream::new(seed, Purpose::Test).at(index as u64, 0);
        values
            .iter_mut()
            .for_each(|value| *value += 0.2 * draws.normal() as f32);
        weights.set_host(index, values).expect("as many values");
    }
}

/// Calls back with the trainer of a run whose weights are random.
pub trait Visit {
    type Output;
    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) -> Self::Output;
}

pub fn with_trainer<V: Visit>(config: &Config, environment: &Environment<'_>, visit: V) -> V::Output {
    let algorithm =
        setup::algorithm(config, environment.plugins, 16).unwrap_or_else(|error| panic!("{error}"));
    let mut trainer =
        setup::trainer(config, environment, algorithm).unwrap_or_else(|error| panic!("{error}"));
    scramble(&mut trainer.state.weights.current, 11);
    let current = trainer.state.weights.current.clone();
    let weights = &mut trainer.state.weights;
    for set in [
        &mut weights.average,
        &mut weights.old,
        &mut weights.sampling,
        &mut weights.reference,
    ] {
        set.iter_mut().for_each(|set| *set = current.clone());
    }
    visit.visit(trainer)
}

/// What a run leaves: the bytes of its metrics and all weights.
#[derive(Debug, PartialEq)]
pub struct Left {
    pub metrics: String,
    pub weights: Vec<Vec<u32>>,
}

pub fn bits(weights: &Weights) -> Vec<Vec<u32>> {
    (0..weights.layout().len())
        .map(|index| weights.host(index).iter().map(|v| v.to_bits()).collect())
        .collect()
}

/// Starts a run in `root/name`, or resumes it, and goes to iteration `until`.
pub struct RunTo<'a> {
    pub root: &'a Path,
    pub resume: bool,
    pub until: u64,
}

impl Visit for RunTo<'_> {
    type Output = Result<Left, TrainError>;

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) -> Self::Output {
        self.observed(trainer, &mut flow_trainer::observer::Silent)
    }
}

impl RunTo<'_> {
    /// The run, told to `observer`.
    pub fn observed<A: Algorithm + 'static>(
        &self,
        mut trainer: Trainer<A>,
        observer: &mut dyn Observer,
    ) -> Result<Left, TrainError> {
        trainer.settings.iterations = self.until;
        let mut trainer = if self.resume {
            let directory = RunDirectory::resume(self.root, "run")?;
            let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.root);
            trainer.resume(directory, None, manifest, observer)?
        } else {
            let directory = RunDirectory::open(self.root, "run", OnExists::Error)?;
            let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.root);
            trainer.start(directory, &manifest)?
        };
        trainer.train(observer)?;
        Ok(left(&trainer))
    }
}

/// A run that is stopped before its end and goes on leaves what one leaves that is not stopped; `which` names the run.
#[track_caller]
pub fn expect_same_when_resumed<W: Debug + ?Sized>(
    config: &Config,
    environment: &Environment<'_>,
    which: &W,
) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let go = |name: &str, resume, until| {
        let root = root.path().join(name);
        let run = RunTo {
            root: &root,
            resume,
            until,
        };
        with_trainer(config, environment, run).unwrap_or_else(|error| panic!("{which:?}: {error}"))
    };
    let whole = go("whole", false, 4);
    go("parts", false, 3);
    // The evaluation at the early end is not part of the whole run, so go back to the checkpoint before it.
    let newest = root.path().join("parts/run/checkpoints/step-000003.ckpt");
    std::fs::remove_file(&newest).expect("the run saved its end");
    assert_eq!(whole, go("parts", true, 4), "{which:?}");
}

/// What a trainer that has trained leaves.
pub fn left<A: Algorithm>(trainer: &Trainer<A, Acceleration>) -> Left {
    let metrics =
        std::fs::read_to_string(trainer.directory().path().join("metrics.jsonl")).expect("metrics exist");
    let weights = &trainer.state.weights;
    let networks = trainer.state.networks.values();
    let networks = networks.flat_map(|network| std::iter::once(&network.weights).chain(&network.slow));
    let sets = [
        Some(&weights.current),
        weights.average.as_ref(),
        weights.old.as_ref(),
        weights.sampling.as_ref(),
    ];
    Left {
        metrics,
        weights: (sets.into_iter().flatten().chain(networks))
            .flat_map(bits)
            .collect(),
    }
}
