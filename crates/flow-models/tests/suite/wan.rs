//! Wan against diffusers: names, number of values, outputs and gradients; and what every model here keeps to.
//!
//! The fixture was written by diffusers 0.42.1 (`WanTransformer3DModel`, random weights, f32): inputs, output, a
//! cotangent of the output, and the gradients of all inputs and weights under it.

use crate::common::parity::*;
use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage, TrainingPass};
use flow_core::{Condition, FlowModel, ModelInput, Weights};
use flow_models::{Architecture, ModelRegistry, StoredDtype, Wan, WanConfig, add_lora, load, save};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const VALUES: usize = 4 * 3 * 8 * 6;

/// The fixture's model: its latents are 3 × 8 × 6, which its config does not say.
fn fixture_model(device: &ComputeDevice) -> (Arc<dyn Architecture>, Weights) {
    let text = std::fs::read(fixture("wan-tiny/config.json")).unwrap();
    let mut settings: serde_json::Value = serde_json::from_slice(&text).unwrap();
    for (side, length) in [("frames", 3), ("height", 8), ("width", 6)] {
        settings[format!("latent_{side}")] = length.into();
    }
    let mut registry = ModelRegistry::new();
    flow_models::register(&mut registry).expect("a new registry");
    let model = registry.build("wan", &settings, device).unwrap();
    let path = fixture("wan-tiny/diffusion_pytorch_model.safetensors");
    let (weights, loaded) = load(&*model, &path, device).unwrap();
    assert_eq!(loaded.kept, Vec::<String>::new());
    (model, weights)
}

fn fixture_input(device: &ComputeDevice, io: &Named) -> ModelInput {
    ModelInput {
        x: tensor(device, io, "in.hidden_states", [2, VALUES]),
        sigma: noise_levels(device, io),
        condition: Condition {
            text: Some(tensor(device, io, "in.encoder_hidden_states", [2, 5, 16])),
            ..Condition::default()
        },
    }
}

#[test]
fn output_and_all_gradients_are_those_of_diffusers() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = tensors("wan-tiny/io.safetensors");
    check_parity(&*model, &weights, fixture_input(&device, &io), &io);
}

#[test]
fn plain_and_tracked_weights_give_the_same_bits() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = tensors("wan-tiny/io.safetensors");
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
    let io = tensors("wan-tiny/io.safetensors");
    let together = velocity(&*model, &weights, fixture_input(&device, &io));
    for (row, together) in together.chunks(VALUES).enumerate() {
        let input = fixture_input(&device, &io).rows(&[row]);
        assert_eq!(velocity(&*model, &weights, input), together, "row {row}");
    }
}

#[test]
fn weights_saved_are_the_names_and_values_of_the_file_they_came_from() {
    let device = ComputeDevice::cpu();
    let (_, weights) = fixture_model(&device);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wan.safetensors");
    save(&weights, &path, StoredDtype::F32, &BTreeMap::new()).unwrap();
    let written = std::fs::read(path).unwrap();
    let written = flow_models::weights::parse(&written).unwrap();
    let written: Named = (written.tensors.iter())
        .map(|it| (it.name.clone(), (it.shape.clone(), it.to_f32().unwrap())))
        .collect();
    assert_eq!(written, tensors("wan-tiny/diffusion_pytorch_model.safetensors"));
}

/// Number of values of a linear layer with a bias.
fn linear(input: usize, output: usize) -> usize {
    input * output + output
}

#[test]
fn t2v_1_3b_has_the_names_and_the_number_of_values_of_diffusers() {
    let model = Wan::new(&WanConfig::t2v_1_3b(), &ComputeDevice::cpu()).unwrap();
    let layout = model.layout();
    let (d, inner) = (1536, 8960);
    let stem = linear(16 * 2 * 2, d) + linear(4096, d) + linear(d, d) + linear(d, 2 * 2 * 16);
    let time = linear(256, d) + linear(d, d) + linear(d, 6 * d);
    // Queries, keys, values and output, and two norms over the whole width.
    let attention = 4 * linear(d, d) + 2 * d;
    let block = 6 * d + 2 * attention + 2 * d + linear(d, inner) + linear(inner, d);
    let found = layout.count_values(|_| true);
    assert_eq!(found, stem + time + 30 * block + 2 * d);
    assert_eq!(found, 1_418_996_800);
    assert_eq!(model.spec().tokens, 32_760);
    let shape = |name: &str| layout.specs()[layout.position(name).unwrap()].shape.clone();
    assert_eq!(shape("blocks.29.attn2.norm_k.weight"), [d]);
    assert_eq!(shape("blocks.0.ffn.net.0.proj.weight"), [inner, d]);
    assert_eq!(shape("blocks.0.scale_shift_table"), [1, 6, d]);
    assert_eq!(shape("patch_embedding.weight"), [d, 16, 1, 2, 2]);
    assert_eq!(shape("condition_embedder.time_proj.weight"), [6 * d, d]);
}

#[test]
fn adapters_go_on_every_linear_layer_and_on_no_table_or_norm() {
    let (model, _) = fixture_model(&ComputeDevice::cpu());
    let mut layout = (**model.layout()).clone();
    let adapted = add_lora(&*model, &mut layout, &["*".to_owned()], 2, 4.0).unwrap();
    let adapted: BTreeSet<_> = adapted.into_iter().collect();
    let matrices = model.layout().specs().iter().filter(|spec| spec.shape.len() == 2);
    let matrices = matrices.map(|spec| spec.name.trim_end_matches(".weight").to_owned());
    assert_eq!(adapted, matrices.collect());
    let mut layout = (**model.layout()).clone();
    let adapted = add_lora(&*model, &mut layout, &["attn2.to_k".to_owned()], 2, 4.0).unwrap();
    assert_eq!(adapted, ["blocks.0.attn2.to_k", "blocks.1.attn2.to_k"]);
}

#[test]
fn settings_that_do_not_fit_are_named_with_what_is_allowed() {
    let device = ComputeDevice::cpu();
    let error = |change: fn(&mut WanConfig)| {
        let mut config = WanConfig::t2v_1_3b();
        change(&mut config);
        Wan::new(&config, &device).unwrap_err().to_string()
    };
    for (message, expected) in [
        (
            error(|config| config.patch_size = [2, 2, 2]),
            "`patch_size`: is [2, 2, 2]; it must be [1, n, n]",
        ),
        (
            error(|config| config.latent_width = 105),
            "`latent_width`: is 105; it must be a multiple of the patch's side, 2",
        ),
        (
            error(|config| config.latent_frames = 1025),
            "`latent_frames`: gives 1025 positions; there are `rope_max_seq_len` = 1024",
        ),
        (
            error(|config| config.image_dim = Some(1280)),
            "`image_dim`: is set, so the model also reads images",
        ),
        (
            error(|config| config.qk_norm = "layer_norm".into()),
            "`qk_norm`: `layer_norm` is no norm known here; allowed: \"rms_norm_across_heads\"",
        ),
        (
            error(|config| config.out_channels = Some(4)),
            "`out_channels`: is 4; a velocity has the channels of a latent",
        ),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}
