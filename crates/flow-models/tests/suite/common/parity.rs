//! Comparing a model with what diffusers wrote: inputs, output, a cotangent of the output, and all gradients under it.

use super::{plan, relative_distance, tracked};
use burn::backend::{AutodiffBackend, Dispatch};
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, Stage, TrainingPass};
use flow_core::tensors::plain;
use flow_core::{Condition, FlowModel, ModelInput, ParamKind, Weights, cpu};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Relative Euclidean distance that f32 rounding may cause.
const TOLERANCE: f64 = 1e-5;

/// Tensors by name, with their shapes.
pub type Named = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// One of them on the device.
pub fn tensor<const D: usize>(
    device: &ComputeDevice,
    io: &Named,
    name: &str,
    shape: [usize; D],
) -> Tensor<D> {
    device.tensor(io[name].1.clone(), shape)
}

/// The noise levels of the fixture's timesteps.
pub fn noise_levels(device: &ComputeDevice, io: &Named) -> Tensor<1> {
    let timesteps = &io["in.timestep"].1;
    let sigma: Vec<f32> = timesteps.iter().map(|timestep| timestep / 1000.0).collect();
    // Nothing of the comparison may hang on the conversion between the two scales.
    let back: Vec<f32> = sigma.iter().map(|sigma| sigma * 1000.0).collect();
    assert_eq!(&back, timesteps);
    let count = sigma.len();
    device.tensor(sigma, [count])
}

/// Tokens of text in each row of a fixture whose model is given a mask, of which the last ones may be 0.
pub fn text_lengths(io: &Named) -> Option<Arc<[usize]>> {
    let (shape, mask) = io.get("in.encoder_hidden_states_mask")?;
    let length = |row: &[f32]| {
        let length = row.iter().take_while(|it| **it == 1.0).count();
        assert!(row[length..].iter().all(|it| *it == 0.0), "padding is behind");
        length
    };
    Some(mask.chunks(shape[1]).map(length).collect())
}

/// A fixture of a model whose latents are packed outside of it, with `hidden_states`, `out` and what belongs to them unpacked, from
/// `[B, rows · columns, 4 · C]` to `[B, C, 2 · rows, 2 · columns]`: token `y · columns + x`, channel `4 · c + 2 · dy + dx`
/// (diffusers' `FluxPipeline._pack_latents`).
pub fn unpacked(mut io: Named, rows: usize, columns: usize) -> Named {
    let tokens = rows * columns;
    let is_latent =
        |name: &str| ["in.hidden_states", "grad_in.hidden_states"].contains(&name) || name.contains("out");
    let latents = io
        .iter_mut()
        .filter(|(name, (shape, _))| is_latent(name) && shape.len() == 3 && shape[1] == tokens);
    for (_, (shape, values)) in latents {
        let (batch, packed) = (shape[0], shape[2]);
        let channels = packed / 4;
        let mut unpacked = Vec::with_capacity(values.len());
        for b in 0..batch {
            for channel in 0..channels {
                for row in 0..2 * rows {
                    for column in 0..2 * columns {
                        let token = row / 2 * columns + column / 2;
                        let at = 4 * channel + 2 * (row % 2) + column % 2;
                        unpacked.push(values[(b * tokens + token) * packed + at]);
                    }
                }
            }
        }
        *shape = vec![batch, channels, 2 * rows, 2 * columns];
        *values = unpacked;
    }
    io
}

fn assert_near(name: &str, tolerance: f64, found: &[f32], expected: &[f32]) {
    let distance = relative_distance(found, expected);
    assert!(distance <= tolerance, "{name}: {distance:e}");
}

/// That the output, and the gradients of every input and weight, are those of the fixture.
pub fn check_parity(model: &dyn FlowModel, weights: &Weights, input: ModelInput, io: &Named) {
    check_parity_within(TOLERANCE, model, weights, input, io);
}

/// As [`check_parity`], with another tolerance for gradients.
pub fn check_parity_within(
    of_gradients: f64,
    model: &dyn FlowModel,
    weights: &Weights,
    input: ModelInput,
    io: &Named,
) {
    let device = ComputeDevice::cpu();
    let Condition {
        text,
        text_lengths,
        pooled,
        guidance,
        ..
    } = input.condition;
    let (x, text, pooled) = (tracked(input.x), text.map(tracked), pooled.map(tracked));
    let shape = x.dims();
    let specs = model.layout().specs();
    let trained: Arc<[bool]> = specs.iter().map(|spec| spec.kind == ParamKind::Base).collect();
    let training = TrainingPass::new(weights, plan(), trained);
    let exec = training.exec(CallContext::single(Stage::Training));
    let input = ModelInput {
        x: x.clone(),
        sigma: input.sigma,
        condition: Condition {
            tokens: None,
            text: text.clone(),
            text_lengths,
            pooled: pooled.clone(),
            guidance,
        },
    };
    let output = model.velocity(&exec, input).into_dispatch();
    assert_near("output", TOLERANCE, &cpu::to_host(&plain(&output)), &io["out"].1);

    let cotangent = device.plain(io["grad_out"].1.clone(), &shape);
    let mut gradients = flow_core::autograd::backward_from(vec![output], vec![Some(cotangent)]).unwrap();
    let leaves = [
        ("hidden_states", Some(x.into_dispatch())),
        ("encoder_hidden_states", text.map(Tensor::into_dispatch)),
        ("pooled_projections", pooled.map(Tensor::into_dispatch)),
    ];
    for (name, leaf) in leaves {
        let expected = io.get(&format!("grad_in.{name}"));
        assert_eq!(leaf.is_some(), expected.is_some(), "{name}");
        if let (Some(leaf), Some((_, expected))) = (leaf, expected) {
            let found = <Dispatch as AutodiffBackend>::grad_remove(&leaf, &mut gradients).expect(name);
            assert_near(name, of_gradients, &cpu::to_host(&found), expected);
        }
    }
    let found = exec.params().take_gradients(&mut gradients);
    let mut compared = 0;
    for (spec, found) in specs.iter().zip(found) {
        let expected = io.get(&format!("grad_param.{}", spec.name));
        match (spec.kind, found) {
            // What nothing reads has no gradient there either.
            (ParamKind::Base, found) if expected.is_none() => {
                let values = found.iter().flat_map(cpu::to_host);
                assert!(
                    values.into_iter().all(|value| value == 0.0),
                    "{} is read",
                    spec.name
                );
            }
            (ParamKind::Base, Some(found)) => {
                let (_, expected) = expected.expect("compared where there is one");
                assert_near(&spec.name, of_gradients, &cpu::to_host(&found), expected);
                compared += 1;
            }
            (ParamKind::Base, None) => panic!("{} has no gradient", spec.name),
            (_, found) => assert!(found.is_none(), "{} is a constant", spec.name),
        }
    }
    let of_weights = io.keys().filter(|name| name.starts_with("grad_param."));
    assert_eq!(compared, of_weights.count());
}
