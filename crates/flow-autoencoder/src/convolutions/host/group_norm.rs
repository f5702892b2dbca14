//! Group norm on the processor, with the activation that follows.

use crate::convolutions::{GroupNormSpec, axes};
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_kernels::host::math::{silu, silu_derivative, vectorised};
use flow_kernels::host::threads::{self, worth_threads};
use rayon::prelude::*;
use std::sync::Arc;

/// The norm of one call: sizes, and by sample and channel what a value is shifted and scaled by.
struct Norm {
    batch: usize,
    pixels: usize,
    channels: usize,
    spec: GroupNormSpec,
    /// Means, `[B, C]`.
    means: Vec<f32>,
    /// Reciprocal standard deviations, `[B, C]`.
    reciprocals: Vec<f32>,
}

/// See [`Convolutions::group_norm`](crate::convolutions::Convolutions::group_norm).
pub(super) fn group_norm(
    x: &DispatchTensor,
    weight: &DispatchTensor,
    bias: &DispatchTensor,
    spec: &GroupNormSpec,
) -> DispatchTensor {
    let [batch, frames, height, width, channels] = axes::<5>(x);
    assert!(
        channels.is_multiple_of(spec.groups),
        "{} groups of {channels} channels",
        spec.groups
    );
    autograd::apply("group_norm", &[x, weight, bias], |inputs, _| {
        let [x, weight, bias] = [0, 1, 2].map(|at| CpuTensor::read(&inputs[at]));
        let pixels = frames * height * width;
        let norm = Norm::of(x.values(), [batch, pixels, channels], *spec);
        let y = norm.forward(x.values(), weight.values(), bias.values());
        let output = from_vec(y, x.shape());
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let (x_values, gradient) = (x.values(), gradient.values());
            let affine = [weight.values(), bias.values()];
            let sums = norm.gradient_sums(x_values, gradient, affine);
            let of_channels = |which: usize| {
                let by_channel = (0..channels).map(|channel| {
                    let samples = (0..batch).map(|sample| sums[which][sample * channels + channel]);
                    samples.sum::<f64>() as f32
                });
                from_vec(by_channel.collect(), &[channels])
            };
            vec![
                incoming.wanted[0]
                    .then(|| from_vec(norm.input_gradient(x_values, gradient, affine, &sums), x.shape())),
                incoming.wanted[1].then(|| of_channels(1)),
                incoming.wanted[2].then(|| of_channels(0)),
            ]
        });
        (output, backward)
    })
}

impl Norm {
    fn of(x: &[f32], [batch, pixels, channels]: [usize; 3], spec: GroupNormSpec) -> Self {
        let [sums, squares] = channel_sums(
            x,
            [batch, pixels, channels],
            #[inline(always)]
            |_, _, x| [f64::from(x), f64::from(x) * f64::from(x)],
        );
        let group = channels / spec.groups;
        let count = (pixels * group) as f64;
        let (mut means, mut reciprocals) = (Vec::new(), Vec::new());
        for (sums, squares) in sums
            .chunks_exact(group.max(1))
            .zip(squares.chunks_exact(group.max(1)))
        {
            let mean = sums.iter().sum::<f64>() / count;
            let variance = (squares.iter().sum::<f64>() / count - mean * mean).max(0.0);
            let reciprocal = 1.0 / (variance + f64::from(spec.epsilon)).sqrt();
            means.extend(std::iter::repeat_n(mean as f32, group));
            reciprocals.extend(std::iter::repeat_n(reciprocal as f32, group));
        }
        Self {
            batch,
            pixels,
            channels,
            spec,
            means,
            reciprocals,
        }
    }

    fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let by_sample = |row: usize| row / self.pixels.max(1) * self.channels;
        self.rows(
            x.len(),
            #[inline(always)]
            |row, at, y| {
                let sample = by_sample(row);
                let means = &self.means[sample..][..self.channels];
                let reciprocals = &self.reciprocals[sample..][..self.channels];
                let x = &x[at..][..self.channels];
                let values = x.iter().zip(means).zip(reciprocals.iter().zip(weight).zip(bias));
                for (y, ((x, mean), ((reciprocal, weight), bias))) in y.iter_mut().zip(values) {
                    *y = (x - mean) * reciprocal * weight + bias;
                }
                if self.spec.silu {
                    y.iter_mut().for_each(|y| *y = silu(*y));
                }
            },
        )
    }

    /// Sums over the pixels of each sample and channel, `[B, C]`: of the gradient before the activation, and of its product
    /// with the normed value.
    fn gradient_sums(&self, x: &[f32], gradient: &[f32], [weight, bias]: [&[f32]; 2]) -> [Vec<f64>; 2] {
        let shape = [self.batch, self.pixels, self.channels];
        channel_sums(
            x,
            shape,
            #[inline(always)]
            |at, place, x| {
                let channel = place % self.channels;
                let normed = (x - self.means[place]) * self.reciprocals[place];
                let upstream = self.upstream(normed * weight[channel] + bias[channel], gradient[at]);
                [f64::from(upstream), f64::from(upstream) * f64::from(normed)]
            },
        )
    }

    /// The gradient before the activation.
    #[inline(always)]
    fn upstream(&self, value: f32, gradient: f32) -> f32 {
        if self.spec.silu {
            gradient * silu_derivative(value)
        } else {
            gradient
        }
    }

    fn input_gradient(
        &self,
        x: &[f32],
        gradient: &[f32],
        [weight, bias]: [&[f32]; 2],
        sums: &[Vec<f64>; 2],
    ) -> Vec<f32> {
        let group = self.channels / self.spec.groups;
        let count = (self.pixels * group) as f64;
        // Means over a group of the two sums, each times the weight.
        let means = sums.each_ref().map(|sums| {
            let weighted: Vec<f64> = sums
                .iter()
                .enumerate()
                .map(|(at, sum)| sum * f64::from(weight[at % self.channels]))
                .collect();
            let groups = weighted.chunks_exact(group.max(1));
            let means =
                groups.flat_map(|it| std::iter::repeat_n((it.iter().sum::<f64>() / count) as f32, group));
            means.collect::<Vec<f32>>()
        });
        self.rows(
            x.len(),
            #[inline(always)]
            |row, at, dx| {
                let sample = row / self.pixels.max(1) * self.channels;
                for (channel, dx) in dx.iter_mut().enumerate() {
                    let place = sample + channel;
                    let normed = (x[at + channel] - self.means[place]) * self.reciprocals[place];
                    let value = normed * weight[channel] + bias[channel];
                    let upstream = self.upstream(value, gradient[at + channel]) * weight[channel];
                    *dx = self.reciprocals[place] * (upstream - means[0][place] - normed * means[1][place]);
                }
            },
        )
    }

    /// New values, pixel by pixel: `task` gets a pixel's number, where its channels begin, and the place of the result.
    fn rows(&self, length: usize, task: impl Fn(usize, usize, &mut [f32]) + Send + Sync) -> Vec<f32> {
        let channels = self.channels.max(1);
        let per_piece = threads::rows_per_piece(channels);
        threads::build_zeros(length, per_piece * channels, |index, piece| {
            vectorised(
                #[inline(always)]
                || {
                    for (row, values) in piece.chunks_exact_mut(channels).enumerate() {
                        let row = index * per_piece + row;
                        task(row, row * channels, values);
                    }
                },
            );
        })
    }
}

/// Two sums over the pixels of each sample and channel, `[B, C]` each, in f64: in pieces of fixed size, then the pieces in
/// order. `term` gets the position of a value, that of its sample and channel, and the value.
fn channel_sums(
    x: &[f32],
    [batch, pixels, channels]: [usize; 3],
    term: impl Fn(usize, usize, f32) -> [f64; 2] + Send + Sync,
) -> [Vec<f64>; 2] {
    let per_piece = threads::rows_per_piece(channels);
    let pieces = pixels.div_ceil(per_piece);
    let sums_of = |index: usize| {
        let (sample, piece) = (index / pieces, index % pieces);
        let first = sample * pixels + piece * per_piece;
        let count = per_piece.min(pixels - piece * per_piece);
        let mut sums = [vec![0.0f64; channels], vec![0.0f64; channels]];
        vectorised(
            #[inline(always)]
            || {
                let [firsts, seconds] = &mut sums;
                for row in first..first + count {
                    let x = &x[row * channels..][..channels];
                    let places = x.iter().zip(firsts.iter_mut().zip(seconds.iter_mut()));
                    for (channel, (x, (first, second))) in places.enumerate() {
                        let terms = term(row * channels + channel, sample * channels + channel, *x);
                        *first += terms[0];
                        *second += terms[1];
                    }
                }
            },
        );
        sums
    };
    let count = batch * pieces;
    let partial: Vec<[Vec<f64>; 2]> = if count > 1 && worth_threads(x.len()) {
        (0..count).into_par_iter().map(sums_of).collect()
    } else {
        (0..count).map(sums_of).collect()
    };
    let mut totals = [vec![0.0; batch * channels], vec![0.0; batch * channels]];
    for (index, sums) in partial.iter().enumerate() {
        let sample = index / pieces * channels;
        for (totals, sums) in totals.iter_mut().zip(sums) {
            let totals = totals[sample..][..channels].iter_mut();
            totals.zip(sums).for_each(|(total, sum)| *total += sum);
        }
    }
    totals
}
