//! Rotary positions of Qwen-Image: the picture is centred at the origin, and the text stands on the diagonal behind its edge.

use super::QwenImageConfig;
use crate::layers::{RotaryTable, WAVELENGTH_BASE};
use flow_core::device::ComputeDevice;

/// Frame, row and column.
type Position = [i32; 3];

/// Whole numbers around 0: of an odd number, one more is below.
fn centred(length: usize) -> impl Iterator<Item = i32> + Clone {
    let above = (length / 2) as i32;
    above - length as i32..above
}

/// The table of the picture's tokens, row by row (diffusers' `QwenEmbedRope` with `scale_rope`).
pub(super) fn of_sample(config: &QwenImageConfig, device: &ComputeDevice) -> RotaryTable {
    let (rows, columns) = config.grid();
    let positions = centred(rows).flat_map(|row| centred(columns).map(move |column| [0, row, column]));
    table(positions, config, device)
}

/// The table of as many tokens of text, which begin where the picture's longer half ends, alike on all axes.
pub(super) fn of_text(config: &QwenImageConfig, tokens: usize, device: &ComputeDevice) -> RotaryTable {
    let (rows, columns) = config.grid();
    let first = rows.max(columns) / 2;
    let positions = (first..first + tokens).map(|position| [position as i32; 3]);
    table(positions, config, device)
}

/// `[tokens, head_dim / 2]`, angles in f32 and rounded as `QwenEmbedRope.rope_params` rounds them.
fn table(
    positions: impl Iterator<Item = Position>,
    config: &QwenImageConfig,
    device: &ComputeDevice,
) -> RotaryTable {
    let frequencies = config.axes_dims_rope.map(|channels| {
        let frequency =
            |pair: usize| 1.0 / libm::powf(WAVELENGTH_BASE as f32, (2 * pair) as f32 / channels as f32);
        (0..channels / 2).map(frequency).collect::<Vec<f32>>()
    });
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    for position in positions {
        for (axis, frequencies) in position.iter().zip(&frequencies) {
            for frequency in frequencies {
                let angle = f64::from(*axis as f32 * frequency);
                cos.push(libm::cos(angle) as f32);
                sin.push(libm::sin(angle) as f32);
            }
        }
    }
    let pairs = config.attention_head_dim / 2;
    let shape = [cos.len() / pairs, pairs];
    RotaryTable {
        cos: device.tensor(cos, shape),
        sin: device.tensor(sin, shape),
    }
}
