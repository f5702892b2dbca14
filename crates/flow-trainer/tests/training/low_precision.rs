//! Runs of adapters on frozen weights in low precision: exact on policy, resumed bit for bit, and of another policy.

use crate::support::{
    Left, Registries, RunTo, Visit, config, environment, registries, scramble, with_trainer,
};
use flow_attention::AttentionRegistry;
use flow_core::{LowPrecisionFormat, Weights};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::Silent;
use flow_trainer::trainer::LayerDrift;
use flow_trainer::{TrainError, Trainer, setup};
use std::path::Path;

/// The registries of a program.
fn with_accelerators() -> Registries {
    let mut found = registries();
    flow_accelerators::register(&mut found.accelerators, &AttentionRegistry::default())
        .expect("different names");
    found
}

/// An entry of `acceleration.shared` that widens weights.
fn entry(format: &str, keep: &str) -> String {
    computing("storage", format, keep)
}

/// An entry of `acceleration.shared`, with `more` parameters.
fn computing(compute: &str, format: &str, more: &str) -> String {
    format!(
        "acceleration.shared=[{{ name = \"low_precision\", params = {{ compute = \"{compute}\", format = \"{format}\"{more} }} }}]"
    )
}

/// A parameter of an entry whose products are in FP8.
const GRADIENTS: &str = ", data_gradient = \"fp8\"";

const LORA: [&str; 3] = [
    "model.finetune=\"lora\"",
    "lora.targets=[\"to_q\", \"to_v\"]",
    "algorithm.kl={ kind = \"mean\", beta = 0.1, reference = \"lora-off\" }",
];

/// A run in `root`, to iteration `until`.
fn run(overrides: &[&str], root: &Path, resume: bool, until: u64) -> Result<Left, TrainError> {
    let registries = with_accelerators();
    let run = RunTo { root, resume, until };
    with_trainer(&config(overrides), &environment(&registries), run)
}

/// Asserts that a run of three iterations had ratios of 1 and no other bits.
fn assert_is_exact(run: &Left, name: &str) {
    for key in ["on_policy/max_ratio_deviation", "on_policy/other_bits"] {
        let deviations = run.metrics.lines().filter_map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("a record");
            record.get(key)?.as_f64()
        });
        assert_eq!(deviations.collect::<Vec<_>>(), [0.0; 3], "{name}, {key}");
    }
}

#[test]
fn the_ratio_is_exactly_one_and_a_resumed_run_is_the_uninterrupted_one() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let go = |name: &str, entry: Option<&str>, resume, until| {
        let overrides: Vec<&str> = LORA.into_iter().chain(entry).collect();
        run(&overrides, &root.path().join(name), resume, until)
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let plain = go("plain", None, false, 3);
    let stored = LowPrecisionFormat::ALL.map(|format| ("storage", format.name(), ""));
    let products = [("fp8", "fp8", ""), ("fp8", "fp8", GRADIENTS)];
    let mut others = vec![plain.weights];
    for (compute, format, more) in stored.into_iter().chain(products) {
        let name = format!("{format}-{compute}-{}", more.len());
        let entry = computing(compute, format, more);
        let entry = Some(&*entry);
        let whole = go(&format!("{name}-whole"), entry, false, 3);
        assert_is_exact(&whole, &name);
        assert!(
            !others.contains(&whole.weights),
            "{name}: the policy, or its gradient, is another one"
        );
        others.push(whole.weights.clone());

        let parts = format!("{name}-parts");
        go(&parts, entry, false, 2);
        // The evaluation at the early end is not part of the whole run.
        let newest = root.path().join(&parts).join("run/checkpoints/step-000002.ckpt");
        std::fs::remove_file(&newest).expect("the run saved its end");
        assert_eq!(go(&parts, entry, true, 3), whole, "{name}");
    }
}

#[test]
fn a_decoupled_run_with_products_and_gradients_in_fp8_is_resumed_as_the_uninterrupted_one_with_every_policy_of_checkpointing()
 {
    let root = tempfile::tempdir().expect("a temporary directory");
    let products = computing("fp8", "fp8", GRADIENTS);
    let nft = [
        "model.finetune=\"lora\"",
        "lora.targets=[\"to_q\", \"to_v\"]",
        "algorithm={ kind = \"nft\", kl_beta = 0.01 }",
        "scheduler.dynamics=\"ode\"",
        &*products,
    ];
    let go = |name: &str, more: &[&str], resume, until| {
        run(&[&nft[..], more].concat(), &root.path().join(name), resume, until)
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let whole = go("whole", &[], false, 3);
    // What backward computes again has the bits of forward.
    let again = go("again", &["checkpointing.policy=\"full\""], false, 3);
    assert_eq!(again.weights, whole.weights);
    go("parts", &[], false, 2);
    let newest = root.path().join("parts/run/checkpoints/step-000002.ckpt");
    std::fs::remove_file(&newest).expect("the run saved its end");
    assert_eq!(go("parts", &[], true, 3), whole);
}

#[test]
fn a_run_of_all_weights_multiplies_in_fp8_with_a_ratio_of_exactly_one_and_is_resumed_as_the_uninterrupted_one()
 {
    let root = tempfile::tempdir().expect("a temporary directory");
    let go = |name: &str, overrides: &[&str], resume, until| {
        run(overrides, &root.path().join(name), resume, until)
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let mut others = vec![go("plain", &[], false, 3).weights];
    for (gradients, more) in [("run", ""), ("fp8", GRADIENTS)] {
        let products = computing("fp8", "fp8", more);
        let name = |part: &str| format!("{gradients}-{part}");
        let whole = go(&name("whole"), &[&*products], false, 3);
        assert_is_exact(&whole, gradients);
        assert!(
            !others.contains(&whole.weights),
            "{gradients}: the policy, or its gradient, is another one"
        );
        others.push(whole.weights.clone());
        let again = [&*products, "checkpointing.policy=\"full\""];
        let again = go(&name("again"), &again, false, 3);
        assert!(again.weights == whole.weights, "{gradients}: computed again");
        let parts = name("parts");
        go(&parts, &[&*products], false, 2);
        let newest = root.path().join(&parts).join("run/checkpoints/step-000002.ckpt");
        std::fs::remove_file(&newest).expect("the run saved its end");
        assert!(
            go(&parts, &[&*products], true, 3) == whole,
            "{gradients}: resumed"
        );
    }
}

/// How far the run's samples and blocks are from those with the weights of the file.
struct Drifts<'a> {
    exact: &'a Weights,
}

impl Visit for Drifts<'_> {
    type Output = (f64, Vec<LayerDrift>);

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) -> Self::Output {
        let mut trainer = trainer.set_up().expect("nothing refuses it");
        let run = trainer
            .drift_from(0, Some(self.exact), &mut Silent)
            .expect("it computes");
        (run.drift.latent_l1, trainer.layer_drift(self.exact, &mut Silent))
    }
}

#[test]
fn drift_from_other_weights_is_zero_without_a_difference_and_tells_what_each_block_loses() {
    let registries = with_accelerators();
    let environment = environment(&registries);
    let mut model = setup::model(&config(&LORA), &environment).unwrap_or_else(|error| panic!("{error}"));
    // With the seed of `with_trainer`.
    scramble(&mut model.weights, 11);
    let drifts = |entry: Option<&str>| {
        let overrides: Vec<&str> = LORA.into_iter().chain(entry).collect();
        let exact = &model.weights;
        with_trainer(&config(&overrides), &environment, Drifts { exact })
    };
    let (latents, blocks) = drifts(None);
    assert_eq!(latents, 0.0);
    assert_eq!(blocks.len(), 2);
    assert!(blocks.iter().all(|block| block.relative_l2 == 0.0), "{blocks:?}");
    let [(stored, of_stored), (products, of_products)] =
        ["storage", "fp8"].map(|compute| drifts(Some(&*computing(compute, "fp8", ""))));
    assert!(
        stored > 0.0 && products > 0.0 && products != stored,
        "{stored} and {products}"
    );
    for (stored, products) in of_stored.iter().zip(&of_products) {
        assert_eq!((&stored.stack, stored.block), (&products.stack, products.block));
        let [stored, products] = [stored.relative_l2, products.relative_l2];
        let is_small = |drift: f64| drift > 0.0 && drift < 0.5;
        assert!(
            is_small(stored) && is_small(products) && stored != products,
            "{stored} and {products}"
        );
    }
}

#[test]
fn a_run_does_not_go_on_with_weights_in_another_form() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let [fp8, int8, nf4] = ["fp8", "int8", "nf4"].map(|format| entry(format, ""));
    let products = computing("fp8", "fp8", "");
    let overrides = |entry| -> Vec<&str> { LORA.into_iter().chain(entry).collect() };
    run(&overrides(Some(&*fp8)), root.path(), false, 1).unwrap_or_else(|error| panic!("{error}"));
    for entry in [None, Some(&*int8), Some(&*nf4), Some(&*products)] {
        let resumed = run(&overrides(entry), root.path(), true, 2);
        let error = resumed.map(|left| left.metrics).expect_err("another policy");
        let text = error.to_string();
        assert!(text.contains("stored in another form"), "{text}");
    }
}

#[test]
fn weights_stay_as_they_are_where_all_are_trained_and_a_pattern_that_keeps_nothing_is_named() {
    let registries = with_accelerators();
    let environment = environment(&registries);
    let model = |overrides: &[&str]| setup::model(&config(overrides), &environment);

    let all = entry("int8", "");
    let stored = model(&[&LORA[..], &[&*all]].concat()).unwrap_or_else(|error| panic!("{error}"));
    let names = |parts: &setup::ModelParts| -> Vec<String> {
        let specs = parts.weights.layout().specs().iter().enumerate();
        specs
            .filter(|(index, _)| parts.weights.low_precision(*index).is_some())
            .map(|(_, spec)| spec.name.clone())
            .collect()
    };
    let found = names(&stored);
    assert!(!found.is_empty());
    assert!(found.iter().all(|name| name.ends_with(".weight")), "{found:?}");

    let kept = entry("int8", ", keep = [\"to_q\"]");
    let kept = model(&[&LORA[..], &[&*kept]].concat()).unwrap_or_else(|error| panic!("{error}"));
    let of_queries = |name: &&String| name.ends_with("to_q.weight");
    assert_eq!(found.iter().filter(of_queries).count(), 2, "{found:?}");
    assert_eq!(names(&kept).len() + 2, found.len());

    let wrong = entry("fp8", ", keep = [\"to_p\"]");
    let error = model(&[&LORA[..], &[&*wrong]].concat()).expect_err("a pattern that names nothing");
    assert!(
        error.to_string().contains("`to_p`, which names no layer"),
        "{error}"
    );

    let full = model(&[&*all]).unwrap_or_else(|error| panic!("{error}"));
    assert!(names(&full).is_empty());
    let refused = setup::common(&config(&[&*all]), &environment)
        .map(|_| ())
        .expect_err("all weights are trained");
    assert!(refused.to_string().contains("trains all of them"), "{refused}");
}
