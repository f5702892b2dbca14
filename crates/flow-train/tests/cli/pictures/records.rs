//! Training on records of the data set in latents: SFT on captioned pictures, offline DPO on pairs of them.

use super::{captions, picture, place};
use crate::support::{Place, contains};
use std::fs;

/// SFT of a LoRA on the pictures of `pictures`.
const SFT: &str = r#"config_version = 1

[run]
name = "sft"
steps = 2

[model]
path = "model"
width = 48
height = 64
frames = 1
finetune = "lora"

[lora]
rank = 2

[data]
kind = "images"
path = "pictures"

[text]
kind = "encoders"
tokens = 16

[algorithm]
kind = "sft"

[sampling]
prompts_per_step = 2
group_size = 1
micro_batch = 2

[optimizer]
learning_rate = 1e-2

[evaluation]
every = 0
"#;

/// Runs the command, and gives all that it says.
fn said(place: &Place, arguments: &[&str]) -> String {
    let outcome = place.run(arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    format!("{}{}", outcome.stdout, outcome.stderr)
}

#[test]
fn a_lora_is_trained_on_pictures_that_are_encoded_once_and_goes_on_with_the_same_ones_alone() {
    let place = place("sd3");
    captions(&place);
    fs::write(place.path("sft.toml"), SFT).unwrap();
    contains(&said(&place, &["check", "sft.toml"]), &["sft"]);
    assert!(
        !place.files().iter().any(|file| file.contains("latent-cache")),
        "a check encodes nothing"
    );
    let first = said(&place, &["train", "sft.toml"]);
    contains(&first, &["pictures: 3 encoded, 0 found encoded in"]);
    let more = ["train", "sft.toml", "--resume", "latest", "--set", "run.steps=3"];
    contains(
        &said(&place, &more),
        &["pictures: 0 encoded, 3 found encoded in", "resumed"],
    );
    // Another picture is another record.
    picture(&place.path("pictures/1.png"), 48, 64, 7);
    let other = ["train", "sft.toml", "--resume", "latest", "--set", "run.steps=4"];
    contains(&place.fail(2, &other), &["the pictures or captions are others"]);
    // What `pretrain` alone has, or rollouts.
    let buckets = ["check", "sft.toml", "--set", "data.buckets={ step = 16 }"];
    contains(&place.fail(2, &buckets), &["`data.buckets`", "pretrain"]);
}

#[test]
fn offline_dpo_learns_from_pairs_in_latents() {
    let place = place("sd3");
    let mut lines = String::new();
    for number in 0..3 {
        for (name, phase) in [("better", number), ("worse", number + 5)] {
            picture(&place.path(format!("{name}{number}.png")), 48, 64, phase);
        }
        lines.push_str(&format!(
            "{{\"prompt\": \"waves {number}\", \"chosen\": \"better{number}.png\", \"rejected\": \"worse{number}.png\"}}\n"
        ));
    }
    fs::write(place.path("pairs.jsonl"), lines).unwrap();
    fs::write(place.path("dpo.toml"), SFT).unwrap();
    let set = [
        "--set",
        "algorithm={ kind = \"offline-dpo\", reference = \"lora-off\" }",
        "--set",
        "data={ kind = \"preferences\", path = \"pairs.jsonl\" }",
        "--set",
        "sampling.group_size=2",
    ];
    let trained = said(&place, &[&["train", "dpo.toml"], &set[..]].concat());
    contains(&trained, &["pictures: 6 encoded"]);
    let metrics = place.text("runs/sft/metrics.jsonl");
    let first = metrics.lines().next().unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    // The adapters begin as nothing.
    let loss = first["loss"].as_f64().unwrap();
    assert!((loss - std::f64::consts::LN_2).abs() < 1e-4, "{first}");
    // Pairs are no captioned pictures.
    let wrong = [&["check", "dpo.toml"], &set[2..4]].concat();
    contains(&place.fail(2, &wrong), &["pairs of images"]);
}
