//! Listings as the hub has them, and what is taken of each.

use super::*;
use crate::FileHash;

fn files(paths: &[&str]) -> Vec<RemoteFile> {
    let file = |path: &&str| RemoteFile {
        path: (*path).to_owned(),
        size_bytes: 7,
        hash: FileHash::GitBlob([0; 20]),
    };
    paths.iter().map(file).collect()
}

fn taken(paths: &[&str], components: Option<&[&str]>, variant: Option<&str>) -> Result<Vec<String>, String> {
    let components = components.map(|names| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
    let files = files(paths);
    let wanted = select(&files, components.as_deref(), variant)?;
    Ok(wanted.iter().map(|file| file.path.clone()).collect())
}

/// The repository of SD3.5 medium, abridged, with the duplicates that such repositories have.
const SD3: &[&str] = &[
    ".gitattributes",
    "LICENSE.md",
    "README.md",
    "mmdit.png",
    "model_index.json",
    "scheduler/scheduler_config.json",
    "sd3.5_medium.safetensors",
    "text_encoder/config.json",
    "text_encoder/flax_model.msgpack",
    "text_encoder/model.fp16.safetensors",
    "text_encoder/model.safetensors",
    "text_encoder/pytorch_model.bin",
    "text_encoder_3/config.json",
    "text_encoder_3/model-00001-of-00002.safetensors",
    "text_encoder_3/model-00002-of-00002.safetensors",
    "text_encoder_3/model.fp16-00001-of-00002.safetensors",
    "text_encoder_3/model.fp16-00002-of-00002.safetensors",
    "text_encoder_3/model.safetensors.index.fp16.json",
    "text_encoder_3/model.safetensors.index.json",
    "text_encoder_3/pytorch_model.bin.index.json",
    "text_encoders/t5xxl_fp16.safetensors",
    "tokenizer/merges.txt",
    "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json",
    "tokenizer_3/spiece.model",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "transformer/onnx/model.onnx",
];
const COMPONENTS: &[&str] = &[
    "scheduler",
    "text_encoder",
    "text_encoder_3",
    "tokenizer",
    "tokenizer_3",
    "transformer",
    "vae",
];

#[test]
fn of_a_pipeline_its_folders_come_without_duplicates() {
    assert_eq!(
        taken(SD3, Some(COMPONENTS), None).unwrap(),
        [
            "LICENSE.md",
            "model_index.json",
            "scheduler/scheduler_config.json",
            "text_encoder/config.json",
            "text_encoder/model.safetensors",
            "text_encoder_3/config.json",
            "text_encoder_3/model-00001-of-00002.safetensors",
            "text_encoder_3/model-00002-of-00002.safetensors",
            "text_encoder_3/model.safetensors.index.json",
            "tokenizer/merges.txt",
            "tokenizer/tokenizer_config.json",
            "tokenizer/vocab.json",
            "tokenizer_3/spiece.model",
            "transformer/config.json",
            "transformer/diffusion_pytorch_model.safetensors",
        ]
    );
}

#[test]
fn a_variant_is_taken_where_there_is_one() {
    let taken = taken(SD3, Some(COMPONENTS), Some("fp16")).unwrap();
    let weights: Vec<&String> = taken.iter().filter(|it| it.contains(".safetensors")).collect();
    assert_eq!(
        weights,
        [
            "text_encoder/model.fp16.safetensors",
            "text_encoder_3/model.fp16-00001-of-00002.safetensors",
            "text_encoder_3/model.fp16-00002-of-00002.safetensors",
            "text_encoder_3/model.safetensors.index.fp16.json",
            "transformer/diffusion_pytorch_model.safetensors",
        ]
    );
}

#[test]
fn a_variant_that_nothing_has_is_refused_with_those_there_are() {
    let words = taken(SD3, Some(COMPONENTS), Some("bf16")).unwrap_err();
    assert!(
        words.contains("`bf16`") && words.contains("the variant `fp16`"),
        "{words}"
    );
    let words = taken(&["config.json", "model.safetensors"], None, Some("bf16")).unwrap_err();
    assert!(words.contains("leave the variant out"), "{words}");
}

#[test]
fn weights_of_a_variant_alone_must_be_asked_for() {
    let paths = &["vae/config.json", "vae/diffusion_pytorch_model.bf16.safetensors"];
    let words = taken(paths, Some(&["vae"]), None).unwrap_err();
    assert!(words.contains("`vae`") && words.contains("`bf16`"), "{words}");
    assert_eq!(taken(paths, Some(&["vae"]), Some("bf16")).unwrap(), paths);
}

#[test]
fn shards_of_earlier_diffusers_have_the_variant_behind_their_number() {
    for index in [
        "diffusion_pytorch_model.fp16.safetensors.index.json",
        "diffusion_pytorch_model.safetensors.fp16.index.json",
        "diffusion_pytorch_model.safetensors.index.fp16.json",
    ] {
        let paths = &[
            "diffusion_pytorch_model-00001-of-00002.fp16.safetensors",
            "diffusion_pytorch_model-00002-of-00002.fp16.safetensors",
            index,
        ];
        assert_eq!(taken(paths, None, Some("fp16")).unwrap(), paths);
    }
}

#[test]
fn an_index_with_shards_counts_before_a_single_file() {
    let paths = &[
        "model-00001-of-00001.safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
    ];
    let wanted = ["model-00001-of-00001.safetensors", "model.safetensors.index.json"];
    assert_eq!(taken(paths, None, None).unwrap(), wanted);
    assert_eq!(taken(&paths[1..], None, None).unwrap(), ["model.safetensors"]);
}

#[test]
fn a_repository_without_a_pipeline_is_taken_from_its_top() {
    let paths = &[
        "README.md",
        "config.json",
        "deep/model.safetensors",
        "lora.safetensors",
    ];
    assert_eq!(
        taken(paths, None, None).unwrap(),
        ["config.json", "lora.safetensors"]
    );
}

#[test]
fn a_model_of_pickles_alone_is_refused() {
    let paths = &["unet/config.json", "unet/diffusion_pytorch_model.bin"];
    let words = taken(paths, Some(&["unet"]), None).unwrap_err();
    assert!(
        words.contains("`diffusion_pytorch_model.bin` is a pickle"),
        "{words}"
    );
    assert!(words.contains("safe_serialization=True"), "{words}");
}

#[test]
fn a_repository_that_holds_no_model_is_refused() {
    let words = taken(&["LICENSE", "data/train.parquet"], None, None).unwrap_err();
    assert!(words.contains("no file of it is a model"), "{words}");
}

#[test]
fn components_are_the_pairs_of_an_index() {
    let index = br#"{"_class_name": "P", "vae": ["diffusers", "A"], "safety_checker": [null, null], "_x": ["a", "b"], "n": [1, 2]}"#;
    assert_eq!(component_names(index).unwrap(), ["vae"]);
    for index in [
        &b"[]"[..],
        b"<html>",
        br#"{"../..": ["a", "b"]}"#,
        br#"{"a/b": ["a", "b"]}"#,
    ] {
        assert!(
            component_names(index).is_err(),
            "{}",
            String::from_utf8_lossy(index)
        );
    }
}
