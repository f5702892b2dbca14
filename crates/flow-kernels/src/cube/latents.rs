//! SDE steps, their log-probabilities, and distances: f32 whatever the model computes in, but for its velocities.

use super::operand::{Operand, expect_launched};
use crate::cpu::noise::draw_noise;
use burn::backend::DispatchTensor;
use flow_core::device::ComputeDevice;
use flow_core::ops::{Noise, SdeOutputs, SdeStep};
use flow_core::{RawTensor, autograd, cube};
use flow_kernels_cube::Element;
use flow_kernels_cube::normals::{self, Drawn};
use flow_kernels_cube::sde::{self, Latents, Outcome, Step};
use std::sync::Arc;

fn wide(tensor: &RawTensor) -> Operand {
    Operand::read_as(tensor, Element::F32)
}

fn latents(x: &Operand) -> Latents {
    let (rows, values) = x.rows_and_columns();
    Latents { rows, values }
}

/// Takes a step.
pub(super) fn step(step: SdeStep<'_>, noise: &RawTensor) -> SdeOutputs {
    step_with(step, sde::Noise::Given(&wide(noise).buffer()))
}

/// Takes a step that draws its noise, where the device can.
pub(super) fn step_drawn(given: SdeStep<'_>, noise: &Noise<'_>, device: &ComputeDevice) -> SdeOutputs {
    match cube::read(given.x).is_some_and(|x| normals::drawn_by(&x.client)) {
        true => step_with(given, sde::Noise::Drawn(drawn(noise))),
        false => step(given, &draw_noise(noise, device)),
    }
}

fn drawn<'a>(noise: &Noise<'a>) -> Drawn<'a> {
    Drawn {
        stream: noise.stream,
        samples: noise.samples,
        step: noise.step,
    }
}

/// Draws noise on the device, where it can.
pub(super) fn noise(noise: &Noise<'_>, device: &ComputeDevice) -> RawTensor {
    let empty = device.empty(&[noise.samples.len(), noise.values]);
    let empty = Operand::read(&empty);
    if !normals::drawn_by(empty.client()) {
        return draw_noise(noise, device);
    }
    expect_launched("noise", drawn(noise).draw(empty.client(), &empty.buffer()));
    empty.into_plain()
}

fn step_with(given: SdeStep<'_>, noise: sde::Noise<'_>) -> SdeOutputs {
    let [x, coefficients] = [given.x, given.coefficients].map(wide);
    let v = Operand::read(given.v);
    let call = latents(&x);
    let (x_next, mean) = (x.empty_like(), x.empty_like());
    let log_prob = x.empty(&[call.rows], Element::F32);
    let step = Step {
        x: &x.buffer(),
        v: &v.buffer(),
        coefficients: &coefficients.buffer(),
    };
    let outcome = Outcome {
        mean: &mean.buffer(),
        log_prob: &log_prob.buffer(),
    };
    let taken = call.step(x.client(), step, noise, &x_next.buffer(), outcome);
    expect_launched("sde_step", taken);
    SdeOutputs {
        x_next: x_next.into_plain(),
        mean: mean.into_plain(),
        log_prob: log_prob.into_plain(),
    }
}

/// `(log_prob, mean)` of a step taken before, differentiable in `v`. Backward keeps the mean and the next latents.
pub(super) fn log_prob(given: SdeStep<'_>, x_next: &RawTensor) -> (DispatchTensor, DispatchTensor) {
    const NAME: &str = "sde_log_prob";
    let [x, x_next, coefficients] = [given.x, x_next, given.coefficients].map(wide);
    let call = latents(&x);
    let outputs = autograd::apply_many(NAME, &[given.v], |inputs, _| {
        let v = Operand::read(&inputs[0]);
        let of = v.element();
        let (log_prob, mean) = (x.empty(&[call.rows], Element::F32), x.empty_like());
        let step = Step {
            x: &x.buffer(),
            v: &v.buffer(),
            coefficients: &coefficients.buffer(),
        };
        let outcome = Outcome {
            mean: &mean.buffer(),
            log_prob: &log_prob.buffer(),
        };
        expect_launched(NAME, call.log_prob(x.client(), step, &x_next.buffer(), outcome));
        let outputs = vec![log_prob.into_plain(), mean.clone().into_plain()];
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let read = |index: usize| incoming.output_gradients[index].as_ref().map(wide);
            let (dlog_prob, dmean) = (read(0), read(1));
            let dv = mean.empty(&mean.shape(), of);
            let backward = call.log_prob_backward(
                mean.client(),
                &mean.buffer(),
                &x_next.buffer(),
                &coefficients.buffer(),
                dlog_prob.as_ref().map(Operand::buffer).as_ref(),
                dmean.as_ref().map(Operand::buffer).as_ref(),
                &dv.buffer(),
            );
            expect_launched(NAME, backward);
            vec![Some(dv.into_plain())]
        });
        (outputs, backward)
    });
    let [log_prob, mean] = outputs.try_into().expect("two outputs");
    (log_prob, mean)
}

/// `mean over N of (a - b)²` per row in f32, differentiable in `a`.
pub(super) fn mean_squared_distance(a: &DispatchTensor, b: &RawTensor) -> DispatchTensor {
    const NAME: &str = "mean_squared_distance";
    let b = wide(b);
    autograd::apply(NAME, &[a], |inputs, _| {
        let a = Operand::read(&inputs[0]);
        let call = latents(&a);
        let distance = a.empty(&[call.rows], Element::F32);
        let forward = call.distance(a.client(), &a.buffer(), &b.buffer(), &distance.buffer());
        expect_launched(NAME, forward);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let (gradient, da) = (wide(incoming.gradient()), a.empty_like());
            let backward = call.distance_backward(
                a.client(),
                &a.buffer(),
                &b.buffer(),
                &gradient.buffer(),
                &da.buffer(),
            );
            expect_launched(NAME, backward);
            vec![Some(da.into_plain())]
        });
        (distance.into_plain(), backward)
    })
}
