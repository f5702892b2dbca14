//! A run of which flow-train knows nothing but the loop: reward, data set, algorithm and architecture come from outside.

use flow_accel::AcceleratorRegistry;
use flow_attention::CpuAttention;
use flow_core::{Backends, device::ComputeDevice};
use flow_kernels::CpuKernels;
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::Plugins;
use flow_trainer::observer::Silent;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const CONFIG: &str = r#"
config_version = 1
run = { name = "outside", steps = 2 }
model = { architecture = "slim", slim = { layers = 3 } }
data = { kind = "bars" }
rewards = [{ kind = "symmetry", axis = "horizontal" }]
algorithm = { kind = "reward-weighted", temperature = 0.5 }
scheduler = { dynamics = "ode", steps = 3 }
sampling = { prompts_per_step = 2, group_size = 4, micro_batch = 8 }
evaluation = { every = 0 }
checkpoints = { every = 0 }
logging = { html_report = false }
"#;

fn plugins() -> Plugins {
    let mut plugins = Plugins::built_in().expect("different names");
    flow_example_plugins::register(&mut plugins).expect("free names");
    plugins
}

#[test]
fn a_run_of_plug_ins_from_outside_trains() {
    let plugins = plugins();
    let parsed = flow_config::parse_named(&plugins.catalog(), "outside.toml", CONFIG, &[]);
    let config = parsed.unwrap_or_else(|report| panic!("{report}")).config;
    let environment = Environment {
        device: ComputeDevice::cpu(),
        plan: Arc::new(Backends::new(
            Arc::new(CpuAttention),
            Arc::new(CpuKernels::default()),
        )),
        accelerators: &AcceleratorRegistry::default(),
        plugins: &plugins,
        base: Path::new("."),
        memory_probe: None,
        folders: PipelineFolders::default(),
        exchange: std::sync::Arc::new(flow_trainer::distributed::Alone),
    };
    let root = tempfile::tempdir().expect("a folder");
    let algorithm = setup::algorithm(&config, &plugins, 16).expect("it is registered");
    let trainer = setup::trainer(&config, &environment, algorithm).expect("it fits");
    let directory = RunDirectory::open(root.path(), "outside", OnExists::Error).expect("a folder");
    let manifest = Manifest::new("outside", vec![], Value::Null, root.path());
    let mut trainer = trainer.start(directory, &manifest).expect("it starts");
    trainer.train(&mut Silent).expect("it trains");
    let text = std::fs::read_to_string(root.path().join("outside/metrics.jsonl")).expect("metrics");
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|record: &Value| record["kind"] == "train")
        .collect();
    assert_eq!(records.len(), 2, "{text}");
    for record in &records {
        let reward = record["reward/symmetry"]
            .as_f64()
            .unwrap_or_else(|| panic!("{record}"));
        assert!(reward < 0.0 && reward.is_finite(), "{record}");
        let loss = record["loss"].as_f64().unwrap_or_else(|| panic!("{record}"));
        assert!(loss > 0.0 && loss.is_finite(), "{record}");
    }
}

#[test]
fn their_keys_are_checked_and_explained_as_ours_are() {
    let catalog = plugins().catalog();
    let said = |set: &str| {
        let found = flow_config::parse_named(&catalog, "outside.toml", CONFIG, &[set.to_owned()]);
        found.expect_err(set).to_string()
    };
    for (set, words) in [
        (
            "algorithm.temperatur=1",
            ["no key `temperatur`", "did you mean `temperature`?"],
        ),
        (
            "algorithm.temperature=0",
            ["`algorithm.temperature` is 0", "0.01"],
        ),
        (
            "rewards.0.axis=diagonal",
            ["`rewards.0.axis` cannot be `diagonal`", "\"vertical\""],
        ),
        (
            "data.kind=bar",
            ["`data.kind` cannot be `bar`", "did you mean \"bars\"?"],
        ),
        (
            "model.slim.size=16",
            ["images of `[data]` are 1x8x8", "set `model.slim.size = 8`"],
        ),
        (
            "model.dit.hidden=16",
            ["`model.dit.hidden` is not read", "`slim`"],
        ),
    ] {
        let said = said(set);
        for word in words {
            assert!(said.contains(word), "{set}: {word}: {said}");
        }
    }
    let docs = flow_config::explain(&catalog, "algorithm.temperature").expect("known");
    assert_eq!(docs.variants, ["kind = \"reward-weighted\""]);
    assert_eq!(docs.default, Some(serde_json::json!(1.0)));
}
