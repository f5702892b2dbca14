//! Convolutions of frames, as those of pictures: what a frame of the result is computed from lies side by side as channels.

use super::products::Products;
use super::unit::{Unit, element, packed, padded_row};
use crate::convolutions::composed::as_pictures;
use crate::convolutions::{Geometry, axes, weight_axes};
use burn::backend::TensorMetadata;
use burn::tensor::Tensor;
use flow_core::cube;
use flow_core::tensors::{RawTensor, shape};
use flow_matmul_cube::problem::{Layout, Matmul, Refusal};
use flow_matmul_cube::tensors::{Matrix, Operands};

impl Products {
    /// [`unit`](Self::unit), of several frames and taps in time as well.
    ///
    /// # Errors
    /// [`Refusal`] as there.
    pub fn unit_of_frames(&self, x: &RawTensor, unit: &Unit<'_>) -> Result<RawTensor, Refusal> {
        let (outputs, channels, kernel) = weight_axes(unit.weight);
        let [batch, frames, height, width, _] = axes::<5>(x);
        let is_plane = shape(unit.weight).len() == 4;
        if frames == 1 && is_plane {
            return self.unit(x, unit);
        }
        let plane = [1, kernel[1], kernel[2]];
        let geometry = Geometry {
            stride: [1, unit.geometry.stride[1], unit.geometry.stride[2]],
            padding: [[0; 2], unit.geometry.padding[1], unit.geometry.padding[2]],
            ..unit.geometry
        };
        let plain = Geometry {
            upsample: false,
            ..geometry
        };
        // Before anything is copied.
        if unit.norm.is_some() || unit.residual.is_some() || plain != Geometry::same(plane) {
            return Err(Refusal::because("every pixel, without a norm and a sum"));
        }
        if !channels.is_multiple_of(8) || element(unit.weight.dtype()).is_none() {
            return Err(Refusal::because("channels in eights, in bf16 or f16"));
        }
        let (pictures, weight) = as_pictures(x, unit.weight, &unit.geometry);
        let (pictures, weight) = (pictures.into_dispatch(), weight.into_dispatch());
        let output = if plane == [1; 3] {
            self.points_in_order(&pictures, &weight, unit.bias)?
        } else {
            let unit = Unit {
                norm: None,
                weight: &weight,
                bias: unit.bias,
                geometry,
                residual: None,
            };
            self.unit(&pictures, &unit)?
        };
        let [out_frames, out_height, out_width] = unit.geometry.output([frames, height, width], kernel);
        let axes = [batch, out_frames, out_height, out_width, outputs];
        Ok(Tensor::<5>::from_dispatch(output).reshape(axes).into_dispatch())
    }

    /// One tap of every pixel of `x [B, 1, H, W, C]`, one behind the other.
    fn points_in_order(
        &self,
        x: &RawTensor,
        weight: &RawTensor,
        bias: Option<&RawTensor>,
    ) -> Result<RawTensor, Refusal> {
        let dtype = weight.dtype();
        let (Some(element), Some(x)) = (element(dtype), cube::read(x)) else {
            return Err(Refusal::because("a plain tensor of a CubeCL device in 16 bits"));
        };
        let (outputs, _, kernel) = weight_axes(weight);
        let x = cube::contiguous(cube::cast(x.clone(), dtype));
        let mut axes = x.meta.shape().to_vec();
        let pixels = axes[..4].iter().product();
        let wide = outputs.next_multiple_of(8);
        let (weight, columns) = packed(weight, kernel, wide);
        let weight = cube::contiguous(
            cube::read(&weight)
                .expect("it is made of one of this device")
                .clone(),
        );
        axes[4] = wide;
        let y = cube::empty_like(&x, &axes, dtype);
        let bias = bias.map(|bias| padded_row(bias, wide, dtype));
        let call = Matmul {
            bias: bias.is_some(),
            ..Matmul::plain(Layout::Nt, [pixels, wide, columns], element)
        };
        let [a, b, to] = [
            (&x, [pixels, columns]),
            (&weight, [wide, columns]),
            (&y, [pixels, wide]),
        ]
        .map(|(tensor, sides)| Matrix::contiguous(tensor.handle.clone(), sides));
        let operands = Operands {
            bias: bias.as_ref(),
            ..Operands::new(&a, &b, &to)
        };
        self.run(&x, call, &operands)?;
        let y = Tensor::<5>::from_dispatch(cube::wrap(y));
        Ok(y.narrow(4, 0, outputs).into_dispatch())
    }
}
