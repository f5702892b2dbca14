//! Pillow's bicubic resizing of 8-bit images, bit by bit.
//!
//! Source: Pillow, `src/libImaging/Resample.c`: rows first, then columns, each pass with weights of 22 bits and rounded to 8 bits.

use super::taps::{Filter, Taps, taps};
use super::{COLOURS, Plan};

/// Bits of a weight behind the point: 32, less 8 of a value, less 2 for what a filter overshoots.
const PRECISION: u32 = 32 - 8 - 2;

/// `rgb`, rows of RGB, resized and cropped.
pub fn bicubic(rgb: &[u8], plan: &Plan) -> Vec<u8> {
    let (width, side) = (plan.columns.0, plan.kept_columns.len());
    let across = fixed(&taps(plan.columns, &plan.kept_columns, Filter::Bicubic));
    let down = fixed(&taps(plan.rows, &plan.kept_rows, Filter::Bicubic));
    // The rows that the second pass reads.
    let first = down.iter().map(|(first, _)| *first).min().unwrap_or(0);
    let end = down.iter().map(|(first, weights)| first + weights.len()).max();
    let end = end.unwrap_or(first);
    let stride = side * COLOURS;
    let mut narrow = Vec::with_capacity((end - first) * stride);
    for row in rgb[first * width * COLOURS..end * width * COLOURS].chunks_exact(width * COLOURS) {
        for (start, weights) in &across {
            for colour in 0..COLOURS {
                let values = row[start * COLOURS + colour..].iter().step_by(COLOURS);
                narrow.push(weighed(values, weights));
            }
        }
    }
    let mut resized = Vec::with_capacity(down.len() * stride);
    for (start, weights) in &down {
        let rows = &narrow[(start - first) * stride..];
        resized.extend((0..stride).map(|at| weighed(rows[at..].iter().step_by(stride), weights)));
    }
    resized
}

/// Weights in fixed point, rounded away from zero at halves as Pillow does.
fn fixed(taps: &[Taps]) -> Vec<(usize, Vec<i64>)> {
    let one = f64::from(1u32 << PRECISION);
    let round = |weight: &f64| (weight * one + 0.5f64.copysign(*weight)) as i64;
    taps.iter()
        .map(|taps| (taps.first, taps.weights.iter().map(round).collect()))
        .collect()
}

fn weighed<'v>(values: impl Iterator<Item = &'v u8>, weights: &[i64]) -> u8 {
    let half = 1i64 << (PRECISION - 1);
    let sum = values
        .zip(weights)
        .fold(half, |sum, (value, weight)| sum + i64::from(*value) * weight);
    (sum >> PRECISION).clamp(0, 255) as u8
}
