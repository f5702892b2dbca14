//! A run with an accelerator that flow-train does not know: through `flow_trainer::setup`, as any program would.

use flow_accel::AcceleratorRegistry;
use flow_attention::CpuAttention;
use flow_config::Config;
use flow_core::{Backends, device::ComputeDevice};
use flow_kernels::CpuKernels;
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::TrainError;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Silent;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// 12 samples of 2 blocks in 5 steps, without guidance: one trajectory per sample.
const CONFIG: &str = r#"
config_version = 1
[run]
steps = 2
[model.dit]
hidden = 16
layers = 2
heads = 2
conditioning = { kind = "tokens", vocabulary = 15, max_tokens = 2 }
[data]
kind = "digits"
[[rewards]]
kind = "jpeg-compressibility"
[sampling]
prompts_per_step = 3
group_size = 4
micro_batch = 6
guidance_scale = 1.0
[optimizer]
gradient_accumulation = 1
[evaluation]
every = 0
[checkpoints]
every = 0
[logging]
html_report = false
[acceleration]
strict = true
"#;
const SAMPLES: u64 = 12;
const BLOCKS: u64 = 2;

fn config(overrides: &[&str]) -> Config {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let resolved = test_catalog::parse_named("test.toml", CONFIG, &overrides);
    resolved.unwrap_or_else(|report| panic!("{report}")).config
}

struct Train<'a> {
    config: &'a Config,
    environment: &'a Environment<'a>,
    root: &'a Path,
}

impl Train<'_> {
    fn with(self, algorithm: Box<dyn Algorithm>) -> Result<(), TrainError> {
        let trainer = setup::trainer(self.config, self.environment, algorithm)?;
        let directory = RunDirectory::open(self.root, "run", OnExists::Error)?;
        let manifest = Manifest::new("run", vec![], Value::Null, self.root);
        trainer.start(directory, &manifest)?.train(&mut Silent)?;
        Ok(())
    }
}

/// The training records of a run.
fn train(config: &Config) -> Result<Vec<Value>, TrainError> {
    let mut accelerators = AcceleratorRegistry::default();
    flow_example_accelerator::register(&mut accelerators).expect("a free name");
    let plan = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let environment = Environment {
        device: ComputeDevice::cpu(),
        plan: Arc::new(plan),
        accelerators: &accelerators,
        plugins: &test_catalog::PLUGINS,
        base: Path::new("."),
        memory_probe: None,
        folders: PipelineFolders::default(),
        exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
    };
    let root = tempfile::tempdir().expect("a folder");
    let tokens = 16;
    let task = Train {
        config,
        environment: &environment,
        root: root.path(),
    };
    task.with(setup::algorithm(config, environment.plugins, tokens)?)?;
    let text = std::fs::read_to_string(root.path().join("run/metrics.jsonl")).expect("metrics");
    let records = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    Ok(records
        .filter(|record: &Value| record["kind"] == "train")
        .collect())
}

fn skipped(record: &Value) -> u64 {
    let metric = &record["acceleration/step_reuse/blocks_skipped"];
    metric.as_f64().unwrap_or_else(|| panic!("{record}")) as u64
}

#[test]
fn what_it_leaves_out_of_a_decoupled_run_is_in_the_metrics() {
    let found = train(&config(&[
        "algorithm.kind=nft",
        "scheduler.dynamics=ode",
        "scheduler.steps=5",
        "acceleration.rollout={ name = \"Step_Reuse\", params = { every = 3 } }",
    ]))
    .expect("it fits");
    assert_eq!(found.len(), 2);
    for record in &found {
        // Steps 1, 2 and 4 of 0 to 4.
        assert_eq!(skipped(record), SAMPLES * BLOCKS * 3);
    }
}

#[test]
fn outside_the_sde_window_every_ratio_of_a_coupled_run_stays_exactly_one() {
    let with_scope = |scope: &str| {
        config(&[
            "scheduler.steps=6",
            "scheduler.window={ kind = \"list\", steps = [2] }",
            &format!(
                "acceleration.rollout={{ name = \"step_reuse\", params = {{ every = 2, scope = \"{scope}\" }} }}"
            ),
        ])
    };
    for record in &train(&with_scope("outside_sde_window")).expect("it fits") {
        // Steps 1 and 5: at 2 what was kept is dropped, so 3 is computed though its number is odd.
        assert_eq!(skipped(record), SAMPLES * BLOCKS * 2);
        assert_eq!(record["on_policy/max_ratio_deviation"], 0.0);
    }
    let error = train(&with_scope("all_steps")).expect_err("GRPO is coupled");
    assert!(error.to_string().contains("step_reuse"), "{error}");
}
