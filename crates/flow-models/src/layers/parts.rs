//! Declaring the parts of a model, keeping a list of its linear layers.

use flow_core::exec::Linear;
use flow_core::params::LayoutBuilder;
use flow_core::{Handle, Init, Rows};
use std::fmt::Display;

/// A [`LayoutBuilder`] that notes every linear layer.
pub(crate) struct Parts<'a> {
    builder: LayoutBuilder<'a>,
    linears: &'a mut Vec<Linear>,
}

impl<'a> Parts<'a> {
    pub fn new(builder: LayoutBuilder<'a>, linears: &'a mut Vec<Linear>) -> Self {
        Self { builder, linears }
    }

    /// The part called `name`.
    pub fn under(&mut self, name: impl Display) -> Parts<'_> {
        Parts {
            builder: self.builder.under(name),
            linears: self.linears,
        }
    }

    /// This part's weights that are applied to `rows`, and not to the tokens of the latent.
    pub fn applied_to(&mut self, rows: Rows) -> Parts<'_> {
        Parts {
            builder: self.builder.applied_to(rows),
            linears: self.linears,
        }
    }

    /// A weight that is no linear layer's.
    pub fn param<const D: usize>(&mut self, name: &str, shape: [usize; D], init: Init) -> Handle<D> {
        self.builder.param(name, shape, init)
    }

    /// A constant that files hold.
    pub fn buffer<const D: usize>(&mut self, name: &str, shape: [usize; D]) -> Handle<D> {
        self.builder.buffer(name, shape, Init::Zeros)
    }

    /// A linear layer with a bias that starts at zero.
    pub fn linear(&mut self, name: impl Display, input: usize, output: usize, init: Init) -> Linear {
        self.any_linear(name, [output, input], init, true)
    }

    /// A linear layer without a bias.
    pub fn linear_without_bias(
        &mut self,
        name: impl Display,
        input: usize,
        output: usize,
        init: Init,
    ) -> Linear {
        self.any_linear(name, [output, input], init, false)
    }

    fn any_linear(&mut self, name: impl Display, shape: [usize; 2], init: Init, has_bias: bool) -> Linear {
        let mut part = self.builder.under(name);
        let weight = part.matrix("weight", shape, init);
        let bias = has_bias.then(|| part.param("bias", [shape[0]], Init::Zeros));
        let linear = Linear { weight, bias };
        self.linears.push(linear);
        linear
    }
}
