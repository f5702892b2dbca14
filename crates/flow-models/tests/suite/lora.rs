//! Adapters: choosing layers, training them alone, merging, and their files.

use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_core::{FlowModel, ParamKind, ParamLayout, Weights};
use flow_models::{
    Dit, DitConfig, Position, StoredDtype, Trained, add_lora, load_into, merge, save, trained_mask,
};
use std::collections::BTreeMap;
use std::sync::Arc;

fn targets(patterns: &[&str]) -> Vec<String> {
    patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
}

fn adapted(model: &Dit, patterns: &[&str], rank: usize, alpha: f32) -> (Arc<ParamLayout>, Vec<String>) {
    let mut layout = (**model.layout()).clone();
    let names = add_lora(model, &mut layout, &targets(patterns), rank, alpha).unwrap();
    (Arc::new(layout), names)
}

/// A model, its config, and weights of an adapted layout without any zero.
fn trained_adapters(rank: usize, alpha: f32) -> (Dit, DitConfig, Weights) {
    let device = ComputeDevice::cpu();
    let config = small_dit(Position::Rope);
    let model = Dit::new(&config, &device).unwrap();
    let (layout, _) = adapted(&model, &["to_q", "ff.net.2", "norm1.linear"], rank, alpha);
    let weights = noisy_weights(&layout, &device);
    (model, config, weights)
}

fn values(weights: &Weights) -> Vec<Vec<f32>> {
    (0..weights.layout().len())
        .map(|index| weights.host(index))
        .collect()
}

#[test]
fn targets_name_layers_by_their_end_or_with_stars() {
    let model = Dit::new(&small_dit(Position::Sincos), &ComputeDevice::cpu()).unwrap();
    let names = |patterns: &[&str]| adapted(&model, patterns, 2, 4.0).1;
    let both = ["transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_q"];
    assert_eq!(names(&["attn.to_q"]), both);
    assert_eq!(names(&["to_q", "*.to_q"]), both);
    assert_eq!(names(&["transformer_blocks.1.*"]).len(), 7);
    assert_eq!(
        names(&["attn.*0"]),
        [
            "transformer_blocks.0.attn.to_out.0",
            "transformer_blocks.1.attn.to_out.0"
        ]
    );
}

#[test]
fn every_linear_layer_is_found_by_a_star_and_no_table_is() {
    let model = Dit::new(&small_dit(Position::Sincos), &ComputeDevice::cpu()).unwrap();
    let (layout, names) = adapted(&model, &["*"], 2, 4.0);
    let matrices = model.layout().specs().iter().filter(|spec| spec.shape.len() == 2);
    let matrices: Vec<_> = matrices
        .map(|spec| spec.name.trim_end_matches(".weight"))
        .collect();
    let linears: Vec<_> = matrices
        .into_iter()
        .filter(|name| *name != "token_embed")
        .collect();
    assert_eq!(names, linears);
    assert_eq!(layout.adapters().count(), names.len());
}

#[test]
fn a_target_that_names_nothing_is_an_error_with_the_nearest_name() {
    let model = Dit::new(&small_dit(Position::Sincos), &ComputeDevice::cpu()).unwrap();
    let mut layout = (**model.layout()).clone();
    let mut error = |patterns: &[&str], rank, alpha| {
        let error = add_lora(&model, &mut layout, &targets(patterns), rank, alpha).unwrap_err();
        error.to_string()
    };
    let message = error(&["attn.to_q", "attn.to_qs", "q_proj"], 4, 8.0);
    assert!(
        message.contains("target `attn.to_qs` names no linear layer; did you mean `attn.to_q`?"),
        "{message}"
    );
    assert!(
        message.contains("target `q_proj` names no linear layer"),
        "{message}"
    );
    assert!(
        message.contains("transformer_blocks.*.ff.net.0.proj"),
        "{message}"
    );
    assert!(error(&["to_q"], 0, 8.0).contains("rank 0 must be between 1 and 4096"));
    assert!(error(&["to_q"], 4, f32::NAN).contains("alpha NaN must be a finite number above 0"));
    assert!(error(&[], 4, 8.0).contains("no targets"));
    assert_eq!(layout.len(), model.layout().len(), "nothing was added");
    add_lora(&model, &mut layout, &targets(&["to_q"]), 4, 8.0).unwrap();
    let again = add_lora(&model, &mut layout, &targets(&["*"]), 4, 8.0).unwrap_err();
    assert!(
        again
            .to_string()
            .contains("`transformer_blocks.0.attn.to_q` has an adapter already")
    );
}

#[test]
fn fresh_adapters_change_no_bit_of_the_velocity() {
    let device = ComputeDevice::cpu();
    let config = small_dit(Position::Rope);
    let model = Dit::new(&config, &device).unwrap();
    let base = noisy_weights(model.layout(), &device);
    let (layout, _) = adapted(&model, &["*"], 3, 6.0);
    let mut weights = Weights::init(layout, 1, &device);
    for (index, value) in base.stored().iter().enumerate() {
        weights.set(index, value.clone()).unwrap();
    }
    let input = || model_input(&config, &host_input(&config, 3), &device);
    assert_eq!(
        velocity(&model, &weights, input()),
        velocity(&model, &base, input())
    );
}

#[test]
fn without_adapters_the_base_model_answers() {
    let (model, config, weights) = trained_adapters(3, 6.0);
    let device = ComputeDevice::cpu();
    let mut base = Weights::init(model.layout().clone(), 0, &device);
    for index in 0..base.layout().len() {
        base.set(index, weights.stored()[index].clone()).unwrap();
    }
    let input = || model_input(&config, &host_input(&config, 3), &device);
    let rollout = InferencePass::new(&weights, plan()).without_adapters();
    let reference = host(model.velocity(&rollout.exec(CallContext::single(Stage::Rollout)), input()));
    assert_eq!(reference, velocity(&model, &base, input()));
    assert!(relative_distance(&velocity(&model, &weights, input()), &reference) > 1e-2);
}

#[test]
fn merged_weights_compute_what_the_adapters_did() {
    let (model, config, weights) = trained_adapters(5, 7.5);
    let device = ComputeDevice::cpu();
    let merged = merge(&weights, model.layout(), &device).unwrap();
    assert!(!merged.layout().has_adapters());
    let input = || model_input(&config, &host_input(&config, 3), &device);
    let (found, expected) = (
        velocity(&model, &merged, input()),
        velocity(&model, &weights, input()),
    );
    let distance = relative_distance(&found, &expected);
    assert!(distance <= 1e-6, "{distance:e}");
}

#[test]
fn only_the_adapters_of_a_frozen_base_get_a_gradient() {
    let (model, config, weights) = trained_adapters(3, 6.0);
    let device = ComputeDevice::cpu();
    let cotangent = device.plain(noise(2 * config.latent.values(), 9), &[2, config.latent.values()]);
    let gradients = |trained| {
        let trained = trained_mask(weights.layout(), trained).unwrap();
        let input = model_input(&config, &host_input(&config, 2), &device);
        velocity_and_gradients(&model, &weights, trained, input, &cotangent).1
    };
    for (trained, kind) in [
        (Trained::Lora, ParamKind::Adapter),
        (Trained::Full, ParamKind::Base),
    ] {
        for (spec, gradient) in weights.layout().specs().iter().zip(gradients(trained)) {
            assert_eq!(gradient.is_some(), spec.kind == kind, "{trained:?} {}", spec.name);
            assert!(
                gradient.is_none_or(|values| values.iter().any(|value| *value != 0.0)),
                "{}",
                spec.name
            );
        }
    }
    let error = trained_mask(model.layout(), Trained::Lora).unwrap_err();
    assert!(error.to_string().contains("none to train"));
}

#[test]
fn a_base_checkpoint_leaves_the_adapters_as_they_are() {
    let (model, _, weights) = trained_adapters(3, 6.0);
    let device = ComputeDevice::cpu();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("base.safetensors");
    let base = noisy_weights(model.layout(), &device);
    save(&base, &path, StoredDtype::F32, &BTreeMap::new()).unwrap();
    let mut adapted = Weights::init(weights.layout().clone(), 3, &device);
    let before = values(&adapted);
    let loaded = load_into(&mut adapted, &path).unwrap();
    assert_eq!(loaded.kept.len(), 2 * weights.layout().adapters().count());
    let after = values(&adapted);
    let split = model.layout().len();
    assert_eq!(after[..split], values(&base));
    assert_eq!(after[split..], before[split..]);
}
