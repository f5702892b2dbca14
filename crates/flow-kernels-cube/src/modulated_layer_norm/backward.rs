//! The gradients of a modulated layer norm.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use crate::rows::{Rows, row_sums, total};
use cubecl::prelude::*;

/// What the backward kernel reads.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct NormInputs<F: Float, N: Size> {
    /// `[B, S, D]`.
    pub x: &'static [Vector<F, N>],
    /// `[B, K, D]`.
    pub modulation: &'static [Vector<F, N>],
    /// Mean and reciprocal deviation of each row.
    pub statistics: &'static [f32],
    /// The gradient of the norm.
    pub gradient: &'static [Vector<F, N>],
    /// Another gradient of `x`.
    pub added: &'static [Vector<F, N>],
}

/// Sizes of the backward kernel, and what is added to the scale.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct NormSizes {
    /// Samples.
    pub batch: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Chunks of the modulation.
    pub chunks: usize,
    /// Which chunk is the scale, less `unit`.
    pub scale: usize,
    /// Added to the scale.
    pub unit: f32,
    /// Tokens of a piece.
    pub piece: usize,
}

/// What the backward kernel computes, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NormBackwardKind {
    /// Rows whose sums are made at once.
    pub at_once: usize,
    /// Whether the gradients of shift and scale are asked for.
    pub modulated: bool,
    /// Whether another gradient is added.
    pub adds: bool,
    /// Shape of the block.
    pub rows: Rows,
}

/// `dx`, plus what is `added` if there is some, and if `modulated` sums over the tokens of a piece of the gradients of shift and scale: `partials [B, pieces, 2, D]`.
/// A block computes `piece` tokens of a sample, `at_once` at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_backward<F: Float, N: Size>(
    inputs: &NormInputs<F, N>,
    dx: &mut [Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    sizes: &NormSizes,
    #[comptime] kind: NormBackwardKind,
) {
    let at_once = comptime!(kind.at_once);
    let modulated = comptime!(kind.modulated);
    let adds = comptime!(kind.adds);
    let rows = comptime!(kind.rows);
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(2 * at_once)));
    let lane = UNIT_POS as usize;
    let pieces = sizes.tokens.div_ceil(sizes.piece);
    let sample = CUBE_POS / pieces;
    let first = CUBE_POS % pieces * sizes.piece;
    let sample_exists = sample < sizes.batch;
    let sample = select(sample_exists, sample, 0usize);
    let end = min(first + sizes.piece, sizes.tokens);

    let mut factors = Array::<Vector<f32, N>>::new(held);
    let mut shifts = Array::<Vector<f32, N>>::new(held);
    let mut scales = Array::<Vector<f32, N>>::new(held);
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let at = select(at < vectors, at, 0usize);
        let scaled = Vector::<f32, N>::cast_from(
            inputs.modulation[(sample * sizes.chunks + sizes.scale) * vectors + at],
        );
        factors[i] = scaled + Vector::new(sizes.unit);
        shifts[i] = Vector::new(0.0f32);
        scales[i] = Vector::new(0.0f32);
    }
    let mut normed = Array::<Vector<f32, N>>::new(comptime!(held * at_once));
    let mut slopes = Array::<Vector<f32, N>>::new(comptime!(held * at_once));
    let mut reciprocals = Array::<f32>::new(at_once);
    let mut sums = Array::<f32>::new(comptime!(2 * at_once));
    for step in 0..sizes.piece / at_once {
        #[unroll]
        for r in 0..at_once {
            let token = first + step * at_once + r;
            let exists = token < end;
            let row = sample * sizes.tokens + select(exists, token, 0usize);
            let mean = inputs.statistics[row * 2];
            let reciprocal = inputs.statistics[row * 2 + 1];
            reciprocals[r] = reciprocal;
            let mut plain = 0.0f32;
            let mut weighted = 0.0f32;
            #[unroll]
            for i in 0..held {
                let at = lane + comptime!(i * rows.threads_per_row);
                let inside = at < vectors;
                let place = row * vectors + select(inside, at, 0usize);
                let value = Vector::<f32, N>::cast_from(inputs.x[place]);
                let value = (value - Vector::new(mean)) * Vector::new(reciprocal);
                let slope = Vector::<f32, N>::cast_from(inputs.gradient[place]);
                normed[comptime!(r * held + i)] = value;
                if comptime!(modulated) {
                    if exists {
                        shifts[i] += slope;
                        scales[i] += slope * value;
                    }
                }
                let slope = slope * factors[i];
                slopes[comptime!(r * held + i)] = slope;
                plain += select(inside, total(slope), 0.0f32);
                weighted += select(inside, total(slope * value), 0.0f32);
            }
            sums[comptime!(2 * r)] = plain;
            sums[comptime!(2 * r + 1)] = weighted;
        }
        row_sums(&mut sums, &mut shared, comptime!(2 * at_once), rows);
        #[unroll]
        for r in 0..at_once {
            let token = first + step * at_once + r;
            let average = sums[comptime!(2 * r)] / comptime!(rows.columns as f32);
            let along = sums[comptime!(2 * r + 1)] / comptime!(rows.columns as f32);
            if token < end && sample_exists {
                #[unroll]
                for i in 0..held {
                    let at = lane + comptime!(i * rows.threads_per_row);
                    if at < vectors {
                        let value = normed[comptime!(r * held + i)];
                        let slope = slopes[comptime!(r * held + i)] - Vector::new(average);
                        let result = (slope - value * Vector::new(along)) * Vector::new(reciprocals[r]);
                        let place = (sample * sizes.tokens + token) * vectors + at;
                        let mut rounded = Vector::<F, N>::cast_from(result);
                        if comptime!(adds) {
                            // Always the first, or NaN: the selection keeps compilers from making the last product and
                            // this sum one operation, which would round once.
                            let alone = Vector::<f32, N>::cast_from(rounded);
                            let alone = select(reciprocals[r] > 0.0, alone, Vector::new(reciprocals[r]));
                            rounded =
                                Vector::cast_from(alone + Vector::<f32, N>::cast_from(inputs.added[place]));
                        }
                        dx[place] = rounded;
                    }
                }
            }
        }
    }
    if comptime!(modulated) {
        if sample_exists {
            let base = CUBE_POS * 2 * vectors;
            #[unroll]
            for i in 0..held {
                let at = lane + comptime!(i * rows.threads_per_row);
                if at < vectors {
                    partials[base + at] = shifts[i];
                    partials[base + vectors + at] = scales[i];
                }
            }
        }
    }
}
