//! Times the parts of a job's iteration: the rollout of one micro-batch, one loss with its backward pass, one
//! optimizer step.
//!
//! `step_speed time CONFIG REPEATS THREADS` prints milliseconds as JSON. `step_speed export CONFIG FOLDER` writes weights,
//! inputs and results, from which `bench/peer.py` checks that it computes the same before it is timed.
//! `cargo xtask bench cpu` runs both.
//!
//! Weights are those of the config, or fresh ones, plus a little noise: a fresh model predicts 0 everywhere, which
//! would check nothing.

#[path = "common/arrays.rs"]
mod arrays;
#[path = "common/perturb.rs"]
mod perturb;
#[path = "common/timing.rs"]
mod timing;

use arrays::Arrays;
use flow_accel::AcceleratorRegistry;
use flow_attention::CpuAttention;
use flow_config::Config;
use flow_core::device::ComputeDevice;
use flow_core::rng::Purpose;
use flow_core::{Backends, InferencePass, RawTensor, Stage, TrainingPass, Weights};
use flow_kernels::CpuKernels;
use flow_models::StoredDtype;
use flow_trainer::Plugins;
use flow_trainer::algorithm::{Algorithm, Grpo, LossContext, LossPoint};
use flow_trainer::conditions::Conditioner;
use flow_trainer::geometry::BatchGeometry;
use flow_trainer::optimizer::{Accumulated, AdamW, AdamWSettings, MomentStorage};
use flow_trainer::policy::{CallSite, Conditions, Policy};
use flow_trainer::rollout::{NoiseSource, SampleRequest, Sampler, Trajectories};
use flow_trainer::scheduler::StepCoefficients;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use timing::{in_pool, measure};

/// Guidance scales that are timed: none, and one batch of both branches.
const SCALES: [(&str, f32); 2] = [("", 1.0), ("_guided", 2.0)];
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["time", config, repeats, threads] => in_pool(threads, || time(config, repeats)),
        ["export", config, folder] => export(config, Path::new(folder)),
        _ => Err("usage: step_speed time CONFIG REPEATS THREADS | step_speed export CONFIG FOLDER".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that is timed, assembled from a config.
struct Job {
    config: Config,
    device: ComputeDevice,
    plan: Arc<Backends>,
    model: setup::ModelParts,
    weights: Weights,
    conditions: Conditions,
    tokens: Vec<Vec<u32>>,
    null: Vec<u32>,
    steps: Vec<StepCoefficients>,
    samples: Vec<u64>,
}

impl Job {
    fn new(path: &str) -> Result<Self, Box<dyn Error>> {
        let plugins = Plugins::built_in()?;
        let config = flow_config::load(&plugins.catalog(), path, &[])
            .map_err(|report| report.to_string())?
            .config;
        let device = ComputeDevice::cpu();
        let plan = Arc::new(Backends::new(
            Arc::new(CpuAttention),
            Arc::new(CpuKernels::default()),
        ));
        let base = flow_config::base_dir(path);
        let accelerators = AcceleratorRegistry::default();
        let environment = Environment {
            device: device.clone(),
            plan: plan.clone(),
            accelerators: &accelerators,
            plugins: &plugins,
            base: &base,
            memory_probe: None,
            folders: PipelineFolders::default(),
            exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
        };
        let model = setup::model(&config, &environment)?;
        let dataset = setup::dataset(&config, &environment)?;
        let spec = model.model.spec();
        let conditioner = Conditioner::new(&*dataset, spec, true, &device)?;
        let prompts = dataset.train_prompts();
        let batch = config.sampling.micro_batch;
        let drawn: Vec<_> = (0..batch).map(|row| &prompts[row % prompts.len()]).collect();
        let conditions = conditioner.conditions(drawn.iter().copied());
        let tokens = drawn.iter().map(|prompt| prompt.tokens.clone()).collect();
        let steps = setup::schedule(&config, spec.tokens)?.steps_for(0);
        let mut weights = model.weights.clone();
        perturb::perturb(&mut weights)?;
        Ok(Self {
            null: dataset.tokenized().ok_or("digits have tokens")?.null_tokens(),
            samples: (0..batch as u64).collect(),
            config,
            device,
            plan,
            model,
            weights,
            conditions,
            tokens,
            steps,
        })
    }

    fn sampler(&self, scale: f32) -> Sampler {
        Sampler {
            policy: Policy::new(self.model.model.clone(), scale),
            kernels: self.plan.kernels.clone(),
            device: self.device.clone(),
            seed: self.config.run.seed,
            size: 0,
        }
    }

    fn site(&self, stage: Stage) -> CallSite {
        CallSite {
            stage,
            iteration: 0,
            step: 0,
            stochastic: false,
            sigma: None,
            steps: self.steps.len() as u32,
        }
    }

    fn roll_out(&self, sampler: &Sampler) -> Trajectories {
        let rollout = InferencePass::new(&self.weights, self.plan.clone());
        let request = SampleRequest {
            site: self.site(Stage::Rollout),
            source: NoiseSource::Rollout,
            samples: &self.samples,
            starts: &self.samples,
            conditions: self.conditions.clone(),
            steps: &self.steps,
        };
        sampler.run(&rollout, request, |_| {})
    }

    fn advantages(&self) -> Vec<f32> {
        self.samples
            .iter()
            .map(|row| (*row as f32 * 0.7).sin() * 2.0)
            .collect()
    }

    fn grpo(&self) -> Grpo {
        let own = self.config.algorithm.params::<Grpo>().ok();
        Grpo {
            clip_range: own.map_or([-1e-3, 1e-3], |own| own.clip_range),
            ..Grpo::default()
        }
    }

    /// Loss and gradients at the first stochastic step.
    fn unit(&self, sampler: &Sampler, batch: &Trajectories) -> (RawTensor, Vec<Option<RawTensor>>) {
        let pass = TrainingPass::new(
            &self.weights,
            self.plan.clone(),
            self.model.trained.clone().into(),
        );
        let sampling = InferencePass::new(&self.weights, self.plan.clone());
        let advantages = self.advantages();
        let rows = advantages.len();
        let context = LossContext {
            pass: &pass,
            current: &sampling,
            sampling: &sampling,
            reference: None,
            old: None,
            fake: None,
            surrogate: None,
            surrogate_slow: None,
            teachers: Vec::new(),
            policy: &sampler.policy,
            kernels: &*self.plan.kernels,
            device: &self.device,
            batch,
            advantages: self.device.tensor(advantages, [rows]),
            gates: None,
            noise: None,
            before: None,
            compared: Vec::new(),
            site: self.site(Stage::Training),
        };
        let loss = self.grpo().loss(&context, LossPoint::Recorded(0)).loss;
        let value = flow_core::tensors::plain(&loss.clone().into_dispatch());
        (value, pass.gradients(&loss))
    }

    fn optimizer(&self) -> AdamW {
        // Without what only some weights or steps have, so that the peer does the same.
        let settings = setup::optimizer_settings(&self.config);
        let settings = AdamWSettings {
            weight_decay: 0.0,
            warmup_steps: 0,
            schedule: Default::default(),
            moments: MomentStorage::F32,
            seed: 0,
            ..settings
        };
        AdamW::new(
            settings,
            self.weights.layout(),
            self.model.trained.clone(),
            &self.device,
        )
    }

    /// What the peer needs to know.
    fn describe(&self) -> Result<Value, Box<dyn Error>> {
        let models = &Plugins::built_in()?.models;
        let outline = setup::outline(&self.config, models, &self.device)?;
        let (architecture, settings) = (&self.config.model.architecture, outline.model.constants());
        let geometry = BatchGeometry::from_config(&self.config.sampling, &self.config.optimizer)?;
        let trained =
            setup::schedule(&self.config, self.model.model.spec().tokens)?.trained_steps_per_trajectory();
        let grpo = self.grpo();
        let optimizer = setup::optimizer_settings(&self.config);
        Ok(json!({
            "architecture": architecture,
            "settings": settings,
            "micro_batch": self.samples.len(),
            "steps": self.steps.len(),
            "guidance_scale": SCALES[1].1,
            "clip_range": grpo.clip_range,
            "learning_rate": optimizer.learning_rate,
            "betas": [optimizer.betas.0, optimizer.betas.1],
            "epsilon": optimizer.epsilon,
            "max_grad_norm": optimizer.max_grad_norm,
            "parameters": self.weights.layout().specs().iter().map(|s| s.shape.iter().product::<usize>()).sum::<usize>(),
            "per_iteration": {
                "rollouts": geometry.micro_batches(),
                "units": geometry.micro_batches() * trained,
                "optimizer_steps": geometry.updates(),
            },
        }))
    }
}

fn time(config: &str, repeats: &str) -> Result<(), Box<dyn Error>> {
    let repeats: usize = repeats.parse()?;
    let mut job = Job::new(config)?;
    // As in a run: micro-batches beside one another.
    let geometry = BatchGeometry::from_config(&job.config.sampling, &job.config.optimizer)?;
    let wave = job.device.concurrency().min(geometry.micro_batches());
    let mut found = BTreeMap::new();
    let mut gradients = Vec::new();
    for (suffix, scale) in SCALES {
        let sampler = job.sampler(scale);
        let rollout = measure(repeats, wave, || {
            job.device.concurrently(wave, |_| drop(job.roll_out(&sampler)));
        });
        let batch = job.roll_out(&sampler);
        let unit = measure(repeats, wave, || {
            job.device
                .concurrently(wave, |_| drop(job.unit(&sampler, &batch)));
        });
        gradients = job.unit(&sampler, &batch).1;
        found.insert(format!("rollout{suffix}"), rollout);
        found.insert(format!("unit{suffix}"), unit);
    }
    let mut optimizer = job.optimizer();
    let mut weights = job.weights;
    job.weights = job.model.weights.clone();
    let (kernels, device) = (job.plan.kernels.clone(), job.device.clone());
    let mut failed = None;
    let step = measure(repeats, 1, || {
        let mut sums = Accumulated::default();
        sums.add(&*kernels, gradients.clone());
        failed = failed
            .take()
            .or(optimizer.step(&*kernels, &device, &mut weights, sums).err());
    });
    if let Some(failed) = failed {
        return Err(failed.into());
    }
    found.insert("optimizer".into(), step);
    println!(
        "{}",
        json!({ "program": "flow-train", "wall_ms": found, "peak_gib": flow_report::peak_resident_gib() })
    );
    Ok(())
}

fn export(config: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let job = Job::new(config)?;
    std::fs::create_dir_all(folder)?;
    std::fs::write(
        folder.join("job.json"),
        serde_json::to_string_pretty(&job.describe()?)?,
    )?;
    flow_models::save(
        &job.weights,
        &folder.join("weights.safetensors"),
        StoredDtype::F32,
        &BTreeMap::new(),
    )?;

    let values = job.model.model.spec().latent.values();
    let sampler = job.sampler(1.0);
    let mut given = Arrays::default();
    given.tokens("tokens", &job.tokens);
    given.tokens("null_tokens", &vec![job.null.clone(); job.tokens.len()]);
    given.plain(
        "initial_noise",
        &sampler.noise(Purpose::InitialNoise, &job.samples, 0, values),
    );
    for (index, step) in job.steps.iter().enumerate() {
        let noise = sampler.noise(Purpose::SdeNoise, &job.samples, index as u32 + 1, values);
        given.plain(&format!("noise.{index}"), &noise);
        let (scale, offset) = step
            .log_prob
            .as_ref()
            .map_or((0.0, 0.0), |log_prob| (log_prob.scale, log_prob.offset));
        let row = [step.sigma, step.mean_x, step.mean_v, step.noise, scale, offset].map(|value| value as f32);
        given.floats(&format!("step.{index}"), &[6], &row);
    }
    given.floats("advantages", &[job.samples.len()], &job.advantages());

    let mut wanted = Arrays::default();
    for (suffix, scale) in SCALES {
        let sampler = job.sampler(scale);
        let batch = job.roll_out(&sampler);
        wanted.plain(&format!("clean{suffix}"), &batch.clean);
        let record = batch
            .records
            .first()
            .ok_or("the schedule has no stochastic step")?;
        given.floats(&format!("record{suffix}.step"), &[1], &[record.step.step as f32]);
        given.plain(&format!("record{suffix}.x"), &record.x);
        given.plain(&format!("record{suffix}.x_next"), &record.x_next);
        given.plain(&format!("record{suffix}.log_prob"), &record.log_prob);
        let (loss, gradients) = job.unit(&sampler, &batch);
        wanted.plain(&format!("loss{suffix}"), &loss);
        for (spec, gradient) in job.weights.layout().specs().iter().zip(&gradients) {
            if let Some(gradient) = gradient {
                wanted.plain(&format!("gradient{suffix}.{}", spec.name), gradient);
            }
        }
        if suffix.is_empty() {
            let mut sums = Accumulated::default();
            sums.add(&*job.plan.kernels, gradients);
            let mut weights = job.weights.clone();
            job.optimizer()
                .step(&*job.plan.kernels, &job.device, &mut weights, sums)?;
            for (spec, value) in weights.layout().specs().iter().zip(weights.stored()) {
                wanted.plain(&format!("stepped.{}", spec.name), value);
            }
        }
    }
    given.write(&folder.join("given.safetensors"))?;
    wanted.write(&folder.join("wanted.safetensors"))?;
    Ok(())
}
