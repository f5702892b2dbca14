//! What a DiT computes, against a plain f64 model on the host, and what the trainer relies on.

use crate::common::reference::{self, Weights64};
use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Stage, TrainingPass};
use flow_core::{CallContext, FlowModel, Weights};
use flow_models::{Dit, DitConfig, Position, initialize};
use std::sync::Arc;

fn to_f64(weights: &Weights) -> Weights64 {
    let specs = weights.layout().specs().iter().enumerate();
    specs
        .map(|(index, spec)| {
            let values = weights.host(index).into_iter().map(f64::from);
            (spec.name.clone(), values.collect())
        })
        .collect()
}

fn everything(weights: &Weights) -> Arc<[bool]> {
    vec![true; weights.layout().len()].into()
}

#[test]
fn the_velocity_is_that_of_a_plain_f64_model() {
    let device = ComputeDevice::cpu();
    for config in small_dits() {
        let model = Dit::new(&config, &device).unwrap();
        let weights = noisy_weights(model.layout(), &device);
        let input = host_input(&config, 3);
        let found = velocity(&model, &weights, model_input(&config, &input, &device));
        let expected = reference::velocity(&config, &to_f64(&weights), &input);
        let expected: Vec<f32> = expected.into_iter().map(|value| value as f32).collect();
        let distance = relative_distance(&found, &expected);
        assert!(distance < 1e-5, "{config:?}: {distance:e}");
    }
}

#[test]
fn every_weights_gradient_is_the_f64_models_difference_quotient() {
    let device = ComputeDevice::cpu();
    for config in small_dits() {
        let model = Dit::new(&config, &device).unwrap();
        let weights = noisy_weights(model.layout(), &device);
        let input = host_input(&config, 2);
        let cotangent = noise(input.x.len(), 2);
        let (_, gradients) = velocity_and_gradients(
            &model,
            &weights,
            everything(&weights),
            model_input(&config, &input, &device),
            &device.plain(cotangent.clone(), &[2, config.latent.values()]),
        );
        let base = to_f64(&weights);
        let mut compared = Vec::new();
        for (index, spec) in model.layout().specs().iter().enumerate() {
            let gradient = gradients[index].as_ref().expect(&spec.name);
            // The derivative along one random direction sees every value of the weight at once.
            let direction = noise(gradient.len(), 3000 + index as u64);
            let along = |step: f64| -> f64 {
                let mut moved = base.clone();
                let values = moved.get_mut(&spec.name).unwrap();
                for (value, direction) in values.iter_mut().zip(&direction) {
                    *value += step * f64::from(*direction);
                }
                let velocity = reference::velocity(&config, &moved, &input);
                let products = velocity.iter().zip(&cotangent);
                products.map(|(v, c)| v * f64::from(*c)).sum()
            };
            let step = 1e-5;
            let expected = (along(step) - along(-step)) / (2.0 * step);
            let terms = gradient.iter().zip(&direction);
            let terms: Vec<f64> = terms.map(|(g, d)| f64::from(*g) * f64::from(*d)).collect();
            let scale = terms.iter().map(|term| term * term).sum::<f64>().sqrt();
            compared.push((&spec.name, terms.iter().sum::<f64>(), expected, scale));
        }
        // Some gradients are zero but for rounding (softmax ignores a bias of the keys): what f32 leaves of them is
        // measured against the largest gradient.
        let largest = compared.iter().fold(0f64, |largest, it| largest.max(it.3));
        for (name, found, expected, scale) in compared {
            let error = (found - expected).abs();
            assert!(
                error <= 1e-5 * scale + 1e-6 * largest,
                "{config:?} {name}: {found} for {expected}, scale {scale}"
            );
        }
    }
}

#[test]
fn a_fresh_model_predicts_velocity_zero() {
    let device = ComputeDevice::cpu();
    for config in small_dits() {
        let model = Dit::new(&config, &device).unwrap();
        let weights = initialize(&model, model.layout(), 5, &device);
        let input = model_input(&config, &host_input(&config, 2), &device);
        assert!(
            velocity(&model, &weights, input)
                .iter()
                .all(|value| *value == 0.0)
        );
    }
}

#[test]
fn training_computes_the_rollouts_velocity_bit_for_bit_and_reruns_agree() {
    let device = ComputeDevice::cpu();
    for config in small_dits() {
        let model = Dit::new(&config, &device).unwrap();
        let weights = noisy_weights(model.layout(), &device);
        let host = host_input(&config, 5);
        let input = || model_input(&config, &host, &device);
        let cotangent = device.plain(noise(host.x.len(), 2), &[5, config.latent.values()]);
        let run = || velocity_and_gradients(&model, &weights, everything(&weights), input(), &cotangent);
        let (in_training, gradients) = run();
        assert_eq!(velocity(&model, &weights, input()), in_training, "{config:?}");
        assert_eq!(run(), (in_training, gradients), "{config:?}");
    }
}

#[test]
fn a_row_of_a_batch_does_not_depend_on_the_other_rows() {
    let device = ComputeDevice::cpu();
    for config in small_dits() {
        let model = Dit::new(&config, &device).unwrap();
        let weights = noisy_weights(model.layout(), &device);
        let all = host_input(&config, 7);
        let together = velocity(&model, &weights, model_input(&config, &all, &device));
        let (values, length) = (config.latent.values(), config.vocabulary.unwrap().length);
        for (row, together) in together.chunks(values).enumerate() {
            let alone = HostInput {
                x: all.x[row * values..][..values].to_vec(),
                sigma: vec![all.sigma[row]],
                tokens: all.tokens[row * length..][..length].to_vec(),
            };
            let alone = velocity(&model, &weights, model_input(&config, &alone, &device));
            assert_eq!(alone, together, "{config:?} row {row}");
        }
    }
}

#[test]
fn an_unconditional_model_needs_no_tokens() {
    let device = ComputeDevice::cpu();
    let conditional = small_dit(Position::Sincos);
    let config = DitConfig {
        vocabulary: None,
        ..conditional.clone()
    };
    let model = Dit::new(&config, &device).unwrap();
    let weights = noisy_weights(model.layout(), &device);
    let mut input = model_input(&conditional, &host_input(&conditional, 2), &device);
    input.condition.tokens = None;
    assert!(model.layout().position("token_embed.weight").is_err());
    assert!(
        velocity(&model, &weights, input)
            .iter()
            .all(|value| value.is_finite())
    );
}

#[test]
fn sizes_that_do_not_fit_are_named_with_what_is_allowed() {
    let device = ComputeDevice::cpu();
    let good = small_dit(Position::Rope);
    let error = |config: DitConfig| Dit::new(&config, &device).unwrap_err().to_string();
    let mut bad = good.clone();
    bad.hidden = 25;
    assert_eq!(
        error(bad),
        "settings of architecture `dit`: `hidden`: is 25; it must be a multiple of `heads` = 3"
    );
    let mut bad = good.clone();
    bad.latent.width = 5;
    assert!(error(bad).contains("`latent.width`: is 5; it must be a multiple of `patch` = 2"));
    let mut bad = good.clone();
    bad.hidden = 18;
    assert!(error(bad).contains("gives 6 channels a head; rotary positions need a multiple of 4"));
    let mut bad = good.clone();
    bad.patch = 0;
    assert!(error(bad).contains("`patch`: is 0; it must be between 1 and 64"));
    let mut bad = good.clone();
    bad.mlp_ratio = f64::NAN;
    assert!(error(bad).contains("`mlp_ratio`"));
    let mut bad = good;
    bad.latent.frames = 2;
    assert!(error(bad).contains("`latent.frames`: is 2"));
    let [.., mut bad] = small_dits();
    bad.moe.as_mut().unwrap().top_k = 6;
    assert!(error(bad).contains("`moe.top_k`: is 6; there are `moe.experts` = 5"));
}

#[test]
fn the_load_balance_is_a_number_per_row_that_trains_the_routers_and_a_dense_model_has_none() {
    let device = ComputeDevice::cpu();
    let [dense, .., config] = small_dits();
    let host_values = host_input(&config, 3);
    let balance = |config: &DitConfig, rows: &[usize]| {
        let model = Dit::new(config, &device).unwrap();
        let weights = noisy_weights(model.layout(), &device);
        let training = TrainingPass::new(&weights, plan(), everything(&weights));
        let exec = training.exec(CallContext::single(Stage::Training));
        let input = model_input(config, &host_values, &device).rows(rows);
        let balance = model.velocity_and_balance(&exec, input).1?;
        let gradients = training.gradients(&balance.clone().sum());
        let specs = model.layout().specs().iter().zip(gradients);
        let reached = specs.filter(|(_, gradient)| {
            let values = gradient.as_ref().map(flow_core::cpu::to_host);
            values.is_some_and(|values| values.iter().any(|value| *value != 0.0))
        });
        let reached: Vec<String> = reached.map(|(spec, _)| spec.name.clone()).collect();
        Some((host(balance), reached))
    };
    assert!(balance(&dense, &[0]).is_none());
    let (together, reached) = balance(&config, &[0, 1, 2]).unwrap();
    assert_eq!(together.len(), 3);
    for (row, found) in together.iter().enumerate() {
        assert_eq!(balance(&config, &[row]).unwrap().0, [*found], "row {row}");
        // Between an even load and all of it on as few experts as a token has.
        assert!((0.5..2.5).contains(found), "{found}");
    }
    for router in [
        "transformer_blocks.0.ff.router.weight",
        "transformer_blocks.1.ff.router.weight",
    ] {
        assert!(reached.iter().any(|name| name == router), "{reached:?}");
    }
    let last = ["transformer_blocks.1.ff.experts.up.weight", "proj_out.weight"];
    assert!(reached.iter().all(|name| !last.contains(&&**name)), "{reached:?}");
}
