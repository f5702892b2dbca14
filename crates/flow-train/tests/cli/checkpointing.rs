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
