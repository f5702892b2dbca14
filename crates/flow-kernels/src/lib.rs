//! The fused operations a diffusion transformer needs besides attention, and the optimizer's.
