//! What an optimizer step needs: the gradient's norm, accumulation, AdamW and moving averages, all in f32.

use crate::host::{math::vectorised, sum::sum_pairs_f64, threads};
use flow_core::cpu::{CpuTensor, update};
use flow_core::{AdamWStep, RawTensor};
use rayon::prelude::*;

/// Sum of squares: pieces of fixed size in f64, then the pieces in order.
pub(crate) fn sum_of_squares(tensor: &RawTensor) -> f64 {
    squares_of_pieces(tensor).into_iter().sum()
}

/// Sums of squares over pieces of [`threads::PIECE`] values, in f64.
pub(crate) fn squares_of_pieces(tensor: &RawTensor) -> Vec<f64> {
    let tensor = CpuTensor::read(tensor);
    let piece = |values: &[f32]| {
        vectorised(
            #[inline(always)]
            || sum_pairs_f64(values, values, |a, b| f64::from(a) * f64::from(b)),
        )
    };
    let values = tensor.values();
    if threads::worth_threads(values.len()) {
        values.par_chunks(threads::PIECE).map(piece).collect()
    } else {
        values.chunks(threads::PIECE).map(piece).collect()
    }
}

/// `accumulated += gradient`.
pub(crate) fn accumulate(accumulated: &mut RawTensor, gradient: &RawTensor) {
    let gradient = CpuTensor::read(gradient);
    update(accumulated, |accumulated| {
        assert_eq!(
            accumulated.len(),
            gradient.values().len(),
            "a gradient is added to one of its own shape"
        );
        threads::for_each_piece(accumulated, threads::PIECE, |index, accumulated| {
            let gradient = &gradient.values()[index * threads::PIECE..][..accumulated.len()];
            vectorised(
                #[inline(always)]
                || accumulated.iter_mut().zip(gradient).for_each(|(a, g)| *a += g),
            );
        });
    });
}

/// A piece of a weight and of its gradient.
type Updated<'a> = (&'a mut [f32], &'a [f32]);
/// Pieces of the first and of the second moment.
type Moments<'a> = (&'a mut [f32], &'a mut [f32]);

/// One AdamW step (Loshchilov and Hutter 2019, arXiv:1711.05101), each rounding in the order of PyTorch 2's
/// `torch/optim/adamw.py`, `_single_tensor_adamw`.
pub(crate) fn adamw(
    weight: &mut RawTensor,
    gradient: &RawTensor,
    first: &mut RawTensor,
    second: &mut RawTensor,
    step: &AdamWStep,
) {
    let gradient = CpuTensor::read(gradient);
    let scalars = CpuTensor::read(&step.scalars);
    let &[rate, correction1, correction2, gradient_scale, ..] = scalars.values() else {
        panic!(
            "AdamW's varying values are [lr, 1 - beta1^t, 1 - beta2^t, gradient scale], got {}",
            scalars.values().len()
        );
    };
    if gradient_scale < 0.0 {
        return;
    }
    let (beta1, beta2) = step.betas;
    let (keep, step_size, root) = (
        1.0 - rate * step.weight_decay,
        rate / correction1,
        correction2.sqrt(),
    );
    let epsilon = step.epsilon;
    update(weight, |weight| {
        update(first, |first| {
            update(second, |second| {
                let gradient = gradient.values();
                assert!(
                    weight.len() == gradient.len()
                        && first.len() == gradient.len()
                        && second.len() == gradient.len(),
                    "a weight, its gradient and its moments have one shape"
                );
                let size = threads::PIECE;
                let piece = |((weight, gradient), (first, second)): (Updated<'_>, Moments<'_>)| {
                    vectorised(
                        #[inline(always)]
                        || {
                            let values = weight.iter_mut().zip(gradient).zip(first.iter_mut().zip(second));
                            for ((weight, gradient), (first, second)) in values {
                                let gradient = gradient * gradient_scale;
                                *weight *= keep;
                                *first += (1.0 - beta1) * (gradient - *first);
                                *second = *second * beta2 + (1.0 - beta2) * gradient * gradient;
                                *weight -= step_size * *first / (second.sqrt() / root + epsilon);
                            }
                        },
                    );
                };
                if threads::worth_threads(weight.len()) {
                    let pieces = weight.par_chunks_mut(size).zip(gradient.par_chunks(size));
                    pieces
                        .zip(first.par_chunks_mut(size).zip(second.par_chunks_mut(size)))
                        .for_each(piece);
                } else {
                    let pieces = weight.chunks_mut(size).zip(gradient.chunks(size));
                    pieces
                        .zip(first.chunks_mut(size).zip(second.chunks_mut(size)))
                        .for_each(piece);
                }
            });
        });
    });
}

/// `average = decay · average + (1 - decay) · value`.
pub(crate) fn average(average: &mut RawTensor, value: &RawTensor, decay: &RawTensor) {
    let (value, decay) = (CpuTensor::read(value), CpuTensor::read(decay).values()[0]);
    update(average, |average| {
        assert_eq!(
            average.len(),
            value.values().len(),
            "an average has the shape of its values"
        );
        threads::for_each_piece(average, threads::PIECE, |index, average| {
            let value = &value.values()[index * threads::PIECE..][..average.len()];
            vectorised(
                #[inline(always)]
                || {
                    average
                        .iter_mut()
                        .zip(value)
                        .for_each(|(a, v)| *a = decay * *a + (1.0 - decay) * v)
                },
            );
        });
    });
}
