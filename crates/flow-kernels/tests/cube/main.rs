//! Every operation on a CubeCL device, results and gradients, against the CPU's. With feature `lavapipe` the device is
//! Vulkan's, and Mesa's driver for the processor will do; with feature `cuda` an NVIDIA GPU.
//!
//! The kernels themselves are held against f64 in `flow-kernels-cube`; this is about what Burn's tensors pass through.

mod experts;
mod operations;
mod sides;
