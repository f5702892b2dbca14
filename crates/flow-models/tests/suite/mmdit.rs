//! The MMDiT against diffusers: names, number of values, outputs and gradients.
//!
//! The fixture was written by diffusers 0.42.1 (`SD3Transformer2DModel`, random weights, f32): inputs, output, a
//! cotangent of the output, and the gradients of all inputs and weights under it.

use crate::common::parity::*;
use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage, TrainingPass};
use flow_core::{Condition, FlowModel, ModelInput, ParamKind, Weights};
use flow_models::{Architecture, Mmdit, MmditConfig, ModelRegistry, initialize, load};
use std::sync::Arc;

/// The fixture's model: its latents are 8 × 12, which its config does not say.
fn fixture_model(device: &ComputeDevice) -> (Arc<dyn Architecture>, Weights) {
    let text = std::fs::read(fixture("sd3-tiny/config.json")).unwrap();
    let mut settings: serde_json::Value = serde_json::from_slice(&text).unwrap();
    settings["latent_height"] = 8.into();
    settings["latent_width"] = 12.into();
    let mut registry = ModelRegistry::new();
    flow_models::register(&mut registry).expect("a new registry");
    let model = registry.build("mmdit", &settings, device).unwrap();
    let path = fixture("sd3-tiny/diffusion_pytorch_model.safetensors");
    let (weights, loaded) = load(&*model, &path, device).unwrap();
    assert_eq!(loaded.kept, Vec::<String>::new());
    (model, weights)
}

fn fixture_input(device: &ComputeDevice, io: &Named) -> ModelInput {
    ModelInput {
        x: tensor(device, io, "in.hidden_states", [2, 4 * 8 * 12]),
        sigma: noise_levels(device, io),
        condition: Condition {
            text: Some(tensor(device, io, "in.encoder_hidden_states", [2, 7, 32])),
            pooled: Some(tensor(device, io, "in.pooled_projections", [2, 48])),
            ..Condition::default()
        },
    }
}

#[test]
fn output_and_all_gradients_are_those_of_diffusers() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = tensors("sd3-tiny/io.safetensors");
    check_parity(&*model, &weights, fixture_input(&device, &io), &io);
}

#[test]
fn plain_and_tracked_weights_give_the_same_bits() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = tensors("sd3-tiny/io.safetensors");
    let call = || CallContext::single(Stage::Rollout);
    let rollout = InferencePass::new(&weights, plan());
    let plain = || host(model.velocity(&rollout.exec(call()), fixture_input(&device, &io)));
    let training = TrainingPass::new(&weights, plan(), vec![true; model.layout().len()].into());
    let tracked = host(model.velocity(&training.exec(call()), fixture_input(&device, &io)));
    assert_eq!(plain(), tracked);
    assert_eq!(plain(), plain());
}

#[test]
fn a_row_of_a_batch_does_not_depend_on_the_other_row() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = tensors("sd3-tiny/io.safetensors");
    let together = velocity(&*model, &weights, fixture_input(&device, &io));
    for (row, together) in together.chunks(4 * 8 * 12).enumerate() {
        let mut input = fixture_input(&device, &io);
        input.x = input.x.narrow(0, row, 1);
        input.sigma = input.sigma.narrow(0, row, 1);
        input.condition.text = input.condition.text.map(|text| text.narrow(0, row, 1));
        input.condition.pooled = input.condition.pooled.map(|pooled| pooled.narrow(0, row, 1));
        assert_eq!(velocity(&*model, &weights, input), together, "row {row}");
    }
}

#[test]
fn a_fresh_position_table_is_the_one_diffusers_makes() {
    let device = ComputeDevice::cpu();
    let (model, from_file) = fixture_model(&device);
    let fresh = initialize(&*model, model.layout(), 0, &device);
    let at = model.layout().position("pos_embed.pos_embed").unwrap();
    let pairs = fresh.host(at).into_iter().zip(from_file.host(at));
    let farthest = pairs.fold(0f32, |farthest, (a, b)| farthest.max((a - b).abs()));
    assert!(farthest <= 1e-6, "{farthest:e}");
}

/// Number of values of a linear layer with a bias.
fn linear(input: usize, output: usize) -> usize {
    input * output + output
}

#[test]
fn sd35_medium_has_the_names_and_the_number_of_values_of_diffusers() {
    let model = Mmdit::new(&MmditConfig::sd35_medium(), &ComputeDevice::cpu()).unwrap();
    let layout = model.layout();
    let (d, head, blocks, dual) = (1536, 64, 24, 13);

    let stem = linear(16 * 2 * 2, d) + linear(4096, d) + linear(d, 2 * d) + linear(d, 2 * 2 * 16);
    let embedders = linear(256, d) + linear(d, d) + linear(2048, d) + linear(d, d);
    // Queries, keys, values and output of both streams, with four norms of one head.
    let joint = 8 * linear(d, d) + 4 * head;
    let feed_forward = linear(d, 4 * d) + linear(4 * d, d);
    let block = 2 * linear(d, 6 * d) + joint + 2 * feed_forward;
    let second_attention = linear(d, 3 * d) + 4 * linear(d, d) + 2 * head;
    // The last block modulates its context with 2 chunks of 6, and has neither output nor feed-forward for it.
    let saved_in_the_last = linear(d, 6 * d) - linear(d, 2 * d) + linear(d, d) + feed_forward;
    let expected = stem + embedders + blocks * block + dual * second_attention - saved_in_the_last;
    let found = layout.count_values(|spec| spec.kind == ParamKind::Base);
    assert_eq!(found, expected);
    assert_eq!(found, 2_243_171_520);
    let buffers = layout.count_values(|spec| spec.kind == ParamKind::Buffer);
    assert_eq!(buffers, 384 * 384 * d);

    let shape = |name: &str| layout.specs()[layout.position(name).unwrap()].shape.clone();
    assert_eq!(shape("transformer_blocks.12.norm1.linear.weight"), [9 * d, d]);
    assert_eq!(shape("transformer_blocks.13.norm1.linear.weight"), [6 * d, d]);
    assert_eq!(
        shape("transformer_blocks.23.norm1_context.linear.weight"),
        [2 * d, d]
    );
    assert_eq!(shape("transformer_blocks.0.attn2.norm_k.weight"), [head]);
    assert_eq!(shape("pos_embed.proj.weight"), [d, 16, 2, 2]);
    assert_eq!(
        shape("transformer_blocks.0.ff_context.net.0.proj.weight"),
        [4 * d, d]
    );
    for absent in [
        "attn.to_add_out.weight",
        "ff_context.net.2.weight",
        "attn2.to_q.weight",
    ] {
        assert!(
            layout
                .position(&format!("transformer_blocks.23.{absent}"))
                .is_err(),
            "{absent}"
        );
    }
    assert_eq!(model.spec().tokens, 64 * 64);
}

#[test]
fn settings_that_do_not_fit_are_named_with_what_is_allowed() {
    let device = ComputeDevice::cpu();
    let error = |change: fn(&mut MmditConfig)| {
        let mut config = MmditConfig::sd35_medium();
        change(&mut config);
        Mmdit::new(&config, &device).unwrap_err().to_string()
    };
    let message = error(|config| config.dual_attention_layers.push(24));
    assert!(
        message.contains("`dual_attention_layers`: names block 24; each must be below `num_layers` = 24")
    );
    let message = error(|config| config.latent_width = Some(1024));
    assert!(message.contains("gives 512 patches; the position table has `pos_embed_max_size` = 384"));
    let message = error(|config| config.out_channels = Some(32));
    assert!(message.contains("`out_channels`: is 32; a velocity has the channels of a latent"));

    let mut settings = serde_json::to_value(MmditConfig::sd35_medium()).unwrap();
    settings["qk_norm"] = "layer_norm".into();
    let message = flow_models::mmdit::build(&settings, &device)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("`qk_norm`: `layer_norm` is no norm known here"),
        "{message}"
    );
    settings["qk_norm"] = "rms_norm".into();
    settings["num_layer"] = 3.into();
    let message = flow_models::mmdit::build(&settings, &device)
        .unwrap_err()
        .to_string();
    assert!(message.contains("unknown field `num_layer`"), "{message}");
}
