//! Guidance of Qwen-Image against computations in f64, token by token in diffusers' order.

mod common;

use burn::backend::{AutodiffBackend, Dispatch};
use burn::tensor::Tensor;
use common::{folder, host, models, pack};
use flow_core::autograd::backward_from;
use flow_core::cpu;
use flow_core::device::ComputeDevice;
use flow_core::tensors::{leaf, plain};
use flow_pipeline::{GuidanceRule, Pipeline, Size};

/// Axes of the latents: no two are alike.
const AXES: [usize; 3] = [16, 10, 6];
/// Values of a latent.
const VALUES: usize = 16 * 10 * 6;
/// Values of a token.
const TOKEN: usize = 64;
const SCALE: f64 = 3.5;

fn rule(name: &str) -> GuidanceRule {
    let folder = folder(name);
    let pipeline = Pipeline::open(folder.path(), None).unwrap();
    let size = Size::picture(48, 80);
    let model = pipeline.transformer(size, &models(), &ComputeDevice::cpu());
    GuidanceRule::of(model.unwrap().spec())
}

/// Two latents of numbers without order.
fn numbers(factor: f64) -> Vec<f32> {
    let number = |at: usize| ((at as f64 * factor).sin() * 2.0 + 0.3) as f32;
    (0..2 * VALUES).map(number).collect()
}

fn on_device(values: &[f32]) -> Tensor<2> {
    ComputeDevice::cpu().tensor(values.to_vec(), [2, VALUES])
}

/// Tokens of two latents, in f64.
fn tokens(values: &[f32]) -> Vec<Vec<f64>> {
    let packed = pack(values, AXES);
    let token = |token: &[f32]| token.iter().map(|value| f64::from(*value)).collect();
    packed.chunks(TOKEN).map(token).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `u + s (c - u)`.
fn combined(c: &[f64], u: &[f64]) -> Vec<f64> {
    c.iter().zip(u).map(|(c, u)| u + SCALE * (c - u)).collect()
}

fn assert_near(found: &[f64], wanted: impl Iterator<Item = f64>) {
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < 2e-5, "{found} {wanted}");
    }
}

#[test]
fn every_token_is_as_long_as_the_conditional_branch_has_it() {
    let (conditional, unconditional) = (numbers(0.77), numbers(1.31));
    let found = rule("qwen-image").combine(on_device(&conditional), on_device(&unconditional), SCALE as f32);
    let branches = tokens(&conditional).into_iter().zip(tokens(&unconditional));
    for ((c, u), found) in branches.zip(tokens(&host(&found))) {
        let combined = combined(&c, &u);
        let ratio = (dot(&c, &c) / dot(&combined, &combined)).sqrt();
        assert!(ratio < 0.9, "guidance without the rescale would be seen");
        assert_near(&found, combined.iter().map(|value| value * ratio));
    }
}

#[test]
fn its_gradients_are_those_of_the_rescaled_velocity() {
    let leaves = [0.77, 1.31].map(|factor| leaf(&plain(&on_device(&numbers(factor)).into_dispatch())));
    let [c, u] = leaves.clone().map(Tensor::from_dispatch);
    let output = rule("qwen-image").combine(c, u, SCALE as f32).into_dispatch();
    let cotangent = numbers(2.17);
    let given = plain(&on_device(&cotangent).into_dispatch());
    let mut gradients = backward_from(vec![output], vec![Some(given)]).unwrap();
    let mut gradient = |of: usize| {
        let found = <Dispatch as AutodiffBackend>::grad_remove(&leaves[of], &mut gradients);
        tokens(&cpu::to_host(&found.unwrap()))
    };
    let (of_c, of_u) = (gradient(0), gradient(1));
    let branches = tokens(&numbers(0.77)).into_iter().zip(tokens(&numbers(1.31)));
    let cotangents = tokens(&cotangent);
    for (token, ((c, u), g)) in branches.zip(cotangents).enumerate() {
        // v = m |c| / |m|, m = u + s (c - u).
        let m = combined(&c, &u);
        let (mm, mg) = (dot(&m, &m), dot(&m, &g));
        let ratio = (dot(&c, &c) / mm).sqrt();
        let of_m: Vec<f64> = m.iter().zip(&g).map(|(m, g)| ratio * (g - m * mg / mm)).collect();
        let through_length = mg / (dot(&c, &c) * mm).sqrt();
        let wanted = of_m
            .iter()
            .zip(&c)
            .map(|(of_m, c)| SCALE * of_m + c * through_length);
        assert_near(&of_c[token], wanted);
        assert_near(&of_u[token], of_m.iter().map(|of_m| (1.0 - SCALE) * of_m));
    }
}

#[test]
fn velocities_of_zeros_and_their_gradients_are_finite() {
    // A model that was not trained yet begins with them.
    let leaves = [(); 2].map(|()| leaf(&plain(&on_device(&[0.0; 2 * VALUES]).into_dispatch())));
    let [c, u] = leaves.clone().map(Tensor::from_dispatch);
    let output = rule("qwen-image").combine(c, u, SCALE as f32).into_dispatch();
    assert!(cpu::to_host(&plain(&output)).iter().all(|value| *value == 0.0));
    let given = plain(&on_device(&numbers(2.17)).into_dispatch());
    let mut gradients = backward_from(vec![output], vec![Some(given)]).unwrap();
    for leaf in &leaves {
        let found = <Dispatch as AutodiffBackend>::grad_remove(leaf, &mut gradients).unwrap();
        assert!(cpu::to_host(&found).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn other_pipelines_are_guided_along_a_line() {
    for name in ["sd3", "flux-dev", "wan"] {
        assert_eq!(rule(name), GuidanceRule::Linear, "{name}");
    }
    let (conditional, unconditional) = (numbers(0.77), numbers(1.31));
    let found =
        GuidanceRule::Linear.combine(on_device(&conditional), on_device(&unconditional), SCALE as f32);
    let branches = tokens(&conditional).into_iter().zip(tokens(&unconditional));
    for ((c, u), found) in branches.zip(tokens(&host(&found))) {
        assert_near(&found, combined(&c, &u).into_iter());
    }
}
