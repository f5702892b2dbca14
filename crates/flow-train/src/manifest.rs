//! What a run says of itself on disk: device and plan in `run.json`, and the origin of its weights.

use flow_accel::Arrangement;
use flow_config::{Config, DeviceKind};
use flow_trainer::setup::Environment;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The table `device` of `run.json`: device, precision, threads and who computes.
pub fn manifest_device(
    config: &Config,
    environment: &Environment<'_>,
    acceleration: &Arrangement,
) -> Map<String, Value> {
    let backend = match config.device.kind {
        DeviceKind::Cpu => "burn-flex",
        DeviceKind::Cuda => "burn-cuda",
    };
    let pairs = [
        ("name", json!(environment.device.name())),
        ("backend", json!(backend)),
        ("dtype", json!(config.device.dtype.name())),
        ("threads", json!(rayon::current_num_threads())),
        ("training_plan", json!(acceleration.describe_training())),
        ("acceleration", json!(acceleration.to_string())),
        ("exact_on_policy", json!(acceleration.is_exact_on_policy())),
    ];
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Free text for weight files: what made them.
pub fn weights_metadata(config: &Config, run: &str, iteration: u64) -> BTreeMap<String, String> {
    let pairs = [
        ("flow-train.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("flow-train.run", run.to_owned()),
        ("flow-train.algorithm", config.algorithm.kind.clone()),
        ("flow-train.iteration", iteration.to_string()),
        ("flow-train.seed", config.run.seed.to_string()),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}
