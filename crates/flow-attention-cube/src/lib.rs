//! Attention kernels in CubeCL, forward and backward.
#![doc = include_str!("../README.md")]

pub mod wgmma;
