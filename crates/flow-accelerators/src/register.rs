//! Registers the accelerators, and the names that people know from elsewhere.

use crate::attention_backend::{AttentionBackendAccelerator, AttentionBackendParams};
use crate::feature_cache::FeatureCache;
use crate::graph_capture::{GraphCapture, GraphCaptureParams};
use flow_accel::{AcceleratorRegistry, AlreadyRegistered};
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
        "The kernels of flow-train are fused without an entry; remove this one",
    ),
];

/// Registers `attention_backend` over `backends`, `feature_cache`, and `graph_capture`.
///
/// # Errors
/// [`AlreadyRegistered`] if one of the names is taken.
pub fn register(
    registry: &mut AcceleratorRegistry,
    backends: &AttentionRegistry,
) -> Result<(), AlreadyRegistered> {
    let backends = backends.clone();
    registry.register(
        AttentionBackendAccelerator::NAME,
        "another attention backend, in rollout and training (lossless; `backend` is required)",
        move |params: AttentionBackendParams| AttentionBackendAccelerator::new(&params, &backends),
    )?;
    registry.register(
        FeatureCache::NAME,
        "parts of a rollout answered from earlier steps, by one of nine policies (lossy; `scope = \"outside_sde_window\"` \
         keeps ratios exact)",
        FeatureCache::new,
    )?;
    registry.register(
        GraphCapture::NAME,
        "a denoising step captured and replayed (lossless; no device of this build can)",
        |_: GraphCaptureParams| Ok(GraphCapture),
    )?;
    for (name, why, instead) in ELSEWHERE {
        registry.remove(name, why, instead)?;
    }
    Ok(())
}
