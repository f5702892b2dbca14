//! FLUX.1 against diffusers: names, number of values, outputs and gradients.
//!
//! The fixture was written by diffusers 0.42.1 (`FluxTransformer2DModel` with guidance embedding, random weights, f32): inputs,
//! output, a cotangent of the output, and the gradients of all inputs and weights under it. Its two rows have other noise levels and
//! other guidance scales.

use crate::common::parity::*;
use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::{Condition, FlowModel, ModelInput, ParamKind, Weights};
use flow_models::{Architecture, Flux, FluxConfig, ModelRegistry, load};
use std::sync::Arc;

const ROWS: usize = 4;
const COLUMNS: usize = 6;
const VALUES: usize = 16 * 2 * ROWS * 2 * COLUMNS;

/// The fixture's model, which the LoRA files have, too: its latents are 8 × 12 here, which its config does not say.
fn fixture_model(device: &ComputeDevice) -> (Arc<dyn Architecture>, Weights) {
    let text = std::fs::read(fixture("flux-lora/config.json")).unwrap();
    let mut settings: serde_json::Value = serde_json::from_slice(&text).unwrap();
    settings["latent_height"] = (2 * ROWS).into();
    settings["latent_width"] = (2 * COLUMNS).into();
    let mut registry = ModelRegistry::new();
    flow_models::register(&mut registry).expect("a new registry");
    let model = registry.build("flux", &settings, device).unwrap();
    let path = fixture("flux-lora/diffusion_pytorch_model.safetensors.index.json");
    let (weights, loaded) = load(&*model, &path, device).unwrap();
    assert_eq!(loaded.kept, Vec::<String>::new());
    (model, weights)
}

fn fixture_io() -> Named {
    let io = tensors("flux-tiny/io.safetensors");
    // What the positions of the fixture are: (0, row, column), and the origin for the text.
    let positions = (0..ROWS).flat_map(|row| (0..COLUMNS).flat_map(move |column| [0, row, column]));
    let positions: Vec<f32> = positions.map(|position| position as f32).collect();
    assert_eq!(io["in.img_ids"].1, positions);
    assert!(io["in.txt_ids"].1.iter().all(|position| *position == 0.0));
    unpacked(io, ROWS, COLUMNS)
}

fn fixture_input(device: &ComputeDevice, io: &Named) -> ModelInput {
    ModelInput {
        x: tensor(device, io, "in.hidden_states", [2, VALUES]),
        sigma: tensor(device, io, "in.timestep", [2]),
        condition: Condition {
            text: Some(tensor(device, io, "in.encoder_hidden_states", [2, 7, 32])),
            pooled: Some(tensor(device, io, "in.pooled_projections", [2, 24])),
            guidance: Some(tensor(device, io, "in.guidance", [2])),
            ..Condition::default()
        },
    }
}

#[test]
fn output_and_all_gradients_are_those_of_diffusers() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io();
    // The guidance scale is embedded at 3500 radians, where the last bit of a frequency, in which exponential functions differ, is
    // seen in the gradient of the layer behind it.
    check_parity_within(5e-5, &*model, &weights, fixture_input(&device, &io), &io);
}

#[test]
fn a_row_of_a_batch_does_not_depend_on_the_other_row() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io();
    let together = velocity(&*model, &weights, fixture_input(&device, &io));
    for (row, together) in together.chunks(VALUES).enumerate() {
        let input = fixture_input(&device, &io).rows(&[row]);
        assert_eq!(velocity(&*model, &weights, input), together, "row {row}");
    }
}

#[test]
fn guidance_is_read_by_a_model_that_embeds_it() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io();
    let given = velocity(&*model, &weights, fixture_input(&device, &io));
    let mut other = fixture_input(&device, &io);
    other.condition.guidance = Some(device.tensor(vec![3.5, 3.5], [2]));
    let other = velocity(&*model, &weights, other);
    assert_eq!(
        given[..VALUES],
        other[..VALUES],
        "3.5 was given for the first row"
    );
    assert!(relative_distance(&given[VALUES..], &other[VALUES..]) > 1e-3);
    assert!(model.spec().guidance);
}

#[test]
fn flux1_has_the_names_and_the_numbers_of_values_of_diffusers() {
    let device = ComputeDevice::cpu();
    for (config, values, tensors) in [
        (FluxConfig::flux1_dev(), 11_901_408_320, 1160),
        (FluxConfig::flux1_schnell(), 11_891_178_560, 1156),
    ] {
        let model = Flux::new(&config, &device).unwrap();
        let layout = model.layout();
        assert_eq!(layout.count_values(|spec| spec.kind == ParamKind::Base), values);
        assert_eq!(layout.specs().len(), tensors);
        let shape = |name: &str| layout.specs()[layout.position(name).unwrap()].shape.clone();
        assert_eq!(
            shape("transformer_blocks.18.norm1_context.linear.weight"),
            [6 * 3072, 3072]
        );
        assert_eq!(
            shape("single_transformer_blocks.37.proj_out.weight"),
            [3072, 5 * 3072]
        );
        assert_eq!(shape("single_transformer_blocks.0.attn.norm_q.weight"), [128]);
        assert_eq!(shape("x_embedder.weight"), [3072, 64]);
        assert_eq!(model.spec().tokens, 64 * 64);
        assert_eq!(model.spec().latent.values(), 16 * 128 * 128);
    }
}

#[test]
fn settings_that_do_not_fit_are_named_with_what_is_allowed() {
    let device = ComputeDevice::cpu();
    let error = |change: fn(&mut FluxConfig)| {
        let mut config = FluxConfig::flux1_dev();
        change(&mut config);
        Flux::new(&config, &device).unwrap_err().to_string()
    };
    for (change, text) in [
        (
            (|it| it.latent_width = 33) as fn(&mut FluxConfig),
            "`latent_width`: is 33; it must be even",
        ),
        (
            |it| it.axes_dims_rope = [16, 56, 54],
            "`axes_dims_rope`: is [16, 56, 54] with the sum 126",
        ),
        (
            |it| it.axes_dims_rope = [17, 55, 56],
            "three even numbers must make up `attention_head_dim` = 128",
        ),
        (
            |it| it.out_channels = Some(16),
            "`out_channels`: is 16; a velocity has the channels of a latent",
        ),
        (
            |it| it.in_channels = 62,
            "`in_channels`: is 62; a packed latent has four times the channels",
        ),
        (
            |it| it.patch_size = 2,
            "`patch_size`: is 2; it must be between 1 and 1",
        ),
    ] {
        let message = error(change);
        assert!(message.contains(text), "{message}");
    }
}
