//! The memory of a CubeCL runtime's device, everything asked of it being done.

use super::{read, to_host};
use crate::tensors::RawTensor;
use burn::tensor::{Device, Tensor, TensorData};
use burn_cubecl::CubeDevice;
use cubecl::MemoryUsage;
use cubecl::prelude::Client;

/// Bytes in use by what the calling thread made to last.
pub(in crate::device) fn bytes_persistent(device: &Device) -> u64 {
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
pub(in crate::device) fn release_unused(device: &Device) {
    let probe = probe(device);
    if let Some(tensor) = read(&probe) {
        // Memory that is not given back now is given back later.
        let _ = tensor.client.memory_cleanup();
    }
}

/// A value on the device, everything that was asked of it before being done.
fn probe(device: &Device) -> RawTensor {
    let probe: Tensor<1> = Tensor::from_data(TensorData::new(vec![0.0f32], [1]), device);
    let probe = probe.into_dispatch();
    // Reading it back waits for all that came before.
    to_host(&probe);
    probe
}

/// What the runtime has taken of the device's memory, and what of it tensors use, everything asked of it being done.
pub(in crate::device) fn usage(device: &Device) -> MemoryUsage {
    let probe = probe(device);
    read(&probe).map_or_else(Default::default, |tensor| taken(&tensor.client))
}

/// What the runtime has taken of the memory of `client`'s device, and what of it tensors use.
pub(super) fn taken(client: &Client) -> MemoryUsage {
    // Pages that were emptied long ago are freed by a flush only (CubeCL 0.11.3): until then the pools do not count them, and
    // the device still has them.
    let _ = client.flush();
    client.memory_report(cubecl::MemoryScope::Device).usage()
}

/// Bytes of the memory of `device` that nobody has taken; none where nobody says.
pub(super) fn free(device: &CubeDevice) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if let CubeDevice::Cuda(device) = device {
        return crate::device::nvidia::bytes_free(device.index);
    }
    #[cfg(not(feature = "cuda"))]
    let _ = device;
    None
}
