//! Names: taken once, found however they are written, answered with the nearest, told if they are there twice; and refusals.

use flow_registry::{NotFound, Refusal, Registry, nearest, nearest_within, repeated_key};
use serde::de::value::{Error, MapDeserializer, U32Deserializer};

fn colours() -> Registry<u32> {
    let mut registry = Registry::new("colour");
    for (name, value) in [("light-red", 1), ("blue", 2), ("dark_green", 3)] {
        registry.register(name, value).expect("free");
    }
    registry
}

#[test]
fn case_and_joints_of_words_are_no_difference() {
    let registry = colours();
    for name in ["light-red", "Light_Red", "LIGHT-RED"] {
        assert_eq!(registry.get(name), Some(&1), "{name}");
    }
    assert_eq!(
        registry.names().collect::<Vec<_>>(),
        ["blue", "dark_green", "light-red"]
    );
    assert_eq!(registry.values().copied().collect::<Vec<_>>(), [2, 3, 1]);
}

#[test]
fn a_name_is_taken_once() {
    let mut registry = colours();
    let error = registry.register("Dark-Green", 4).expect_err("taken").to_string();
    assert_eq!(
        error,
        "there is a colour `dark_green` already; register each name once"
    );
    assert_eq!(registry.get("dark-green"), Some(&3));
    assert!(registry.remove("blue", "is gone", "use red").is_err());
    let mut registry = Registry::new("algorithm");
    registry.register("nft", 1).expect("free");
    assert_eq!(
        registry.register("NFT", 2).expect_err("taken").to_string(),
        "there is an algorithm `nft` already; register each name once"
    );
}

#[test]
fn a_removed_name_says_what_to_write_until_it_is_registered_again() {
    let mut registry = colours();
    registry
        .remove("crimson", "is now light-red", "Write `light-red`")
        .expect("free");
    let Err(NotFound::Removed(removed)) = registry.find("Crimson") else {
        panic!("removed");
    };
    assert_eq!(
        removed.to_string(),
        "colour `Crimson` is now light-red. Write `light-red`"
    );
    registry.register("crimson", 5).expect("free");
    assert_eq!(registry.find("crimson"), Ok(&5));
}

#[test]
fn an_unknown_name_lists_what_there_is_and_the_nearest() {
    let error = colours().find("bleu").expect_err("unknown").to_string();
    assert_eq!(
        error,
        "there is no colour `bleu`; available: blue, dark_green, light-red. The nearest name is `blue`"
    );
    let error = Registry::<u32>::new("colour")
        .find("x")
        .expect_err("unknown")
        .to_string();
    assert_eq!(error, "there is no colour `x`; available: none");
}

#[test]
fn near_are_slips_parts_and_abbreviations() {
    for (asked, candidates, found) in [
        (
            "learning_rat",
            ["learning_rate", "warmup_steps"],
            Some("learning_rate"),
        ),
        ("gropo", ["nft", "grpo"], Some("grpo")),
        ("attn", ["mlp", "attention"], Some("attention")),
        ("wgmm", ["wgmma", "mma"], Some("wgmma")),
        ("cpuu", ["reference", "cpu"], Some("cpu")),
        ("ab", ["ac", "bb"], None),
        ("completely", ["different", "things"], None),
        ("", ["a", "b"], None),
    ] {
        assert_eq!(nearest(asked, candidates), found, "{asked}");
    }
}

#[test]
fn names_that_are_alike_by_nature_need_more() {
    let weights = ["blocks.0.attn.to_q.weight", "blocks.0.mlp.fc1.bias"];
    assert_eq!(
        nearest_within(0.9, "blocks.0.attn.to_k.weight", weights),
        Some(weights[0])
    );
    assert_eq!(nearest_within(0.9, "blocks.0.norm.weight", weights), None);
}

#[test]
fn a_refusal_says_why_and_what_to_change_if_it_knows() {
    let refusal = Refusal::new("`every` is 1, which reuses nothing", "Set it to 2 or more");
    assert_eq!(
        refusal.to_string(),
        "`every` is 1, which reuses nothing. Set it to 2 or more"
    );
    let refusal = Refusal::because("heads of 7 channels");
    assert_eq!(refusal.to_string(), "heads of 7 channels");
    assert_eq!(refusal.help, None);
}

#[test]
fn of_keys_that_are_there_again_the_first_is_told() {
    for (keys, expected) in [
        (vec!["a", "b", "B", "c"], None),
        // The deserializer refuses what was not read to its end.
        (vec!["a", "b", "b", "a", "b", "c"], Some("b")),
        (vec!["", ""], Some("")),
        (vec![], None),
    ] {
        let entries = keys.iter().zip(0u32..).map(|(key, value)| (*key, value));
        let found = repeated_key(MapDeserializer::<_, Error>::new(entries)).expect("keys are texts");
        assert_eq!(found.as_deref(), expected, "{keys:?}");
    }
    let error = repeated_key(U32Deserializer::<Error>::new(5)).expect_err("a number has no keys");
    assert!(error.to_string().contains("expected an object"), "{error}");
}
