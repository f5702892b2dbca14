//! Examples of values, which editors offer beside the defaults.

use serde_json::{Value as Json, json};

/// Examples for the keys of this crate: dotted path and value. The empty path is a whole config.
pub fn examples() -> Vec<(&'static str, Json)> {
    vec![
        (
            "",
            json!({
                "config_version": 1,
                "run": { "name": "bright", "steps": 20 },
                "data": { "kind": "digits" },
                "rewards": [{ "kind": "target-colour", "rgb": [1.0, 1.0, 1.0] }],
            }),
        ),
        ("run.name", json!("digits-grpo")),
        ("run.dir", json!("runs")),
        ("model.weights", json!("../assets/digits-dit.safetensors")),
        ("lora.targets", json!(["to_q", "to_k", "to_v", "to_out.0"])),
        (
            "rewards",
            json!([{ "kind": "digit-classifier", "weights": "built-in" }]),
        ),
        (
            "rewards",
            json!([
                { "kind": "shapes-rules", "mode": "all", "weight": 0.8 },
                { "kind": "jpeg-compressibility", "weight": 0.2 },
            ]),
        ),
        (
            "eval_rewards",
            json!([{ "kind": "digit-classifier", "name": "judge", "weights": "judge" }]),
        ),
        ("scheduler.noise_level", json!(0.7)),
        ("scheduler.noise_level", json!([0.9, 0.7, 0.5])),
        ("scheduler.shift", json!({ "kind": "static", "value": 3.0 })),
        (
            "scheduler.window",
            json!({ "kind": "random", "count": 2, "from": [0, 1, 2, 3] }),
        ),
        (
            "algorithm",
            json!({ "kind": "grpo", "clip_range": [-1e-3, 1e-3] }),
        ),
        ("algorithm", json!({ "kind": "nft" })),
        ("optimizer.schedule", json!({ "kind": "cosine", "steps": 600 })),
        ("ema.schedule", json!({ "kind": "constant", "decay": 0.99 })),
        ("checkpointing", json!({ "policy": "full" })),
    ]
}

/// Adds an example to what the schema says of the key at `path`. A path that the schema does not have is passed over.
pub fn add_example(schema: &mut Json, path: &str, example: Json) {
    let Some(place) = property(schema, path) else {
        return;
    };
    let Some(property) = schema.pointer_mut(&place).and_then(Json::as_object_mut) else {
        return;
    };
    let examples = property.entry("examples").or_insert_with(|| json!([]));
    if let Some(examples) = examples.as_array_mut() {
        examples.push(example);
    }
}

/// Where the schema of the key at `path` stands, as a JSON pointer.
fn property(schema: &Json, path: &str) -> Option<String> {
    let mut place = String::new();
    for key in path.split('.').filter(|key| !key.is_empty()) {
        if let Some(reference) = schema.pointer(&place)?["$ref"].as_str() {
            place = reference.strip_prefix('#')?.to_owned();
        }
        place.push_str(&format!("/properties/{key}"));
    }
    schema.pointer(&place).map(|_| place)
}
