//! A group norm, its activation, a convolution and a sum: what is launched for them.

use super::products::Products;
use super::strips::{Sizes, Strip};
use super::within::{Output, Within, pictures, within_border};
use crate::convolutions::{Geometry, GroupNormSpec, axes, weight_axes};
use burn::backend::{Dispatch, TensorMetadata, ops::FloatTensorOps};
use burn::tensor::{DType, FloatDType, Tensor};
use cubecl_runtime::server::Handle;
use flow_core::cube::{self, CubeTensor};
use flow_core::tensors::{self, RawTensor};
use flow_kernels_cube::pictures::Pictures;
use flow_kernels_cube::pictures::border::{Bordered, border};
use flow_kernels_cube::pictures::group_norm::GroupNorm;
use flow_kernels_cube::{Buffer, Element};
use flow_matmul_cube::problem::{Epilogue, KernelRows, Layout, Matmul, Refusal};
use flow_matmul_cube::tensors::{Matrix, Operands};

/// Rows and columns of a kernel that is more than one tap.
const SIDE: usize = 3;

/// A group norm with `x · sigmoid(x)` or without, a convolution and a sum, of plain tensors.
pub(super) struct Unit<'a> {
    pub(super) norm: Option<(&'a RawTensor, &'a RawTensor, GroupNormSpec)>,
    pub(super) weight: &'a RawTensor,
    pub(super) bias: Option<&'a RawTensor>,
    pub(super) geometry: Geometry,
    pub(super) residual: Option<&'a RawTensor>,
}

impl Products {
    /// The product's result, or why there is none; nothing was computed then.
    pub fn unit(&self, x: &RawTensor, unit: &Unit<'_>) -> Result<RawTensor, Refusal> {
        let element =
            element(unit.weight.dtype()).ok_or_else(|| Refusal::because("tensor cores take bf16 and f16"))?;
        let (outputs, channels, kernel) = weight_axes(unit.weight);
        let [batch, frames, height, width, _] = axes::<5>(x);
        let geometry = unit.geometry;
        let plain = Geometry {
            upsample: false,
            ..geometry
        };
        let is_point = kernel == [1; 3];
        if frames != 1 || plain != Geometry::same(kernel) || !(is_point || kernel == [1, SIDE, SIDE]) {
            return Err(Refusal::because(
                "one frame, and 3 × 3 taps or one tap of every pixel",
            ));
        }
        if !channels.is_multiple_of(8) {
            return Err(Refusal::because("channels in eights"));
        }
        let x = cube::read(x).ok_or_else(|| Refusal::because("a plain tensor of a CubeCL device"))?;
        let x = cube::cast(x.clone(), unit.weight.dtype());
        let repeat = if geometry.upsample { 2 } else { 1 };
        let within = Within {
            batch,
            height: repeat * height,
            width: repeat * width,
        };
        if is_point && (unit.norm.is_some() || !within.holds(&x)) {
            return Err(Refusal::because("one tap of pixels within a border"));
        }
        let wide = outputs.next_multiple_of(8);
        let (weight, columns) = packed(unit.weight, kernel, wide);
        let weight = cube::read(&weight).expect("it is made of one of this device");
        let layer = Layer {
            x: &x,
            unit,
            within: &within,
            element,
            weight: Matrix::contiguous(cube::contiguous(weight.clone()).handle, [wide, columns]),
            bias: unit.bias.map(|bias| padded_row(bias, wide, unit.weight.dtype())),
            residual: unit
                .residual
                .map(|it| within_border(it, &within, x.dtype))
                .transpose()?,
            output: Output::new(&x, &within, wide),
        };
        match is_point {
            true => self.points(&layer)?,
            false => self.taps(&layer)?,
        }
        Ok(layer.output.tensor(&within, outputs))
    }

    /// One tap of every pixel, border and all, where they lie.
    fn points(&self, layer: &Layer<'_>) -> Result<(), Refusal> {
        let pixels = layer.within.pixels();
        let channels = layer.weight.columns;
        let a = Matrix::contiguous(layer.x.handle.clone(), [pixels, channels]);
        self.product(layer, &a, (0, pixels), None)
    }

    /// Taps on rows and columns, a strip of rows at a time.
    fn taps(&self, layer: &Layer<'_>) -> Result<(), Refusal> {
        let Layer { x, unit, within, .. } = *layer;
        let pictures = pictures(x, layer.element);
        let [batch, _, height, _, channels] = pictures.axes;
        let factors = unit
            .norm
            .map(|(weight, bias, spec)| factors(x, &pictures, [weight, bias], spec));
        let (pitch, size) = (within.pitch(), x.dtype.size());
        let rows = KernelRows {
            frames: 1,
            rows: SIDE,
            frame_stride: 0,
            row_stride: pitch,
        };
        let sizes = Sizes {
            batch,
            height: within.height,
            repeat: within.height / height,
            row: pitch * channels,
        };
        for strip in sizes.strips() {
            let padded = bordered(layer, &pictures, factors.as_ref(), &strip);
            // Up to the last pixel that counts.
            let between = (strip.samples.len() - 1) * (within.height + 2);
            let pixels = (between + strip.rows.len()) * pitch - 2;
            let before = strip.skipped * pitch * channels * size;
            let a = Matrix {
                handle: padded.handle.offset_start(before as u64),
                rows: pixels + (SIDE - 1) * pitch,
                columns: SIDE * channels,
                stride: channels,
            };
            let first = (strip.samples.start * (within.height + 2) + strip.rows.start) * pitch;
            self.product(layer, &a, (first, pixels), Some(rows))?;
        }
        Ok(())
    }

    /// `pixels` pixels of the result from number `first` on, of the rows of `a`.
    fn product(
        &self,
        layer: &Layer<'_>,
        a: &Matrix,
        (first, pixels): (usize, usize),
        rows: Option<KernelRows>,
    ) -> Result<(), Refusal> {
        let [wide, columns] = [layer.weight.rows, layer.weight.columns];
        let call = Matmul {
            bias: layer.bias.is_some(),
            epilogue: match layer.residual {
                Some(_) => Epilogue::Add,
                None => Epilogue::Store,
            },
            kernel_rows: rows,
            ..Matmul::plain(Layout::Nt, [pixels, wide, columns], layer.element)
        };
        let before = (first * wide * layer.x.dtype.size()) as u64;
        let part = |of: &Handle| Matrix::contiguous(of.clone().offset_start(before), [pixels, wide]);
        let (to, other) = (
            part(&layer.output.matrix.handle),
            layer.residual.as_ref().map(part),
        );
        let operands = Operands {
            bias: layer.bias.as_ref(),
            other: other.as_ref(),
            ..Operands::new(a, &layer.weight, &to)
        };
        self.run(layer.x, call, &operands)
    }
}

/// A unit with what its products read and where they write.
struct Layer<'a> {
    x: &'a CubeTensor,
    unit: &'a Unit<'a>,
    within: &'a Within,
    element: Element,
    weight: Matrix,
    bias: Option<Handle>,
    /// From the first pixel that counts on, as the output.
    residual: Option<Handle>,
    output: Output,
}

/// What a strip of the convolution reads: `x` normalised, activated and enlarged as asked for, with zeros around.
fn bordered(layer: &Layer<'_>, x: &Pictures, factors: Option<&[Buffer; 2]>, strip: &Strip) -> CubeTensor {
    let Layer { unit, within, .. } = *layer;
    let [_, frames, height, columns, channels] = x.axes;
    let bordered = Bordered {
        border: [strip.border, 1],
        frames_before: 0,
        repeat: within.height / height,
        silu: unit.norm.is_some_and(|(.., spec)| spec.silu),
    };
    let axes = [strip.samples.len(), frames, strip.source.len(), columns, channels];
    let part = x.part(
        axes,
        strip.samples.start * x.strides[0] + strip.source.start * x.strides[2],
    );
    let padded = cube::empty_like(layer.x, &bordered.axes(axes), layer.x.dtype);
    let to = Buffer {
        handle: padded.handle.clone(),
        length: padded.meta.shape().iter().product(),
        element: layer.element,
    };
    let of_samples = |factor: &Buffer| Buffer {
        handle: factor
            .handle
            .clone()
            .offset_start((strip.samples.start * channels * Element::F32.bytes()) as u64),
        length: strip.samples.len() * channels,
        element: factor.element,
    };
    let factors = factors.map(|[scale, shift]| [of_samples(scale), of_samples(shift)]);
    let factors = factors.as_ref().map(|[scale, shift]| [scale, shift]);
    border(&layer.x.client, &part, factors, &to, bordered).expect("sizes are those of the tensors");
    padded
}

/// A scale and a shift for each channel of a sample that are the norm.
fn factors(x: &CubeTensor, pictures: &Pictures, of: [&RawTensor; 2], spec: GroupNormSpec) -> [Buffer; 2] {
    let count = pictures.axes[0] * pictures.axes[4];
    let [scale, shift] = [(); 2].map(|()| Buffer::empty(&x.client, count, Element::F32));
    let [weight, bias] = of.map(vector);
    let norm = GroupNorm {
        groups: spec.groups,
        epsilon: spec.epsilon,
    };
    norm.factors(&x.client, pictures, [&weight, &bias], [&scale, &shift])
        .expect("the layer's sizes were checked when it was made");
    [scale, shift]
}

/// A group norm alone of a tensor of 16 bits; nothing of others.
pub(super) fn group_norm(
    x: &RawTensor,
    weight: &RawTensor,
    bias: &RawTensor,
    spec: &GroupNormSpec,
) -> Option<RawTensor> {
    let x = cube::read(x)?;
    let element = element(x.dtype)?;
    let pictures = pictures(x, element);
    let [scale, shift] = factors(x, &pictures, [weight, bias], *spec);
    let plain = Bordered {
        border: [0, 0],
        frames_before: 0,
        repeat: 1,
        silu: spec.silu,
    };
    let y = cube::empty_like(x, &pictures.axes, x.dtype);
    let to = Buffer {
        handle: y.handle.clone(),
        length: y.meta.shape().iter().product(),
        element,
    };
    border(&x.client, &pictures, Some([&scale, &shift]), &to, plain).expect("sizes are those of the tensors");
    Some(cube::wrap(y))
}

/// The type of what tensor cores take.
pub(super) fn element(dtype: DType) -> Option<Element> {
    match dtype {
        DType::BF16 => Some(Element::Bf16),
        DType::F16 => Some(Element::F16),
        _ => None,
    }
}

/// A weight's rows, of one tap after the other along a row of the kernel, each row of the kernel filled up with zeros to whole
/// steps of a product and `outputs` rows in all; and how long they are.
pub(super) fn packed(weight: &RawTensor, kernel: [usize; 3], outputs: usize) -> (RawTensor, usize) {
    let (found, channels, _) = weight_axes(weight);
    let [_, rows, columns] = kernel;
    let run = columns * channels;
    let whole = if kernel == [1; 3] {
        run
    } else {
        run.next_multiple_of(64)
    };
    let weight = Dispatch::float_reshape(weight.clone(), [found, channels, rows, columns].into());
    let weight: Tensor<3> = Tensor::<4>::from_dispatch(weight)
        .permute([0, 2, 3, 1])
        .reshape([found, rows, run]);
    let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, (&weight.device(), weight.dtype()));
    let mut parts = vec![weight.clone()];
    if whole > run {
        parts.push(zeros([found, rows, whole - run]));
    }
    let weight = Tensor::cat(parts, 2);
    let weight = match outputs > found {
        true => Tensor::cat(vec![weight, zeros([outputs - found, rows, whole])], 0),
        false => weight,
    };
    (
        weight.reshape([outputs, rows * whole]).into_dispatch(),
        rows * whole,
    )
}

/// A bias with zeros behind it.
pub(super) fn padded_row(bias: &RawTensor, length: usize, dtype: DType) -> Handle {
    let bias = tensors::cast(bias, FloatDType::from(dtype));
    let bias = Tensor::<1>::from_dispatch(bias);
    let missing = length - bias.dims()[0];
    let bias = match missing {
        0 => bias,
        _ => {
            let zeros = Tensor::zeros([missing], (&bias.device(), bias.dtype()));
            Tensor::cat(vec![bias, zeros], 0)
        }
    };
    let bias = bias.into_dispatch();
    cube::contiguous(cube::read(&bias).expect("it is of this device").clone()).handle
}

/// A layer's vector.
fn vector(of: &RawTensor) -> Buffer {
    let tensor = cube::contiguous(
        cube::read(of)
            .expect("weights are of the device of what they are for")
            .clone(),
    );
    Buffer {
        length: tensor.meta.shape().iter().product(),
        element: match tensor.dtype {
            DType::BF16 => Element::Bf16,
            DType::F16 => Element::F16,
            _ => Element::F32,
        },
        handle: tensor.handle,
    }
}
