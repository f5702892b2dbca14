//! Tensors of CubeCL's runtimes as kernels want them: handle, shape and strides.

pub(super) mod memory;
mod recording;

use crate::tensors::RawTensor;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Tensor};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
pub use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use cubecl::ir::DeviceProperties;
pub use cubecl::prelude::Client;
use cubecl::server::Handle;
use cubecl::zspace::{Shape, Strides, metadata::Metadata};
pub use recording::CubeRecorder;
use std::sync::Arc;

/// Which device a client launches on: all clients of a device share what is known of it.
#[derive(Clone, Debug)]
pub struct LaunchesOn(Arc<DeviceProperties>);

impl LaunchesOn {
    /// The device of `client`.
    pub fn of(client: &Client) -> Self {
        Self(client.properties_shared())
    }
}

impl PartialEq for LaunchesOn {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The device's tensor in `tensor`, if it is a plain float tensor of a CubeCL runtime.
pub fn read(tensor: &RawTensor) -> Option<&CubeTensor> {
    match &tensor.kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The device's tensor in `tensor`, if it is an integer tensor of a CubeCL runtime.
pub fn read_ints(tensor: &RawTensor) -> Option<&CubeTensor> {
    match &tensor.kind {
        DispatchTensorKind::Cube(BackendTensor::Int(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The device's tensor in `tensor`, to be changed, if it is a plain float tensor of a CubeCL runtime.
pub fn read_mut(tensor: &mut RawTensor) -> Option<&mut CubeTensor> {
    match &mut tensor.kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The tensor's values as another type; itself if it has the type.
pub fn cast(tensor: CubeTensor, dtype: DType) -> CubeTensor {
    burn_cubecl::kernel::cast(tensor, dtype)
}

/// A tensor without graph around the device's.
pub fn wrap(tensor: CubeTensor) -> RawTensor {
    RawTensor {
        kind: DispatchTensorKind::Cube(BackendTensor::Float(tensor)),
        autodiff: Default::default(),
    }
}

/// As [`wrap`], around integers.
pub fn wrap_ints(tensor: CubeTensor) -> RawTensor {
    RawTensor {
        kind: DispatchTensorKind::Cube(BackendTensor::Int(tensor)),
        autodiff: Default::default(),
    }
}

/// A tensor without gaps on the device of `like`, its values unspecified.
pub fn empty_like(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// A part of `of`'s memory, which begins where `handle` does, as a tensor of `shape`, with `strides` values from a step of each axis
/// to the next. What it reaches must be within the memory.
pub fn view(of: CubeTensor, handle: Handle, shape: &[usize], strides: &[usize]) -> CubeTensor {
    let strides: Strides = strides.iter().copied().collect();
    CubeTensor::new(
        of.client,
        handle,
        Metadata::new(Shape::from(shape.to_vec()), strides),
        of.device,
        of.dtype,
    )
}

/// The tensor without gaps: itself, or a copy.
pub fn contiguous(tensor: CubeTensor) -> CubeTensor {
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// The values on the host, row-major, as f32.
pub(in crate::device) fn to_host(tensor: &RawTensor) -> Vec<f32> {
    use burn::backend::{Dispatch, TensorMetadata, ops::FloatTensorOps};
    let flat: usize = tensor.shape().iter().product();
    let tensor: Tensor<1> = Tensor::from_dispatch(Dispatch::float_reshape(tensor.clone(), [flat].into()));
    let data = tensor.into_data();
    // A conversion looks at each value, which takes as long as their way from the device.
    match data.as_slice::<f32>() {
        Ok(values) => values.to_vec(),
        Err(_) => data.iter::<f32>().collect(),
    }
}
