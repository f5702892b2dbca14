//! Declaring what encoders are made of.

use burn::tensor::Tensor;
use flow_core::exec::{Exec, Linear};
use flow_core::ops::LinearWeights;
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, Handle, Init, ParamLayout, Rows};
use std::fmt::Display;
use std::sync::Arc;

/// The layout that `declare` fills, and what it gives. Everything in it is applied to `rows`.
pub(crate) fn declared<T>(
    rows: Rows,
    declare: impl FnOnce(&mut LayoutBuilder<'_>) -> T,
) -> (Arc<ParamLayout>, T) {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    let parts = declare(&mut builder.applied_to(rows));
    (Arc::new(layout), parts)
}

/// Initial values of a matrix. Encoders come with weights; these are for tests.
const MATRIX: Init = Init::Normal(0.02);

/// The table called `NAME.weight`, `[rows, width]`.
pub(crate) fn table(parts: &mut LayoutBuilder<'_>, name: &str, rows: usize, width: usize) -> Handle<2> {
    parts.under(name).param("weight", [rows, width], MATRIX)
}

/// A linear layer with a bias.
pub(crate) fn linear(
    parts: &mut LayoutBuilder<'_>,
    name: impl Display,
    input: usize,
    output: usize,
) -> Linear {
    let mut part = parts.under(name);
    let weight = part.param("weight", [output, input], MATRIX);
    Linear {
        weight,
        bias: Some(part.param("bias", [output], Init::Zeros)),
    }
}

/// A linear layer without a bias.
pub(crate) fn product(
    parts: &mut LayoutBuilder<'_>,
    name: impl Display,
    input: usize,
    output: usize,
) -> Linear {
    Linear {
        weight: parts.under(name).param("weight", [output, input], MATRIX),
        bias: None,
    }
}

/// A convolution whose windows do not overlap, as a linear layer over patches: pixels `[B, C, H, W]` to `[B, S, D]`, row by row, by a kernel
/// `[D, C, patch, patch]` and a bias `[D]`. Pixels beyond the last whole patch are left out.
pub(crate) fn patch_tokens(
    exec: &Exec<'_>,
    pixels_bchw: Tensor<4>,
    kernel: Tensor<4>,
    bias: Option<Tensor<1>>,
) -> Tensor<3> {
    let [batch, colours, height, width] = pixels_bchw.dims();
    let [channels, _, patch, _] = kernel.dims();
    let (rows, columns) = (height / patch, width / patch);
    let values = colours * patch * patch;
    let patches = pixels_bchw
        .narrow(2, 0, rows * patch)
        .narrow(3, 0, columns * patch)
        .reshape([batch, colours, rows, patch, columns, patch])
        .permute([0, 2, 4, 1, 3, 5])
        .reshape([batch, rows * columns, values]);
    let weights = LinearWeights {
        low_precision: None,
        weight: kernel.reshape([channels, values]).into_dispatch(),
        bias: bias.map(Tensor::into_dispatch),
        adapter: None,
    };
    Tensor::from_dispatch(exec.kernels().ops().model.linear(
        &**exec.stash(),
        &patches.into_dispatch(),
        &weights,
        Activation::None,
    ))
}

/// The weight of an RMS norm.
pub(crate) fn rms(parts: &mut LayoutBuilder<'_>, name: &str, width: usize) -> Handle<1> {
    parts.under(name).param("weight", [width], Init::Ones)
}

/// Weight and bias of a layer norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNorm {
    weight: Handle<1>,
    bias: Handle<1>,
}

impl LayerNorm {
    pub fn new(parts: &mut LayoutBuilder<'_>, name: &str, width: usize) -> Self {
        let mut part = parts.under(name);
        Self {
            weight: part.param("weight", [width], Init::Ones),
            bias: part.param("bias", [width], Init::Zeros),
        }
    }

    /// The layer norm of `x_BSD`.
    pub fn forward(self, exec: &Exec<'_>, x_bsd: Tensor<3>, epsilon: f32) -> Tensor<3> {
        exec.layer_norm(x_bsd, self.weight, self.bias, epsilon)
    }
}

/// `layer` at `x_BSD`, as `heads` heads, `[B, S, H, D]`.
pub(crate) fn heads_of(exec: &Exec<'_>, layer: &Linear, x_bsd: Tensor<3>, heads: usize) -> Tensor<4> {
    let y = exec.linear(layer, x_bsd);
    let [batch, tokens, width] = y.dims();
    y.reshape([batch, tokens, heads, width / heads])
}

/// `[B, S, H, D]` as `[B, S, H · D]`.
pub(crate) fn side_by_side(x_bshd: Tensor<4>) -> Tensor<3> {
    let [batch, tokens, heads, channels] = x_bshd.dims();
    x_bshd.reshape([batch, tokens, heads * channels])
}
