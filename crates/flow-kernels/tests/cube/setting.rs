//! A small model and the device that it computes on.

use flow_core::device::ComputeDevice;
use flow_core::model::{LatentShape, Vocabulary};
use flow_core::rng::{Purpose, Stream};
use flow_kernels::CubeKernels;
use flow_models::{DitConfig, MoeConfig, Position};
use std::sync::Arc;

pub fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Stream::new(11, Purpose::Weights)
        .at(salt, 0)
        .fill_normal(&mut values);
    values
}

/// 3 × 2 patches, 24 channels, 3 heads of 8: sizes that no tile divides.
pub fn config(position: Position, moe: Option<MoeConfig>) -> DitConfig {
    DitConfig {
        latent: LatentShape {
            channels: 3,
            frames: 1,
            height: 6,
            width: 4,
        },
        patch: 2,
        hidden: 24,
        layers: 2,
        heads: 3,
        mlp_ratio: 2.5,
        moe,
        vocabulary: Some(Vocabulary { size: 5, length: 3 }),
        qk_norm: position == Position::Rope,
        position,
    }
}

/// The device, and its kernels.
pub fn cube() -> (ComputeDevice, Arc<CubeKernels>) {
    #[cfg(feature = "lavapipe")]
    let (device, kernels) = (ComputeDevice::vulkan(), CubeKernels::vulkan());
    #[cfg(not(feature = "lavapipe"))]
    let (device, kernels) = (ComputeDevice::cuda(0), CubeKernels::cuda());
    let device = device.unwrap_or_else(|error| panic!("{error:?}"));
    (device, Arc::new(kernels))
}
