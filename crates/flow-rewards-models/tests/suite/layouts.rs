//! Names and shapes of the published networks at full size, without weights: what transformers 5.24.0 makes of their configs on its
//! `meta` device.

use crate::common::fixture;
use flow_text_encoder::weights::Role;
use flow_text_encoder::{ClipConfig, ClipText, ClipVision, ClipVisionConfig, TextEncoder};
use serde_json::Value;
use std::collections::BTreeMap;

/// Shapes by name; numbered blocks are folded in the manifest.
fn shapes(manifest: &Value) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    for tensor in manifest["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let shape: Vec<usize> = serde_json::from_value(tensor["shape"].clone()).unwrap();
        let numbers = tensor.get("i").and_then(Value::as_array);
        let numbers = numbers.map_or(&[Value::Null][..], Vec::as_slice);
        shapes.extend(
            numbers
                .iter()
                .map(|number| (name.replace("{i}", &number.to_string()), shape.clone())),
        );
    }
    shapes
}

#[test]
fn both_towers_have_the_names_shapes_and_counts_of_the_published_clips() {
    for (name, values) in [
        ("clip-vit-l-14", 427_616_513),
        ("pickscore-vit-h-14", 986_109_441),
    ] {
        let path = fixture(&format!("manifests/{name}.json"));
        let manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let config = &manifest["config"];
        let text = ClipText::new(ClipConfig::read(&path, config, None).unwrap());
        let vision = ClipVision::new(ClipVisionConfig::read(&path, config).unwrap());
        let wanted = shapes(&manifest);
        let specs = text.layout().specs().iter().chain(vision.layout().specs());
        let mut found: BTreeMap<String, Vec<usize>> = specs
            .map(|spec| (spec.name.clone(), spec.shape.clone()))
            .collect();
        found.insert("logit_scale".into(), Vec::new());
        let differs = |name: &&String| found.get(*name) != wanted.get(*name);
        let differing: Vec<&String> = found.keys().chain(wanted.keys()).filter(differs).collect();
        assert!(differing.is_empty(), "{name}: {differing:?}");
        let count: usize = wanted.values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(count, values, "{name}");
        // Each tensor is one tower's.
        for name in wanted.keys().filter(|name| *name != "logit_scale") {
            let roles = [text.role(name), vision.role(name)];
            let owned = roles.iter().filter(|role| **role == Role::Weight(name.clone()));
            let ignored = roles.iter().filter(|role| **role == Role::Ignored);
            assert_eq!((owned.count(), ignored.count()), (1, 1), "{name}");
        }
    }
}
