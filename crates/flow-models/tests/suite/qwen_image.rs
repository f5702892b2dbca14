//! Qwen-Image against diffusers: names, number of values, outputs and gradients, with texts of equal and of unequal lengths.
//!
//! The fixtures were written by diffusers 0.42.1 (`QwenImageTransformer2DModel`, random weights, f32): inputs, output, a cotangent of
//! the output, and the gradients of all inputs and weights under it. Their two rows have other noise levels; in one of them the second
//! row's text is shorter than the first's, and a mask hides the rest.

use crate::common::parity::*;
use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::{Condition, FlowModel, ModelInput, ParamKind, Weights};
use flow_models::weights::describe;
use flow_models::{Architecture, ModelRegistry, QwenImage, QwenImageConfig, load};
use std::sync::Arc;

const ROWS: usize = 4;
const COLUMNS: usize = 6;
const VALUES: usize = 16 * 2 * ROWS * 2 * COLUMNS;
const TEXT: usize = 9;
const CHANNELS: usize = 32;

/// The fixtures' model, which the LoRA files have, too: its latents are 8 × 12 here, which its config does not say.
fn fixture_model(device: &ComputeDevice) -> (Arc<dyn Architecture>, Weights) {
    let text = std::fs::read(fixture("qwen-image-lora/config.json")).unwrap();
    let mut settings: serde_json::Value = serde_json::from_slice(&text).unwrap();
    settings["latent_height"] = (2 * ROWS).into();
    settings["latent_width"] = (2 * COLUMNS).into();
    let mut registry = ModelRegistry::new();
    flow_models::register(&mut registry).expect("a new registry");
    let model = registry.build("qwen-image", &settings, device).unwrap();
    let path = fixture("qwen-image-lora/diffusion_pytorch_model.safetensors");
    let (weights, loaded) = load(&*model, &path, device).unwrap();
    assert_eq!(loaded.kept, Vec::<String>::new());
    (model, weights)
}

fn fixture_io(name: &str) -> Named {
    unpacked(tensors(&format!("{name}/io.safetensors")), ROWS, COLUMNS)
}

fn fixture_input(device: &ComputeDevice, io: &Named) -> ModelInput {
    ModelInput {
        x: tensor(device, io, "in.hidden_states", [2, VALUES]),
        sigma: tensor(device, io, "in.timestep", [2]),
        condition: Condition {
            text: Some(tensor(
                device,
                io,
                "in.encoder_hidden_states",
                [2, TEXT, CHANNELS],
            )),
            text_lengths: text_lengths(io),
            ..Condition::default()
        },
    }
}

#[test]
fn output_and_all_gradients_are_those_of_diffusers() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io("qwen-image-tiny");
    let input = fixture_input(&device, &io);
    assert!(input.condition.text_lengths.is_none());
    check_parity(&*model, &weights, input, &io);
}

#[test]
fn output_and_all_gradients_are_those_of_diffusers_where_a_mask_hides_the_end_of_a_text() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io("qwen-image-masked-tiny");
    let input = fixture_input(&device, &io);
    assert_eq!(input.condition.text_lengths.as_deref(), Some(&[9, 5][..]));
    check_parity(&*model, &weights, input, &io);
}

#[test]
fn padding_changes_nothing_whatever_is_in_it_and_however_much_there_is() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io("qwen-image-masked-tiny");
    let padded = velocity(&*model, &weights, fixture_input(&device, &io));

    let mut other = fixture_input(&device, &io);
    let text = other.condition.text.take().expect("given");
    let long = device.tensor(noise(2 * 3 * CHANNELS, 5), [2, 3, CHANNELS]);
    let text = burn::tensor::Tensor::cat(vec![text, long], 1);
    other.condition.text = Some(text);
    let longer = velocity(&*model, &weights, other);
    assert!(relative_distance(&longer, &padded) <= 1e-6);

    // Alone and without padding there is nothing to hide.
    let mut alone = fixture_input(&device, &io).rows(&[1]);
    let text = alone.condition.text.take().expect("given");
    alone.condition.text = Some(text.narrow(1, 0, 5));
    alone.condition.text_lengths = None;
    let alone = velocity(&*model, &weights, alone);
    assert!(relative_distance(&alone, &padded[VALUES..]) <= 1e-6);
}

#[test]
fn a_row_of_a_batch_does_not_depend_on_the_other_row() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io("qwen-image-masked-tiny");
    let together = velocity(&*model, &weights, fixture_input(&device, &io));
    for (row, together) in together.chunks(VALUES).enumerate() {
        let input = fixture_input(&device, &io).rows(&[row]);
        assert_eq!(velocity(&*model, &weights, input), together, "row {row}");
    }
}

#[test]
fn conditions_below_one_another_keep_the_lengths_of_their_texts() {
    let device = ComputeDevice::cpu();
    let (model, weights) = fixture_model(&device);
    let io = fixture_io("qwen-image-masked-tiny");
    let masked = fixture_input(&device, &io);
    let whole = fixture_input(&device, &fixture_io("qwen-image-tiny"));
    let apart = [whole.clone(), masked.clone()].map(|input| velocity(&*model, &weights, input));
    let together = ModelInput {
        x: burn::tensor::Tensor::cat(vec![whole.x, masked.x], 0),
        sigma: burn::tensor::Tensor::cat(vec![whole.sigma, masked.sigma], 0),
        condition: whole.condition.stacked(masked.condition),
    };
    let lengths = together.condition.text_lengths.clone();
    assert_eq!(lengths.as_deref(), Some(&[9, 9, 9, 5][..]));
    let together = velocity(&*model, &weights, together);
    assert!(relative_distance(&together, &apart.concat()) <= 1e-6);
}

#[test]
fn qwen_image_has_the_names_and_the_number_of_values_of_diffusers() {
    let device = ComputeDevice::cpu();
    let model = QwenImage::new(&QwenImageConfig::published(), &device).unwrap();
    let layout = model.layout();
    let values = layout.count_values(|spec| spec.kind == ParamKind::Base);
    assert_eq!(values, 20_430_401_088);
    assert_eq!(layout.specs().len(), 1933);
    let shape = |name: &str| layout.specs()[layout.position(name).unwrap()].shape.clone();
    assert_eq!(shape("transformer_blocks.59.img_mod.1.weight"), [6 * 3072, 3072]);
    assert_eq!(shape("transformer_blocks.59.attn.to_add_out.bias"), [3072]);
    assert_eq!(
        shape("transformer_blocks.0.txt_mlp.net.0.proj.weight"),
        [4 * 3072, 3072]
    );
    assert_eq!(shape("transformer_blocks.0.attn.norm_added_k.weight"), [128]);
    assert_eq!(shape("txt_norm.weight"), [3584]);
    assert_eq!(shape("txt_in.weight"), [3072, 3584]);
    assert_eq!(shape("proj_out.weight"), [64, 3072]);
    assert_eq!(model.spec().tokens, 64 * 64);
    assert_eq!(model.spec().latent.values(), 16 * 128 * 128);
}

#[test]
fn a_width_that_nothing_reads_is_no_difference_to_another_model() {
    let device = ComputeDevice::cpu();
    let (model, _) = fixture_model(&device);
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read(fixture("qwen-image-lora/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    // The first published `config.json` has it.
    config["pooled_projection_dim"] = 768.into();
    let write = |config: &serde_json::Value| {
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let weights = folder.path().join("diffusion_pytorch_model.safetensors");
        std::fs::copy(
            fixture("qwen-image-lora/diffusion_pytorch_model.safetensors"),
            weights,
        )
        .unwrap();
        describe(folder.path()).unwrap().expect("it says what it is")
    };
    assert!(write(&config).differences(&*model).is_empty());
    config["zero_cond_t"] = true.into();
    let differences = write(&config).differences(&*model);
    assert_eq!(differences.len(), 1);
    assert_eq!(differences[0].key, "zero_cond_t");
    for (key, side) in [("latent_height", 8), ("latent_width", 12)] {
        config[key] = side.into();
    }
    let message = flow_models::qwen_image::build(&config, &device)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("`zero_cond_t`: is true, which is of Qwen-Image-Edit-2511"),
        "{message}"
    );
    config["zero_cond_t"] = false.into();
    assert!(flow_models::qwen_image::build(&config, &device).is_ok());
}

#[test]
fn settings_that_do_not_fit_are_named_with_what_is_allowed() {
    let device = ComputeDevice::cpu();
    let error = |change: fn(&mut QwenImageConfig)| {
        let mut config = QwenImageConfig::published();
        change(&mut config);
        QwenImage::new(&config, &device).unwrap_err().to_string()
    };
    for (change, text) in [
        (
            (|it| it.latent_height = 33) as fn(&mut QwenImageConfig),
            "`latent_height`: is 33; it must be even",
        ),
        (
            |it| it.axes_dims_rope = [17, 55, 56],
            "three even numbers must make up `attention_head_dim` = 128",
        ),
        (
            |it| it.out_channels = 64,
            "`out_channels`: is 64; a velocity has the channels of a latent, a quarter of `in_channels`: 16",
        ),
        (|it| it.patch_size = 1, "`patch_size`: is 1; it must be 2"),
        (
            |it| it.use_layer3d_rope = true,
            "`use_layer3d_rope`: is true, which is of Qwen-Image-Layered",
        ),
        (
            |it| it.num_layers = 0,
            "`num_layers`: is 0; it must be between 1 and 1024",
        ),
    ] {
        let message = error(change);
        assert!(message.contains(text), "{message}");
    }
}
