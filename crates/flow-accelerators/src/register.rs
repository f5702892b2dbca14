//! Registers the accelerators, and the names that people know from elsewhere.

use crate::attention_backend::{AttentionBackendAccelerator, AttentionBackendParams};
use crate::exact_reuse::{ExactReuseAccelerator, ExactReuseParams};
use crate::feature_cache::FeatureCache;
use crate::fused_kernels::{FusedKernelsAccelerator, FusedKernelsParams};
use crate::fusion::{Fusion, FusionParams};
use crate::graph_capture::{GraphCaptureAccelerator, GraphCaptureParams};
use crate::low_precision::{LowPrecisionAccelerator, LowPrecisionParams};
use flow_accel::{AcceleratorRegistry, AcceleratorStage, NameTaken};
use flow_attention::AttentionRegistry;

/// Names of Flow-Factory (PR #196) that this program does not have: what became of each, and what to write.
const ELSEWHERE: [(&str, &str, &str); 3] = [
    (
        "cache_dit",
        "Flow-Factory removed it because it did nothing in rollouts",
        "Write `{ name = \"feature_cache\", params = { policy = \"first_block\", threshold = 0.08 } }` in \
         `acceleration.rollout`",
    ),
    (
        "diffusers_cache",
        "it is a cache of PyTorch's diffusers",
        "Write `{ name = \"feature_cache\", params = { policy = \"first_block\", threshold = 0.08 } }` in \
         `acceleration.rollout`",
    ),
    (
        "torch_compile",
        "it is PyTorch's compiler",
        "Write `{ name = \"fused_kernels\", params = { mode = \"regional\" } }` in `acceleration.shared`",
    ),
];

/// Registers `attention_backend` over `backends`, `exact_reuse`, `feature_cache`, `fused_kernels`, `fusion`, `graph_capture`, and
/// `low_precision`.
///
/// # Errors
/// [`NameTaken`] if one of the names is taken.
pub fn register(registry: &mut AcceleratorRegistry, backends: &AttentionRegistry) -> Result<(), NameTaken> {
    let backends = backends.clone();
    registry.register(
        AttentionBackendAccelerator::NAME,
        AcceleratorStage::Both,
        "another attention backend, in rollout and training (lossless; `backend` is required)",
        move |params: AttentionBackendParams| AttentionBackendAccelerator::new(&params, &backends),
    )?;
    registry.register(
        ExactReuseAccelerator::NAME,
        AcceleratorStage::Both,
        "what members of a group have in common computed once: embeddings, modulations, the shared start of their \
         trajectories (lossless)",
        |params: ExactReuseParams| Ok(ExactReuseAccelerator::new(params)),
    )?;
    registry.register(
        FeatureCache::NAME,
        AcceleratorStage::Rollout,
        "parts of a rollout answered from earlier steps, by one of ten policies (lossy; `scope = \"outside_sde_window\"` \
         keeps ratios exact)",
        FeatureCache::new,
    )?;
    registry
        .register(
            FusedKernelsAccelerator::NAME,
            AcceleratorStage::Both,
            "norms, linear layers and gated residuals computed together (lossless; `mode` is required)",
            |params: FusedKernelsParams| Ok(FusedKernelsAccelerator::new(params)),
        )?
        .set_floor("on the processor its own kernels, which save memory rather than time");
    registry
        .register(
            Fusion::NAME,
            AcceleratorStage::Both,
            "Burn's own fusion of elementwise operations (lossy)",
            |_: FusionParams| Ok(Fusion),
        )?
        .set_floor("refused, for no device of these programs is built with it");
    registry
        .register(
            GraphCaptureAccelerator::NAME,
            AcceleratorStage::Both,
            "calls of the model, forward and backward, captured once and replayed (lossless)",
            |_: GraphCaptureParams| Ok(GraphCaptureAccelerator),
        )?
        .set_floor("refused on the processor, which has no graphs");
    registry.register(
        LowPrecisionAccelerator::NAME,
        AcceleratorStage::Both,
        "frozen weights of an adapter run stored in 8 or 4 bits, widened for each product or multiplied in FP8; trained ones multiplied in FP8 \
         (lossless across stages, another policy than with all bits; `compute` and `format` are required)",
        |params: LowPrecisionParams| Ok(LowPrecisionAccelerator::new(params)),
    )?;
    for (name, why, instead) in ELSEWHERE {
        registry.remove(name, why, instead)?;
    }
    Ok(())
}
