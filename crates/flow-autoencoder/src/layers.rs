//! Layers that autoencoders have in common, on values `[B, T, H, W, C]`.

use crate::convolutions::{ConvolutionOperands, Convolutions, Geometry, GroupNormSpec, NormOperands};
use burn::tensor::Tensor;
use flow_core::ops::LinearWeights;
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, Exec, Handle, Init};

/// What layers compute through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub exec: &'a Exec<'a>,
    pub convolutions: &'a dyn Convolutions,
}

/// A convolution's weight, one frame deep or several.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Plane(Handle<4>),
    Volume(Handle<5>),
}

/// A convolution with or without bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution {
    kernel: Kernel,
    taps: [usize; 3],
    channels: [usize; 2],
    bias: Option<Handle<1>>,
    geometry: Geometry,
}

impl Convolution {
    /// Of `side` by `side` taps on rows and columns, from `inputs` to `outputs` channels.
    pub fn plane(
        mut parts: LayoutBuilder<'_>,
        [inputs, outputs]: [usize; 2],
        side: usize,
        geometry: Geometry,
    ) -> Self {
        let weight = parts.param("weight", [outputs, inputs, side, side], Init::FanIn);
        Self {
            kernel: Kernel::Plane(weight),
            taps: [1, side, side],
            channels: [inputs, outputs],
            bias: Some(parts.param("bias", [outputs], Init::Zeros)),
            geometry,
        }
    }

    /// As [`plane`](Self::plane), one output for each input and no bias.
    pub fn plane_without_bias(
        mut parts: LayoutBuilder<'_>,
        [inputs, outputs]: [usize; 2],
        side: usize,
    ) -> Self {
        let taps = [1, side, side];
        Self {
            kernel: Kernel::Plane(parts.param("weight", [outputs, inputs, side, side], Init::FanIn)),
            taps,
            channels: [inputs, outputs],
            bias: None,
            geometry: Geometry::same(taps),
        }
    }

    /// The same of every pixel twice, or of every second pixel.
    pub fn with_geometry(self, geometry: Geometry) -> Self {
        Self { geometry, ..self }
    }

    /// Of `taps` on frames, rows and columns.
    pub fn volume(
        mut parts: LayoutBuilder<'_>,
        [inputs, outputs]: [usize; 2],
        taps: [usize; 3],
        geometry: Geometry,
    ) -> Self {
        let [frames, rows, columns] = taps;
        let weight = parts.param("weight", [outputs, inputs, frames, rows, columns], Init::FanIn);
        Self {
            kernel: Kernel::Volume(weight),
            taps,
            channels: [inputs, outputs],
            bias: Some(parts.param("bias", [outputs], Init::Zeros)),
            geometry,
        }
    }

    /// Taps on frames.
    pub fn frames(&self) -> usize {
        self.taps[0]
    }

    /// `[B, T', H', W', out]` of `x [B, T, H, W, in]`.
    pub fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        self.forward_after(at, x, self.geometry.padding[0][0])
    }

    /// As [`forward`](Self::forward), with so many frames of zeros before `x` and none behind it.
    pub fn forward_after(&self, at: Place<'_>, x: Tensor<5>, zeros: usize) -> Tensor<5> {
        if self.is_linear() && !at.convolutions.takes_points() {
            return self.linear(at, x);
        }
        self.compute(at, None, x, None, zeros)
    }

    /// `forward(silu(norm(x))) + residual`.
    pub fn after_norm(
        &self,
        at: Place<'_>,
        norm: &GroupNorm,
        x: Tensor<5>,
        residual: Option<Tensor<5>>,
    ) -> Tensor<5> {
        self.compute(at, Some(norm), x, residual, self.geometry.padding[0][0])
    }

    fn compute(
        &self,
        at: Place<'_>,
        norm: Option<&GroupNorm>,
        x: Tensor<5>,
        residual: Option<Tensor<5>>,
        zeros: usize,
    ) -> Tensor<5> {
        let params = at.exec.params();
        let weight = match self.kernel {
            Kernel::Plane(weight) => params.get(weight).into_dispatch(),
            Kernel::Volume(weight) => params.get(weight).into_dispatch(),
        };
        let bias = self.bias.map(|bias| params.get(bias).into_dispatch());
        let mut geometry = self.geometry;
        geometry.padding[0] = [zeros, 0];
        let convolution = ConvolutionOperands {
            weight: &weight,
            bias: bias.as_ref(),
            geometry,
        };
        let of_norm = norm.map(|norm| [norm.weight, norm.bias].map(|it| params.get(it).into_dispatch()));
        let norm = norm
            .zip(of_norm.as_ref())
            .map(|(norm, [weight, bias])| NormOperands {
                weight,
                bias,
                spec: GroupNormSpec {
                    silu: true,
                    ..norm.spec
                },
            });
        let (x, residual) = (x.into_dispatch(), residual.map(Tensor::into_dispatch));
        let output = at
            .convolutions
            .norm_and_convolution(&x, norm.as_ref(), &convolution, residual.as_ref());
        Tensor::from_dispatch(output)
    }

    /// Whether it has one tap on every value: a linear layer over the channels.
    fn is_linear(&self) -> bool {
        self.taps == [1; 3] && self.geometry == Geometry::same(self.taps)
    }

    /// Of values with any axes, channels last.
    pub fn linear<const D: usize>(&self, at: Place<'_>, x: Tensor<D>) -> Tensor<D> {
        let params = at.exec.params();
        let [inputs, outputs] = self.channels;
        let weight: Tensor<2> = match self.kernel {
            Kernel::Plane(weight) => params.get(weight).reshape([outputs, inputs]),
            Kernel::Volume(weight) => params.get(weight).reshape([outputs, inputs]),
        };
        let weights = LinearWeights {
            low_precision: None,
            weight: weight.into_dispatch(),
            bias: self.bias.map(|bias| params.get(bias).into_dispatch()),
            adapter: None,
        };
        let (model, stash) = (at.exec.kernels().ops().model, &**at.exec.stash());
        Tensor::from_dispatch(model.linear(stash, &x.into_dispatch(), &weights, Activation::None))
    }
}

/// Group norm with weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupNorm {
    weight: Handle<1>,
    bias: Handle<1>,
    spec: GroupNormSpec,
}

impl GroupNorm {
    /// Of `channels` in `groups`, with 1e-6 added to the variance, as diffusers' autoencoders have it.
    pub fn new(mut parts: LayoutBuilder<'_>, channels: usize, groups: usize) -> Self {
        Self {
            weight: parts.param("weight", [channels], Init::Ones),
            bias: parts.param("bias", [channels], Init::Zeros),
            spec: GroupNormSpec {
                groups,
                epsilon: 1e-6,
                silu: false,
            },
        }
    }

    /// The norm alone.
    pub fn forward(&self, at: Place<'_>, x: Tensor<5>) -> Tensor<5> {
        let [weight, bias] = [self.weight, self.bias].map(|it| at.exec.params().get(it).into_dispatch());
        let x = x.into_dispatch();
        Tensor::from_dispatch(at.convolutions.group_norm(&x, &weight, &bias, &self.spec))
    }
}
