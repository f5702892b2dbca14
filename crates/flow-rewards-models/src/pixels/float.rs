//! torchvision's resizing of floating-point images with antialiasing, which PyTorch computes: rows first, then columns.
//!
//! Nothing is clamped: a bicubic filter overshoots, and torchvision leaves that in floating-point images.

use super::taps::{Filter, Taps, taps};
use super::{COLOURS, Plan};

/// `planes`, one for each colour, resized and cropped.
pub fn resize(planes: &[f32], plan: &Plan, filter: Filter) -> Vec<f32> {
    let (height, width) = (plan.rows.0, plan.columns.0);
    let across = taps(plan.columns, &plan.kept_columns, filter);
    let down = taps(plan.rows, &plan.kept_rows, filter);
    let side = across.len();
    let mut resized = Vec::with_capacity(COLOURS * down.len() * side);
    for plane in planes.chunks_exact(height * width) {
        let mut narrow = vec![0.0f32; height * side];
        // Rows beyond the crop stay zero; nothing reads them.
        for row in read_rows(&down) {
            for (column, taps) in across.iter().enumerate() {
                narrow[row * side + column] = weighed(plane[row * width..].iter(), taps);
            }
        }
        for taps in &down {
            resized.extend((0..side).map(|column| weighed(narrow[column..].iter().step_by(side), taps)));
        }
    }
    resized
}

fn read_rows(down: &[Taps]) -> std::ops::Range<usize> {
    let first = down.iter().map(|taps| taps.first).min().unwrap_or(0);
    let end = down.iter().map(|taps| taps.first + taps.weights.len()).max();
    first..end.unwrap_or(first)
}

/// In f64 and in order, so that the sum is the nearest f32.
fn weighed<'v>(values: impl Iterator<Item = &'v f32>, taps: &Taps) -> f32 {
    let values = values.skip(taps.first);
    let sum: f64 = values
        .zip(&taps.weights)
        .map(|(value, weight)| f64::from(*value) * weight)
        .sum();
    sum as f32
}
