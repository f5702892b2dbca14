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
const WAVELENGTH_BASE: f64 = 10_000.0;

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

/// Axial rotary table: the first half of the channel pairs turns with the row, the second with the column
/// (Su et al. 2021, arXiv:2104.09864, on each axis).
pub(crate) fn rotary_2d(head_dim: usize, rows: usize, columns: usize, device: &ComputeDevice) -> RotaryTable {
    let (pairs, quarter) = (head_dim / 2, head_dim / 4);
    let angle = |token: usize, pair: usize| {
        let position = if pair < quarter {
            token / columns
        } else {
            token % columns
        };
        position as f64 / libm::pow(WAVELENGTH_BASE, (pair % quarter) as f64 / quarter as f64)
    };
    let table = |of: fn(f64) -> f64| {
        let values = (0..rows * columns)
            .flat_map(|token| (0..pairs).map(move |pair| (token, pair)))
            .map(|(token, pair)| of(angle(token, pair)) as f32)
            .collect();
        device.tensor(values, [rows * columns, pairs])
    };
    RotaryTable {
        cos: table(libm::cos),
        sin: table(libm::sin),
    }
}
