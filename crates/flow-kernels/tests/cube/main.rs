//! Operations on a CubeCL device, and a whole model. With feature `lavapipe` the device is Vulkan's, and Mesa's driver for
//! the processor will do; with feature `cuda` an NVIDIA GPU.
//!
//! The kernels themselves are held against f64 in `flow-kernels-cube`; this is about what Burn's tensors pass through.

#[cfg(all(feature = "cuda", not(feature = "lavapipe")))]
mod bf16;
mod cache_drivers;
mod experts;
mod feature_cache;
mod fused;
mod low_precision;
mod model;
mod operations;
mod optimizer;
mod setting;
mod support;
