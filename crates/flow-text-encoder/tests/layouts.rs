//! Names and shapes at full size, without weights: what transformers 5.24.0 makes of each class on its `meta` device.

mod common;

use common::fixture;
use flow_text_encoder::AnyTextEncoder;
use serde_json::Value;
use std::collections::BTreeMap;

fn manifest(name: &str) -> Value {
    let text = std::fs::read(fixture(&format!("manifests/{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Shapes by name; numbered blocks are folded in the manifest.
fn shapes(manifest: &Value) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    for tensor in manifest["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let shape: Vec<usize> = serde_json::from_value(tensor["shape"].clone()).unwrap();
        match tensor.get("i") {
            None => drop(shapes.insert(name.to_owned(), shape)),
            Some(numbers) => {
                for number in numbers.as_array().unwrap() {
                    shapes.insert(name.replace("{i}", &number.to_string()), shape.clone());
                }
            }
        }
    }
    shapes
}

#[test]
fn the_layouts_of_published_encoders_have_their_names_shapes_and_counts() {
    for (name, class, values) in [
        (
            "clip-l-text-with-projection",
            "CLIPTextModelWithProjection",
            123_650_304,
        ),
        ("flux-clip-l-text", "CLIPTextModel", 123_060_480),
        (
            "clip-bigg-text-with-projection",
            "CLIPTextModelWithProjection",
            694_659_840,
        ),
        ("t5-xxl-encoder", "T5EncoderModel", 4_762_310_656),
        ("umt5-xxl-encoder", "UMT5EncoderModel", 5_680_910_336),
        (
            "qwen2.5-vl-7b",
            "Qwen2_5_VLForConditionalGeneration",
            7_070_619_136,
        ),
    ] {
        let manifest = manifest(name);
        let path = fixture(&format!("manifests/{name}.json"));
        let any = AnyTextEncoder::read(&path, &manifest["config"], Some(class)).unwrap();
        let encoder = any.encoder();
        assert_eq!(encoder.class_name(), class);
        let mut wanted = shapes(&manifest);
        wanted.retain(|name, _| !name.starts_with("visual.") && name != "lm_head.weight");
        let specs = encoder.layout().specs().iter();
        let found: BTreeMap<String, Vec<usize>> = specs
            .map(|spec| (spec.name.clone(), spec.shape.clone()))
            .collect();
        let differs = |name: &&String| found.get(*name) != wanted.get(*name);
        let differing: Vec<&String> = found.keys().chain(wanted.keys()).filter(differs).collect();
        assert!(differing.is_empty(), "{name}: {differing:?}");
        assert_eq!(encoder.layout().count_values(|_| true), values, "{name}");
    }
}

#[test]
fn a_config_that_describes_nothing_known_says_which_key_is_wrong_and_what_is_allowed() {
    let path = fixture("config.json");
    let refused = |name: &str, key: &str, value: Value| {
        let mut config = manifest(name)["config"].clone();
        let table = match config.get("text_config") {
            Some(_) => &mut config["text_config"],
            None => &mut config,
        };
        match value {
            Value::Null => drop(table.as_object_mut().unwrap().remove(key)),
            value => table[key] = value,
        }
        let read = AnyTextEncoder::read(&path, &config, None);
        read.map(drop).expect_err("refused").to_string()
    };
    let (clip, t5, qwen) = ("flux-clip-l-text", "t5-xxl-encoder", "qwen2.5-vl-7b");
    for (name, key, value, problem) in [
        (
            clip,
            "hidden_act",
            "relu".into(),
            "`hidden_act` is \"relu\"; allowed: \"quick_gelu\", \"gelu\"",
        ),
        (
            clip,
            "hidden_size",
            Value::Null,
            "`hidden_size` is missing; it must be a number from 1 to 65536",
        ),
        (
            clip,
            "hidden_size",
            770.into(),
            "it must be a multiple of `num_attention_heads` = 12",
        ),
        (
            clip,
            "num_hidden_layers",
            0.into(),
            "`num_hidden_layers` is 0; it must be a number from 1",
        ),
        (
            clip,
            "model_type",
            "bert".into(),
            "`model_type` is \"bert\"; allowed: \"clip_text_model\"",
        ),
        (
            t5,
            "feed_forward_proj",
            "relu".into(),
            "`feed_forward_proj` is \"relu\"; allowed: \"gated-gelu\"",
        ),
        (
            t5,
            "feed_forward_proj",
            Value::Null,
            "is missing, which means T5 1.0's",
        ),
        (
            t5,
            "relative_attention_num_buckets",
            30.into(),
            "it must be a multiple of 4",
        ),
        (
            t5,
            "relative_attention_max_distance",
            8.into(),
            "it must be above a quarter of the 32 buckets",
        ),
        (
            qwen,
            "num_key_value_heads",
            5.into(),
            "`text_config.num_key_value_heads` is 5; it must divide",
        ),
        (
            qwen,
            "use_sliding_window",
            true.into(),
            "this is not computed here, only `false`",
        ),
        (
            qwen,
            "rope_parameters",
            serde_json::json!({ "rope_type": "yarn", "rope_theta": 1e6 }),
            "has the type \"yarn\"; allowed: \"default\", \"mrope\"",
        ),
    ] {
        let error = refused(name, key, value);
        assert!(error.contains(problem), "{error}");
        assert!(error.contains("config.json"), "{error}");
    }
}

#[test]
fn the_flat_config_of_older_qwen_files_describes_the_same_encoder() {
    let path = fixture("config.json");
    let nested = manifest("qwen2.5-vl-7b")["config"].clone();
    let mut flat = nested["text_config"].clone();
    let table = flat.as_object_mut().unwrap();
    table.remove("rope_parameters");
    table.insert("rope_theta".into(), 1_000_000.0.into());
    table.insert(
        "rope_scaling".into(),
        serde_json::json!({ "type": "mrope", "mrope_section": [16, 24, 24] }),
    );
    table.insert("model_type".into(), "qwen2_5_vl".into());
    let read = |config: &Value| match AnyTextEncoder::read(&path, config, None).unwrap() {
        AnyTextEncoder::Qwen(encoder) => encoder.config().clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(&nested), read(&flat));
    assert_eq!(read(&flat).theta, 1e6);
}
