//! What an optimizer step needs: the gradient's norm, accumulation, AdamW and moving averages.

use super::operand::{Operand, done, update};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use flow_core::tensors::copy_again;
use flow_core::{AdamWStep, Plain, StepFactors, StepValues};
use flow_kernels_cube::optimizer::{self, AdamW, Factors, Updated};
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

/// One AdamW step in f32; moments may be stored as bf16. A copy in bf16 is written in the same pass.
pub(super) fn adamw(
    weight: &mut Plain,
    copy: Option<&mut Plain>,
    gradient: &Plain,
    first: &mut Plain,
    second: &mut Plain,
    step: &AdamWStep,
) {
    let gradient = Operand::read(gradient);
    let varying = Operand::read_as(&step.varying, Element::F32);
    let step = AdamW {
        betas: step.betas,
        epsilon: step.epsilon,
        weight_decay: step.weight_decay,
        varying: &varying.buffer(),
    };
    let moments = [Element::F32, Element::Bf16];
    let mut change = |weight: &mut Plain, copy: Option<&Buffer>| {
        update(weight, &moments[..1], |client, weight| {
            update(first, &moments, |_, first| {
                update(second, &moments, |_, second| {
                    let of = Updated {
                        weight,
                        gradient: &gradient.buffer(),
                        first,
                        second,
                        copy,
                    };
                    done("adamw", step.update(client, of));
                });
            });
        });
    };
    match copy {
        Some(copy) if copy.dtype() == DType::BF16 => {
            update(copy, &[Element::Bf16], |_, copy| change(weight, Some(copy)));
        }
        Some(copy) => {
            change(weight, None);
            copy_again(copy, weight);
        }
        None => change(weight, None),
    }
}

/// `average = decay · average + (1 - decay) · value`, in f32.
pub(super) fn average(average: &mut Plain, value: &Plain, decay: &Plain) {
    let value = Operand::read(value);
    let decay = Operand::read_as(decay, Element::F32);
    update(average, &[Element::F32], |client, average| {
        done(
            "average",
            optimizer::average(client, average, &value.buffer(), &decay.buffer()),
        );
    });
}
