//! What counts as the same computation, and what the table says.

use super::{Contender, agree, dtype, not_finite};
use serde_json::json;

#[test]
fn a_loss_or_gradients_that_lie_apart_are_refused_and_named() {
    let row = json!({ "policy": "full", "loss": 1.5, "gradient_norm": 0.25 });
    let near = json!({ "loss": 1.500001, "gradient_norm": 0.25 });
    assert!(agree(&row, &near, 1e-5).is_ok());
    for (theirs, what) in [
        (json!({ "loss": 1.51, "gradient_norm": 0.25 }), "loss"),
        (json!({ "loss": 1.5, "gradient_norm": 0.2 }), "gradient_norm"),
        (json!({ "loss": 1.5 }), "gradient_norm"),
        (json!({ "loss": f64::NAN, "gradient_norm": 0.25 }), "loss"),
    ] {
        let error = agree(&row, &theirs, 1e-5).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn where_a_peer_gives_gradients_that_are_not_finite_the_loss_has_to_agree() {
    let row = json!({ "policy": "full", "loss": 1.5, "gradient_norm": 0.25 });
    let theirs = |loss: f64| json!({ "loss": loss, "gradient_norm": null, "not_finite": ["to_q.weight"] });
    assert!(agree(&row, &theirs(1.5), 1e-5).is_ok());
    assert!(agree(&row, &theirs(1.6), 1e-5).is_err());
    assert_eq!(not_finite(&theirs(1.5)), ["to_q.weight"]);
}

#[test]
fn a_precision_that_the_peer_has_not_is_refused() {
    assert_eq!(dtype(&json!({ "device": "cpu" })).unwrap(), "f32");
    let cuda = json!({ "device": "cuda", "kernels": "cuda-bf16" });
    assert_eq!(dtype(&cuda).unwrap(), "bf16");
    for problem in [
        json!({ "device": "cpu", "kernels": "cpu-bf16" }),
        json!({ "device": "cuda" }),
    ] {
        assert!(dtype(&problem).is_err(), "{problem}");
    }
}

#[test]
fn ratios_are_ours_in_proportion_to_theirs() {
    let rows = [json!({
        "policy": "full", "wall_ms": [9.0, 10.0, 11.0], "measured": { "peak_bytes": 3_000_000 },
    })];
    let one = Contender {
        mode: "compile",
        policy: "full",
        question: json!({}),
        wall_ms: vec![40.0, 20.0, 10.0],
        peak_bytes: Some(4e6),
        not_finite: Vec::new(),
    };
    let found = one.json(&rows);
    assert_eq!(found["time_ratio"], 0.5);
    assert_eq!(found["peak_ratio"], 0.75);
}
