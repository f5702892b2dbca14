//! Fixed position tables, computed in f64 with `libm`, so the same on every platform.

use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;

/// `x_BSD + positions`, the positions in the type of `x`: a device may compute in bf16 where tables are f32.
pub(crate) fn add_positions(x_bsd: Tensor<3>, positions_1sd: Tensor<3>) -> Tensor<3> {
    let dtype = x_bsd.dtype();
    if positions_1sd.dtype() == dtype {
        x_bsd + positions_1sd
    } else {
        x_bsd + positions_1sd.cast(dtype)
    }
}

/// Base of the wavelengths of both kinds of table (Vaswani et al. 2017, arXiv:1706.03762).
pub(crate) const WAVELENGTH_BASE: f64 = 10_000.0;

/// 2-D sine and cosine table `[rows · columns, width]`, row-major, as DiT and diffusers have it
/// (`get_2d_sincos_pos_embed`, diffusers 0.42.1): the first half of the channels encodes the column, the second the
/// row; within a half first all sines, then all cosines. Neighbouring patches are `step` apart.
pub(crate) fn sincos_2d(width: usize, rows: usize, columns: usize, step: f64) -> Vec<f32> {
    let quarter = width / 4;
    // One position's code serves a whole row and a whole column: SD3's table has 384 of each.
    let codes: Vec<Vec<f32>> = (0..rows.max(columns))
        .map(|position| {
            let frequency = |i: usize| libm::pow(WAVELENGTH_BASE, i as f64 / quarter as f64);
            let angles: Vec<f64> = (0..quarter)
                .map(|i| position as f64 * step / frequency(i))
                .collect();
            let sines = angles.iter().map(|angle| libm::sin(*angle) as f32);
            sines
                .chain(angles.iter().map(|angle| libm::cos(*angle) as f32))
                .collect()
        })
        .collect();
    let mut table = Vec::with_capacity(rows * columns * width);
    for row in 0..rows {
        for column in 0..columns {
            table.extend_from_slice(&codes[column]);
            table.extend_from_slice(&codes[row]);
        }
    }
    table
}

/// Cosines and sines of a rotary embedding, `[S, head_dim / 2]`.
#[derive(Clone, Debug)]
pub(crate) struct RotaryTable {
    pub cos: Tensor<2>,
    pub sin: Tensor<2>,
}

impl RotaryTable {
    /// The table of the first `tokens`.
    pub fn first(&self, tokens: usize) -> Self {
        let first = |table: &Tensor<2>| table.clone().narrow(0, 0, tokens);
        Self {
            cos: first(&self.cos),
            sin: first(&self.sin),
        }
    }

    /// The table with `tokens` behind it that do not turn: they stand at the origin.
    pub fn followed_by_still(self, tokens: usize, device: &ComputeDevice) -> Self {
        let [_, pairs] = self.cos.dims();
        let followed = |table: Tensor<2>, value: f32| {
            let still = device.tensor(vec![value; tokens * pairs], [tokens, pairs]);
            Tensor::cat(vec![table, still], 0)
        };
        Self {
            cos: followed(self.cos, 1.0),
            sin: followed(self.sin, 0.0),
        }
    }
}

/// An axis of positions, and how many of a head's channel pairs turn with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotaryAxis {
    pub length: usize,
    pub pairs: usize,
}

/// Axial rotary table for tokens in row-major order over `axes`: the first channel pairs turn with the first axis, the
/// next with the second, and so on (Su et al. 2021, arXiv:2104.09864, on each axis).
pub(crate) fn rotary_table(axes: &[RotaryAxis], device: &ComputeDevice) -> RotaryTable {
    let tokens: usize = axes.iter().map(|axis| axis.length).product();
    let pairs: usize = axes.iter().map(|axis| axis.pairs).sum();
    let mut angles = Vec::with_capacity(tokens * pairs);
    for token in 0..tokens {
        let mut stride = tokens;
        for RotaryAxis { length, pairs } in axes {
            stride /= length;
            let position = (token / stride % length) as f64;
            angles.extend(
                (0..*pairs).map(|pair| position / libm::pow(WAVELENGTH_BASE, pair as f64 / *pairs as f64)),
            );
        }
    }
    let table = |of: fn(f64) -> f64| {
        let values = angles.iter().map(|angle| of(*angle) as f32).collect();
        device.tensor(values, [tokens, pairs])
    };
    RotaryTable {
        cos: table(libm::cos),
        sin: table(libm::sin),
    }
}

/// The table of images: half of the pairs for the row, half for the column.
pub(crate) fn rotary_2d(head_dim: usize, rows: usize, columns: usize, device: &ComputeDevice) -> RotaryTable {
    let pairs = head_dim / 4;
    let axes = [rows, columns].map(|length| RotaryAxis { length, pairs });
    rotary_table(&axes, device)
}
