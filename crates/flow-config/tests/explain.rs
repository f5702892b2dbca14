//! What `explain` says of keys.

use flow_config::find_key;
use test_catalog::{all_keys, explain};

#[test]
fn every_key_is_documented() {
    let keys = all_keys();
    assert!(keys.len() > 150, "{}", keys.len());
    for key in keys {
        let doc = explain(&key).unwrap_or_else(|| panic!("{key} is not found"));
        assert!(doc.docs.len() > 10, "{key}: {:?}", doc.docs);
        assert!(!doc.type_name.is_empty(), "{key}");
        assert_eq!(doc.path, key);
    }
}

#[test]
fn a_key_of_tables_that_differ_from_variant_to_variant_has_the_words_of_each() {
    let docs = explain("algorithm.train_timesteps.count").expect("known").docs;
    let lines: Vec<&str> = docs.lines().collect();
    let [of_images, of_pairs, of_records] = lines[..] else {
        panic!("{docs}");
    };
    assert!(
        of_images.contains("per image") && of_pairs.contains("per pair") && of_records.contains("per record"),
        "{docs}"
    );
}

#[test]
fn a_number_has_its_range_and_default() {
    let doc = explain("optimizer.learning_rate").expect("known");
    assert_eq!(
        (doc.type_name.as_str(), doc.range.as_str()),
        ("a number", "above 0 and at most 1")
    );
    assert_eq!(doc.default, Some(1e-4.into()));
    assert!(!doc.required);
    let text = doc.to_string();
    assert!(
        text.contains("type:    a number, above 0 and at most 1"),
        "{text}"
    );
    assert!(text.contains("default: 0.0001"), "{text}");
}

#[test]
fn a_choice_has_its_values_with_their_meaning() {
    let doc = explain("scheduler.dynamics").expect("known");
    let names: Vec<_> = doc.allowed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["flow-sde", "dance-sde", "cps", "ode"]);
    assert!(doc.allowed.iter().all(|(_, meaning)| !meaning.is_empty()));
}

#[test]
fn a_variant_key_lists_the_variants() {
    let doc = explain("algorithm.kind").expect("known");
    assert_eq!(doc.allowed.len(), 15);
    assert!(doc.required);
    let doc = explain("rewards.kind").expect("known");
    assert_eq!(doc.allowed.len(), 17);
}

#[test]
fn a_key_of_some_variants_names_them() {
    assert_eq!(
        explain("algorithm.clip_range").expect("known").variants,
        [
            "kind = \"awm\"",
            "kind = \"dgpo\"",
            "kind = \"gardo\"",
            "kind = \"grpo\"",
            "kind = \"grpo-guard\""
        ]
    );
    assert_eq!(
        explain("rewards.rgb").expect("known").variants,
        ["kind = \"target-colour\""]
    );
    assert!(explain("rewards.weight").expect("known").variants.is_empty());
}

#[test]
fn a_section_lists_its_keys() {
    let doc = explain("sampling").expect("known");
    let names: Vec<_> = doc.keys.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "group_size",
            "prompts_per_step",
            "micro_batch",
            "guidance_scale",
            "embedded_guidance_scale",
            "initial_noise",
            "sizes",
            "sizes_of_prompts",
            "branching",
            "staleness"
        ]
    );
}

#[test]
fn indices_and_brackets_may_stand_in_the_path() {
    assert_eq!(explain("rewards.0.weight"), explain("rewards.weight"));
    assert_eq!(explain("[[rewards]]"), explain("rewards"));
}

#[test]
fn a_key_without_its_section_can_be_found() {
    assert_eq!(
        find_key(&test_catalog::CATALOG, "max_grad_norm"),
        ["optimizer.max_grad_norm"]
    );
    assert_eq!(find_key(&test_catalog::CATALOG, "run"), ["run"]);
    assert!(find_key(&test_catalog::CATALOG, "nothing").is_empty());
    for unknown in ["nothing", "", ".", "run.nothing", "run.seed.deeper", "0"] {
        assert_eq!(explain(unknown), None, "{unknown}");
    }
}
