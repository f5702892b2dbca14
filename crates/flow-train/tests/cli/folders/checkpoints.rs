//! Checkpoints of adapters on a diffusers folder, and variants of its weights.

use super::{LORA, adapter, place, train};
use crate::resume::{fraction, still_running};
use crate::support::contains;
use flow_report::CheckpointReader;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

#[test]
fn a_run_of_adapters_killed_at_any_moment_goes_on_from_checkpoints_without_the_base() {
    let place = place("sd3");
    let set = [&LORA[..], &["--set", "run.steps=3"]].concat();
    // Prompts are encoded, so that kills meet iterations.
    train(&place, &set);
    let begin = Instant::now();
    train(&place, &[&set[..], &["--set", "run.name=whole"]].concat());
    let length = begin.elapsed();
    let (mut kills, mut starts) = (0u32, 0u32);
    let arguments = [&["train", "folder.toml", "--set", "run.name=killed"], &set[..]].concat();
    loop {
        let begun = place.path("runs/killed/run.lock").exists();
        let resume: &[&str] = if begun { &["--resume", "latest"] } else { &[] };
        let mut command = place.command(&[&arguments[..], resume].concat());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        starts += 1;
        // After some kills it may come to its end.
        let wait = length.mul_f64(fraction(starts) * if kills < 6 { 1.0 } else { 100.0 });
        match still_running(command.spawn().unwrap(), wait) {
            Ok(mut child) => {
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
            }
            Err(outcome) => {
                assert_eq!(outcome.code, Some(0), "after {kills} kills: {outcome:#?}");
                break;
            }
        }
    }
    assert!(kills > 0);
    assert_eq!(
        place.text("runs/killed/metrics.jsonl"),
        place.text("runs/whole/metrics.jsonl")
    );
    assert!(
        adapter(&place, "killed") == adapter(&place, "whole"),
        "other weights"
    );

    // What is trained and its two moments, each as large as the exported adapter, and nothing of the base.
    let path = place.path("runs/killed/checkpoints/step-000003.ckpt");
    let reader = CheckpointReader::open(&path).unwrap();
    let held: u64 = reader.sections().iter().map(|section| section.bytes).sum();
    assert_eq!(held, 3 * adapter(&place, "killed").len() as u64);
    let base = fs::metadata(place.path("model/transformer/diffusion_pytorch_model.safetensors")).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < base.len() / 2, "{base:?}");
    // Nor is the base exported.
    let weights = place.files().into_iter();
    let weights = weights.filter(|file| file.starts_with("runs/killed/weights"));
    assert!(weights.clone().count() > 0);
    for file in weights {
        assert!(
            fs::metadata(place.path(&file)).unwrap().len() < base.len() / 4,
            "{file}"
        );
    }
}

#[test]
fn a_run_of_adapters_goes_on_with_the_folder_that_it_began_with_and_with_no_other() {
    let place = place("sd3");
    let first = [&LORA[..], &["--set", "run.steps=1"]].concat();
    train(&place, &first);
    let go_on = [&["train", "folder.toml", "--resume", "latest"][..], &LORA].concat();
    let weights = place.path("model/transformer/diffusion_pytorch_model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(&weights, &other).unwrap();
    contains(
        &place.fail(2, &go_on),
        &["model.weights", "BLAKE3", "the run has another model"],
    );
    fs::write(&weights, &whole).unwrap();

    // Nor with other settings of the autoencoder.
    let settings = place.path("model/vae/config.json");
    let text = fs::read_to_string(&settings).unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&text).unwrap();
    let factor = changed["scaling_factor"].as_f64().unwrap();
    changed["scaling_factor"] = (factor * 2.0).into();
    fs::write(&settings, changed.to_string()).unwrap();
    contains(
        &place.fail(2, &go_on),
        &["model.path", "vae/config.json", "BLAKE3"],
    );
    fs::write(&settings, &text).unwrap();

    // A copy elsewhere is the same folder; what it began with need not be there.
    fs::rename(place.path("model"), place.path("moved")).unwrap();
    contains(&place.fail(2, &go_on), &["model.path", "Check the path"]);
    train(
        &place,
        &[&LORA[..], &["--set", "model.path=moved", "--resume", "latest"]].concat(),
    );
}

#[test]
fn a_variant_in_shards_trains_as_the_plain_weights_that_it_has_the_values_of() {
    let place = place("sd3");
    train(&place, &LORA);
    for folder in ["transformer", "vae", "text_encoder"] {
        in_shards(&place.path(format!("model/{folder}")));
    }
    let variant = ["--set", "model.variant=half", "--set", "run.name=variant"];
    let said = train(&place, &[&LORA[..], &variant].concat());
    contains(&said, &["prompts: 6 encoded"]);
    assert_eq!(
        place.text("runs/variant/metrics.jsonl"),
        place.text("runs/folder/metrics.jsonl")
    );
    // Its identity is that of all shards.
    let shards = fs::read_dir(place.path("model/transformer")).unwrap();
    let shard = shards
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("-00002-of-00002"))
        .unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let go_on = [
        &["train", "folder.toml", "--resume", "latest"],
        &LORA[..],
        &variant,
    ]
    .concat();
    contains(
        &place.fail(2, &go_on),
        &["model.weights", "the files of", "BLAKE3"],
    );
}

/// Puts the weights of a folder into two shards of the variant `half`, as diffusers and transformers write them.
fn in_shards(folder: &Path) {
    let stem = ["diffusion_pytorch_model", "model"]
        .into_iter()
        .find(|stem| folder.join(format!("{stem}.safetensors")).is_file())
        .unwrap();
    let plain = folder.join(format!("{stem}.safetensors"));
    let bytes = fs::read(&plain).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let all = tensors.tensors();
    let mut map = serde_json::Map::new();
    for (number, part) in all.chunks(all.len().div_ceil(2)).enumerate() {
        let name = format!("{stem}.half-{:05}-of-00002.safetensors", number + 1);
        for (tensor, _) in part {
            map.insert(tensor.clone(), name.clone().into());
        }
        let part = part.iter().map(|(tensor, view)| (tensor.clone(), view));
        safetensors::serialize_to_file(part, None, &folder.join(name)).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    let index_name = format!("{stem}.safetensors.index.half.json");
    fs::write(folder.join(index_name), index.to_string()).unwrap();
    fs::remove_file(plain).unwrap();
}
