//! The kernels on Vulkan, on the cases. Needs a Vulkan driver: Mesa's lavapipe will do, as in CI.

use cubecl::prelude::*;
use flow_kernels_cube::Element;
use flow_kernels_cube::cases::check;

fn client() -> Client {
    flow_cube::vulkan::client().unwrap_or_else(|none| panic!("{none}"))
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
    holds("feature_cache", Element::F32);
}

#[test]
fn norms_and_borders_of_pictures_and_softmax_over_long_rows_hold_in_f32() {
    holds("pictures", Element::F32);
}

#[test]
fn matrices_in_low_precision_hold_in_f32() {
    holds("low_precision", Element::F32);
}

#[test]
fn rows_that_are_made_as_codes_hold_in_f32() {
    holds("row_codes", Element::F32);
}

#[test]
fn experts_hold_in_f32() {
    holds("experts", Element::F32);
}
