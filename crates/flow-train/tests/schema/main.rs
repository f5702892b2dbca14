//! The JSON schema with what the registries know: that it is committed as it is, and that it accepts the entries which
//! the program accepts.

mod places;

use flow_accel::{AccelerationError, AcceleratorRegistry, Slot};
use flow_config::AcceleratorEntry;
use flow_train::{Registries, schema, schema_text};
use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;

static REGISTRIES: LazyLock<Registries> = LazyLock::new(|| Registries::built_in().expect("different names"));
static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema = schema(&REGISTRIES);
    jsonschema::draft202012::new(&schema).expect("the schema is a schema")
});

/// What the schema says of a config with this in it.
fn schema_accepts(section: &str, content: Json) -> bool {
    VALIDATOR.is_valid(&json!({ "config_version": 1, section: content }))
}

/// What the program says of an entry; `None` if the accelerator refuses it for a reason of its own.
fn program_accepts(slot: Slot, entry: &Json) -> Option<bool> {
    let Ok(entry) = serde_json::from_value::<AcceleratorEntry>(entry.clone()) else {
        return Some(false);
    };
    match REGISTRIES.accelerators.build(&entry.name, &entry.params) {
        Ok(accelerator) => Some(accelerator.stage() == slot.takes()),
        Err(AccelerationError::Refused { .. }) => None,
        Err(_) => Some(false),
    }
}

fn check(slot: Slot, entry: &Json) {
    if let Some(expected) = program_accepts(slot, entry) {
        for content in [json!([entry]), entry.clone()] {
            let found = schema_accepts("acceleration", json!({ slot.name(): content }));
            assert_eq!(found, expected, "{slot}: {content}");
        }
    }
}

#[test]
fn the_committed_schema_is_up_to_date() {
    let committed = std::fs::read_to_string("../../configs/schema.json").expect("configs/schema.json");
    assert!(
        committed == schema_text(&REGISTRIES),
        "configs/schema.json is out of date: run `cargo xtask schema`"
    );
}

#[test]
fn the_schema_is_valid_by_its_own_standard_and_has_no_dangling_reference() {
    let schema = schema(&REGISTRIES);
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let text = schema.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().unwrap_or_default();
        assert!(schema.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn the_committed_configs_pass_and_lead_editors_to_the_schema() {
    let mut seen = 0;
    for entry in std::fs::read_dir("../../configs").expect("configs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        seen += 1;
        let name = path.display();
        let text = std::fs::read_to_string(&path).expect("text");
        // As Even Better TOML and Tombi read it: from the file's own folder.
        let directive = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("#:schema "));
        let schema =
            path.with_file_name(directive.unwrap_or_else(|| panic!("{name} has no `#:schema` line")));
        assert!(schema.is_file(), "{name}: {} is no file", schema.display());
        let document: toml::Table = text.parse().expect("TOML");
        let document = serde_json::to_value(document).expect("JSON");
        VALIDATOR
            .validate(&document)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert!(seen >= 7, "{seen} configs");
}

/// Parameters that every registered accelerator takes.
fn good_params(name: &str) -> Json {
    match name {
        "attention_backend" => json!({ "backend": "reference" }),
        "feature_cache" => good_policy("first_block"),
        "fused_kernels" => json!({ "mode": "regional" }),
        "low_precision" => json!({ "compute": "storage", "format": "fp8" }),
        _ => json!({}),
    }
}

/// The policies of `feature_cache`.
const POLICIES: [&str; 10] = [
    "auto",
    "first_block",
    "db_cache",
    "step_mask",
    "taylorseer",
    "magcache",
    "teacache",
    "easycache",
    "pyramid",
    "faster",
];

/// Parameters that `policy` takes, some of its own.
fn good_policy(policy: &str) -> Json {
    let mut params = match policy {
        "auto" => json!({ "target_error": 0.5, "order": 2 }),
        "first_block" => json!({ "threshold": 0.1, "per_batch": true }),
        "db_cache" => json!({ "front_blocks": 1, "mask": "1101", "order": 4, "basis": "newton" }),
        "step_mask" => json!({ "mask": "ultra", "compute_last": false }),
        "taylorseer" => json!({ "interval": 3, "compute_from": 20, "target": "velocity" }),
        "magcache" => json!({ "ratios": [1.0, 0.99], "retention": 0 }),
        "teacache" => json!({ "coefficients": [1, 0], "signal": "conditioning" }),
        "easycache" => json!({ "threshold": 1 }),
        "pyramid" => json!({ "spatial_every": 3, "timesteps": [0, 900.5] }),
        "faster" => json!({ "attention_weight": 0.25, "unconditional_every": 1 }),
        other => panic!("there is no policy {other}"),
    };
    params["policy"] = policy.into();
    params["warmup_steps"] = json!(2.0);
    params
}

#[test]
fn every_policy_of_the_cache_is_taken_by_program_and_schema_and_no_other_is() {
    for policy in POLICIES {
        let entry = json!({ "name": "feature_cache", "params": good_policy(policy) });
        assert_eq!(program_accepts(Slot::Rollout, &entry), Some(true), "{entry}");
        check(Slot::Rollout, &entry);
    }
    let kind = REGISTRIES
        .accelerators
        .kind("feature_cache")
        .expect("it is built in");
    let variants = kind.schema().as_value()["oneOf"].as_array().expect("policies");
    assert_eq!(variants.len(), POLICIES.len(), "every policy is tested");
}

#[test]
fn every_accelerator_stands_in_its_own_slot_with_its_own_parameters() {
    for kind in REGISTRIES.accelerators.kinds() {
        let entry = json!({ "name": kind.name(), "params": good_params(kind.name()) });
        for slot in Slot::ALL {
            let expected = kind.stage() == slot.takes();
            assert_eq!(program_accepts(slot, &entry), Some(expected), "{slot}: {entry}");
            check(slot, &entry);
        }
        let unknown = json!({ "name": kind.name(), "params": { "unheard_of": 1 } });
        assert_eq!(program_accepts(kind.stage().slot(), &unknown), Some(false));
        check(kind.stage().slot(), &unknown);
    }
}

#[test]
fn low_precision_takes_its_products_formats_and_gradients_and_no_others() {
    for (data_gradient, expected) in [
        (json!("run"), true),
        (json!("fp8"), true),
        (json!("bf16"), false),
        (json!(1), false),
    ] {
        let params = json!({ "compute": "fp8", "format": "fp8", "data_gradient": data_gradient });
        let entry = json!({ "name": "low_precision", "params": params });
        assert_eq!(program_accepts(Slot::Shared, &entry), Some(expected), "{entry}");
        check(Slot::Shared, &entry);
    }
    for (compute, format) in [
        ("storage", "fp8"),
        ("storage", "int8"),
        ("storage", "nf4"),
        ("storage", "int4"),
        ("fp8", "fp8"),
        ("int8", "int8"),
    ] {
        let params = json!({ "compute": compute, "format": format });
        let entry = json!({ "name": "low_precision", "params": params });
        let expected = format != "int4" && compute != "int8";
        assert_eq!(program_accepts(Slot::Shared, &entry), Some(expected), "{entry}");
        check(Slot::Shared, &entry);
    }
}

#[test]
fn ranges_hold_in_the_program_as_in_the_schema() {
    let cache = |key: &str, value: Json| json!({ "name": "feature_cache", "params": { "policy": "first_block", key: value } });
    for (key, value, expected) in [
        ("warmup_steps", json!(1000), true),
        ("warmup_steps", json!(1001), false),
        ("warmup_steps", json!(1.5), false),
        ("warmup_steps", json!(-1), false),
        ("max_consecutive", json!(1e3), true),
        ("threshold", json!(10), true),
        ("scope", json!("outside_sde_window"), true),
        ("scope", json!("inside"), false),
    ] {
        let entry = cache(key, value);
        assert_eq!(program_accepts(Slot::Rollout, &entry), Some(expected), "{entry}");
        check(Slot::Rollout, &entry);
    }
    let error = REGISTRIES.accelerators.build(
        "feature_cache",
        &serde_json::from_value(cache("warmup_steps", json!(1001))["params"].clone()).expect("a table"),
    );
    let error = error.expect_err("out of range").to_string();
    assert!(
        error.contains("`params.warmup_steps`") && error.contains("1000"),
        "{error}"
    );
}

#[test]
fn a_slot_without_accelerators_takes_the_empty_list_alone() {
    let schema = schema(&Registries {
        accelerators: AcceleratorRegistry::default(),
        ..Registries::built_in().expect("different names")
    });
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let with = |shared: Json| json!({ "config_version": 1, "acceleration": { "shared": shared } });
    assert!(validator.is_valid(&with(json!([]))));
    assert!(!validator.is_valid(&with(json!([{ "name": "attention_backend" }]))));
    assert!(!validator.is_valid(&with(json!({ "name": "attention_backend" }))));
}

#[test]
fn every_runtime_option_is_in_the_schema_with_its_type() {
    for option in flow_runtime::OPTIONS {
        let with = |value: Json| schema_accepts("runtime", json!({ "options": { option.path: value } }));
        assert!(!with(json!([])), "{}", option.path);
        let default = option.default.to_json();
        assert!(default.is_null() || with(default), "{}", option.path);
    }
    assert!(!schema_accepts(
        "runtime",
        json!({ "options": { "cubecl.autotune.lvel": "full" } })
    ));
}

fn names() -> impl Strategy<Value = String> {
    // The last but one has the Kelvin sign, whose lower case is an ASCII letter though it is none.
    let known: Vec<String> = (REGISTRIES.accelerators.kinds())
        .map(|kind| kind.name().to_owned())
        .chain([
            "torch_compile".into(),
            "fused-kernels".into(),
            "fused_\u{212a}ernels".into(),
            "".into(),
        ])
        .collect();
    (prop::sample::select(known), any::<u32>()).prop_map(|(name, upper)| {
        let letters = name.chars().enumerate();
        letters
            .map(|(index, letter)| match upper >> (index % 32) & 1 {
                0 => letter,
                _ => letter.to_ascii_uppercase(),
            })
            .collect()
    })
}

fn values() -> impl Strategy<Value = Json> {
    prop::sample::select(vec![
        json!(0),
        json!(1),
        json!(-1),
        json!(3.0),
        json!(0.5),
        json!(1000),
        json!(1001),
        json!(1e300),
        json!(true),
        json!(""),
        json!("cpu"),
        json!("x".repeat(101)),
        json!("first_block"),
        json!("regional"),
        json!("full"),
        json!("all_steps"),
        json!("outside_sde_window"),
        json!([]),
        json!({}),
        json!([1]),
        json!([1.0, 0.5]),
        json!([1.0, "0"]),
        json!(vec![1.0; 17]),
        json!("db_cache"),
        json!("step_mask"),
        json!("taylorseer"),
        json!("taylor_seer"),
        json!("magcache"),
        json!("teacache"),
        json!("easycache"),
        json!("pyramid"),
        json!("faster"),
        json!("newton"),
        json!("velocity"),
        json!("conditioning"),
        json!("ultra"),
        json!("1101"),
        json!("1121"),
    ])
}

fn keys() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "policy",
        "front_blocks",
        "mask",
        "order",
        "basis",
        "target",
        "compute_from",
        "interval",
        "retention",
        "ratios",
        "coefficients",
        "signal",
        "per_batch",
        "timesteps",
        "spatial_every",
        "attention_weight",
        "threshold",
        "warmup_steps",
        "max_consecutive",
        "compute_last",
        "scope",
        "backend",
        "mode",
        "other",
    ])
    .prop_map(str::to_owned)
}

fn params() -> impl Strategy<Value = Json> {
    let other =
        prop::sample::select(vec!["attention_backend", "fused_kernels", "fusion"]).prop_map(good_params);
    let cache = prop::sample::select(POLICIES.to_vec()).prop_map(good_policy);
    let base = prop_oneof![other, cache];
    let changes = prop::collection::vec((keys(), prop::option::of(values())), 0..3);
    (base, changes).prop_map(|(base, changes)| {
        let mut params = base;
        let table = params.as_object_mut().expect("a table");
        for (key, value) in changes {
            match value {
                Some(value) => drop(table.insert(key, value)),
                None => drop(table.remove(&key)),
            }
        }
        params
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn schema_and_program_accept_the_same_entries(
        rollout in any::<bool>(),
        name in names(),
        params in prop::option::of(params()),
        extra in prop::option::weighted(0.05, keys()),
    ) {
        let mut entry = BTreeMap::from([("name".to_owned(), json!(name))]);
        entry.extend(params.map(|params| ("params".to_owned(), params)));
        entry.extend(extra.map(|key| (key, json!(1))));
        check(if rollout { Slot::Rollout } else { Slot::Shared }, &json!(entry));
    }
}
