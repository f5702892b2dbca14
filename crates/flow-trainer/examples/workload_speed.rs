//! Times a workload beside PyTorch: a forward pass, a training step, a rollout, at published sizes with random weights.
//!
//! ```text
//! workload_speed list                                    names of the workloads
//! workload_speed export NAME FOLDER [OPTIONS]            write weights, inputs and, with --tiny, results
//! workload_speed time NAME FOLDER PART [OPTIONS]         print a line of JSON; PART is forward, step, rollout or load
//!   --tiny                a few channels and tokens
//!   --made                weights that no file holds, made at once from a table: for models too large to be written and read
//!   --store f32|bf16      precision of the weights' file (export; default f32)
//!   --device cpu|cuda     (default cpu)
//!   --attention NAME      by this backend (time; default: the device's table)
//!   --checkpoint none|full|attn_only   what backward keeps (time)
//!   --plain               without fused operations (time)
//!   --capture             calls of the model recorded once and replayed (time)
//!   --trace               instead of times: launches and times of every kernel of one run, by NVIDIA's CUPTI (time)
//!   --moments f32|bf16    what AdamW's moments are stored as (time; default f32)
//!   --gradients f32|bf16  what gradients of matrices are stored as (time; default f32)
//!   --weights f32|bf16    what trained weights are stored as (time; default f32, in halves on a GPU)
//!   --low-precision fp8|fp8-data-gradient|storage-fp8|storage-int8|storage-nf4   frozen matrices of the blocks, under adapters (time)
//!   --learning-rate X     of the updates (time; default 1e-8, so that each is of the same data)
//!   --layers N            of that many blocks, for a look at one of them
//!   --batch N             of so many samples
//!   --repeats N           measurements (time; default 5)
//!   --threads N           of the processor (default 2)
//! ```
//!
//! `load` times opening weights: those of FOLDER, a file or a folder as diffusers has it. A training step is forward, loss, backward and AdamW. The loss is the squared distance to a target, under guidance
//! Flow-GRPO's at one recorded step. Inputs are functions of the workload alone, so each program makes or reads the
//! same. `bench/step_peer.py` is the peer; `cargo xtask bench workloads` compares and runs both.

#[path = "common/arrays.rs"]
mod arrays;
#[path = "common/exporting.rs"]
mod exporting;
#[path = "common/flops.rs"]
mod flops;
#[path = "common/inputs.rs"]
mod inputs;
#[path = "common/kernel_trace.rs"]
mod kernel_trace;
#[path = "common/loading.rs"]
mod loading;
#[path = "common/made.rs"]
mod made;
#[path = "common/meter.rs"]
mod meter;
#[path = "common/opening.rs"]
mod opening;
#[path = "common/outline.rs"]
mod outline;
#[path = "common/timing.rs"]
mod timing;
#[path = "common/workload_options.rs"]
mod workload_options;
#[path = "common/workloads.rs"]
mod workloads;

use burn::tensor::{FloatDType, Tensor};
use flow_core::device::ComputeDevice;
use flow_core::rng::Purpose;
use flow_core::tensors::plain;
use flow_core::{
    Backends, CallContext, InferencePass, ModelInput, RawTensor, Stage, TrainingPass, WeightStorage, Weights,
    cpu,
};
use flow_models::{Architecture, load_into};
use flow_trainer::algorithm::{Algorithm, Grpo, LossContext, LossPoint};
use flow_trainer::optimizer::{Accumulated, AdamW, AdamWSettings, MomentStorage};
use flow_trainer::policy::{CallSite, Conditions, Policy};
use flow_trainer::rollout::{NoiseSource, SampleRequest, Sampler, StepRecord, Trajectories};
use flow_trainer::scheduler::StepCoefficients;
use flow_trainer::setup;
use inputs::Inputs;
use meter::Meter;
use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use timing::in_pool;
use workload_options::Options;
use workloads::{NAMES, Workload, workload};

type Failure = Box<dyn Error>;

/// Step of the rollout at which Flow-GRPO's loss is taken.
const RECORDED: usize = 1;
/// Of the update that both programs' results are compared after.
const LEARNING_RATE: f64 = 1e-4;
/// Of updates that are timed: so small that all runs are of much the same data. What a GPU draws depends on its data, and its
/// clock on what it draws; of numbers that are not finite any more, or all alike, a step is up to a sixth faster.
const TIMED_LEARNING_RATE: f64 = 1e-8;
const CLIP_RANGE: [f64; 2] = [-0.1, 0.1];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    match arguments {
        [command] if command == "list" => {
            println!("{}", NAMES.join("\n"));
            Ok(())
        }
        [command, name, folder, rest @ ..] if command == "export" => {
            let options = Options::parse(rest)?;
            let workload = workload(name, options.tiny)?
                .with_layers(options.layers)
                .with_batch(options.batch);
            in_pool(&options.threads, || {
                exporting::export(&workload, Path::new(folder), &options)
            })
        }
        [command, name, folder, part, rest @ ..] if command == "time" => {
            let options = Options::parse(rest)?;
            let workload = workload(name, options.tiny)?
                .with_layers(options.layers)
                .with_batch(options.batch);
            in_pool(&options.threads, || {
                time(workload, Path::new(folder), part, &options)
            })
        }
        _ => Err(
            "usage: workload_speed list | export NAME FOLDER [OPTIONS] | time NAME FOLDER PART [OPTIONS]"
                .into(),
        ),
    }
}

/// Where weights come from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// A file, or a folder.
    File(&'a Path),
    /// Drawn for every value.
    Drawn,
    /// Made from a table.
    Made,
}

/// A workload on a device: model, weights and inputs.
struct Job {
    workload: Workload,
    device: ComputeDevice,
    plan: Arc<Backends>,
    model: Arc<dyn Architecture>,
    weights: Weights,
    trained: Arc<[bool]>,
    steps: Vec<StepCoefficients>,
    samples: Vec<u64>,
    inputs: Inputs,
}

impl Job {
    /// With weights `from` somewhere.
    fn new(workload: Workload, from: Origin<'_>, options: &Options) -> Result<Self, Failure> {
        let (device, plan) = opening::open(&options.device, options.attention.as_deref(), options.fused)?;
        let plan = opening::storing_gradients(plan, options.gradients)?;
        let (model, layout, trained) = outline::of(&workload, &device)?;
        let plan = opening::under(plan, &options.checkpoint, model.spec())?;
        let plan = Arc::new(match options.captured {
            true => opening::captured(plan, model.spec())?,
            false => plan,
        });
        let forms = match &options.low_precision {
            Some(rule) => rule.select(&layout, model.spec()),
            None => Arc::from([]),
        };
        if options.low_precision.is_some() && !forms.iter().any(Option::is_some) {
            return Err("`--low-precision` is for workloads with adapters".into());
        }
        let mut weights = match from {
            Origin::File(file) => {
                // As a run has it: what is frozen never lies on the device in f32.
                let forms = forms.clone();
                let mut weights =
                    Weights::init_adapters_on_frozen(layout.clone(), 0, &device, &trained, forms);
                load_into(&mut weights, file)?;
                weights
            }
            Origin::Drawn => {
                let mut weights = Weights::zeros(layout.clone(), &device);
                for (index, values) in made::drawn(&*model, &layout) {
                    weights.set_host(index, values)?;
                }
                weights
            }
            Origin::Made if !model.buffers().is_empty() => {
                return Err("`--made` is for models without buffers in their files".into());
            }
            Origin::Made => made::weights(&layout, &trained, &device)?,
        };
        weights.store_in_low_precision(forms)?;
        let storage = match options.weights {
            FloatDType::BF16 => WeightStorage::Narrow,
            _ => WeightStorage::SplitF32,
        };
        weights.store(&trained, storage, &*plan.kernels);
        let mut config = flow_trainer::Plugins::built_in()?.catalog().defaults().clone();
        config.scheduler.steps = workload.steps;
        let steps = setup::schedule(&config, model.spec().tokens)?.steps_for(0);
        Ok(Self {
            inputs: Inputs::new(&workload, model.spec().latent.values()),
            samples: (0..workload.batch as u64).collect(),
            workload,
            device,
            plan,
            model,
            weights,
            trained,
            steps,
        })
    }

    fn values(&self) -> usize {
        self.model.spec().latent.values()
    }

    fn sampler(&self) -> Sampler {
        Sampler {
            policy: Policy::new(self.model.clone(), self.workload.guidance_scale),
            kernels: self.plan.kernels.clone(),
            device: self.device.clone(),
            seed: 0,
            size: 0,
        }
    }

    fn conditions(&self) -> Conditions {
        let guided = self.workload.guidance_scale != 1.0;
        Conditions {
            conditional: self.inputs.condition(&self.device, false),
            unconditional: guided.then(|| self.inputs.condition(&self.device, true)),
            keys: None,
        }
    }

    fn site(&self, stage: Stage) -> CallSite {
        CallSite {
            stage,
            iteration: 0,
            step: 0,
            stochastic: false,
            steps: self.steps.len() as u32,
            sigma: None,
        }
    }

    fn input(&self) -> ModelInput {
        let (batch, values) = (self.samples.len(), self.values());
        ModelInput {
            x: self.device.tensor(self.inputs.x.clone(), [batch, values]),
            sigma: self.device.tensor(self.inputs.sigma.clone(), [batch]),
            condition: self.inputs.condition(&self.device, false),
        }
    }

    /// The velocity without a gradient.
    fn forward(&self, input: ModelInput) -> RawTensor {
        let rollout = InferencePass::new(&self.weights, self.plan.clone());
        let exec = rollout.exec(CallContext::single(Stage::Rollout));
        plain(&exec.velocity(&*self.model, input).into_dispatch())
    }

    fn roll_out(&self, sampler: &Sampler) -> Trajectories {
        let rollout = InferencePass::new(&self.weights, self.plan.clone());
        let request = SampleRequest {
            site: self.site(Stage::Rollout),
            source: NoiseSource::Rollout,
            samples: &self.samples,
            starts: &self.samples,
            conditions: self.conditions(),
            steps: &self.steps,
        };
        sampler.run(&rollout, request, |_| {})
    }

    /// A recorded step that no rollout took: from the inputs' latents, by the step's noise alone.
    fn recorded(&self, sampler: &Sampler) -> Result<Trajectories, Failure> {
        let step = self.steps[RECORDED];
        let log_prob = step.log_prob.as_ref().ok_or("the step is deterministic")?;
        let (batch, values) = (self.samples.len(), self.values());
        let noise = sampler.noise(Purpose::SdeNoise, &self.samples, RECORDED as u32 + 1, values);
        let noise = cpu::to_host(&noise);
        let mean: Vec<f32> = self.inputs.x.iter().map(|x| step.mean_x as f32 * x).collect();
        let pairs = mean.iter().zip(&noise);
        let x_next: Vec<f32> = pairs
            .map(|(mean, noise)| mean + step.noise as f32 * noise)
            .collect();
        let log_probs = noise.chunks(values).map(|noise| {
            let square: f64 = noise.iter().map(|value| f64::from(value * value)).sum();
            (log_prob.offset - step.noise * step.noise * square / values as f64 * log_prob.scale) as f32
        });
        let plain = |values: Vec<f32>, shape: &[usize]| self.device.plain(values, shape);
        let record = StepRecord {
            step,
            x: plain(self.inputs.x.clone(), &[batch, values]),
            x_next: plain(x_next, &[batch, values]),
            log_prob: plain(log_probs.collect(), &[batch]),
            mean: plain(mean, &[batch, values]),
        };
        Ok(Trajectories {
            size: 0,
            samples: self.samples.clone(),
            conditions: self.conditions(),
            clean: record.x.clone(),
            trained: vec![step],
            records: vec![record],
        })
    }

    /// The loss and its gradients: Flow-GRPO's under guidance, else the mean squared distance to the target.
    fn loss(&self, what: &Learnt) -> (RawTensor, Vec<Option<RawTensor>>) {
        let pass = TrainingPass::new(&self.weights, self.plan.clone(), self.trained.clone());
        let loss = match what {
            Learnt::Target { input, target } => {
                let exec = pass.exec(CallContext::single(Stage::Training));
                let velocity = exec.velocity(&*self.model, input.clone()).into_dispatch();
                let distances = self
                    .plan
                    .kernels
                    .ops()
                    .loss
                    .mean_squared_distance(&velocity, target);
                Tensor::<1>::from_dispatch(distances).mean()
            }
            Learnt::Recorded { sampler, batch } => {
                let sampling = InferencePass::new(&self.weights, self.plan.clone());
                let advantages = self.inputs.advantages.clone();
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
                let grpo = Grpo {
                    clip_range: CLIP_RANGE,
                    ..Grpo::default()
                };
                grpo.loss(&context, LossPoint::Recorded(0)).loss
            }
        };
        // Read by who wants it: to wait for a device here would keep the backward pass from it.
        let value = plain(&loss.clone().into_dispatch());
        (value, pass.gradients(&loss))
    }

    fn learnt(&self) -> Result<Learnt, Failure> {
        if self.workload.guidance_scale == 1.0 {
            let shape = [self.samples.len(), self.values()];
            return Ok(Learnt::Target {
                input: self.input(),
                target: self.device.plain(self.inputs.target.clone(), &shape),
            });
        }
        let sampler = self.sampler();
        let batch = Box::new(self.recorded(&sampler)?);
        Ok(Learnt::Recorded { sampler, batch })
    }

    fn optimizer(&self, moments: MomentStorage, learning_rate: f64) -> AdamW {
        let settings = AdamWSettings {
            learning_rate,
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 0.0,
            warmup_steps: 0,
            schedule: Default::default(),
            moments,
            seed: 0,
        };
        AdamW::new(
            settings,
            self.weights.layout(),
            self.trained.to_vec(),
            &self.device,
        )
    }

    fn update(&mut self, optimizer: &mut AdamW, gradients: Vec<Option<RawTensor>>) -> Result<(), Failure> {
        let kernels = &*self.plan.kernels;
        let mut sums = Accumulated::default();
        sums.add(kernels, gradients);
        optimizer.step(kernels, &self.device, &mut self.weights, sums)?;
        Ok(())
    }
}

/// What a training step learns from.
#[allow(clippy::large_enum_variant, reason = "there is one of them")]
enum Learnt {
    Target {
        input: ModelInput,
        target: RawTensor,
    },
    Recorded {
        sampler: Sampler,
        batch: Box<Trajectories>,
    },
}

/// The root of the mean square: one number for results that are too large to be written.
fn root_mean_square(values: &[f32]) -> f64 {
    let sum: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    (sum / values.len() as f64).sqrt()
}

fn time(workload: Workload, folder: &Path, part: &str, options: &Options) -> Result<(), Failure> {
    let mut meter = Meter::new(options.repeats, options.traced)?;
    let file = folder.join("weights.safetensors");
    if part == "load" {
        let file = if file.exists() { &file } else { folder };
        return loading::time(&workload, file, options);
    }
    let from = if options.made {
        Origin::Made
    } else {
        Origin::File(&file)
    };
    let mut job = Job::new(workload, from, options)?;
    if part != "step" {
        // Nothing is trained, so there is one copy of every weight, the one that is computed with.
        let none = vec![false; job.trained.len()];
        job.weights.freeze(&none);
    }
    let Measured {
        result,
        mut wall_ms,
        enqueued_ms,
        last_loss,
    } = measured(&mut job, part, &mut meter, options)?;
    if options.traced {
        let about = json!({
            "program": "flow-train", "workload": job.workload.name, "part": part, "mode": job.plan.describe(),
            "checkpoint": options.checkpoint, "device": job.device.name(),
        });
        println!("{}", meter.row(about)?);
        return Ok(());
    }
    wall_ms.sort_by(f64::total_cmp);
    let at = |share: f64| wall_ms[((wall_ms.len() - 1) as f64 * share).round() as usize];
    let tflop = flops::tera(&job.workload, part, &options.checkpoint);
    println!(
        "{}",
        json!({
            "program": "flow-train",
            "workload": job.workload.name,
            "part": part,
            "mode": job.plan.describe(),
            "checkpoint": options.checkpoint,
            "low_precision": options.low_precision.as_ref().map(|rule| format!("{:?} {}", rule.compute, rule.format)),
            "batch": job.samples.len(), "device": job.device.name(),
            if part == "step" { "loss" } else { "root_mean_square" }: result,
            "median_ms": at(0.5), "least_ms": at(0.0), "p10_ms": at(0.1), "p90_ms": at(0.9), "samples": wall_ms.len(),
            "last_loss": last_loss.map(|loss| cpu::to_host(&loss)[0]),
            // Of the last: of a step without the update, which waits for the gradients' norm.
            "enqueued_ms": enqueued_ms,
            "tflop": tflop, "tflop_per_s": tflop / at(0.5) * 1e3,
            "peak_gib": opening::peak_gib(&job.device),
            "driver_gib": job.device.driver_bytes().map(|bytes| bytes as f64 / (1u64 << 30) as f64),
        })
    );
    Ok(())
}

/// What was measured of a part.
struct Measured {
    /// The first loss, or the root of the mean square of what was computed.
    result: f64,
    /// Of every run.
    wall_ms: Vec<f64>,
    /// Of the last run: until the host had told the device what to do.
    enqueued_ms: f64,
    /// Of a training step.
    last_loss: Option<RawTensor>,
}

/// Measures a part. Its result is read, so that what an asynchronous device has not done yet is waited for; until then the host has only
/// told the device what to do.
fn measured(job: &mut Job, part: &str, meter: &mut Meter, options: &Options) -> Result<Measured, Failure> {
    let mut failed = None;
    let mut last_loss = None;
    let mut enqueued_ms = 0.0;
    let mut ended = |start: Instant| enqueued_ms = start.elapsed().as_secs_f64() * 1e3;
    let (result, wall_ms) = match part {
        "forward" => {
            let input = job.input();
            let result = root_mean_square(&cpu::to_host(&job.forward(input.clone())));
            let work = || {
                let start = Instant::now();
                let velocity = job.forward(input.clone());
                ended(start);
                drop(cpu::to_host(&velocity));
            };
            (result, meter.measure(work))
        }
        "rollout" => {
            let sampler = job.sampler();
            let result = root_mean_square(&cpu::to_host(&job.roll_out(&sampler).clean));
            let work = || {
                let start = Instant::now();
                let trajectories = job.roll_out(&sampler);
                ended(start);
                drop(cpu::to_host(&trajectories.clean));
            };
            (result, meter.measure(work))
        }
        "step" => {
            let learnt = job.learnt()?;
            let rate = options.learning_rate.unwrap_or(TIMED_LEARNING_RATE);
            let mut optimizer = job.optimizer(options.moments, rate);
            let loss = cpu::to_host(&job.loss(&learnt).0)[0];
            let last = job.trained.iter().rposition(|trained| *trained).unwrap_or(0);
            let wall_ms = meter.measure(|| {
                let start = Instant::now();
                let (loss, gradients) = job.loss(&learnt);
                ended(start);
                failed = failed.take().or(job.update(&mut optimizer, gradients).err());
                job.weights.host(last);
                last_loss = Some(loss);
            });
            (f64::from(loss), wall_ms)
        }
        other => {
            return Err(
                format!("there is no part `{other}`; choose from forward, step, rollout, load").into(),
            );
        }
    };
    match failed {
        Some(failed) => Err(failed),
        None => Ok(Measured {
            result,
            wall_ms,
            enqueued_ms,
            last_loss,
        }),
    }
}
