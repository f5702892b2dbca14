//! Weight files: round trips, shards, and everything that can be wrong with them.

#[path = "../../../../fuzz/checks/safetensors.rs"]
mod fuzz_safetensors;

use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::{FlowModel, Weights};
use flow_models::weights::{
    LoadReport, MODEL_CONFIG_KEY, Missing, Unknown, config_json, parse, save_tensors,
};
use flow_models::{Dit, ModelError, ModelRegistry, Position, StoredDtype, load, load_into, save};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn model() -> Dit {
    Dit::new(&small_dit(Position::Rope), &ComputeDevice::cpu()).unwrap()
}

fn values(weights: &Weights) -> Vec<Vec<f32>> {
    (0..weights.layout().len())
        .map(|index| weights.host(index))
        .collect()
}

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// Tensors by name and shape.
type Named = Vec<(String, Vec<usize>, Vec<f32>)>;

fn named(weights: &Weights) -> Named {
    let specs = weights.layout().specs().iter().enumerate();
    specs
        .map(|(index, spec)| (spec.name.clone(), spec.shape.clone(), weights.host(index)))
        .collect()
}

fn write(path: &Path, tensors: &Named) {
    let list = tensors.iter().enumerate();
    let list = list
        .map(|(key, (name, shape, _))| (name.clone(), shape.clone(), key))
        .collect();
    save_tensors(
        list,
        &|key| tensors[key].2.clone(),
        path,
        StoredDtype::F32,
        &none(),
    )
    .unwrap();
}

fn report(result: Result<impl std::fmt::Debug, ModelError>) -> LoadReport {
    match result {
        Err(ModelError::Mismatch(report)) => *report,
        other => panic!("no mismatch: {other:?}"),
    }
}

#[test]
fn weights_come_back_bit_for_bit_and_the_same_weights_give_the_same_bytes() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let weights = noisy_weights(model.layout(), &device);
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a.safetensors", "b.safetensors"].map(|name| directory.path().join(name));
    let metadata: BTreeMap<String, String> = (0..9)
        .map(|i| (format!("key {i}"), format!("value {i}")))
        .collect();
    for path in &paths {
        save(&weights, path, StoredDtype::F32, &metadata).unwrap();
    }
    assert_eq!(fs::read(&paths[0]).unwrap(), fs::read(&paths[1]).unwrap());
    let (back, loaded) = load(&model, &paths[0], &device).unwrap();
    assert_eq!(values(&back), values(&weights));
    assert_eq!(loaded.metadata["key 3"], "value 3");
    assert_eq!(loaded.metadata["format"], "pt");
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        2,
        "no temporary file is left"
    );
}

#[test]
fn half_precisions_round_to_nearest_even_and_widen_exactly() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let mut weights = noisy_weights(model.layout(), &device);
    let at = model.layout().position("norm_out.linear.bias").unwrap();
    let mut chosen = weights.host(at);
    // Halfway between two neighbours: 1 + 2^-8 for bf16, 1 + 2^-11 for f16, and the next halves up.
    chosen[..4].copy_from_slice(&[
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
    ]);
    let shape = model.layout().specs()[at].shape.clone();
    weights.set(at, device.plain(chosen, &shape)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("half.safetensors");
    let stored = |dtype| {
        save(&weights, &path, dtype, &none()).unwrap();
        load(&model, &path, &device).unwrap().0.host(at)
    };
    assert_eq!(stored(StoredDtype::Bf16)[..2], [1.0, 1.0 + 1.0 / 64.0]);
    assert_eq!(stored(StoredDtype::F16)[2..4], [1.0, 1.0 + 1.0 / 512.0]);
}

#[test]
fn a_value_beyond_half_precision_is_an_error_that_keeps_the_old_file() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let mut weights = noisy_weights(model.layout(), &device);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    save(&weights, &path, StoredDtype::F16, &none()).unwrap();
    let before = fs::read(&path).unwrap();
    let at = model.layout().position("proj_out.bias").unwrap();
    let shape = model.layout().specs()[at].shape.clone();
    weights
        .set(at, device.plain(vec![70_000.0; shape[0]], &shape))
        .unwrap();
    let error = save(&weights, &path, StoredDtype::F16, &none())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`proj_out.bias` holds 7e4, beyond the range of F16 (±6.5504e4)"),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        1,
        "no temporary file is left"
    );
}

#[test]
fn shards_load_through_their_index_and_through_their_directory() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let weights = noisy_weights(model.layout(), &device);
    let directory = tempfile::tempdir().unwrap();
    let tensors = named(&weights);
    let (first, second) = tensors.split_at(tensors.len() / 3);
    let mut map = serde_json::Map::new();
    for (name, part) in [
        ("model-1-of-2.safetensors", first),
        ("model-2-of-2.safetensors", second),
    ] {
        write(&directory.path().join(name), &part.to_vec());
        map.extend(part.iter().map(|(tensor, _, _)| (tensor.clone(), name.into())));
    }
    let (from_files, _) = load(&model, directory.path(), &device).unwrap();
    let index = directory.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let (from_index, _) = load(&model, &index, &device).unwrap();
    let (from_directory, _) = load(&model, directory.path(), &device).unwrap();
    for loaded in [from_files, from_index, from_directory] {
        assert_eq!(values(&loaded), values(&weights));
    }

    // The index puts one tensor into the wrong shard; then into a file outside of the directory.
    map["proj_out.bias"] = "model-1-of-2.safetensors".into();
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let report = report(load(&model, &index, &device));
    assert_eq!(report.misplaced.len(), 1);
    assert_eq!(report.misplaced[0].name, "proj_out.bias");
    map["proj_out.bias"] = "../elsewhere.safetensors".into();
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    let error = load(&model, &index, &device).unwrap_err().to_string();
    assert!(error.contains("a shard must lie beside its index"), "{error}");
}

#[test]
fn everything_that_is_wrong_is_told_at_once_and_nothing_is_loaded() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let mut tensors = named(&noisy_weights(model.layout(), &device));
    let at = |tensors: &Named, name: &str| tensors.iter().position(|it| it.0 == name).unwrap();
    let renamed = at(&tensors, "transformer_blocks.0.attn.to_q.weight");
    tensors[renamed].0 = "transformer_blocks.0.attn.to_query.weight".into();
    let gone = at(&tensors, "proj_out.bias");
    tensors.remove(gone);
    let reshaped = at(&tensors, "pos_embed.proj.weight");
    tensors[reshaped].1 = vec![24, 12];
    let doubled = tensors[at(&tensors, "norm_out.linear.bias")].clone();
    write(&directory.path().join("a-1-of-2.safetensors"), &tensors);
    write(&directory.path().join("a-2-of-2.safetensors"), &vec![doubled]);

    let mut weights = Weights::init(model.layout().clone(), 1, &device);
    let before = values(&weights);
    let report = report(load_into(&mut weights, directory.path()));
    assert_eq!(values(&weights), before);
    let to_q = "transformer_blocks.0.attn.to_q.weight".to_owned();
    let to_query = "transformer_blocks.0.attn.to_query.weight".to_owned();
    let unknown = Unknown {
        name: to_query.clone(),
        nearest: Some(to_q.clone()),
    };
    assert_eq!(report.unknown, [unknown]);
    let missing: Vec<&Missing> = report.missing.iter().collect();
    assert_eq!(missing.len(), 2);
    assert!(
        missing
            .iter()
            .any(|it| it.name == to_q && it.nearest.as_ref() == Some(&to_query))
    );
    assert!(
        missing
            .iter()
            .any(|it| it.name == "proj_out.bias" && it.nearest.is_none())
    );
    assert_eq!(report.misshapen[0].found, [24, 12]);
    assert_eq!(report.duplicated[0].files.len(), 2);
    assert_eq!(report.count(), 5);
    let text = report.to_string();
    for part in [
        "5 problems; nothing was loaded",
        "missing from the file (2):",
        "transformer_blocks.0.attn.to_query.weight (the model has `transformer_blocks.0.attn.to_q.weight`)",
        "pos_embed.proj.weight: the model has [24, 3, 2, 2], the file [24, 12]",
        "norm_out.linear.bias: ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_value_that_is_not_finite_is_named_with_its_place_in_every_precision() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    let good = noisy_weights(model.layout(), &device);
    for (dtype, value) in [
        (StoredDtype::F32, f32::NAN),
        (StoredDtype::Bf16, f32::INFINITY),
        (StoredDtype::F16, f32::NEG_INFINITY),
    ] {
        let mut weights = good.clone();
        let at = model
            .layout()
            .position("transformer_blocks.1.attn.to_v.weight")
            .unwrap();
        let mut values = weights.host(at);
        values[24 * 5 + 7] = value;
        values[24 * 6] = value;
        weights.set_host(at, values).unwrap();
        save(&weights, &path, dtype, &none()).unwrap();
        let report = report(load(&model, &path, &device));
        assert_eq!(report.count(), 1);
        let found = &report.not_finite[0];
        assert_eq!((&found.place[..], found.count), (&[5, 7][..], 2), "{dtype:?}");
        assert!(found.value.is_nan() == value.is_nan() && !found.value.is_finite());
        let text = report.to_string();
        assert!(text.contains("transformer_blocks.1.attn.to_v.weight: "), "{text}");
        assert!(text.contains("at [5, 7], the first of 2"), "{text}");
    }
    // The largest finite values are finite.
    let mut weights = good.clone();
    let at = model.layout().position("proj_out.bias").unwrap();
    let mut values = weights.host(at);
    values[0] = f32::MAX;
    values[1] = -f32::MIN_POSITIVE / 4.0;
    weights.set_host(at, values).unwrap();
    save(&weights, &path, StoredDtype::F32, &none()).unwrap();
    load(&model, &path, &device).unwrap();
}

#[test]
fn of_variants_in_a_folder_the_plain_one_is_taken_and_other_files_must_be_named() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (plain, half) = (
        noisy_weights(model.layout(), &device),
        Weights::init(model.layout().clone(), 3, &device),
    );
    save(
        &plain,
        &at("diffusion_pytorch_model.safetensors"),
        StoredDtype::F32,
        &none(),
    )
    .unwrap();
    save(
        &half,
        &at("diffusion_pytorch_model.fp16.safetensors"),
        StoredDtype::F16,
        &none(),
    )
    .unwrap();
    fs::write(at("._diffusion_pytorch_model.safetensors"), b"left by a system").unwrap();
    let (loaded, _) = load(&model, directory.path(), &device).unwrap();
    assert_eq!(values(&loaded), values(&plain));

    // A pipeline's folder stands for its transformer.
    let pipeline = tempfile::tempdir().unwrap();
    fs::create_dir(pipeline.path().join("transformer")).unwrap();
    fs::write(pipeline.path().join("model_index.json"), "{}").unwrap();
    save(
        &plain,
        &pipeline.path().join("transformer/a.safetensors"),
        StoredDtype::F32,
        &none(),
    )
    .unwrap();
    let (loaded, _) = load(&model, pipeline.path(), &device).unwrap();
    assert_eq!(values(&loaded), values(&plain));

    let several = tempfile::tempdir().unwrap();
    for name in ["one.safetensors", "other.safetensors"] {
        save(&plain, &several.path().join(name), StoredDtype::F32, &none()).unwrap();
    }
    let error = load(&model, several.path(), &device).unwrap_err().to_string();
    assert!(
        error.contains("name one of `one.safetensors`, `other.safetensors`"),
        "{error}"
    );
}

#[test]
fn weights_that_say_they_are_of_other_constants_are_refused_with_the_key() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    let weights = noisy_weights(model.layout(), &device);
    let said = config_json(&model).to_string();
    let metadata = BTreeMap::from([(MODEL_CONFIG_KEY.to_owned(), said.clone())]);
    save(&weights, &path, StoredDtype::F32, &metadata).unwrap();
    load(&model, &path, &device).unwrap();
    let other = Dit::new(&small_dit(Position::Sincos), &device).unwrap();
    let error = load(&other, &path, &device).unwrap_err().to_string();
    assert!(
        error.contains("`position` is \"rope\" there, and \"sincos\" here"),
        "{error}"
    );

    // The same of a folder's `config.json`, and of a file that lies beside one.
    save(&weights, &path, StoredDtype::F32, &none()).unwrap();
    fs::write(directory.path().join("config.json"), &said).unwrap();
    for path in [&path, directory.path()] {
        load(&model, path, &device).unwrap();
        let error = load(&other, path, &device).unwrap_err().to_string();
        assert!(error.contains("`position`"), "{error}");
    }
    let unknown = said.replacen('{', "{\"new_constant\":7,\"_private\":1,\"absent\":null,", 1);
    fs::write(directory.path().join("config.json"), unknown).unwrap();
    let error = load(&model, &path, &device).unwrap_err().to_string();
    assert!(
        error.contains("`new_constant` is 7 there, and no constant of this architecture"),
        "{error}"
    );
    assert!(
        !error.contains("absent") && !error.contains("_private"),
        "{error}"
    );
}

#[test]
fn names_of_a_wrapper_and_of_the_original_program_are_recognised() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    let tensors = named(&noisy_weights(model.layout(), &device));
    let hint = |rename: &dyn Fn(&str) -> String| {
        let renamed: Named = tensors
            .iter()
            .map(|(name, shape, values)| (rename(name), shape.clone(), values.clone()))
            .collect();
        write(&path, &renamed);
        report(load(&model, &path, &device)).hint
    };
    for prefix in ["module.", "_orig_mod.", "model.diffusion_model."] {
        let hint = hint(&|name| format!("{prefix}{name}")).unwrap();
        assert!(hint.contains(&format!("begins with `{prefix}`")), "{hint}");
    }
    let original = hint(&|name| name.replace("transformer_blocks", "joint_blocks")).unwrap();
    assert!(original.contains("from_single_file"), "{original}");
    assert_eq!(hint(&|name| name.replace("to_q", "to_query")), None);
}

#[test]
fn integers_are_no_weights() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    write(&path, &named(&noisy_weights(model.layout(), &device)));
    // The same bytes, called integers.
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
    let header = header.replacen("\"dtype\":\"F32\"", "\"dtype\":\"I32\"", 2);
    fs::write(
        &path,
        [&bytes[..8], header.as_bytes(), &bytes[8 + length..]].concat(),
    )
    .unwrap();
    let report = report(load(&model, &path, &device));
    assert_eq!(report.unreadable.len(), 2);
    assert!(
        report.to_string().contains("norm_out.linear.bias: I32"),
        "{report}"
    );
}

#[test]
fn damaged_files_and_wrong_paths_are_errors_with_their_cause() {
    let (model, device) = (model(), ComputeDevice::cpu());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    let error = || load(&model, &path, &device).unwrap_err().to_string();
    assert!(error().contains("cannot open `"), "{}", error());
    let nothing = load(&model, directory.path(), &device).unwrap_err().to_string();
    assert!(nothing.contains("holds no `*.safetensors`"), "{nothing}");

    save(
        &noisy_weights(model.layout(), &device),
        &path,
        StoredDtype::F32,
        &none(),
    )
    .unwrap();
    let whole = fs::read(&path).unwrap();
    let with = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        error()
    };
    assert!(with(&[]).contains("has 0 bytes, fewer than the 8"));
    assert!(with(&whole[..whole.len() - 4]).contains("it is truncated or damaged"));
    assert!(with(&whole[..100]).contains("it is truncated, or no safetensors file"));
    let archive = with(b"PK\x03\x04 a zip archive, as torch.save writes");
    assert!(archive.contains("it is a file of `torch.save`"), "{archive}");
    assert!(with(b"\x89PNG\r\n\x1a\n and more").contains("no safetensors file"));
    let twice = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let twice = [&(twice.len() as u64).to_le_bytes()[..], twice, &[0; 4]].concat();
    assert!(with(&twice).contains("names the tensor `a` twice"));
}

#[test]
fn an_unknown_architecture_is_an_error_that_lists_what_exists() {
    let mut registry = ModelRegistry::new();
    flow_models::register(&mut registry).expect("a new registry");
    let device = ComputeDevice::cpu();
    let error = |name, settings: &str| {
        let settings = serde_json::from_str(settings).unwrap();
        registry.build(name, &settings, &device).unwrap_err().to_string()
    };
    assert_eq!(
        error("mmdt", "{}"),
        "there is no architecture `mmdt`; available: dit, flux, mmdit, qwen-image, wan. The nearest name is `mmdit`"
    );
    let text = r#"{"latent": {"channels": 1, "height": 8, "width": 8, "depth": 2}}"#;
    let message = error("dit", text);
    assert!(
        message.contains("`latent.depth`") && message.contains("unknown field `depth`"),
        "{message}"
    );
    let text = r#"{"latent": {"channels": 1, "height": 8, "width": 8}, "patch": 2, "hidden": 8, "layers": 1, "heads": "two"}"#;
    let message = error("dit", text);
    assert!(
        message.contains("`heads`: invalid type: string \"two\""),
        "{message}"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_damage_to_a_real_file_makes_the_reader_panic(
        at in 0usize..400, value in any::<u8>(), keep in 0usize..700
    ) {
        let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]}}"#;
        let mut bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[1; 34]].concat();
        prop_assert!(parse(&bytes).is_ok());
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(keep);
        if let Ok(parsed) = parse(&bytes) {
            for tensor in parsed.tensors {
                let count: usize = tensor.shape.iter().product();
                prop_assert!(tensor.to_f32().is_none_or(|values| values.len() == count));
            }
        }
    }
}

/// What the fuzz target checks of any bytes holds for its seeds, however short they are cut and wherever a byte is another.
#[test]
fn the_seeds_of_the_fuzz_target_hold_whole_cut_and_changed() {
    let seeds = std::fs::read_dir(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/seeds/safetensors"
    ));
    let seeds: Vec<_> = seeds
        .expect("the seeds")
        .map(|entry| entry.expect("a seed").path())
        .collect();
    assert!(seeds.len() >= 4, "{seeds:?}");
    for seed in seeds {
        let whole = std::fs::read(&seed).expect("a seed");
        fuzz_safetensors::check(&whole);
        // 61 and 67 are prime, so that no regular text is met at the same places always.
        for at in (0..whole.len()).step_by(whole.len().div_ceil(61)) {
            fuzz_safetensors::check(&whole[..at]);
        }
        for (number, at) in (0..whole.len()).step_by(whole.len().div_ceil(67)).enumerate() {
            let mut changed = whole.clone();
            changed[at] = [b'"', b'[', 0, b'=', b'9', b'\n', 0xff][number % 7];
            fuzz_safetensors::check(&changed);
        }
    }
}
