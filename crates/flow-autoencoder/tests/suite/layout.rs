//! Names and shapes of weights at full size, and settings that are refused.

use crate::common::fixture;
use flow_autoencoder::{Autoencoder, AutoencoderConfig, LatentScaling, Tiling};
use flow_core::device::ComputeDevice;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn manifest(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(&format!("manifests/{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn read(settings: &Value) -> Result<AutoencoderConfig, String> {
    AutoencoderConfig::read(settings, Path::new("vae/config.json")).map_err(|error| error.to_string())
}

fn build(settings: &Value) -> Autoencoder {
    Autoencoder::new(&read(settings).unwrap(), &ComputeDevice::cpu()).unwrap()
}

#[test]
fn the_autoencoders_of_four_pipelines_have_the_weights_of_diffusers() {
    for name in ["sd3-vae", "flux-vae", "qwen-image-vae", "wan2.1-vae"] {
        let manifest = manifest(name);
        let autoencoder = build(&manifest["config"]);
        let specs = autoencoder.layout().specs().iter();
        let found: BTreeMap<String, Vec<usize>> =
            specs.map(|it| (it.name.clone(), it.shape.clone())).collect();
        let tensors = manifest["tensors"].as_array().unwrap().iter();
        let expected: BTreeMap<String, Vec<usize>> = tensors
            .map(|it| {
                let shape = it["shape"].as_array().unwrap().iter();
                let shape = shape.map(|side| side.as_u64().unwrap() as usize).collect();
                (it["name"].as_str().unwrap().to_owned(), shape)
            })
            .collect();
        assert_eq!(found, expected, "{name}");
        let numbers = manifest["numbers_in_all"].as_u64().unwrap() as usize;
        assert_eq!(autoencoder.layout().count_values(|_| true), numbers, "{name}");
    }
}

#[test]
fn sizes_and_units_at_full_size_are_those_of_the_pipelines() {
    let sd3 = build(&manifest("sd3-vae")["config"]);
    let shape = sd3.latent_shape(1, 1024, 768).unwrap();
    assert_eq!(
        (shape.channels, shape.frames, shape.height, shape.width),
        (16, 1, 128, 96)
    );
    assert_eq!(
        sd3.spec().tiling,
        Tiling {
            tile: 128,
            stride: 96
        }
    );
    let flux = LatentScaling::Uniform {
        factor: 0.3611,
        shift: 0.1159,
    };
    assert_eq!(*build(&manifest("flux-vae")["config"]).scaling(), flux);
    let wan = build(&manifest("wan2.1-vae")["config"]);
    let shape = wan.latent_shape(81, 480, 832).unwrap();
    assert_eq!(
        (shape.channels, shape.frames, shape.height, shape.width),
        (16, 21, 60, 104)
    );
    assert_eq!(wan.spec().tiling, Tiling { tile: 32, stride: 24 });
    let error = wan.latent_shape(80, 480, 832).unwrap_err().to_string();
    assert!(
        error.contains("F = 80 must be 1 and a multiple of 4 more, for instance 77 or 81"),
        "{error}"
    );
    let error = sd3.latent_shape(1, 1000, 1023).unwrap_err().to_string();
    assert!(
        error.contains("W = 1023 must be a multiple of 8, for instance 1016 or 1024"),
        "{error}"
    );
    let error = sd3.latent_shape(5, 64, 64).unwrap_err().to_string();
    assert!(error.contains("F must be 1"), "{error}");
}

#[test]
fn convolutions_of_one_tap_around_the_latent_are_there_if_the_settings_say_so_or_nothing() {
    let mut settings = json!({ "_class_name": "AutoencoderKL", "block_out_channels": [32, 64] });
    let has = |settings: &Value, name: &str| build(settings).layout().position(name).is_ok();
    assert!(has(&settings, "quant_conv.weight"));
    assert!(has(&settings, "post_quant_conv.bias"));
    assert!(has(&settings, "decoder.mid_block.attentions.0.to_q.weight"));
    for key in ["use_quant_conv", "use_post_quant_conv", "mid_block_add_attention"] {
        settings[key] = false.into();
    }
    assert!(!has(&settings, "quant_conv.weight"));
    assert!(!has(&settings, "post_quant_conv.bias"));
    assert!(!has(&settings, "decoder.mid_block.attentions.0.to_q.weight"));
}

/// What is said of the settings of `name` with one of them changed.
fn refused(name: &str, key: &str, value: Value) -> String {
    let mut settings = manifest(name)["config"].clone();
    settings[key] = value;
    read(&settings).unwrap_err()
}

#[test]
fn settings_that_are_not_known_or_do_not_fit_are_named_with_what_is_allowed() {
    let cases = [
        (
            "sd3-vae",
            "_class_name",
            json!("SD3Transformer2DModel"),
            "its autoencoder lies beside it in the folder `vae`",
        ),
        (
            "sd3-vae",
            "_class_name",
            json!("AutoencoderDC"),
            "known here: `AutoencoderKL`, `AutoencoderKLWan`",
        ),
        (
            "sd3-vae",
            "act_fn",
            json!("gelu"),
            "`act_fn`: is `gelu`; known here: `silu`",
        ),
        (
            "sd3-vae",
            "norm_num_groups",
            json!(7),
            "has a stage of 128, no multiple of `norm_num_groups` = 7",
        ),
        (
            "sd3-vae",
            "latents_mean",
            json!([0.5]),
            "`latents_mean`: is [0.5]; this setting is not known here",
        ),
        (
            "sd3-vae",
            "down_block_types",
            json!(["AttnDownEncoderBlock2D"]),
            "has `AttnDownEncoderBlock2D`; known here",
        ),
        (
            "sd3-vae",
            "scaling_factor",
            json!(0.0),
            "latents are divided by it",
        ),
        (
            "sd3-vae",
            "block_out_channels",
            json!("wide"),
            "invalid type: string",
        ),
        ("sd3-vae", "block_out_channels", json!([]), "has 0 stages"),
        (
            "sd3-vae",
            "new_trick",
            json!(true),
            "`new_trick`: is true; this setting is not known here",
        ),
        (
            "wan2.1-vae",
            "is_residual",
            json!(true),
            "that is the autoencoder of Wan 2.2",
        ),
        (
            "wan2.1-vae",
            "patch_size",
            json!(2),
            "that is the autoencoder of Wan 2.2",
        ),
        (
            "wan2.1-vae",
            "decoder_base_dim",
            json!(256),
            "that is the autoencoder of Wan 2.2",
        ),
        (
            "wan2.1-vae",
            "temperal_downsample",
            json!([true]),
            "must have one less than `dim_mult`, 3",
        ),
        (
            "wan2.1-vae",
            "latents_std",
            json!([1.0]),
            "has 1 entries; it must have `z_dim` = 16",
        ),
        (
            "wan2.1-vae",
            "scale_factor_spatial",
            json!(16),
            "is 16, and `temperal_downsample` gives 8",
        ),
        (
            "qwen-image-vae",
            "attn_scales",
            json!([0.5]),
            "`attn_scales`: is [0.5]",
        ),
        (
            "qwen-image-vae",
            "base_dim",
            json!(0),
            "is 0; it must be between 1 and",
        ),
    ];
    for (name, key, value, expected) in cases {
        let found = refused(name, key, value);
        assert!(found.contains(expected), "{key}: {found}");
        assert!(found.contains("vae/config.json"), "{found}");
    }
    let missing = read(&json!({ "block_out_channels": [32] })).unwrap_err();
    assert!(missing.contains("`_class_name`: is missing"), "{missing}");
    // Newer versions write more settings; what is off changes nothing.
    let mut settings = manifest("sd3-vae")["config"].clone();
    settings["new_trick"] = Value::Null;
    assert!(read(&settings).is_ok());
}
