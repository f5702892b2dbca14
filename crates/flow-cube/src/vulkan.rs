//! A device without NVIDIA, for tests and examples of kernels that run anywhere.

use cubecl::device::WgpuDeviceKind;
use cubecl::prelude::Client;

/// No Vulkan driver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no Vulkan driver answers: install Mesa's for the processor (Debian: `apt-get install mesa-vulkan-drivers libvulkan1`, from \
     bookworm-backports or newer), or point VK_DRIVER_FILES at lvp_icd.json"
)]
pub struct NoVulkan;

/// Mesa's driver for the processor, else the first GPU.
///
/// # Errors
/// [`NoVulkan`] if no driver answers.
pub fn client() -> Result<Client, NoVulkan> {
    let kinds = [
        WgpuDeviceKind::Cpu,
        WgpuDeviceKind::DiscreteGpu(0),
        WgpuDeviceKind::IntegratedGpu(0),
    ];
    let mut devices = kinds.into_iter().map(cubecl::Device::vulkan);
    let found = devices.find_map(Result::ok).ok_or(NoVulkan)?;
    Ok(found.client())
}
