//! Files of every version that is in use, and folders that are not right.

mod common;

use common::*;
use flow_core::device::ComputeDevice;
use flow_models::weights::parse;
use flow_text_encoder::{
    AnyTextEncoder, ClipText, EncoderError, Loaded, QwenText, T5Encoder, TextEncoder, load,
};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize_to_file};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(path: &str) -> Tensors {
    let bytes = fs::read(fixture(path)).unwrap();
    let parsed = parse(&bytes).unwrap().tensors.into_iter();
    parsed
        .map(|it| (it.name, (it.dtype, it.shape, it.bytes.to_vec())))
        .collect()
}

/// The one file of weights in a folder of the fixtures.
fn weights_of(folder: &str) -> String {
    format!("{folder}/model.safetensors")
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (
            name.clone(),
            TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
        )
    });
    serialize_to_file(views, None, path).unwrap();
}

fn renamed(tensors: Tensors, name: impl Fn(&str) -> String) -> Tensors {
    tensors
        .into_iter()
        .map(|(old, tensor)| (name(&old), tensor))
        .collect()
}

/// A folder with a file `model.safetensors` of these tensors.
fn folder(tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    folder
}

fn loaded(encoder: &dyn TextEncoder, folder: &Path) -> (Vec<Vec<f32>>, Loaded) {
    let (weights, loaded) = load(encoder, folder, None, &ComputeDevice::cpu()).unwrap();
    let values = (0..encoder.layout().len()).map(|index| weights.host(index));
    (values.collect(), loaded)
}

fn error(result: Result<(flow_core::Weights, Loaded), EncoderError>) -> String {
    result.map(drop).expect_err("refused").to_string()
}

fn refused(encoder: &dyn TextEncoder, folder: &Path) -> String {
    error(load(encoder, folder, None, &ComputeDevice::cpu()))
}

#[test]
fn clip_loads_with_and_without_the_prefix_and_leaves_out_what_is_not_text() {
    let encoder = ClipText::open(&fixture(CLIP_L_PLAIN)).unwrap();
    let before = tensors(&weights_of(CLIP_L_PLAIN));
    let (wanted, _) = loaded(&encoder, &fixture(CLIP_L_PLAIN));
    let bare = renamed(before.clone(), |name| name.replacen("text_model.", "", 1));
    assert!(loaded(&encoder, folder(&bare).path()) == (wanted.clone(), Loaded::default()));
    // A file of both towers, with the buffer of old versions.
    let mut whole = before;
    let integer = (Dtype::I64, vec![1, 2], vec![0; 16]);
    whole.insert("text_model.embeddings.position_ids".into(), integer.clone());
    whole.insert("vision_model.post_layernorm.weight".into(), integer.clone());
    whole.insert("text_projection.weight".into(), integer);
    let (values, found) = loaded(&encoder, folder(&whole).path());
    assert!(values == wanted);
    let ignored = [
        "text_model.embeddings.position_ids",
        "text_projection.weight",
        "vision_model.post_layernorm.weight",
    ];
    assert_eq!(found.ignored, ignored);
}

#[test]
fn t5_loads_with_either_name_of_its_embedding_or_both() {
    let encoder = T5Encoder::open(&fixture(T5)).unwrap();
    let before = tensors(&weights_of(T5));
    let (wanted, _) = loaded(&encoder, &fixture(T5));
    let alias = "encoder.embed_tokens.weight";
    let other = renamed(before.clone(), |name| name.replace("shared.weight", alias));
    assert!(loaded(&encoder, folder(&other).path()) == (wanted.clone(), Loaded::default()));
    let mut both = before.clone();
    both.insert(alias.into(), before["shared.weight"].clone());
    both.insert(
        "decoder.final_layer_norm.weight".into(),
        (Dtype::I64, vec![1], vec![0; 8]),
    );
    let (values, found) = loaded(&encoder, folder(&both).path());
    assert!(values == wanted);
    assert_eq!(found.ignored, ["decoder.final_layer_norm.weight", alias]);
}

#[test]
fn umt5_wants_a_table_for_every_block_and_t5_for_the_first_alone() {
    let umt5 = T5Encoder::open(&fixture(UMT5)).unwrap();
    let count = |encoder: &T5Encoder| {
        let names = encoder.layout().specs().iter().map(|spec| &spec.name);
        names
            .filter(|name| name.contains("relative_attention_bias"))
            .count()
    };
    assert_eq!(count(&umt5), 2);
    assert_eq!(count(&T5Encoder::open(&fixture(T5)).unwrap()), 1);
    let mut without = tensors(&weights_of(UMT5));
    without.retain(|name, _| name != "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight");
    let problem = refused(&umt5, folder(&without).path());
    assert!(problem.contains("missing from the file (1):"), "{problem}");
    assert!(
        problem.contains("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"),
        "{problem}"
    );
}

#[test]
fn of_qwen_neither_the_visual_tower_nor_the_head_for_words_is_looked_at() {
    let encoder = QwenText::open(&fixture(QWEN)).unwrap();
    let (wanted, found) = loaded(&encoder, &fixture(QWEN));
    assert!(found.ignored.contains(&"lm_head.weight".into()));
    assert!(
        found
            .ignored
            .iter()
            .all(|name| name == "lm_head.weight" || name.starts_with("visual."))
    );
    // Whatever they hold: another precision, values that are no numbers.
    let mut strange = tensors(&weights_of(QWEN));
    for (name, tensor) in &mut strange {
        if name.starts_with("visual.") || name == "lm_head.weight" {
            *tensor = (Dtype::F8_E4M3, vec![2], vec![0x7F; 2]);
        }
    }
    assert!(loaded(&encoder, folder(&strange).path()).0 == wanted);
    // The names of the module path.
    let nested = renamed(strange, |name| {
        let inner = name
            .strip_prefix("model.")
            .map(|inner| format!("model.language_model.{inner}"));
        inner.unwrap_or_else(|| name.replace("visual.", "model.visual."))
    });
    assert!(nested.contains_key("model.language_model.layers.0.mlp.up_proj.weight"));
    assert!(loaded(&encoder, folder(&nested).path()).0 == wanted);
}

#[test]
fn shards_are_loaded_by_their_index_and_a_missing_one_is_named() {
    let source = "pipelines/sd3/text_encoder_3";
    let encoder = T5Encoder::open(&fixture(source)).unwrap();
    let (wanted, _) = loaded(&encoder, &fixture(source));
    assert!(
        wanted
            .iter()
            .all(|values| values.iter().any(|value| *value != 0.0))
    );
    let partial = tempfile::tempdir().unwrap();
    for file in [
        "model.safetensors.index.json",
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
    ] {
        fs::copy(fixture(source).join(file), partial.path().join(file)).unwrap();
    }
    let problem = refused(&encoder, partial.path());
    assert!(
        problem.contains(
            "it is not whole: `model-00002-of-00003.safetensors` is named by `model.safetensors.index.json`"
        ),
        "{problem}"
    );
    assert!(problem.contains(&*partial.path().to_string_lossy()), "{problem}");
}

#[test]
fn a_variant_is_loaded_from_its_own_files_and_one_that_is_not_there_is_refused() {
    let encoder = T5Encoder::open(&fixture(T5)).unwrap();
    let (wanted, _) = loaded(&encoder, &fixture(T5));
    let before = tensors(&weights_of(T5));
    let place = folder(&Tensors::new());
    let path = |name: &str| place.path().join(name);
    write(&path("model.bf16.safetensors"), &before);
    fs::copy(
        path("model.bf16.safetensors"),
        path("model.fp16-00001-of-00001.safetensors"),
    )
    .unwrap();
    let map: BTreeMap<&String, &str> = before
        .keys()
        .map(|name| (name, "model.fp16-00001-of-00001.safetensors"))
        .collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(path("model.safetensors.index.fp16.json"), index.to_string()).unwrap();
    for variant in ["bf16", "fp16"] {
        let (weights, _) = load(&encoder, place.path(), Some(variant), &ComputeDevice::cpu()).unwrap();
        assert!(
            (0..wanted.len()).all(|index| weights.host(index) == wanted[index]),
            "{variant}"
        );
    }
    let problem = error(load(&encoder, place.path(), Some("int8"), &ComputeDevice::cpu()));
    assert!(problem.contains("no weights of the variant `int8`"), "{problem}");
    assert!(problem.contains("`model.bf16.safetensors`"), "{problem}");
}

#[test]
fn everything_that_does_not_fit_is_reported_at_once() {
    let encoder = ClipText::open(&fixture(CLIP_L_PLAIN)).unwrap();
    let mut wrong = tensors(&weights_of(CLIP_L_PLAIN));
    let moved = wrong
        .remove("text_model.encoder.layers.0.mlp.fc1.weight")
        .unwrap();
    wrong.insert("text_model.encoder.layers.0.mlp.fc_1.weight".into(), moved);
    wrong.insert(
        "text_model.final_layer_norm.bias".into(),
        (Dtype::F32, vec![2], vec![0; 8]),
    );
    wrong.insert(
        "text_model.final_layer_norm.weight".into(),
        (Dtype::I64, vec![24], vec![0; 8 * 24]),
    );
    let problem = refused(&encoder, folder(&wrong).path());
    for part in [
        "4 problems; nothing was loaded",
        "text_model.encoder.layers.0.mlp.fc1.weight (the file has `text_model.encoder.layers.0.mlp.fc_1.weight`)",
        "text_model.encoder.layers.0.mlp.fc_1.weight (the model has `text_model.encoder.layers.0.mlp.fc1.weight`)",
        "text_model.final_layer_norm.bias: the model has [24], the file [2]",
        "text_model.final_layer_norm.weight: I64",
    ] {
        assert!(problem.contains(part), "{part} in {problem}");
    }
}

#[test]
fn weights_in_eight_bits_pointers_of_lfs_and_values_that_are_no_numbers_are_refused() {
    let encoder = T5Encoder::open(&fixture(T5)).unwrap();
    let before = tensors(&weights_of(T5));
    let mut narrow = before.clone();
    let (_, shape, _) = narrow["shared.weight"].clone();
    let count = shape.iter().product();
    narrow.insert("shared.weight".into(), (Dtype::F8_E4M3, shape, vec![0; count]));
    let problem = refused(&encoder, folder(&narrow).path());
    assert!(problem.contains("shared.weight: F8_E4M3"), "{problem}");
    assert!(
        problem.contains("take the folder of the bf16 or f16 weights"),
        "{problem}"
    );

    let pointer = folder(&before);
    let text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9524621312\n";
    fs::write(pointer.path().join("model.safetensors"), text).unwrap();
    let problem = refused(&encoder, pointer.path());
    assert!(
        problem.contains("pointer of Git LFS") && problem.contains("git lfs pull"),
        "{problem}"
    );

    let mut broken = before;
    let weight = broken
        .get_mut("encoder.block.1.layer.0.SelfAttention.q.weight")
        .unwrap();
    weight.2[4 * 33..4 * 34].copy_from_slice(&f32::NAN.to_le_bytes());
    let problem = refused(&encoder, folder(&broken).path());
    assert!(
        problem.contains("encoder.block.1.layer.0.SelfAttention.q.weight: NaN at [1, 1]"),
        "{problem}"
    );
}

#[test]
fn folders_of_something_else_say_what_to_name_instead() {
    let open = |path: &Path| {
        AnyTextEncoder::open(path)
            .map(drop)
            .expect_err("refused")
            .to_string()
    };
    let pipeline = tempfile::tempdir().unwrap();
    fs::write(pipeline.path().join("model_index.json"), "{}").unwrap();
    for part in ["text_encoder", "text_encoder_2", "vae"] {
        fs::create_dir(pipeline.path().join(part)).unwrap();
    }
    let problem = open(pipeline.path());
    assert!(
        problem.contains("name the text encoder in it: text_encoder, text_encoder_2"),
        "{problem}"
    );
    fs::write(
        pipeline.path().join("vae/config.json"),
        r#"{"_class_name": "AutoencoderKL"}"#,
    )
    .unwrap();
    let problem = open(&pipeline.path().join("vae"));
    assert!(
        problem.contains("`_class_name` is \"AutoencoderKL\", which is no text encoder"),
        "{problem}"
    );
    let problem = open(&pipeline.path().join("text_encoder"));
    assert!(problem.contains("cannot read `config.json` in it"), "{problem}");
    assert!(open(&pipeline.path().join("nowhere")).contains("there is no such folder"));
    let empty = refused(
        &T5Encoder::open(&fixture(T5)).unwrap(),
        &pipeline.path().join("text_encoder"),
    );
    assert!(empty.contains("holds no `*.safetensors`"), "{empty}");
}
