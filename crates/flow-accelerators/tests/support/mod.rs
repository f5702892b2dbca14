//! Models whose weights are all noise, and conditions for them.

use flow_accel::{Acceleration, AcceleratorRegistry, Arrangement};
use flow_attention::AttentionRegistry;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::{Condition, FlowModel, TrajectoryId, Weights};
use flow_models::ModelRegistry;
use serde_json::json;
use std::sync::Arc;

/// Every built-in accelerator.
pub fn registry() -> AcceleratorRegistry {
    let mut backends = AttentionRegistry::default();
    flow_attention::register(&mut backends).expect("different names");
    let mut registry = AcceleratorRegistry::default();
    flow_accelerators::register(&mut registry, &backends).expect("different names");
    registry
}

/// Set up; no accelerator of ours looks at the weights.
pub fn at_work(arrangement: Arrangement) -> Acceleration {
    let weights = Weights::init(Arc::default(), 0, &ComputeDevice::cpu());
    arrangement.set_up(&weights).expect("nothing refuses it")
}

/// A model whose weights are all noise, and the settings it was built from.
pub fn noisy(kind: &str) -> (Arc<dyn FlowModel>, Weights) {
    let architecture = kind.strip_suffix("-with-experts").unwrap_or(kind);
    let settings = match kind {
        "dit" => json!({
            "latent": { "channels": 2, "height": 8, "width": 8 },
            "patch": 2, "hidden": 24, "layers": 3, "heads": 3, "vocabulary": { "size": 4, "length": 2 },
        }),
        "dit-with-experts" => json!({
            "latent": { "channels": 2, "height": 8, "width": 8 },
            "patch": 2, "hidden": 24, "layers": 3, "heads": 3, "vocabulary": { "size": 4, "length": 2 },
            "moe": { "experts": 4, "top_k": 2, "inner": 20, "shared": 24 },
        }),
        "wan" => json!({
            "latent_frames": 2, "latent_height": 4, "latent_width": 8, "patch_size": [1, 2, 2], "in_channels": 2,
            "num_layers": 3, "num_attention_heads": 2, "attention_head_dim": 12, "text_dim": 8, "freq_dim": 16,
            "ffn_dim": 48,
        }),
        "qwen-image" => json!({
            "latent_height": 8, "latent_width": 6, "in_channels": 8, "out_channels": 2, "num_layers": 3,
            "num_attention_heads": 2, "attention_head_dim": 12, "axes_dims_rope": [2, 4, 6], "joint_attention_dim": 8,
        }),
        _ => json!({
            "in_channels": 2, "out_channels": 2, "patch_size": 2, "num_layers": 3, "num_attention_heads": 2,
            "attention_head_dim": 12, "joint_attention_dim": 8, "caption_projection_dim": 24,
            "pooled_projection_dim": 6, "pos_embed_max_size": 8, "sample_size": 8, "dual_attention_layers": [1],
            "qk_norm": "rms_norm", "latent_height": 8, "latent_width": 8,
        }),
    };
    let device = ComputeDevice::cpu();
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models).expect("a new registry");
    let model = models.build(architecture, &settings, &device).expect("settings");
    let mut weights = Weights::init(model.layout().clone(), 0, &device);
    let specs = model.layout().specs().to_vec();
    // Trajectories that turn as slowly as those of the others: Qwen-Image's two streams are modulated twice in every block.
    let deviation = if kind == "qwen-image" { 0.07 } else { 0.1 };
    for (index, spec) in specs.iter().enumerate() {
        let values = noise(spec.shape.iter().product(), index as u64);
        let offset = if spec.name.contains("norm_") && spec.shape.len() == 1 {
            1.0
        } else {
            0.0
        };
        let values = values.iter().map(|value| offset + deviation * value).collect();
        weights
            .set(index, device.plain(values, &spec.shape))
            .expect("the same shape");
    }
    (model, weights)
}

/// Normal numbers.
pub fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(3, Purpose::Test).at(salt, 0).fill_normal(&mut values);
    values
}

/// The condition of each trajectory's sample, and the empty one. Texts have several lengths; who attends to padding reads on.
pub fn condition(model: &dyn FlowModel, trajectories: &[TrajectoryId]) -> Condition {
    let device = ComputeDevice::cpu();
    if model.spec().vocabulary.is_some() {
        let token = |trajectory: &TrajectoryId| {
            let token = if trajectory.conditional {
                1 + trajectory.sample as i64
            } else {
                0
            };
            [token.min(3), 0]
        };
        let tokens = trajectories.iter().flat_map(token).collect();
        return Condition {
            tokens: Some(device.int_tensor(tokens, [trajectories.len(), 2])),
            ..Condition::default()
        };
    }
    let rows = |count: usize, salt: u64| {
        let of = |trajectory: &TrajectoryId| {
            noise(
                count,
                salt + 2 * trajectory.sample + u64::from(trajectory.conditional),
            )
        };
        trajectories.iter().flat_map(of).collect::<Vec<f32>>()
    };
    let length = |trajectory: &TrajectoryId| match trajectory.conditional {
        true => 3 + trajectory.sample as usize % 3,
        false => 2,
    };
    Condition {
        text: Some(device.tensor(rows(5 * 8, 1000), [trajectories.len(), 5, 8])),
        text_lengths: Some(trajectories.iter().map(length).collect()),
        pooled: Some(device.tensor(rows(6, 2000), [trajectories.len(), 6])),
        ..Condition::default()
    }
}
