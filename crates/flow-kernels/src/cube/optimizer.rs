//! What an optimizer step needs: the gradient's norm, accumulation, AdamW and moving averages.

use super::operand::{Operand, dense_mut, done, update};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use flow_core::tensors::copy_again;
use flow_core::{AdamWStep, Plain, StepFactors, StepValues, Updated};
use flow_kernels_cube::adamw::{AdamW, Updated as Updating};
use flow_kernels_cube::optimizer::{self, Factors};
use flow_kernels_cube::{Buffer, Element};

/// Sums of squares: pieces in f32, their sums in f64 on the host. Waits for the device once.
pub(super) fn sums_of_squares(tensors: &[&Plain]) -> Vec<f64> {
    let tensors: Vec<Operand> = tensors.iter().map(|tensor| Operand::read(tensor)).collect();
    let Some(first) = tensors.first() else {
        return Vec::new();
    };
    let buffers: Vec<Buffer> = tensors.iter().map(Operand::buffer).collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let sums = optimizer::sums_of_squares(first.client(), &buffers);
    sums.expect("the device that holds the gradients answers")
}

/// The factors of a step, computed on the device.
pub(super) fn step_values(gradients: &[&Plain], factors: &StepFactors) -> Option<StepValues> {
    let tensors: Vec<Operand> = gradients.iter().map(|tensor| Operand::read(tensor)).collect();
    let first = tensors.first()?;
    let buffers: Vec<Buffer> = tensors.iter().map(Operand::buffer).collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let factors = Factors {
        learning_rate: factors.learning_rate as f32,
        corrections: factors.corrections.map(|correction| correction as f32),
        max_norm: factors.max_norm as f32,
        small: StepFactors::SMALL as f32,
        units: factors.units.max(1) as f32,
    };
    let varying = first.room(&[5], Element::F32);
    let launched = optimizer::step_values(first.client(), &buffers, &factors, &varying.buffer());
    done("step_values", launched);
    Some(StepValues {
        varying: varying.into_plain(),
        norm: None,
    })
}

/// `accumulated += gradient`, in f32.
pub(super) fn accumulate(accumulated: &mut Plain, gradient: &Plain) {
    let gradient = Operand::read(gradient);
    update(accumulated, &[Element::F32], |client, accumulated| {
        done(
            "accumulate",
            optimizer::accumulate(client, accumulated, &gradient.buffer()),
        );
    });
}

/// One AdamW step in f32 of every weight; moments may be stored as bf16. Copies in bf16 are written in the same pass.
pub(super) fn adamw_all(weights: Vec<Updated<'_>>, step: &AdamWStep) {
    let varying = Operand::read_as(&step.varying, Element::F32);
    let step_buffer = varying.buffer();
    let moments = [Element::F32, Element::Bf16];
    let mut copied_after = Vec::new();
    let mut all = Vec::new();
    for of in weights {
        let mut prepared = Prepared {
            weight: dense_mut(of.weight, &moments[..1]),
            gradient: Operand::read(of.gradient),
            first: dense_mut(of.first, &moments),
            second: dense_mut(of.second, &moments),
            copy: None,
        };
        match of.copy {
            Some(copy) if copy.dtype() == DType::BF16 => {
                prepared.copy = Some(dense_mut(copy, &[Element::Bf16]));
            }
            Some(copy) => copied_after.push((copy, of.weight)),
            None => {}
        }
        all.push(prepared);
    }
    let gradients: Vec<Buffer> = all.iter().map(|one| one.gradient.buffer()).collect();
    let updated: Vec<Updating<'_>> = all
        .iter()
        .zip(&gradients)
        .map(|(one, gradient)| Updating {
            weight: &one.weight,
            gradient,
            first: &one.first,
            second: &one.second,
            copy: one.copy.as_ref(),
            weight_decay: step.weight_decay,
        })
        .collect();
    let step = AdamW {
        betas: step.betas,
        epsilon: step.epsilon,
        varying: &step_buffer,
    };
    done("adamw", step.update(varying.client(), &updated));
    for (copy, weight) in copied_after {
        copy_again(copy, weight);
    }
}

/// The buffers of a weight, all of which may be written.
struct Prepared {
    weight: Buffer,
    gradient: Operand,
    first: Buffer,
    second: Buffer,
    copy: Option<Buffer>,
}

/// `average = decay · average + (1 - decay) · value` of each pair, in f32.
pub(super) fn average_all(averages: Vec<(&mut Plain, &Plain)>, decay: &Plain) {
    let decay = Operand::read_as(decay, Element::F32);
    let pairs = averages.into_iter().map(|(average, value)| {
        let average = dense_mut(average, &[Element::F32]);
        (average, Operand::read(value))
    });
    let pairs: Vec<(Buffer, Operand)> = pairs.collect();
    let pairs: Vec<(&Buffer, Buffer)> = pairs
        .iter()
        .map(|(average, value)| (average, value.buffer()))
        .collect();
    let pairs: Vec<(&Buffer, &Buffer)> = pairs.iter().map(|(average, value)| (*average, value)).collect();
    done(
        "average",
        optimizer::average(decay.client(), &pairs, &decay.buffer()),
    );
}
