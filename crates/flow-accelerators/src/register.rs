//! Registers the accelerators, and the names that people know from elsewhere.

use crate::attention_backend::{AttentionBackendAccelerator, AttentionBackendParams};
use crate::graph_capture::{GraphCapture, GraphCaptureParams};
use flow_accel::{AcceleratorRegistry, AlreadyRegistered};
use flow_attention::AttentionRegistry;

/// Names of Flow-Factory (PR #196) that this program does not have: what became of each, and what to write.
const ELSEWHERE: [(&str, &str, &str); 3] = [
    (
        "cache_dit",
        "Flow-Factory removed it because it did nothing in rollouts",
        "Flow-Factory's successor is `{ name = \"feature_cache\", params = { policy = \"first_block\", threshold = 0.08 } }`, \
         which this version does not have yet; remove the entry",
    ),
    (
        "diffusers_cache",
        "it is a cache of PyTorch's diffusers",
        "Its counterpart is `{ name = \"feature_cache\", params = { policy = \"first_block\", threshold = 0.08 } }`, which \
         this version does not have yet; remove the entry",
    ),
    (
        "torch_compile",
        "it is PyTorch's compiler",
        "The kernels of flow-train are fused without an entry; remove it",
    ),
];

/// Registers `attention_backend` over `backends`, and `graph_capture`.
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
        GraphCapture::NAME,
        "a denoising step captured and replayed (lossless; no device of this build can)",
        |_: GraphCaptureParams| Ok(GraphCapture),
    )?;
    for (name, why, instead) in ELSEWHERE {
        registry.remove(name, why, instead)?;
    }
    Ok(())
}
