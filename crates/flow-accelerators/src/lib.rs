//! The accelerators that come with flow-train.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod attention_backend;
mod exact_reuse;
mod feature_cache;
mod fused_kernels;
mod fusion;
mod graph_capture;
mod low_precision;
mod register;

pub use attention_backend::{AttentionBackendAccelerator, AttentionBackendParams};
pub use exact_reuse::{ExactReuseAccelerator, ExactReuseParams};
pub use feature_cache::{
    AutoParams, Basis, DbCacheParams, EasyCacheParams, FasterParams, FeatureCacheParams, FirstBlockParams,
    ForecastTarget, MagCacheParams, PyramidParams, StepMaskParams, TaylorSeerParams, TeaCacheParams,
    TeaCacheSignal,
};
pub use fused_kernels::{FusedKernelsAccelerator, FusedKernelsMode, FusedKernelsParams};
pub use fusion::FusionParams;
pub use graph_capture::{GraphCaptureAccelerator, GraphCaptureParams};
pub use low_precision::{
    DataGradientParam, LowPrecisionAccelerator, LowPrecisionComputeParam, LowPrecisionFormatParam,
    LowPrecisionParams,
};
pub use register::register;
