//! The training loop on a GPU runtime: whole iterations of a session on Vulkan, with all that a run on an NVIDIA GPU uses
//! (fused kernels, recorded calls of the model, adapters, guidance), against the same run on the processor.
//!
//! A program of its own, whose runs go one after the other: while one thread records on a GPU, nothing else in the process may
//! wait for it.

#[allow(dead_code, reason = "the tests on the processor use more of it")]
#[path = "../training/support.rs"]
mod support;

use flow_accel::AcceleratorRegistry;
use flow_attention::cube::PortableAttention;
use flow_config::Config;
use flow_core::{Backends, device::ComputeDevice};
use flow_kernels::{CpuKernels, CubeKernels};
use flow_trainer::setup::Environment;
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use support::{BASE, DIT, Left, MMDIT, Registries, RunTo, registries, with_trainer};

/// One run at a time.
static RUNNING: Mutex<()> = Mutex::new(());

const ITERATIONS: u64 = 2;

/// What a run on an NVIDIA GPU uses. `strict`: one of them that does nothing stops the run.
const ACCELERATED: &str = r#"
[acceleration]
strict = true
[[acceleration.shared]]
name = "fused_kernels"
params = { mode = "full" }
[[acceleration.shared]]
name = "graph_capture"
"#;

const GRPO: [&str; 2] = [
    "algorithm.kl={ kind = \"mean\", beta = 0.1, reference = \"lora-off\" }",
    "scheduler.window={ kind = \"list\", steps = [0, 2] }",
];

const NFT: [&str; 3] = [
    "algorithm.kind=\"nft\"",
    "algorithm.kl_beta=0.01",
    "scheduler.dynamics=\"ode\"",
];

/// Its score changes with single bytes of a picture, so that a pixel on the edge of a byte would show more than arithmetic.
const JPEG: &str = r#"[[rewards]]
kind = "jpeg-compressibility"
weight = 0.1
"#;

/// A run of `model` with adapters, guidance and averages.
fn config(model: &str, algorithm: &[&str], accelerated: bool) -> Config {
    let common = [
        "model.finetune=\"lora\"",
        "lora.targets=[\"to_q\", \"to_v\"]",
        "lora.rank=4",
        "sampling.guidance_scale=2.5",
        "ema.enabled=true",
        // An evaluation at an early end belongs to the whole run, too.
        "evaluation.every=1",
    ];
    let overrides = common.iter().chain(algorithm);
    let overrides: Vec<String> = overrides.map(|text| (*text).to_owned()).collect();
    assert!(
        BASE.contains(DIT) && BASE.contains(JPEG),
        "the base config has changed"
    );
    let text = BASE.replace(DIT, model).replace(JPEG, "") + if accelerated { ACCELERATED } else { "" };
    let parsed = test_catalog::parse_named("test.toml", &text, &overrides);
    parsed.unwrap_or_else(|report| panic!("{report}")).config
}

/// A device with its plan, and the registries of what a config names.
struct Place {
    device: ComputeDevice,
    plan: Arc<Backends>,
    registries: Registries,
}

impl Place {
    fn processor() -> Self {
        Self::new(
            ComputeDevice::cpu(),
            Backends::new(
                Arc::new(flow_attention::CpuAttention),
                Arc::new(CpuKernels::default()),
            ),
        )
    }

    fn vulkan() -> Self {
        let device = ComputeDevice::vulkan().unwrap_or_else(|error| panic!("{error}"));
        let attention = Arc::new(PortableAttention::default());
        Self::new(device, Backends::new(attention, Arc::new(CubeKernels::vulkan())))
    }

    fn new(device: ComputeDevice, plan: Backends) -> Self {
        let mut accelerators = AcceleratorRegistry::default();
        let backends = flow_attention::AttentionRegistry::default();
        flow_accelerators::register(&mut accelerators, &backends).expect("a new registry");
        Self {
            device,
            plan: Arc::new(plan),
            registries: Registries {
                accelerators,
                ..registries()
            },
        }
    }

    /// Starts a run in `root`, or resumes it, and goes to iteration `until`.
    fn run(&self, config: &Config, root: &Path, resume: bool, until: u64) -> Left {
        let environment = Environment {
            device: self.device.clone(),
            plan: self.plan.clone(),
            ..support::environment(&self.registries)
        };
        let run = RunTo { root, resume, until };
        with_trainer(config, &environment, run).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The values called `key` in the records of training.
fn numbers(metrics: &str, key: &str) -> Vec<f64> {
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a record"));
    let training = records.filter(|record| record["kind"] == "train");
    training.filter_map(|record| record[key].as_f64()).collect()
}

/// The records without the counts of what accelerators did: a process that resumes records its calls once more.
fn without_counts(left: &Left) -> impl Iterator<Item = Value> {
    left.metrics.lines().map(|line| {
        let mut record: serde_json::Map<String, Value> = serde_json::from_str(line).expect("a record");
        record.retain(|key, _| !key.starts_with("acceleration/"));
        Value::Object(record)
    })
}

/// The Euclidean distance of two sets of weights.
fn distance(one: &Left, other: &Left) -> f64 {
    let values = |left: &Left| {
        left.weights
            .concat()
            .into_iter()
            .map(f32::from_bits)
            .collect::<Vec<_>>()
    };
    let (one, other) = (values(one), values(other));
    assert_eq!(one.len(), other.len());
    let squares = one.iter().zip(&other).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Runs `algorithm` on `model` in every way, and compares.
fn trains_as_on_the_processor(model: &str, algorithm: &[&str], audited: usize) {
    let _alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let root = tempfile::tempdir().expect("a temporary directory");
    let folder = |name: &str| root.path().join(name);
    let (plain, accelerated) = (config(model, algorithm, false), config(model, algorithm, true));
    let (processor, vulkan) = (Place::processor(), Place::vulkan());

    let before = processor.run(&plain, &folder("before"), false, 0);
    let expected = processor.run(&plain, &folder("processor"), false, ITERATIONS);
    let found = vulkan.run(&plain, &folder("plain"), false, ITERATIONS);
    let whole = vulkan.run(&accelerated, &folder("whole"), false, ITERATIONS);
    vulkan.run(&accelerated, &folder("parts"), false, 1);
    let resumed = vulkan.run(&accelerated, &folder("parts"), true, ITERATIONS);

    assert!(
        whole.weights == resumed.weights,
        "a resumed run ends with other weights"
    );
    for (whole, resumed) in without_counts(&whole).zip(without_counts(&resumed)) {
        assert_eq!(whole, resumed, "a resumed run has other metrics");
    }
    assert_eq!(whole.metrics.lines().count(), resumed.metrics.lines().count());
    assert!(
        found.weights == whole.weights,
        "lossless accelerators changed a bit"
    );
    for (place, left) in [
        ("processor", &expected),
        ("plain", &found),
        ("accelerated", &whole),
    ] {
        let ratios = numbers(&left.metrics, "on_policy/max_ratio_deviation");
        assert_eq!(ratios, vec![0.0; audited], "{place}");
    }
    for key in ["reward", "gradient_norm"] {
        let (expected, found) = (numbers(&expected.metrics, key), numbers(&found.metrics, key));
        assert_eq!([expected.len(), found.len()], [ITERATIONS as usize; 2]);
        for (expected, found) in expected.iter().zip(&found) {
            assert!(
                (found / expected - 1.0).abs() < 1e-5,
                "{key}: {found}, not {expected}"
            );
        }
    }
    // Roundings of f32, 6e-8 of values of about 1, and what AdamW makes of them: it divides an update by the gradient's size, so
    // a gradient that is mostly rounding moves its weight as far as any other. They come to 3e-6 to 2e-5 of the way.
    let (moved, apart) = (distance(&before, &expected), distance(&found, &expected));
    assert!(
        moved > 0.0 && apart <= 1e-4 * moved,
        "{apart:e} apart after a way of {moved:e}"
    );
}

#[test]
fn grpo_trains_a_dit_on_a_gpu_runtime_as_on_the_processor() {
    trains_as_on_the_processor(DIT, &GRPO, 2);
}

#[test]
fn nft_trains_a_dit_on_a_gpu_runtime_as_on_the_processor() {
    trains_as_on_the_processor(DIT, &NFT, 0);
}

#[test]
fn grpo_trains_an_mmdit_on_a_gpu_runtime_as_on_the_processor() {
    trains_as_on_the_processor(MMDIT, &GRPO, 2);
}

#[test]
fn nft_trains_an_mmdit_on_a_gpu_runtime_as_on_the_processor() {
    trains_as_on_the_processor(MMDIT, &NFT, 0);
}
