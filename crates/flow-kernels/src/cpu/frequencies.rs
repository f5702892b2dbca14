//! Low and high frequencies of a latent, on the processor.

use flow_core::LatentShape;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

/// The radius of the disc around frequency 0 within which frequencies of a plane are low: a fifth of its shorter side,
/// rounded down (FasterCache, Lv et al. 2024, arXiv:2410.19355; `_split_low_high_freq` of diffusers
/// `hooks/faster_cache.py`).
pub fn low_frequency_radius(shape: &LatentShape) -> usize {
    shape.height.min(shape.width) / 5
}

/// The low and the high frequencies of a latent (channels, frames, rows, columns), plane by plane. They add up to it.
///
/// Low are those within a disc around frequency 0 of [`low_frequency_radius`].
///
/// # Panics
/// If the number of values is not that of `shape`.
pub fn split_frequencies(values: &[f32], shape: &LatentShape) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(values.len(), shape.values(), "values of one latent of {shape:?}");
    let (height, width) = (shape.height, shape.width);
    let radius = low_frequency_radius(shape) as i64;
    let mut planner = FftPlanner::<f32>::new();
    let forward = [planner.plan_fft_forward(width), planner.plan_fft_forward(height)];
    let inverse = [planner.plan_fft_inverse(width), planner.plan_fft_inverse(height)];
    let scale = 1.0 / (height * width) as f32;
    let mut low = Vec::with_capacity(values.len());
    for plane in values.chunks_exact(height * width) {
        let mut spectrum: Vec<Complex<f32>> = plane.iter().map(|value| Complex::new(*value, 0.0)).collect();
        transform(&mut spectrum, width, &forward);
        for (index, value) in spectrum.iter_mut().enumerate() {
            let (y, x) = (signed(index / width, height), signed(index % width, width));
            if x * x + y * y > radius * radius {
                *value = Complex::default();
            }
        }
        transform(&mut spectrum, width, &inverse);
        low.extend(spectrum.iter().map(|value| value.re * scale));
    }
    let high = values.iter().zip(&low).map(|(value, low)| value - low).collect();
    (low, high)
}

/// The frequency at `index` of a transform of `size`, in `-size/2 ..= (size-1)/2`.
fn signed(index: usize, size: usize) -> i64 {
    let half = size / 2;
    ((index + half) % size) as i64 - half as i64
}

/// Transforms rows, then columns, with the transform for each.
fn transform(plane: &mut [Complex<f32>], width: usize, [of_rows, of_columns]: &[Arc<dyn Fft<f32>>; 2]) {
    of_rows.process(plane);
    let height = plane.len() / width;
    let mut column = vec![Complex::default(); height];
    for x in 0..width {
        for (y, value) in column.iter_mut().enumerate() {
            *value = plane[y * width + x];
        }
        of_columns.process(&mut column);
        for (y, value) in column.iter().enumerate() {
            plane[y * width + x] = *value;
        }
    }
}
