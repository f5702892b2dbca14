//! Convolutions of pictures on Hopper's tensor cores, by the matrix products of `flow-matmul-cube`.
//!
//! What a convolution reads lies with a border of zeros, so that the taps of a row of the kernel are neighbours in memory, and the
//! convolution is one product of overlapping rows ([`KernelRows`]); nothing is copied side by side. Group norm, its activation and
//! upsampling write that border on the way. Results keep the border, whose values mean nothing: they are views of the pixels within,
//! which the next operation reads where they lie.

use super::{
    BurnConvolutions, ConvolutionOperands, Convolutions, Geometry, GroupNormSpec, NormOperands, axes,
    composed_unit, weight_axes,
};
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps};
use burn::tensor::{DType, FloatDType, Tensor};
use cubecl_runtime::server::Handle;
use flow_core::autograd;
use flow_core::cube::{self, CubeDevice, CubeTensor};
use flow_core::tensors::{self, RawTensor, leaf};
use flow_kernels_cube::pictures::Pictures;
use flow_kernels_cube::pictures::border::{Bordered, border};
use flow_kernels_cube::pictures::group_norm::GroupNorm;
use flow_kernels_cube::{Buffer, Element};
use flow_matmul_cube::call::{Declined, Epilogue, KernelRows, Layout, Matmul};
use flow_matmul_cube::run::Prepared;
use flow_matmul_cube::tensors::{Matrix, Operands};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows and columns of a kernel that is more than one tap.
const SIDE: usize = 3;

/// One product made ready on each device that asked for it.
type OnDevices = Vec<(CubeDevice, Arc<Prepared>)>;

/// Convolutions of 3 × 3 taps and of one, and group norm, in bf16 and f16 on devices of compute capability 9.0. Whatever else is
/// asked for is computed by [`BurnConvolutions`], and so are gradients.
#[derive(Debug, Default)]
pub struct CubeConvolutions {
    prepared: Mutex<HashMap<Matmul, OnDevices>>,
}

/// A group norm with `x · sigmoid(x)` or without, a convolution and a sum, of plain tensors.
struct Unit<'a> {
    norm: Option<(&'a RawTensor, &'a RawTensor, GroupNormSpec)>,
    weight: &'a RawTensor,
    bias: Option<&'a RawTensor>,
    geometry: Geometry,
    residual: Option<&'a RawTensor>,
}

/// Pictures `[B, 1, H, W, C]` within their borders of one pixel.
struct Within {
    batch: usize,
    height: usize,
    width: usize,
}

impl Within {
    /// Pixels from a row to the next.
    fn pitch(&self) -> usize {
        self.width + 2
    }

    /// Pixels from the first that counts to the last, with those of the border between.
    fn pixels(&self) -> usize {
        self.batch * (self.height + 2) * self.pitch() - 2 * self.pitch() - 2
    }

    /// Strides of the axes of tensors of `channels` channels.
    fn strides(&self, channels: usize) -> [usize; 5] {
        let row = self.pitch() * channels;
        let picture = (self.height + 2) * row;
        [picture, picture, row, channels, 1]
    }

    /// Whether `tensor` lies so, with as many values around its pixels.
    fn holds(&self, tensor: &CubeTensor) -> bool {
        let [.., channels] = *tensor.meta.shape().to_vec().as_slice() else {
            return false;
        };
        let wanted = self.strides(channels);
        let found = tensor.meta.strides();
        // An axis of one step may have any stride.
        let shape = tensor.meta.shape();
        (0..5).all(|axis| shape[axis] == 1 || found[axis] == wanted[axis]) && found[2] == wanted[2]
    }
}

impl CubeConvolutions {
    /// The product's result, or why there is none; nothing was computed then.
    fn unit(&self, x: &RawTensor, unit: &Unit<'_>) -> Result<RawTensor, Declined> {
        let no = |why: &str| Declined { why: why.into() };
        let element = match unit.weight.dtype() {
            DType::BF16 => Element::Bf16,
            DType::F16 => Element::F16,
            other => return Err(no(&format!("tensor cores take bf16 and f16, not {other:?}"))),
        };
        let (outputs, channels, kernel) = weight_axes(unit.weight);
        let [batch, frames, height, width, _] = axes::<5>(x);
        let geometry = unit.geometry;
        let plain = Geometry {
            upsample: false,
            ..geometry
        };
        let is_point = kernel == [1; 3];
        if frames != 1 || plain != Geometry::same(kernel) || !(is_point || kernel == [1, SIDE, SIDE]) {
            return Err(no("one frame, and 3 × 3 taps or one tap of every pixel"));
        }
        if !channels.is_multiple_of(8) {
            return Err(no("channels in eights"));
        }
        let x = cube::read(x).ok_or_else(|| no("a plain tensor of a CubeCL device"))?;
        let x = cube::cast(x.clone(), unit.weight.dtype());
        let repeat = if geometry.upsample { 2 } else { 1 };
        let within = Within {
            batch,
            height: repeat * height,
            width: repeat * width,
        };
        let wide = outputs.next_multiple_of(8);
        let (weight, columns) = packed(unit.weight, kernel, wide);
        let (a, rows) = if is_point && unit.norm.is_none() && within.holds(&x) {
            (x.handle.clone(), None)
        } else if is_point {
            return Err(no("one tap of pixels within a border"));
        } else {
            let padded = self.bordered(&x, unit, &within, element);
            let rows = KernelRows {
                frames: 1,
                rows: SIDE,
                frame_stride: 0,
                row_stride: within.pitch(),
            };
            (padded.handle, Some(rows))
        };
        let residual = unit
            .residual
            .map(|it| within_border(it, &within, x.dtype))
            .transpose()?;
        let call = Matmul {
            bias: unit.bias.is_some(),
            epilogue: if residual.is_some() {
                Epilogue::Add
            } else {
                Epilogue::Store
            },
            kernel_rows: rows,
            ..Matmul::plain(Layout::Nt, [within.pixels(), wide, columns], element)
        };
        let a = match rows {
            Some(rows) => Matrix {
                handle: a,
                rows: call.m + (rows.rows - 1) * rows.row_stride,
                columns: SIDE * channels,
                stride: channels,
            },
            None => Matrix::contiguous(a, [call.m, channels]),
        };
        let weight = cube::read(&weight).expect("it is made of one of this device");
        let b = Matrix::contiguous(cube::contiguous(weight.clone()).handle, [wide, columns]);
        let bias = unit.bias.map(|bias| padded_row(bias, wide, unit.weight.dtype()));
        let output = Output::new(&x, &within, wide);
        let other = residual.map(|it| Matrix::contiguous(it, [call.m, wide]));
        let operands = Operands {
            bias: bias.as_ref(),
            other: other.as_ref(),
            ..Operands::new(&a, &b, &output.matrix)
        };
        let prepared = self.prepared(&x, call, &operands)?;
        prepared.run(&operands)?;
        Ok(output.tensor(&within, outputs))
    }

    /// What the convolution reads: `x` normalised, activated and enlarged as asked for, with zeros around.
    fn bordered(&self, x: &CubeTensor, unit: &Unit<'_>, within: &Within, element: Element) -> CubeTensor {
        let pictures = pictures(x, element);
        let channels = pictures.axes[4];
        let bordered = Bordered {
            border: [1, 1],
            frames_before: 0,
            repeat: within.height / pictures.axes[2],
            silu: unit.norm.is_some_and(|(.., spec)| spec.silu),
        };
        let padded = cube::empty_like(x, &bordered.axes(pictures.axes), x.dtype);
        let to = Buffer {
            handle: padded.handle.clone(),
            length: padded.meta.shape().iter().product(),
            element,
        };
        let factors = unit.norm.map(|(weight, bias, spec)| {
            let [scale, shift] =
                [(); 2].map(|()| Buffer::empty(&x.client, within.batch * channels, Element::F32));
            let [weight, bias] = [weight, bias].map(vector);
            let norm = GroupNorm {
                groups: spec.groups,
                epsilon: spec.epsilon,
            };
            let computed = norm.factors(&x.client, &pictures, [&weight, &bias], [&scale, &shift]);
            computed.expect("the layer's sizes were checked when it was made");
            [scale, shift]
        });
        let factors = factors.as_ref().map(|[scale, shift]| [scale, shift]);
        border(&x.client, &pictures, factors, &to, bordered).expect("sizes are those of the tensors");
        padded
    }

    fn prepared(
        &self,
        on: &CubeTensor,
        call: Matmul,
        like: &Operands<'_>,
    ) -> Result<Arc<Prepared>, Declined> {
        // A panic while the lock was held left the list whole: entries are pushed at once.
        let mut known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let of_call = known.entry(call).or_default();
        if let Some((_, prepared)) = of_call.iter().find(|(device, _)| *device == on.device) {
            return Ok(prepared.clone());
        }
        let prepared = Arc::new(Prepared::for_operands(&on.client, call, like)?);
        of_call.push((on.device.clone(), prepared.clone()));
        Ok(prepared)
    }
}

/// Where a result goes.
struct Output {
    tensor: CubeTensor,
    matrix: Matrix,
}

impl Output {
    fn new(like: &CubeTensor, within: &Within, channels: usize) -> Self {
        let shape = [within.batch, 1, within.height + 2, within.pitch(), channels];
        let tensor = cube::empty_like(like, &shape, like.dtype);
        let before = (within.pitch() + 1) * channels * like.dtype.size();
        let handle = tensor.handle.clone().offset_start(before as u64);
        let matrix = Matrix::contiguous(handle, [within.pixels(), channels]);
        Self { tensor, matrix }
    }

    /// The pixels within the border, of the first channels.
    fn tensor(self, within: &Within, channels: usize) -> RawTensor {
        let strides = within.strides(self.matrix.columns);
        let shape = [within.batch, 1, within.height, within.width, channels];
        cube::wrap(cube::view(self.tensor, self.matrix.handle, &shape, &strides))
    }
}

/// A tensor `[B, T, H, W, C]` where it lies; without gaps within a pixel.
fn pictures(tensor: &CubeTensor, element: Element) -> Pictures {
    let strides: Vec<usize> = tensor.meta.strides().to_vec();
    let tensor = match strides[4] == 1 && strides[..4].iter().all(|it| it.is_multiple_of(8)) {
        true => tensor.clone(),
        false => cube::contiguous(tensor.clone()),
    };
    let axes = <[usize; 5]>::try_from(tensor.meta.shape().to_vec()).expect("five axes, as was checked");
    let strides: Vec<usize> = tensor.meta.strides().to_vec();
    let strides = [strides[0], strides[1], strides[2], strides[3]];
    let reach: usize = axes
        .iter()
        .zip(strides)
        .map(|(axis, stride)| (axis - 1) * stride)
        .sum();
    Pictures {
        buffer: Buffer {
            handle: tensor.handle.clone(),
            length: reach + axes[4],
            element,
        },
        axes,
        strides,
    }
}

/// The pixels of a tensor as rows of a product's result: where it lies if it lies within such a border, else copied to one.
fn within_border(tensor: &RawTensor, within: &Within, dtype: DType) -> Result<Handle, Declined> {
    let Some(found) = cube::read(tensor) else {
        return Err(Declined {
            why: "a plain tensor of a CubeCL device".into(),
        });
    };
    let found = cube::cast(found.clone(), dtype);
    let shape = found.meta.shape().to_vec();
    let channels = shape[4];
    if !channels.is_multiple_of(8) {
        return Err(Declined {
            why: "channels in eights".into(),
        });
    }
    if within.holds(&found) {
        return Ok(found.handle);
    }
    let element = if dtype == DType::F16 {
        Element::F16
    } else {
        Element::Bf16
    };
    let bordered = Bordered {
        border: [1, 1],
        frames_before: 0,
        repeat: 1,
        silu: false,
    };
    let from = pictures(&found, element);
    let copy = cube::empty_like(&found, &bordered.axes(from.axes), dtype);
    let to = Buffer {
        handle: copy.handle.clone(),
        length: copy.meta.shape().iter().product(),
        element,
    };
    border(&found.client, &from, None, &to, bordered).expect("sizes are those of the tensors");
    let before = (within.pitch() + 1) * channels * dtype.size();
    Ok(copy.handle.offset_start(before as u64))
}

/// A weight's rows, of one tap after the other along a row of the kernel, each row of the kernel filled up with zeros to whole
/// steps of a product and `outputs` rows in all; and how long they are.
fn packed(weight: &RawTensor, kernel: [usize; 3], outputs: usize) -> (RawTensor, usize) {
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
fn padded_row(bias: &RawTensor, length: usize, dtype: DType) -> Handle {
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

impl Convolutions for CubeConvolutions {
    fn name(&self) -> &str {
        "cube"
    }

    fn convolution(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: Option<&DispatchTensor>,
        geometry: &Geometry,
    ) -> DispatchTensor {
        let convolution = ConvolutionOperands {
            weight,
            bias,
            geometry: *geometry,
        };
        self.norm_and_convolution(x, None, &convolution, None)
    }

    fn group_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        spec: &GroupNormSpec,
    ) -> DispatchTensor {
        BurnConvolutions.group_norm(x, weight, bias, spec)
    }

    fn takes_points(&self) -> bool {
        true
    }

    fn norm_and_convolution(
        &self,
        x: &DispatchTensor,
        norm: Option<&NormOperands<'_>>,
        convolution: &ConvolutionOperands<'_>,
        residual: Option<&DispatchTensor>,
    ) -> DispatchTensor {
        let (spec, geometry) = (norm.map(|norm| norm.spec), convolution.geometry);
        let [normed, biased, added] = [norm.is_some(), convolution.bias.is_some(), residual.is_some()];
        let mut inputs = vec![x, convolution.weight];
        inputs.extend(norm.into_iter().flat_map(|norm| [norm.weight, norm.bias]));
        inputs.extend(convolution.bias);
        inputs.extend(residual);
        autograd::apply("convolution", &inputs, |plain, _| {
            let operands = Plain {
                values: plain,
                normed,
                biased,
                added,
            };
            let output = match self.unit(&plain[0], &operands.unit(spec, geometry)) {
                Ok(output) => output,
                Err(_) => operands.composed(plain, spec, geometry),
            };
            let kept: Vec<RawTensor> = plain.to_vec();
            let backward: autograd::Backward = Arc::new(move |incoming| {
                let operands = Plain {
                    values: &kept,
                    normed,
                    biased,
                    added,
                };
                operands.gradients(&incoming, spec, geometry)
            });
            (output, backward)
        })
    }
}

/// The inputs of a unit in their order: `x`, weight, the norm's weight and bias, bias, what is added.
struct Plain<'a> {
    values: &'a [RawTensor],
    normed: bool,
    biased: bool,
    added: bool,
}

impl Plain<'_> {
    fn unit(&self, spec: Option<GroupNormSpec>, geometry: Geometry) -> Unit<'_> {
        let behind = 2 + 2 * usize::from(self.normed);
        Unit {
            norm: spec.map(|spec| (&self.values[2], &self.values[3], spec)),
            weight: &self.values[1],
            bias: self.biased.then(|| &self.values[behind]),
            geometry,
            residual: self
                .added
                .then(|| &self.values[behind + usize::from(self.biased)]),
        }
    }

    /// The same by Burn's operations, of `inputs` in the same order.
    fn composed(
        &self,
        inputs: &[DispatchTensor],
        spec: Option<GroupNormSpec>,
        geometry: Geometry,
    ) -> DispatchTensor {
        let behind = 2 + 2 * usize::from(self.normed);
        let norm = spec.map(|spec| NormOperands {
            weight: &inputs[2],
            bias: &inputs[3],
            spec,
        });
        let convolution = ConvolutionOperands {
            weight: &inputs[1],
            bias: self.biased.then(|| &inputs[behind]),
            geometry,
        };
        let residual = self.added.then(|| &inputs[behind + usize::from(self.biased)]);
        composed_unit(
            &BurnConvolutions,
            &inputs[0],
            norm.as_ref(),
            &convolution,
            residual,
        )
    }

    /// Gradients of what wants them, by Burn's operations once more.
    fn gradients(
        &self,
        incoming: &autograd::Incoming<'_>,
        spec: Option<GroupNormSpec>,
        geometry: Geometry,
    ) -> Vec<Option<RawTensor>> {
        let wants = self.values.iter().zip(incoming.wanted);
        let inputs: Vec<DispatchTensor> = wants
            .map(|(value, wanted)| if *wanted { leaf(value) } else { value.clone() })
            .collect();
        let output = self.composed(&inputs, spec, geometry);
        let gradient = tensors::cast(incoming.gradient(), output.dtype().into());
        let gradients = autograd::backward_from(vec![output], vec![Some(gradient)]);
        let mut gradients = gradients.expect("an input is tracked, or this is not called");
        let found = inputs.iter().zip(incoming.wanted);
        found
            .map(|(input, wanted)| match wanted {
                true => autograd::take_gradient(input, &mut gradients),
                false => None,
            })
            .collect()
    }
}
