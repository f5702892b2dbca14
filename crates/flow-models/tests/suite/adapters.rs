//! LoRA files: those of diffusers, `peft`, `ai-toolkit` and `kohya-ss` give the outputs that diffusers computed with them, and ours
//! come back.
//!
//! The fixtures were written by diffusers 0.42.1 and `peft` 0.21.2: models with random weights, adapters of rank 3 and alpha 6 in
//! several layouts, and outputs.

use crate::common::lora_files::*;
use crate::common::*;
use flow_core::Weights;
use flow_core::device::ComputeDevice;
use flow_models::lora::{AdapterFile, is_adapter};
use flow_models::{AdapterLayout, StoredDtype, export_adapters, load_adapters, merge};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
fn files_of_every_layout_give_the_outputs_of_diffusers() {
    for name in ["sd3-lora", "wan-lora", "flux-lora", "qwen-image-lora"] {
        let oracle = Oracle::new(name);
        let check = |path: &Path, output: &str| {
            let distance = oracle.distance(path, output);
            assert!(distance <= 1e-5, "{}: {distance:e}", path.display());
        };
        let published = oracle.file("pytorch_lora_weights.safetensors");
        check(&published, "out");
        check(&oracle.file("folded_no_metadata.safetensors"), "out");
        if ["wan-lora", "flux-lora"].contains(&name) {
            check(&oracle.file("kohya.safetensors"), "out_kohya");
        }
        // Without its metadata the scale is 1, for us as for diffusers.
        let (tensors, _) = read(&published);
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        renamed(&tensors, &at("bare.safetensors"), None, str::to_owned);
        check(&at("bare.safetensors"), "out_if_alpha_is_ignored");
        let prefixed = |prefix: &'static str, middle: &'static str| {
            move |name: &str| {
                let name = name.strip_prefix("transformer.").unwrap();
                format!("{prefix}{}", name.replace(".weight", &format!("{middle}.weight")))
            }
        };
        fs::write(at("adapter_config.json"), peft_config(&[]).to_string()).unwrap();
        for (prefix, middle) in [
            ("base_model.model.", ""),
            ("base_model.model.", ".default"),
            ("base_model.model.", ".my_adapter"),
            ("diffusion_model.", ""),
            ("", ""),
        ] {
            renamed(
                &tensors,
                &at("adapter_model.safetensors"),
                None,
                prefixed(prefix, middle),
            );
            check(&at("adapter_model.safetensors"), "out");
            check(folder.path(), "out");
        }
        // `adapter_config.json` is of `peft`'s file; another beside it has its own scale.
        renamed(
            &tensors,
            &at("style.safetensors"),
            None,
            prefixed("diffusion_model.", ""),
        );
        check(&at("style.safetensors"), "out_if_alpha_is_ignored");
        // `lora_down`, `lora_up` and an alpha of its own.
        let mut kohya: Tensors = tensors.clone();
        for (name, it) in &tensors {
            let kohya_name = name.replace("lora_A", "lora_down").replace("lora_B", "lora_up");
            kohya.remove(name);
            kohya.insert(kohya_name, it.clone());
            let alpha = name
                .replace("lora_A.weight", "alpha")
                .replace("lora_B.weight", "alpha");
            kohya.insert(alpha, (vec![], vec![6.0]));
        }
        renamed(&kohya, &at("kohya.safetensors"), None, |name| name.into());
        check(&at("kohya.safetensors"), "out");
        renamed(&kohya, &at("joined.safetensors"), None, |name| {
            let (layer, factor) = match name.strip_suffix(".alpha") {
                Some(layer) => (layer, "alpha".to_owned()),
                None => {
                    let at = name.find(".lora_").unwrap();
                    (&name[..at], name[at + 1..].to_owned())
                }
            };
            let layer = layer.strip_prefix("transformer.").unwrap();
            format!("lora_unet_{}.{factor}", layer.replace('.', "_"))
        });
        check(&at("joined.safetensors"), "out");
    }
}

#[test]
fn what_is_exported_comes_back_from_every_layout() {
    for name in ["sd3-lora", "wan-lora", "qwen-image-lora"] {
        let oracle = Oracle::new(name);
        // Layers with other names elsewhere, stacks of which a part is adapted, and halves that change places.
        let targets = match name {
            "sd3-lora" => vec![
                "to_q",
                "to_v",
                "add_k_proj",
                "ff.net.2",
                "norm1_context.linear",
                "norm_out.linear",
                "proj_out",
            ],
            "qwen-image-lora" => vec![
                "to_q",
                "add_k_proj",
                "to_add_out",
                "img_mod.1",
                "txt_mlp.net.2",
                "norm_out.linear",
                "proj_out",
            ],
            _ => vec![
                "attn1.to_q",
                "attn2.to_out.0",
                "ffn.net.0.proj",
                "time_proj",
                "text_embedder.linear_2",
            ],
        };
        let targets: Vec<String> = targets.into_iter().map(str::to_owned).collect();
        let mut weights = oracle.with_adapters(3, 4.5, &targets);
        fill_with_noise(&mut weights);
        let expected = velocity(&*oracle.model, &weights, oracle.input());
        let folder = tempfile::tempdir().unwrap();
        let layouts = [
            AdapterLayout::Diffusers,
            AdapterLayout::Peft,
            AdapterLayout::Kohya,
        ];
        let note = BTreeMap::from([("run".to_owned(), "7".to_owned())]);
        export_adapters(
            &*oracle.model,
            &weights,
            folder.path(),
            &layouts,
            StoredDtype::F32,
            &note,
        )
        .unwrap();
        for file in [
            "adapter_model.safetensors",
            "pytorch_lora_weights.safetensors",
            "lora_kohya.safetensors",
        ] {
            let path = folder.path().join(file);
            let back = oracle.adapted(&path);
            let distance = relative_distance(&velocity(&*oracle.model, &back, oracle.input()), &expected);
            assert!(distance <= 1e-6, "{file}: {distance:e}");
            let (tensors, metadata) = read(&path);
            assert_eq!(metadata["run"], "7", "{file}");
            let first = tensors.keys().next().unwrap();
            let prefix = match file {
                "adapter_model.safetensors" => "base_model.model.",
                "pytorch_lora_weights.safetensors" => "transformer.",
                _ => "lora_unet_",
            };
            assert!(first.starts_with(prefix), "{file}: {first}");
        }
        // `peft`'s file keeps every bit, and the folder stands for it.
        let mut copy = oracle.with_adapters(3, 4.5, &targets);
        load_adapters(&*oracle.model, &mut copy, folder.path()).unwrap();
        assert_eq!(host_values(&copy), host_values(&weights));
        assert!(is_adapter(folder.path()).unwrap());
        assert!(!is_adapter(&oracle.file("diffusion_pytorch_model.safetensors")).unwrap());
        // Diffusers fails on fields that its `peft` does not know, and takes alpha = r without any.
        let (_, metadata) = read(&folder.path().join("pytorch_lora_weights.safetensors"));
        let said: Value = serde_json::from_str(&metadata["lora_adapter_metadata"]).unwrap();
        let keys: Vec<&String> = said.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            [
                "transformer.r",
                "transformer.lora_alpha",
                "transformer.target_modules"
            ]
        );
        assert_eq!(
            (&said["transformer.r"], &said["transformer.lora_alpha"]),
            (&json!(3), &json!(3))
        );
    }
}

#[test]
fn a_stacked_layer_of_the_original_program_has_the_sum_of_its_parts() {
    let oracle = Oracle::new("sd3-lora");
    let targets = ["attn.to_q", "attn.to_v", "norm_out.linear"].map(str::to_owned);
    let mut weights = oracle.with_adapters(2, 3.0, &targets);
    fill_with_noise(&mut weights);
    let folder = tempfile::tempdir().unwrap();
    export_adapters(
        &*oracle.model,
        &weights,
        folder.path(),
        &[AdapterLayout::Kohya],
        StoredDtype::F32,
        &BTreeMap::new(),
    )
    .unwrap();
    let (tensors, _) = read(&folder.path().join("lora_kohya.safetensors"));
    let merged = merge(&weights, oracle.model.layout(), &ComputeDevice::cpu()).unwrap();
    let difference = |layer: &str| -> Vec<f32> {
        let at = oracle
            .model
            .layout()
            .position(&format!("{layer}.weight"))
            .unwrap();
        merged
            .host(at)
            .iter()
            .zip(oracle.base.host(at))
            .map(|(a, b)| a - b)
            .collect()
    };
    let product = |layer: &str| -> Vec<f32> {
        let (down, up) = (
            &tensors[&format!("{layer}.lora_down.weight")],
            &tensors[&format!("{layer}.lora_up.weight")],
        );
        let (rank, input) = (down.0[0], down.0[1]);
        let scale = tensors[&format!("{layer}.alpha")].1[0] / rank as f32;
        let row = |row: &[f32]| -> Vec<f32> {
            let sum = |column| -> f32 { (0..rank).map(|r| row[r] * down.1[r * input + column]).sum() };
            (0..input).map(|column| scale * sum(column)).collect()
        };
        up.1.chunks(rank).flat_map(row).collect()
    };
    let block = "transformer_blocks.1.attn";
    let zeros = vec![0.0; 32 * 32];
    let stacked = [
        difference(&format!("{block}.to_q")),
        zeros,
        difference(&format!("{block}.to_v")),
    ]
    .concat();
    let distance = relative_distance(&product("lora_unet_joint_blocks_1_x_block_attn_qkv"), &stacked);
    assert!(distance <= 1e-4, "{distance:e}");
    let mut swapped = difference("norm_out.linear");
    swapped.rotate_left(32 * 32);
    let distance = relative_distance(&product("lora_unet_final_layer_adaLN_modulation_1"), &swapped);
    assert!(distance <= 1e-4, "{distance:e}");
}

#[test]
fn adapters_of_several_ranks_and_scales_are_made_equal_to_what_they_were() {
    let oracle = Oracle::new("sd3-lora");
    let (tensors, _) = read(&oracle.file("pytorch_lora_weights.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.safetensors");
    // `to_q` of block 0 with rank 2 and another alpha: its last rank is cut off, in a reference that knows nothing of files.
    let layer = "transformer.transformer_blocks.0.attn.to_q";
    let mut mixed = tensors.clone();
    let down = mixed.get_mut(&format!("{layer}.lora_A.weight")).unwrap();
    (down.0[0], down.1) = (2, down.1[..2 * 32].to_vec());
    let up = mixed.get_mut(&format!("{layer}.lora_B.weight")).unwrap();
    (up.0[1], up.1) = (2, up.1.chunks(3).flat_map(|row| row[..2].to_vec()).collect());
    let said = json!({
        "transformer.r": 3, "transformer.lora_alpha": 6, "transformer.use_rslora": false,
        "transformer.rank_pattern": { "^transformer_blocks\\.0\\.attn\\.to_q": 2 },
        "transformer.alpha_pattern": { "transformer_blocks.0.attn.to_q": 5 },
    });
    renamed(&mixed, &path, Some(said), str::to_owned);
    let file = AdapterFile::read(&*oracle.model, &path).unwrap();
    assert!(!file.is_uniform());
    assert_eq!(file.config().rank, 3);
    let mut expected = oracle.adapted(&oracle.file("pytorch_lora_weights.safetensors"));
    let at = expected
        .layout()
        .position("transformer_blocks.0.attn.to_q.lora_B.weight")
        .unwrap();
    let mut values = expected.host(at);
    for row in values.chunks_mut(3) {
        row.iter_mut().for_each(|value| *value *= 2.5 / 2.0);
        row[2] = 0.0;
    }
    expected.set_host(at, values).unwrap();
    let output = |weights: &Weights| velocity(&*oracle.model, weights, oracle.input());
    let distance = relative_distance(&output(&oracle.adapted(&path)), &output(&expected));
    assert!(distance <= 1e-6, "{distance:e}");

    // Rank-stabilised: alpha / √r.
    let said = json!({ "transformer.r": 3, "transformer.lora_alpha": 6.0 / 3f64.sqrt(), "transformer.use_rslora": true });
    renamed(&tensors, &path, Some(said), str::to_owned);
    let distance = oracle.distance(&path, "out");
    assert!(distance <= 1e-5, "{distance:e}");
}
