//! Operations made of others, each computed as one: the same bits with fewer passes over memory and less kept.
//!
//! Without a gradient, a block of rows goes through all parts while it is in the cache, and nothing between them is ever
//! a tensor. With one, backward keeps what only a matrix product could give again, and computes anew what is cheap: the
//! normalised rows and the activation.

mod feed_forward;
mod gated_linear;
mod modulated_linear;

pub(crate) use feed_forward::modulated_feed_forward;
pub(crate) use gated_linear::linear_gated_residual;
pub(crate) use modulated_linear::modulated_linear;

use crate::cpu::linear::{self, BackwardValues, ForwardValues};
use crate::cpu::modulated_layer_norm::{self as norm, NormLayout};
use crate::host::threads;
use flow_core::RawTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::NormChunks;

/// The name under which results of linear layers pass through the stash, here as in [`linear`].
const LINEAR: &str = "linear";

/// New rows of `columns` values made block by block: `task(first row, rows)`. Blocks are those of a linear layer.
fn build_rows(
    rows: usize,
    columns: usize,
    work: usize,
    start: threads::Start<'_>,
    task: impl Fn(usize, &mut [f32]) + Send + Sync,
) -> Vec<f32> {
    let block = linear::rows_per_task(rows);
    let pieces = threads::Pieces {
        length: rows * columns,
        size: block * columns,
    };
    threads::build(pieces, work, start, |index, rows| task(index * block, rows))
}

/// The rows from `start` on of a linear layer of `x`, which begins there: scratch of one task.
fn layer_rows(layer: &ForwardValues, x: &[f32], rows: usize) -> Vec<f32> {
    let mut y = match layer.start() {
        threads::Start::Rows(bias) if !bias.is_empty() => bias.repeat(rows),
        _ => vec![0.0; rows * layer.outputs()],
    };
    layer.forward_rows(x, 0, &mut y);
    y
}

/// Gradients of `x`, of the modulation, and of a layer's weights in their order.
type LayerGradients = (Option<Vec<f32>>, Option<Vec<f32>>, Vec<Option<RawTensor>>);

/// A modulated layer norm within another operation.
#[derive(Clone, Debug)]
struct Normed {
    x: CpuTensor,
    modulation: CpuTensor,
    layout: NormLayout,
}

impl Normed {
    fn read(x: &RawTensor, modulation: &RawTensor, chunks: NormChunks) -> Self {
        let (x, modulation) = (CpuTensor::read(x), CpuTensor::read(modulation));
        let layout = NormLayout::new(&x, &modulation, chunks);
        Self {
            x,
            modulation,
            layout,
        }
    }

    /// Number of rows.
    fn rows(&self) -> usize {
        self.x.rows_and_columns().0
    }

    /// `rows` normalised rows from `start` on: scratch of one task.
    fn scratch(&self, start: usize, rows: usize) -> Vec<f32> {
        let mut y = vec![0.0; rows * self.layout.columns()];
        self.layout
            .normalise(self.x.values(), self.modulation.values(), start, &mut y);
        y
    }

    /// Rows from `start` on of `layer` of the normalised rows, added to `y`, which holds the bias.
    fn layer_rows(&self, layer: &ForwardValues, start: usize, y: &mut [f32]) {
        let rows = y.len().checked_div(layer.outputs()).unwrap_or(0);
        layer.forward_rows(&self.scratch(start, rows), 0, y);
    }

    /// Gradients of `x`, the modulation and `layer`'s weights, as far as they are `wanted`, for the `gradient` of the
    /// layer's sum. The normalised rows and their statistics are computed again.
    fn layer_gradients(
        &self,
        layer: &BackwardValues,
        train_matrix: bool,
        gradient: &[f32],
        wanted: &[bool],
    ) -> LayerGradients {
        let (x, modulation) = (self.x.values(), self.modulation.values());
        let want_norm = wanted[0] || wanted[1];
        let (rows, statistics) = if want_norm || train_matrix {
            self.layout.forward(x, modulation)
        } else {
            Default::default()
        };
        let weights = layer.weight_gradients(Some(&rows), gradient, &wanted[2..]);
        if !want_norm {
            return (None, None, weights);
        }
        let saved = norm::Saved {
            layout: self.layout,
            x,
            modulation,
            statistics: &statistics,
            gradient: &layer.input_gradient(gradient),
        };
        let (dx, dmodulation) = norm::backward(&saved, wanted[1]);
        (Some(dx), dmodulation, weights)
    }

    /// `layer`'s results in full.
    fn layer(&self, layer: &ForwardValues) -> RawTensor {
        let rows = self.rows();
        let work = layer.work(rows);
        let y = build_rows(rows, layer.outputs(), work, layer.start(), |start, y| {
            self.layer_rows(layer, start, y);
        });
        from_vec(y, &self.shape(layer))
    }

    /// The shape of `layer`'s results.
    fn shape(&self, layer: &ForwardValues) -> Vec<usize> {
        let shape = self.x.shape();
        [&shape[..shape.len() - 1], &[layer.outputs()]].concat()
    }
}
