//! Which values of a row make one value of the resized row, and by how much.
//!
//! Source: Pillow, `src/libImaging/Resample.c`, `precompute_coeffs`; PyTorch's antialiased `upsample_bilinear2d` and `upsample_bicubic2d`
//! (`aten/src/ATen/native/cpu/UpSampleKernel.cpp`, `HelperInterpBase`) are made after it.

use std::ops::Range;

/// A filter, by which neighbours are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle, one pixel to either side.
    Bilinear,
    /// Keys' cubic with `a = -1/2`, two pixels to either side.
    Bicubic,
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Bilinear if x < 1.0 => 1.0 - x,
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            _ => 0.0,
        }
    }
}

/// The neighbours of one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// The first of them.
    pub first: usize,
    /// Their weights, which add up to 1.
    pub weights: Vec<f64>,
}

/// Of the values `kept` of a row of `input` values that is resized to `output`.
pub fn taps((input, output): (usize, usize), kept: &Range<usize>, filter: Filter) -> Vec<Taps> {
    let scale = input as f64 / output as f64;
    // Antialiasing: the filter is stretched where the row becomes shorter.
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let inverse = 1.0 / stretch;
    kept.clone()
        .map(|at| {
            let centre = scale * (at as f64 + 0.5);
            // Casts cut off towards zero, and stay at zero below.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(input);
            let weights: Vec<f64> = (first..end)
                .map(|of| filter.at((of as f64 - centre + 0.5) * inverse))
                .collect();
            let sum: f64 = weights.iter().sum();
            let normalised = weights
                .iter()
                .map(|weight| if sum == 0.0 { *weight } else { weight / sum });
            Taps {
                first,
                weights: normalised.collect(),
            }
        })
        .collect()
}
