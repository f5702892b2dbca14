//! A Vulkan device for tests.

use cubecl::device::WgpuDeviceKind;
use cubecl::prelude::*;

/// Mesa's driver for the processor, else the first GPU.
pub fn client() -> Client {
    let kinds = [
        WgpuDeviceKind::Cpu,
        WgpuDeviceKind::DiscreteGpu(0),
        WgpuDeviceKind::IntegratedGpu(0),
    ];
    let found = kinds
        .into_iter()
        .find_map(|kind| cubecl::Device::vulkan(kind).ok());
    found
        .expect(
            "this test needs a Vulkan driver and found none: install Mesa's for the processor (Debian: `apt-get install \
             mesa-vulkan-drivers libvulkan1`, from bookworm-backports or newer), or point VK_DRIVER_FILES at lvp_icd.json",
        )
        .client()
}
