//! Whole models have the same bits whether the operations that are made of others are computed as one or not.

use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::{Backends, Condition, Kernels, ModelInput, Weights};
use flow_kernels::CpuKernels;
use flow_models::{Architecture, Dit, Mmdit, MmditConfig, Trained, Wan, WanConfig, add_lora, trained_mask};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BATCH: usize = 2;

/// The plan without, with fused kernels in the blocks, and with fused kernels everywhere; how often they were asked.
fn plans() -> [(Arc<Backends>, Arc<AtomicU64>); 3] {
    let fused = || {
        let count = Arc::new(AtomicU64::new(0));
        let counter = count.clone();
        let tell = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let kernels = CpuKernels::default().fused(Arc::new(tell));
        (kernels.expect("not fused yet"), count)
    };
    let (in_blocks, asked_in_blocks) = fused();
    let (everywhere, asked_everywhere) = fused();
    let regional = Backends {
        block_kernels: Some(in_blocks),
        ..(*plan()).clone()
    };
    let full = Backends {
        kernels: everywhere,
        ..(*plan()).clone()
    };
    [
        (plan(), Arc::default()),
        (Arc::new(regional), asked_in_blocks),
        (Arc::new(full), asked_everywhere),
    ]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Compares velocity and gradients under the three plans, all weights trained and adapters alone. `per_pass` is how many
/// fused operations the blocks have; one more is in the last layer.
fn check(model: &dyn Architecture, input: &ModelInput, per_pass: u64) {
    let device = ComputeDevice::cpu();
    let values = model.spec().latent.values();
    let cotangent = device.plain(noise(BATCH * values, 2), &[BATCH, values]);
    for trained in [Trained::Full, Trained::Lora] {
        let mut layout = (**model.layout()).clone();
        if trained == Trained::Lora {
            add_lora(model, &mut layout, &["*".to_owned()], 3, 6.0).expect("every linear layer");
        }
        let layout = Arc::new(layout);
        let weights: Weights = noisy_weights(&layout, &device);
        let mask = trained_mask(&layout, trained).expect("there are some");
        let mut expected = None;
        for ((plan, asked), count) in plans().into_iter().zip([0, per_pass, per_pass + 1]) {
            let described = plan.describe();
            let (velocity, gradients) =
                velocity_and_gradients_of(plan, model, &weights, mask.clone(), input.clone(), &cotangent);
            let found = (
                bits(&velocity),
                gradients
                    .iter()
                    .map(|gradient| gradient.as_deref().map(bits))
                    .collect::<Vec<_>>(),
            );
            assert!(
                *expected.get_or_insert_with(|| found.clone()) == found,
                "{trained:?}: {described}"
            );
            assert_eq!(asked.load(Ordering::Relaxed), count, "{described}");
        }
    }
}

#[test]
fn a_dit_has_the_same_bits_with_fused_kernels() {
    let device = ComputeDevice::cpu();
    for config in small_dits() {
        let model = Dit::new(&config, &device).expect("it fits");
        let input = model_input(&config, &host_input(&config, BATCH), &device);
        // Attention's projection and the feed-forward part of each block; experts are not fused.
        let per_block = if config.moe.is_some() { 1 } else { 2 };
        check(&model, &input, per_block * config.layers as u64);
    }
}

#[test]
fn an_mmdit_has_the_same_bits_with_fused_kernels() {
    let device = ComputeDevice::cpu();
    let config = MmditConfig {
        sample_size: 8,
        latent_height: Some(4),
        latent_width: Some(6),
        patch_size: 2,
        in_channels: 3,
        out_channels: Some(3),
        num_layers: 3,
        attention_head_dim: 8,
        num_attention_heads: 3,
        joint_attention_dim: 10,
        caption_projection_dim: 24,
        pooled_projection_dim: 7,
        pos_embed_max_size: 4,
        dual_attention_layers: vec![0, 1],
        qk_norm: true,
    };
    let model = Mmdit::new(&config, &device).expect("it fits");
    let input = ModelInput {
        x: device.tensor(noise(BATCH * 3 * 4 * 6, 1), [BATCH, 3 * 4 * 6]),
        sigma: device.tensor(vec![0.3, 0.8], [BATCH]),
        condition: Condition {
            text: Some(device.tensor(noise(BATCH * 5 * 10, 3), [BATCH, 5, 10])),
            pooled: Some(device.tensor(noise(BATCH * 7, 4), [BATCH, 7])),
            ..Condition::default()
        },
    };
    // Projection and feed-forward part of both streams, the last block's context without; two second attentions.
    check(&model, &input, 3 * 4 - 2 + 2);
}

#[test]
fn a_wan_has_the_same_bits_with_fused_kernels() {
    let device = ComputeDevice::cpu();
    let config = WanConfig {
        latent_frames: 3,
        latent_height: 4,
        latent_width: 6,
        num_attention_heads: 3,
        attention_head_dim: 8,
        in_channels: 3,
        out_channels: None,
        text_dim: 10,
        freq_dim: 16,
        ffn_dim: 40,
        num_layers: 2,
        ..WanConfig::t2v_1_3b()
    };
    let model = Wan::new(&config, &device).expect("it fits");
    let values = config.latent().values();
    let input = ModelInput {
        x: device.tensor(noise(BATCH * values, 1), [BATCH, values]),
        sigma: device.tensor(vec![0.3, 0.8], [BATCH]),
        condition: Condition {
            text: Some(device.tensor(noise(BATCH * 5 * 10, 3), [BATCH, 5, 10])),
            ..Condition::default()
        },
    };
    // Projection of the attention to itself, and feed-forward part.
    check(&model, &input, 2 * config.num_layers as u64);
}
