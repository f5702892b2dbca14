//! Runs under policies of activation checkpointing.

use crate::support::Place;

#[test]
fn a_run_leaves_the_same_numbers_and_weights_under_every_policy() {
    let run = |policy: &str| {
        let place = Place::new();
        place.succeed(&["train", "tiny.toml", "--set", &format!("checkpointing={policy}")]);
        let planned = place.path("runs/tiny/plan.json").exists();
        assert_eq!(planned, policy.contains("budget"), "{policy}");
        let weights = place.bytes("runs/tiny/weights/final.safetensors");
        (place.text("runs/tiny/metrics.jsonl"), weights)
    };
    let expected = run("{ policy = \"none\" }");
    for policy in [
        "{ policy = \"full\" }",
        "{ policy = \"attn-only\", split = true }",
        "{ policy = \"block-skip\", every = 2 }",
        "{ policy = \"every-nth-linear\", n = 3 }",
        "{ policy = \"regions\", save = [\"attention\", \"mlp:linear\"] }",
        "{ policy = \"budget\", peak_gib = 0.5 }",
    ] {
        assert!(run(policy) == expected, "{policy}");
    }
}

/// With experts, two micro-batches to an optimizer step, and guidance.
#[test]
fn a_run_with_experts_leaves_the_same_numbers_and_weights_under_every_policy() {
    let experts = "model.dit.moe={ experts = 4, top_k = 2, inner = 12, shared = 8 }";
    let pretrained = Place::bare();
    pretrained.succeed(&["pretrain", "tiny.toml", "--set", experts]);
    let weights = pretrained.bytes("tiny.safetensors");
    let run = |policy: &str| {
        let place = Place::bare();
        std::fs::write(place.path("tiny.safetensors"), &weights).unwrap();
        let policy = format!("checkpointing={policy}");
        let sets = [
            experts,
            "optimizer.gradient_accumulation=2",
            "sampling.guidance_scale=2.0",
            &policy,
        ];
        let mut arguments = vec!["train", "tiny.toml"];
        arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
        place.succeed(&arguments);
        let weights = place.bytes("runs/tiny/weights/final.safetensors");
        (place.text("runs/tiny/metrics.jsonl"), weights)
    };
    let expected = run("{ policy = \"none\" }");
    for policy in [
        "{ policy = \"attn-only\", split = true }",
        "{ policy = \"every-nth-linear\", n = 2 }",
        "{ policy = \"regions\", save = [\"moe:grouped_linear\", \"router\"] }",
        "{ policy = \"budget\", peak_gib = 0.5 }",
    ] {
        assert!(run(policy) == expected, "{policy}");
    }
}
