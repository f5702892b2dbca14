//! Tensors of CubeCL's runtimes as kernels want them: handle, shape and strides.

mod recording;

use crate::tensors::Plain;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Tensor};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
pub use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use cubecl::MemoryUsage;
use cubecl::ir::DeviceProperties;
pub use cubecl::prelude::Client;
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
pub fn read(tensor: &Plain) -> Option<&CubeTensor> {
    match &tensor.kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The device's tensor in `tensor`, if it is an integer tensor of a CubeCL runtime.
pub fn read_ints(tensor: &Plain) -> Option<&CubeTensor> {
    match &tensor.kind {
        DispatchTensorKind::Cube(BackendTensor::Int(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The device's tensor in `tensor`, to be changed, if it is a plain float tensor of a CubeCL runtime.
pub fn read_mut(tensor: &mut Plain) -> Option<&mut CubeTensor> {
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
pub fn wrap(tensor: CubeTensor) -> Plain {
    Plain {
        kind: DispatchTensorKind::Cube(BackendTensor::Float(tensor)),
        autodiff: Default::default(),
    }
}

/// As [`wrap`], around integers.
pub fn wrap_ints(tensor: CubeTensor) -> Plain {
    Plain {
        kind: DispatchTensorKind::Cube(BackendTensor::Int(tensor)),
        autodiff: Default::default(),
    }
}

/// A tensor without gaps on the device of `like`, its values unspecified.
pub fn empty_like(like: &CubeTensor, shape: &[usize], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// A tensor in f32 on `device`, one of CubeCL's, its values unspecified.
pub fn empty(device: &crate::device::ComputeDevice, shape: &[usize]) -> Plain {
    use burn::backend::{Dispatch, ops::FloatTensorOps};
    let count: usize = shape.iter().product();
    let flat = Tensor::<1>::empty([count], (device.burn(), DType::F32));
    Dispatch::float_reshape(flat.into_dispatch(), shape.into())
}

/// The tensor without gaps: itself, or a copy.
pub fn contiguous(tensor: CubeTensor) -> CubeTensor {
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// The values on the host, row-major, as f32.
pub(crate) fn to_host(tensor: &Plain) -> Vec<f32> {
    use burn::backend::{Dispatch, TensorMetadata, ops::FloatTensorOps};
    let flat: usize = tensor.shape().iter().product();
    let tensor: Tensor<1> = Tensor::from_dispatch(Dispatch::float_reshape(tensor.clone(), [flat].into()));
    tensor.into_data().iter::<f32>().collect()
}

/// Bytes that tensors have in use on a device of CubeCL's runtimes, everything asked of it being done and emptied pages
/// given back.
pub fn bytes_in_use(device: &crate::device::ComputeDevice) -> u64 {
    memory(device).bytes_in_use
}

/// Bytes that the runtime has taken of the device's memory, asked as by [`bytes_in_use`]. Its pools keep what they once took,
/// so this is the most that was ever needed at once, and what lies unused between tensors.
pub fn bytes_reserved(device: &crate::device::ComputeDevice) -> u64 {
    memory(device).bytes_reserved
}

/// Bytes in use by what the calling thread made to last
/// ([`ComputeDevice::lasting`](crate::device::ComputeDevice::lasting)), everything asked of the device being done.
pub fn bytes_lasting(device: &crate::device::ComputeDevice) -> u64 {
    let probe = probe(device);
    let client = read(&probe).map(|tensor| tensor.client.clone());
    let streams = client.map(|client| client.memory_report(cubecl::MemoryScope::CurrentStream).streams);
    let streams = streams.unwrap_or_default().into_iter();
    streams
        .map(|stream| stream.pools.persistent.usage.bytes_in_use)
        .sum()
}

/// Gives the memory back that the runtime has taken and no tensor uses, everything asked of it being done: for a program
/// that shares the device with others. The next operations take it again, which costs time.
pub fn release_unused(device: &crate::device::ComputeDevice) {
    let probe = probe(device);
    if let Some(tensor) = read(&probe) {
        // Memory that is not given back now is given back later.
        let _ = tensor.client.memory_cleanup();
    }
}

/// A value on the device, everything that was asked of it before being done.
fn probe(device: &crate::device::ComputeDevice) -> Plain {
    let probe: Tensor<1> = device.tensor(vec![0.0], [1]);
    let probe = probe.into_dispatch();
    // Reading it back waits for all that came before.
    to_host(&probe);
    probe
}

fn memory(device: &crate::device::ComputeDevice) -> MemoryUsage {
    let probe = probe(device);
    let client = read(&probe).map(|tensor| tensor.client.clone());
    let usage = client.map(|client| {
        // Pages that were emptied long ago are freed by a flush only (CubeCL 0.11.3): until then the pools do not count them,
        // and the device still has them.
        let _ = client.flush();
        let report = client.memory_report(cubecl::MemoryScope::Device);
        report.usage()
    });
    usage.unwrap_or_default()
}
