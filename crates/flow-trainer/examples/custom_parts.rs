//! A reward, an algorithm and a model of one's own in one run: what the book's how-to chapters show, to be run.
//!
//! `cargo run --release -p flow-trainer --example custom_parts -- FOLDER` writes the run to `FOLDER/custom`.

use burn::tensor::Tensor;
use flow_accel::AcceleratorRegistry;
use flow_accel::Paradigm;
use flow_attention::CpuAttention;
use flow_config::Config;
use flow_core::exec::Linear;
use flow_core::model::Vocabulary;
use flow_core::params::LayoutBuilder;
use flow_core::rng::{Purpose, Stream};
use flow_core::{
    Activation, Backends, Exec, FlowModel, Handle, Init, LatentShape, ModelInput, ModelSpec, ParamLayout,
    Weights, device::ComputeDevice, tensors::plain,
};
use flow_kernels::CpuKernels;
use flow_report::{Manifest, OnExists, RunDirectory, ValueRange};
use flow_rewards::{NamedReward, Reward, RewardError, RewardSample, RewardWorkers};
use flow_trainer::Plugins;
use flow_trainer::algorithm::{Algorithm, LossContext, LossPoint, PointLoss, ReferenceWeights};
use flow_trainer::observer::{IterationSummary, Observer};
use flow_trainer::optimizer::AdamW;
use flow_trainer::policy::CallSite;
use flow_trainer::scheduler::Schedule;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_trainer::trainer::{PolicyWeights, RewardWeight, WeightedRewards};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

const CONFIG: &str = r#"
config_version = 1
run = { name = "custom", steps = 3 }
data = { kind = "digits" }
rewards = [{ kind = "target-colour", rgb = [1.0, 1.0, 1.0] }]
algorithm = { kind = "nft" }
scheduler = { dynamics = "ode", steps = 4 }
sampling = { prompts_per_step = 2, group_size = 4, micro_batch = 8 }
evaluation = { prompts = 2, images_per_prompt = 2 }

[model.dit]
hidden = 16
layers = 1
heads = 2
conditioning = { kind = "tokens", vocabulary = 15, max_tokens = 2 }
"#;

// ---- a reward ----

/// How alike an image and its mirror image are: 0 at best.
struct Symmetry;

impl Reward for Symmetry {
    fn name(&self) -> &str {
        "symmetry"
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let score = |sample: &RewardSample<'_>| {
            let (pixels, width) = (&sample.image.pixels_chw, sample.image.width);
            let rows = pixels.chunks_exact(width);
            let apart: f32 = rows
                .flat_map(|row| row.iter().zip(row.iter().rev()))
                .map(|(a, b)| (a - b).abs())
                .sum();
            -apart / pixels.len() as f32
        };
        Ok(samples.iter().map(score).collect())
    }
}

// ---- an algorithm ----

/// Reward-weighted regression (Peters and Schaal 2007) on the flow-matching loss:
/// `mean(exp(A / temperature) · mean((v - (noise - x0))²))`, over images that the current policy made.
#[derive(Debug)]
struct RewardWeighted {
    temperature: f32,
    times_per_image: usize,
}

impl Algorithm for RewardWeighted {
    fn name(&self) -> &str {
        "reward-weighted"
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        None
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    fn advantage_clip(&self) -> f32 {
        5.0
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        let mut draws = Stream::new(seed, Purpose::Timesteps).at(iteration, pass as u32);
        let time = |number| LossPoint::Time {
            sigma: 1.0 - draws.uniform(),
            draw: number as u32,
        };
        (0..self.times_per_image).map(time).collect()
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let LossPoint::Time { sigma, .. } = position else {
            unreachable!("`positions` gives times only");
        };
        let batch = &context.batch;
        let rows = batch.samples.len();
        let noise =
            Tensor::<2>::from_dispatch(context.noise.clone().expect("the loop draws the noise of a time"));
        let clean = Tensor::<2>::from_dispatch(batch.clean.clone());
        let x = clean.clone() * (1.0 - sigma) + noise.clone() * sigma;
        let target = plain(&(noise - clean).into_dispatch());

        let call = context.policy.call(
            CallSite {
                step: 0,
                sigma: Some(sigma),
                ..context.site
            },
            &batch.samples,
        );
        let exec = context.pass.exec(call);
        let sigma_b = context.device.tensor(vec![sigma as f32; rows], [rows]);
        let v = context.policy.velocity(&exec, x, sigma_b, &batch.conditions);
        let losses = context.kernels.ops().loss;
        let error_b = losses.mean_squared_distance(&v.into_dispatch(), &target);
        let weight_b = (context.advantages.clone() / self.temperature).exp();
        let loss = (Tensor::<1>::from_dispatch(error_b) * weight_b).mean_dim(0);
        PointLoss {
            loss,
            replayed: None,
            terms: Vec::new(),
        }
    }
}

// ---- a model ----

/// A network of two layers on the whole latent. It holds weight handles, no weights.
#[derive(Debug)]
struct Mlp {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    latent: Linear,
    noise_level: Linear,
    tokens: Handle<2>,
    out: Linear,
}

impl Mlp {
    fn new(latent: LatentShape, vocabulary: Vocabulary, hidden: usize) -> Self {
        let mut layout = ParamLayout::default();
        let mut builder = LayoutBuilder::new(&mut layout);
        let values = latent.values();
        let mut linear = |name: &str, input, output, init| {
            let mut part = builder.under(name);
            let weight = part.param("weight", [output, input], init);
            Linear {
                weight,
                bias: Some(part.param("bias", [output], Init::Zeros)),
            }
        };
        let from_latent = linear("latent", values, hidden, Init::XavierUniform);
        let noise_level = linear("noise_level", 1, hidden, Init::XavierUniform);
        let out = linear("out", hidden, values, Init::XavierUniform);
        let tokens = builder
            .under("tokens")
            .param("weight", [vocabulary.size, hidden], Init::Normal(0.02));
        let spec = ModelSpec {
            architecture: "mlp".into(),
            latent,
            tokens: 1,
            vocabulary: Some(vocabulary),
            text: None,
            guidance: false,
            stacks: Vec::new(),
            regions: Vec::new(),
            attentions: Vec::new(),
        };
        Self {
            spec,
            layout: Arc::new(layout),
            latent: from_latent,
            noise_level,
            tokens,
            out,
        }
    }
}

impl FlowModel for Mlp {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let tokens_bl = input
            .condition
            .tokens
            .expect("a model with a vocabulary is given tokens");
        let embedded: Tensor<2> = exec.embedding(self.tokens, tokens_bl).sum_dim(1).squeeze_dim(1);
        let noise_level = exec.linear(&self.noise_level, input.sigma.unsqueeze_dim::<2>(1));
        let hidden = exec.linear(&self.latent, input.x) + noise_level + embedded;
        exec.linear(&self.out, exec.activation(hidden, Activation::Silu))
    }
}

// ---- the run ----

/// Watches a run.
struct Print;

impl Observer for Print {
    fn iteration(&mut self, summary: &IterationSummary) {
        println!(
            "iteration {}: reward {:.4}, loss {:.4}",
            summary.done, summary.reward, summary.loss
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("give the folder that the run is written to")?;
    let plugins = Plugins::built_in()?;
    let config: Config = flow_config::parse_named(&plugins.catalog(), "custom", CONFIG, &[])
        .map_err(|report| report.to_string())?
        .config;
    let device = ComputeDevice::cpu();
    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let accelerators = AcceleratorRegistry::default();
    let environment = Environment {
        device: device.clone(),
        plan,
        accelerators: &accelerators,
        plugins: &plugins,
        base: Path::new("."),
        memory_probe: None,
        folders: PipelineFolders::default(),
        exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
    };

    // The algorithm is an argument; everything else comes from the config first.
    let algorithm = RewardWeighted {
        temperature: 1.0,
        times_per_image: 4,
    };
    let mut trainer = setup::trainer(&config, &environment, algorithm)?;

    // The reward in the place of the config's, for training and for evaluation.
    let symmetry = || -> Result<_, RewardError> {
        let reward: Arc<dyn Reward> = Arc::new(Symmetry);
        let weight = RewardWeight {
            name: "symmetry".into(),
            weight: 1.0,
            range: ValueRange::default(),
        };
        Ok(WeightedRewards {
            workers: RewardWorkers::new(vec![NamedReward::from(reward)], 1)?,
            weights: vec![weight],
        })
    };
    trainer.rewards = symmetry()?;
    trainer.evaluation_rewards = symmetry()?;

    // The model in the place of the config's: in both samplers, with weights and optimizer of its own.
    let spec = trainer.sampler.policy.model.spec().clone();
    let vocabulary = spec.vocabulary.ok_or("the data set has prompts")?;
    let model: Arc<dyn FlowModel> = Arc::new(Mlp::new(spec.latent, vocabulary, 64));
    let weights = Weights::init(model.layout().clone(), config.run.seed, &device);
    let trained = vec![true; model.layout().len()];
    trainer.state.optimizer = AdamW::new(
        setup::optimizer_settings(&config),
        model.layout(),
        trained,
        &device,
    );
    trainer.state.weights = PolicyWeights {
        current: weights,
        average: None,
        old: None,
        sampling: None,
        reference: None,
        previous: None,
        teachers: Vec::new(),
    };
    trainer.sampler.policy.model = model.clone();
    trainer.evaluation.sampler.policy.model = model;

    let directory = RunDirectory::open(Path::new(&folder), &config.run.name, OnExists::New)?;
    let resolved = serde_json::to_value(&config)?;
    let manifest = Manifest::new(
        &directory.name(),
        std::env::args().collect(),
        resolved,
        Path::new("."),
    );
    let mut trainer = trainer.start(directory, &manifest)?;
    let status = trainer.train(&mut Print)?;
    println!("{status:?}: {}", trainer.directory().path().display());
    Ok(())
}
