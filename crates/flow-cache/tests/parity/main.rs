//! Parity with diffusers 0.42.1: its cache hooks on a small Wan transformer, decision by decision and value by value.
//!
//! The originals decide per batch, so these runs do. See `fixtures/wan/README.md` for what the fixture holds.

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_cache::{
    CallCounters, FirstBlock, Forecast, LayerCache, MagCache, Pyramid, Rules, StackCache, TaylorSeer,
    Timesteps,
};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Body, RegionEngine};
use flow_core::{
    Backends, CallContext, Condition, Exec, InferencePass, ModelInput, RegionKind, Stage, TrajectoryId,
    Weights,
};
use flow_kernels::CpuKernels;
use flow_models::Architecture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Blocks of the fixture's model.
const BLOCKS: usize = 4;

/// Relative Euclidean distance that f32 rounding may cause.
const TOLERANCE: f64 = 1e-5;

fn fixture(name: &str) -> PathBuf {
    // Cargo runs tests in the package's folder; a path compiled in would outlive the clone it was built from.
    Path::new("tests/fixtures/wan").join(name)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let values = bytes.chunks_exact(4);
    values
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .collect()
}

/// Notes which blocks' feed-forwards run.
#[derive(Debug, Default)]
struct Recorder(Mutex<String>);

impl RegionEngine for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        inputs: Vec<burn::backend::DispatchTensor>,
        body: Body,
    ) -> Vec<burn::backend::DispatchTensor> {
        let site = exec.site().expect("within a block");
        if site.kind == RegionKind::Mlp {
            self.0.lock().expect("no panic").push_str(&site.block.to_string());
        }
        body(exec, inputs)
    }
}

/// The fixture: the model, what diffusers recorded, and the inputs.
struct Fixture {
    model: Arc<dyn Architecture>,
    weights: Weights,
    runs: Value,
    tensors: BTreeMap<String, Vec<f32>>,
}

/// What a run gave, by the names of the fixture, and the blocks computed per branch and step.
struct Outcome {
    tensors: BTreeMap<String, Vec<f32>>,
    computed: BTreeMap<&'static str, Vec<String>>,
}

impl Fixture {
    fn new() -> Self {
        let device = ComputeDevice::cpu();
        let config = std::fs::read(fixture("config.json")).expect("the fixture");
        let mut settings: Value = serde_json::from_slice(&config).expect("JSON");
        for (axis, length) in [("frames", 3), ("height", 8), ("width", 6)] {
            settings[format!("latent_{axis}")] = length.into();
        }
        let model = flow_models::wan::build(&settings, &device).expect("it fits");
        assert_eq!(model.spec().stacks, [("blocks".to_owned(), BLOCKS)]);
        let file = fixture("diffusion_pytorch_model.safetensors");
        let (weights, _) = flow_models::load(&*model, &file, &device).expect("weights of the model");
        let runs = std::fs::read(fixture("traces.json")).expect("the fixture");
        let bytes = std::fs::read(fixture("traces.safetensors")).expect("the fixture");
        let traces = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensors = traces
            .iter()
            .map(|(name, view)| (name.to_owned(), floats(view.data())));
        Self {
            model,
            weights,
            runs: serde_json::from_slice(&runs).expect("JSON"),
            tensors: tensors.collect(),
        }
    }

    fn numbers(&self, run: &str, key: &str) -> Vec<f64> {
        let values = self.runs[run][key].as_array().expect("numbers");
        values
            .iter()
            .map(|value| value.as_f64().expect("a number"))
            .collect()
    }

    /// Takes both samples through the run called `run`, with the drivers of `plan`.
    fn run(&self, run: &str, accelerate: impl FnOnce(Backends) -> Backends) -> Outcome {
        let device = ComputeDevice::cpu();
        let recorder = Arc::new(Recorder::default());
        let base = Backends {
            regions: recorder.clone(),
            ..Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
        };
        let rollout = InferencePass::new(&self.weights, Arc::new(accelerate(base)));
        let sigmas = self.numbers(run, "sigmas");
        let scale = self.runs[run]["cfg_scale"].as_f64();
        let (mut tensors, mut computed) = (BTreeMap::new(), BTreeMap::<_, Vec<String>>::new());
        let values = self.model.spec().latent.values();
        let mut x = self.tensors["x0"].clone();
        for step in 0..sigmas.len() - 1 {
            let mut velocity = |branch: &'static str| {
                let trajectory = |sample| TrajectoryId {
                    sample,
                    conditional: branch == "cond",
                };
                let call = CallContext {
                    step: step as u32,
                    steps: sigmas.len() as u32 - 1,
                    // The last digits are f32's, of a shift of the schedule; the timestep that diffusers compares is 100.
                    sigma: Some((sigmas[step] * 1e6).round() / 1e6),
                    trajectories: Arc::from([trajectory(0), trajectory(1)]),
                    ..CallContext::single(Stage::Rollout)
                };
                let input = ModelInput {
                    x: device.tensor(x.clone(), [2, values]),
                    sigma: device.tensor(vec![sigmas[step] as f32; 2], [2]),
                    condition: Condition {
                        text: Some(device.tensor(self.tensors[branch].clone(), [2, 5, 16])),
                        ..Condition::default()
                    },
                };
                let v: Tensor<2> = rollout.exec(call).velocity(&*self.model, input);
                let v = to_host(&v.into_dispatch());
                tensors.insert(format!("{run}.{step}.{branch}.v"), v.clone());
                let blocks = std::mem::take(&mut *recorder.0.lock().expect("no panic"));
                computed.entry(branch).or_default().push(blocks);
                v
            };
            let mut v = velocity("cond");
            if let Some(scale) = scale {
                let pairs = v.iter().zip(velocity("uncond"));
                v = pairs
                    .map(|(cond, uncond)| uncond + scale as f32 * (cond - uncond))
                    .collect();
            }
            let dt = sigmas[step + 1] as f32 - sigmas[step] as f32;
            x.iter_mut().zip(v).for_each(|(x, v)| *x += dt * v);
        }
        tensors.insert(format!("{run}.x_final"), x);
        Outcome { tensors, computed }
    }

    /// That every decision is diffusers', and every value kept in the fixture within the tolerance.
    fn assert_parity(&self, run: &str, accelerate: impl FnOnce(Backends) -> Backends) {
        let outcome = self.run(run, accelerate);
        for (branch, blocks) in &outcome.computed {
            let expected: Vec<&str> = self.runs[run]["blocks_computed"][branch]
                .as_array()
                .expect("a list")
                .iter()
                .map(|blocks| blocks.as_str().expect("a string"))
                .collect();
            assert_eq!(blocks, &expected, "{run} {branch}");
        }
        let prefix = format!("{run}.");
        let kept = self.tensors.iter().filter(|(name, _)| name.starts_with(&prefix));
        let mut compared = 0;
        // A run's name may begin with another's: those are not in the outcome.
        for (name, expected) in kept {
            if let Some(found) = outcome.tensors.get(name) {
                let distance = distance(found, expected);
                assert!(distance <= TOLERANCE, "{name}: {distance:e}");
                compared += 1;
            }
        }
        assert!(compared > 2, "{run}: {compared} tensors compared");
    }
}

/// `|a - b| / |b|` in the Euclidean norm.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "values to compare");
    let square = |sum: f64, value: f64| sum + value * value;
    let pairs = a.iter().zip(b);
    let distance = pairs.fold(0.0, |sum, (a, b)| square(sum, f64::from(*a) - f64::from(*b)));
    let length = b.iter().fold(0.0, |sum, b| square(sum, f64::from(*b)));
    (distance / length).sqrt()
}

/// As the originals decide.
const PER_BATCH: Rules = Rules {
    warmup_steps: 0,
    max_consecutive: 0,
    compute_last: false,
    outside_sde_window: false,
    per_batch: true,
};

#[test]
fn without_a_cache_the_model_is_that_of_diffusers() {
    let fixture = Fixture::new();
    fixture.assert_parity("none", |plan| plan);
    fixture.assert_parity("none_cfg", |plan| plan);
}

#[test]
fn first_block_decides_and_answers_as_diffusers_does() {
    let fixture = Fixture::new();
    for (run, threshold) in [
        ("first_block_0.02", 0.02),
        ("first_block_0.05", 0.05),
        ("first_block_0.08", 0.08),
        ("first_block_0.15", 0.15),
        ("first_block_0.08_cfg", 0.08),
        ("first_block_0.08_8steps", 0.08),
    ] {
        fixture.assert_parity(run, |plan| Backends {
            stacks: Arc::new(StackCache::new(
                FirstBlock { threshold },
                PER_BATCH,
                Box::new(|_| {}),
            )),
            ..plan
        });
    }
}

#[test]
fn magcache_decides_and_answers_as_diffusers_does() {
    let fixture = Fixture::new();
    let policy = MagCache {
        threshold: 0.06,
        retention: 0.2,
        ratios: fixture.numbers("magcache", "mag_ratios"),
    };
    let rules = Rules {
        max_consecutive: 3,
        ..PER_BATCH
    };
    fixture.assert_parity("magcache", |plan| Backends {
        stacks: Arc::new(StackCache::new(policy, rules, Box::new(|_| {}))),
        ..plan
    });
}

#[test]
fn taylorseer_runs_of_the_fixture_are_those_without_a_cache_and_ours_is_not() {
    // Diffusers documents that it looks for modules whose whole name matches `^blocks.*attn`; Wan's are called `attn1` and `attn2`. So its
    // hooks are on nothing, in silence, and there is nothing to be compared with: the forecast has tests of its own.
    let fixture = Fixture::new();
    let values = |run: &str| &fixture.tensors[&format!("{run}.x_final")];
    for order in [1, 2] {
        let run = format!("taylorseer_order{order}");
        assert_eq!(values(&run), values("none"));
        let skipped = Arc::new(AtomicU64::new(0));
        let counter = skipped.clone();
        let policy = TaylorSeer {
            interval: 5,
            first: 3,
            last: None,
            forecast: Forecast::Taylor { order },
        };
        let count = move |counters: &CallCounters| {
            counter.fetch_add(counters.skipped(), Ordering::Relaxed);
        };
        let outcome = fixture.run(&run, |plan| Backends {
            layers: Arc::new(LayerCache::new(policy, PER_BATCH, Box::new(count))),
            ..plan
        });
        // Of 28 steps 0, 1, 2, 4, 9, 14, 19 and 24 are computed, in both samples and both layers of every block.
        assert_eq!(skipped.load(Ordering::Relaxed), 20 * 2 * 2 * BLOCKS as u64);
        let drift = distance(&outcome.tensors[&format!("{run}.x_final")], values("none"));
        assert!(drift > 1e-5 && drift < 2e-3, "order {order}: {drift:e}");
    }
}

#[test]
fn pyramid_repeats_as_diffusers_does_without_guidance() {
    let policy = Pyramid {
        spatial: 2,
        temporal: 1,
        cross: 3,
        timesteps: Timesteps {
            above: 100.0,
            below: 800.0,
        },
    };
    Fixture::new().assert_parity("pyramid", |plan| Backends {
        layers: Arc::new(LayerCache::new(policy, PER_BATCH, Box::new(|_| {}))),
        ..plan
    });
}

#[test]
fn decisions_of_a_sample_are_its_own_where_the_original_decides_for_the_batch() {
    // The same run without `per_batch`: each sample is computed where it, not the mean, calls for it.
    let fixture = Fixture::new();
    let run = |rules: Rules| {
        let outcome = fixture.run("first_block_0.05", |plan| Backends {
            stacks: Arc::new(StackCache::new(
                FirstBlock { threshold: 0.05 },
                rules,
                Box::new(|_| {}),
            )),
            ..plan
        });
        outcome.computed["cond"]
            .iter()
            .filter(|blocks| blocks.len() == BLOCKS)
            .count()
    };
    let (batch, sample) = (
        run(PER_BATCH),
        run(Rules {
            per_batch: false,
            ..PER_BATCH
        }),
    );
    assert_eq!(batch, 4);
    assert_ne!(sample, batch, "the two samples move at different times");
}
