//! The kernels on Vulkan, on the catalogue. Needs a Vulkan driver: Mesa's lavapipe will do, as in CI.

use cubecl::device::WgpuDeviceKind;
use cubecl::prelude::*;
use flow_kernels_cube::Element;
use flow_kernels_cube::catalogue::check;

/// Mesa's driver for the processor, else the first GPU.
fn client() -> Client {
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

fn holds(group: &str, element: Element) {
    let verdict = check(&client(), element, group);
    assert!(verdict.wrong.is_empty(), "{}", verdict.wrong.join("\n"));
    assert!(verdict.compared > 0);
}

#[test]
fn norms_hold_in_f32() {
    holds("norms", Element::F32);
}

#[test]
fn elementwise_operations_hold_in_f32() {
    holds("elementwise", Element::F32);
}

#[test]
fn latents_hold_in_f32() {
    holds("latents", Element::F32);
}

#[test]
fn noise_that_is_drawn_where_it_is_used_is_refused_without_f64() {
    let verdict = check(&client(), Element::F32, "normals");
    assert!(verdict.wrong.is_empty(), "{}", verdict.wrong.join("\n"));
}

#[test]
fn updates_hold_in_f32() {
    holds("updates", Element::F32);
}

#[test]
fn operations_of_a_feature_cache_hold_in_f32() {
    holds("lanes", Element::F32);
}

#[test]
fn experts_hold_in_f32() {
    holds("experts", Element::F32);
}
