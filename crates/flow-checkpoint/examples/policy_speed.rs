//! Time, memory and operations of a training step under every policy of activation checkpointing.
//!
//! `policy_speed PROBLEM` takes a problem as JSON and prints one line of JSON per policy and budget. Of a problem all but `architecture` and `settings` may be left out:
//!
//! ```text
//! { "device": "cpu", "kernels": "cpu-bf16", "threads": 2, "architecture": "dit", "settings": { … as in a config.json … },
//!   "rows": 2, "text_tokens": 77, "lora_rank": 0, "policies": ["full", "attn-only"], "repeats": 5, "budgets": 4 }
//! ```
//!
//! `policy_speed serve PROBLEM` answers each line of its input by a line of JSON, for `cargo xtask bench checkpoint`:
//!
//! ```text
//! about              the device, and what it computes in
//! export FOLDER      weights and inputs, for a peer (`bench/step_peer.py`) that computes the same
//! rows               every policy and budget, as above but without times
//! time INDEX N       seconds of N steps of a row
//! ```
//!
//! A step is forward, loss and backward; the loss is the mean squared distance of the velocity to a target.
//! Budgets lie evenly between the least and the greatest peak of the policies. It ends with an error if
//! gradients are not the same bits under all policies.

use burn::tensor::{FloatDType, Tensor};
use flow_attention::AttentionRegistry;
use flow_checkpoint::planner::{Measured, Planner, Predicted, Workload};
use flow_checkpoint::profiler::OpProfiler;
use flow_checkpoint::{Assignment, Checkpointing, CountingAllocator, MemoryProbe, Policy};
use flow_core::device::ComputeDevice;
use flow_core::model::{Condition, ModelInput, TextWidth};
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_core::{Backends, CallContext, RawTensor, Stage, TrainingPass, Weights, cpu};
use flow_kernels::KernelRegistry;
use flow_models::{Architecture, ModelRegistry, StoredDtype, Trained, add_lora, initialize, trained_mask};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[global_allocator]
static MEMORY: CountingAllocator = CountingAllocator::new();

/// Standard deviation of what is added to every weight: a fresh model predicts 0 everywhere, and checks nothing.
const PERTURBATION: f32 = 0.02;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Problem {
    #[serde(default = "cpu_device")]
    device: String,
    /// The name of the device if left out.
    kernels: Option<String>,
    #[serde(default = "one")]
    threads: usize,
    architecture: String,
    settings: Value,
    #[serde(default = "one")]
    rows: usize,
    #[serde(default = "one")]
    text_tokens: usize,
    /// 0 trains all weights.
    #[serde(default)]
    lora_rank: usize,
    /// By name; all if left out. One that does not fit the device's memory must be left out.
    policies: Option<Vec<String>>,
    #[serde(default = "three")]
    repeats: usize,
    #[serde(default = "three")]
    budgets: usize,
}

fn cpu_device() -> String {
    "cpu".into()
}

fn one() -> usize {
    1
}

fn three() -> usize {
    3
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (text, serves) = match &arguments[..] {
        [problem] => (problem, false),
        [serve, problem] if serve == "serve" => (problem, true),
        _ => return Err("usage: policy_speed PROBLEM | serve PROBLEM".into()),
    };
    let problem: Problem = serde_json::from_str(text)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(problem.threads)
        .stack_size(16 << 20)
        .build()?;
    pool.install(|| measure(&problem, serves).map_err(|error| error.to_string()))
        .map_err(Into::into)
}

/// What tells how much of the device's memory is in use.
fn memory_probe(device: &ComputeDevice, kind: &str) -> Result<Arc<dyn MemoryProbe>, Box<dyn Error>> {
    match kind {
        "cpu" => Ok(Arc::new(&MEMORY)),
        #[cfg(feature = "cuda")]
        "cuda" => {
            let device = device.clone();
            let in_use = move || device.bytes_in_use();
            Ok(Arc::new(flow_checkpoint::Sampled::new(Arc::new(in_use))))
        }
        _ => Err(format!("nothing measures the memory of {}", device.name()).into()),
    }
}

struct Subject {
    model: Arc<dyn Architecture>,
    weights: Weights,
    trained: Arc<[bool]>,
    device: ComputeDevice,
    rows: usize,
    text_tokens: usize,
    /// What the model reads, and what its velocity is compared with. Made once: a step does not draw numbers.
    given: Option<(ModelInput, RawTensor)>,
}

fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(7, Purpose::Test).at(salt, 0).fill_normal(&mut values);
    values
}

impl Subject {
    fn new(problem: &Problem) -> Result<Self, Box<dyn Error>> {
        let device = ComputeDevice::open(&problem.device, 0)?;
        // The processor's kernels round operands themselves; on a GPU weights are in the type that they compute in.
        let device = match problem.kernels.as_deref() {
            Some("cuda-bf16") => device.computing_in(FloatDType::BF16),
            _ => device,
        };
        let mut models = ModelRegistry::new();
        flow_models::register(&mut models).expect("a new registry");
        let model = models.build(&problem.architecture, &problem.settings, &device)?;
        let mut layout = (**model.layout()).clone();
        let trained = match problem.lora_rank {
            0 => Trained::Full,
            rank => {
                add_lora(&*model, &mut layout, &["*".to_owned()], rank, rank as f32)?;
                Trained::Lora
            }
        };
        let layout = Arc::new(layout);
        let trained = trained_mask(&layout, trained)?;
        let mut weights = initialize(&*model, &layout, 0, &device);
        let indices: Vec<usize> = (0..weights.stored().len()).collect();
        for several in indices.chunks(2 * problem.threads) {
            let changed = several.par_iter().map(|index| {
                let mut values = weights.host(*index);
                let added = noise(values.len(), *index as u64);
                values
                    .iter_mut()
                    .zip(added)
                    .for_each(|(value, noise)| *value += PERTURBATION * noise);
                values
            });
            let changed: Vec<Vec<f32>> = changed.collect();
            for (index, values) in several.iter().zip(changed) {
                weights.set_host(*index, values)?;
            }
        }
        weights.freeze(&trained);
        let mut subject = Self {
            model,
            weights,
            trained,
            device,
            rows: problem.rows,
            text_tokens: problem.text_tokens,
            given: None,
        };
        subject.given = Some(subject.input());
        Ok(subject)
    }

    /// Inputs by name, with their shapes; the target that the velocity is compared with is among them.
    fn given(&self) -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        let (rows, spec) = (self.rows, self.model.spec());
        let values = spec.latent.values();
        let mut given = vec![
            ("x", vec![rows, values], noise(rows * values, 1)),
            ("sigma", vec![rows], vec![0.4; rows]),
            ("target", vec![rows, values], noise(rows * values, 4)),
        ];
        if let Some(TextWidth { channels, pooled }) = spec.text {
            let tokens = self.text_tokens;
            given.push((
                "text",
                vec![rows, tokens, channels],
                noise(rows * tokens * channels, 2),
            ));
            given.extend(pooled.map(|width| ("pooled", vec![rows, width], noise(rows * width, 3))));
        }
        given
    }

    /// The tokens of every row, if the model has a vocabulary.
    fn tokens(&self) -> Option<Vec<Vec<i64>>> {
        let vocabulary = self.model.spec().vocabulary?;
        let row = |row: usize| {
            let places = row * vocabulary.length..(row + 1) * vocabulary.length;
            places.map(|at| (at % vocabulary.size) as i64).collect()
        };
        Some((0..self.rows).map(row).collect())
    }

    /// What the model reads, and the target.
    fn input(&self) -> (ModelInput, RawTensor) {
        let mut given = self.given();
        let mut take = |name: &str| {
            let at = given.iter().position(|(found, ..)| *found == name)?;
            let (_, shape, values) = given.swap_remove(at);
            Some(self.device.plain(values, &shape))
        };
        let mut tensor = |name: &str| take(name).expect("every model is given it");
        let (x, sigma, target) = (tensor("x"), tensor("sigma"), tensor("target"));
        let tokens = self.tokens().map(|rows| {
            let shape = [rows.len(), rows[0].len()];
            self.device.int_tensor(rows.concat(), shape)
        });
        let condition = Condition {
            tokens,
            text: take("text").map(Tensor::from_dispatch),
            pooled: take("pooled").map(Tensor::from_dispatch),
            ..Condition::default()
        };
        let input = ModelInput {
            x: Tensor::from_dispatch(x),
            sigma: Tensor::from_dispatch(sigma),
            condition,
        };
        (input, target)
    }

    fn forward<'s>(&'s self, plan: &Arc<Backends>) -> (TrainingPass<'s>, Tensor<1>) {
        let training = TrainingPass::new(&self.weights, plan.clone(), self.trained.clone());
        let exec = training.exec(CallContext::single(Stage::Training));
        let (input, target) = self.given.clone().expect("made with the subject");
        let velocity = self.model.velocity(&exec, input).into_dispatch();
        let distances = plan.kernels.ops().loss.mean_squared_distance(&velocity, &target);
        (training, Tensor::<1>::from_dispatch(distances).mean())
    }

    /// The loss, and the gradients of the weights.
    fn step(&self, plan: &Arc<Backends>) -> (RawTensor, Vec<Option<RawTensor>>) {
        let (training, loss) = self.forward(plan);
        (plain(&loss.clone().into_dispatch()), training.gradients(&loss))
    }

    /// Writes what `bench/step_peer.py` reads.
    fn export(&self, problem: &Problem, folder: &Path) -> Result<(), Box<dyn Error>> {
        std::fs::create_dir_all(folder)?;
        let none = BTreeMap::new();
        // As the device computes with them: rounded once, here or there.
        let stored = match self.device.compute_dtype() {
            Some(FloatDType::BF16) => StoredDtype::Bf16,
            _ => StoredDtype::F32,
        };
        flow_models::save(&self.weights, &folder.join("weights.safetensors"), stored, &none)?;
        let given = self.given();
        let tensors = given.iter().enumerate();
        let tensors = tensors.map(|(at, (name, shape, _))| ((*name).to_owned(), shape.clone(), at));
        let file = folder.join("given.safetensors");
        flow_models::save_tensors(
            tensors.collect(),
            &|at| given[at].2.clone(),
            &file,
            StoredDtype::F32,
            &none,
        )?;
        let lora =
            (problem.lora_rank > 0).then(|| json!({ "rank": problem.lora_rank, "alpha": problem.lora_rank }));
        let about = json!({
            "workload": "checkpoint", "architecture": problem.architecture, "settings": problem.settings,
            "batch": self.rows, "lora": lora, "guidance_scale": 1.0, "steps": 0, "tokens": self.tokens(),
        });
        std::fs::write(folder.join("workload.json"), about.to_string())?;
        Ok(())
    }
}

/// A fingerprint of all bits of all gradients (FNV-1a over the words of each, then over these), and the root of the sum of
/// their squares. Keeping them would count as memory of every policy but the first.
fn fingerprint(gradients: &[Option<RawTensor>]) -> (u64, f64) {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    let add = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let of_one = |host: &Vec<f32>| {
        let words = host.iter().map(|value| u64::from(value.to_bits()));
        let squares = host.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        (words.fold(add(START, host.len() as u64), add), squares)
    };
    // Some at a time, so that the host never holds them all.
    let several = 2 * rayon::current_num_threads();
    let each = gradients.chunks(several).flat_map(|some| {
        // One thread reads: on a GPU, each has a queue of its own.
        let hosts = some
            .iter()
            .map(|gradient| gradient.as_ref().map(cpu::to_host).unwrap_or_default());
        let hosts: Vec<Vec<f32>> = hosts.collect();
        let found: Vec<(u64, f64)> = hosts.par_iter().map(of_one).collect();
        found
    });
    let (hash, squares) = each.fold((START, 0.0), |(hash, squares), (word, more)| {
        (add(hash, word), squares + more)
    });
    (hash, squares.sqrt())
}

/// Says on the standard error how far a long measurement is.
fn say(start: Instant, what: &str) {
    eprintln!("[{:6.1} s] {what}", start.elapsed().as_secs_f64());
}

fn measure(problem: &Problem, serves: bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let subject = Subject::new(problem)?;
    say(start, "weights and inputs are there");
    let (mut kernels, mut attention) = (KernelRegistry::default(), AttentionRegistry::default());
    flow_kernels::register(&mut kernels)?;
    flow_attention::register(&mut attention)?;
    let name = problem.kernels.as_ref().unwrap_or(&problem.device);
    let plan = Backends::new(attention.get(&problem.device)?, kernels.get(name)?);
    let memory_probe = memory_probe(&subject.device, &problem.device)?;
    let waiting = memory_probe.clone();
    let workload = Workload {
        spec: subject.model.spec(),
        plan: &plan,
        forward: Box::new(|plan| drop(subject.forward(plan))),
        step: Box::new(|plan| drop(subject.step(plan))),
        passes: 1,
        reserved_bytes: 0,
        memory_probe: memory_probe.clone(),
        clock: Arc::new(move || {
            waiting.in_use_bytes();
            start.elapsed()
        }),
    };
    let mut planner = Planner::new(workload)?;
    say(start, "blocks are measured");
    let mut reference = None;
    let policies = [
        Policy::None,
        Policy::Full { split: false },
        Policy::Full { split: true },
        Policy::BlockSkip { every: 2 },
        Policy::EveryNthLinear { n: 2 },
        Policy::AttnOnly { split: false },
        Policy::AttnOnly { split: true },
    ];
    let (mut peaks, mut rows) = (Vec::new(), Vec::new());
    let asked = |policy: &Policy| {
        let names = problem.policies.as_ref();
        names.is_none_or(|names| names.iter().any(|name| name == policy.name()))
    };
    for policy in policies.into_iter().filter(asked) {
        let assignment = policy.assign(subject.model.spec())?.ok_or("a fixed policy")?;
        let predicted = planner.predict(&assignment);
        let measured = planner.measure(policy.name(), &assignment);
        peaks.push(measured.peak_bytes);
        let row = Row::new(policy.to_string(), assignment, predicted, measured);
        rows.push(row.checked(&subject, &plan, &mut reference)?);
        say(start, &rows[rows.len() - 1].summary());
    }
    let (least, most) = (peaks.iter().min(), peaks.iter().max());
    let (least, most) = (*least.ok_or("no policy")?, *most.ok_or("no policy")?);
    for part in 1..=problem.budgets as u64 {
        let budget = least + most.saturating_sub(least) * part / (problem.budgets as u64 + 1);
        // What is measured of the others is not lost for a budget that no plan keeps.
        let (assignment, record) = match planner.within(budget) {
            Ok(found) => found,
            Err(error) => {
                say(start, &format!("no row for a budget: {error}"));
                continue;
            }
        };
        let predicted = planner.predict(&assignment);
        let measured = planner.measure("budget", &assignment);
        let name = format!("budget ({:.1} MiB)", budget as f64 / f64::from(1 << 20));
        let row = Row::new(name, assignment, predicted, measured);
        let mut row = row.checked(&subject, &plan, &mut reference)?;
        row.found["budget_bytes"] = budget.into();
        row.found["smallest_budget_bytes"] = record.smallest_budget_bytes.into();
        row.found["digest"] = record.digest.into();
        say(start, &row.summary());
        rows.push(row);
    }
    subject.device.release_unused();
    if serves {
        return serve(problem, &subject, &plan, &planner, &rows);
    }
    for round in 0..problem.repeats {
        for turn in 0..rows.len() {
            // Every policy is first as often as the others, so that none always meets a warmer device.
            let at = (turn + round) % rows.len();
            let time = planner.time_of(&rows[at].plan(&plan));
            rows[at].wall_ms.push(ms(time));
        }
    }
    for mut row in rows {
        row.found["wall_ms"] = row.wall_ms.into();
        println!("{}", row.found);
    }
    Ok(())
}

/// Answers lines until there are no more.
fn serve(
    problem: &Problem,
    subject: &Subject,
    plan: &Backends,
    planner: &Planner<'_>,
    rows: &[Row],
) -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = || -> Result<Value, Box<dyn Error>> {
            match words[..] {
                ["about"] => Ok(json!({ "device": subject.device.name(), "plan": plan.describe() })),
                ["export", folder] => {
                    subject.export(problem, Path::new(folder))?;
                    Ok(json!({ "folder": folder }))
                }
                ["rows"] => Ok(rows.iter().map(|row| row.found.clone()).collect()),
                ["time", index, count] => {
                    let row = rows.get(index.parse::<usize>()?).ok_or("there is no such row")?;
                    let row = row.plan(plan);
                    subject.device.release_unused();
                    let times = (0..count.parse::<usize>()?).map(|_| planner.time_of(&row).as_secs_f64());
                    let seconds: Vec<f64> = times.collect();
                    let taken = subject.device.taken_bytes();
                    subject.device.release_unused();
                    Ok(json!({ "seconds": seconds, "taken_bytes": taken }))
                }
                _ => Err("the questions are about, export, rows and time".into()),
            }
        };
        let answer = answer().unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{answer}");
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A policy, and what was found of it.
struct Row {
    name: String,
    assignment: Assignment,
    wall_ms: Vec<f64>,
    found: Value,
}

impl Row {
    fn new(name: String, assignment: Assignment, predicted: Predicted, measured: Measured) -> Self {
        let found = json!({
            "policy": name,
            "predicted": {
                "peak_bytes": predicted.peak_bytes,
                "held_bytes": predicted.held_bytes,
                "wall_ms": ms(predicted.time),
            },
            "measured": {
                "peak_bytes": measured.peak_bytes,
                "held_bytes": measured.counts.most_held_bytes,
                "wall_ms": ms(measured.time),
            },
        });
        Self {
            name,
            assignment,
            wall_ms: Vec::new(),
            found,
        }
    }

    fn summary(&self) -> String {
        let peak_gib =
            self.found["measured"]["peak_bytes"].as_f64().unwrap_or(f64::NAN) / (1u64 << 30) as f64;
        let attention = &self.found["usage"]["attention"]["forwards"];
        format!(
            "{}: {} ms at first, {peak_gib:.2} GiB, {attention} attention forwards, loss {}, gradients {}",
            self.name, self.found["measured"]["wall_ms"], self.found["loss"], self.found["fingerprint"]
        )
    }

    fn plan(&self, plan: &Backends) -> Arc<Backends> {
        Arc::new(Backends {
            regions: Arc::new(Checkpointing::new(self.name.clone(), self.assignment.clone())),
            ..plan.clone()
        })
    }

    /// Counts the operations of a step, and holds its gradients against the first row's.
    fn checked(
        mut self,
        subject: &Subject,
        plan: &Backends,
        reference: &mut Option<u64>,
    ) -> Result<Self, Box<dyn Error>> {
        let profiler = OpProfiler::on_processor();
        let (loss, gradients) = subject.step(&self.plan(&profiler.plan(plan)));
        self.found["loss"] = cpu::to_host(&loss)[0].into();
        let (found, norm) = fingerprint(&gradients);
        self.found["gradient_norm"] = norm.into();
        self.found["fingerprint"] = format!("{found:016x}").into();
        drop(gradients);
        if *reference.get_or_insert(found) != found {
            return Err(format!("`{}` gives other gradients than keeping everything", self.name).into());
        }
        let usage = profiler.usage().into_iter().map(|(name, usage)| {
            let value = json!({
                "forwards": usage.forwards, "backwards": usage.backwards,
                "flop": usage.forward_flops + usage.backward_flops,
            });
            (name.to_owned(), value)
        });
        self.found["usage"] = usage.collect::<serde_json::Map<String, Value>>().into();
        self.found["operations"] = profiler.operations().into();
        Ok(self)
    }
}
