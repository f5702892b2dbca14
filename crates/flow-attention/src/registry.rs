//! The attention backends that a config can name.

use crate::{CpuAttention, ReferenceAttention};
use flow_core::AttentionBackend;
#[cfg(feature = "cube")]
use flow_core::AttentionCapability;
use flow_registry::UnknownName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name that no registered backend has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct UnknownBackend(#[from] pub UnknownName);

/// Attention backends by name. Built by the program that uses it; there is no global one.
#[derive(Clone, Debug, Default)]
pub struct AttentionRegistry {
    backends: BTreeMap<String, Arc<dyn AttentionBackend>>,
}

impl AttentionRegistry {
    /// Adds `backend` under its own name, in lower case; returns the one that had the name before.
    pub fn insert(&mut self, backend: Arc<dyn AttentionBackend>) -> Option<Arc<dyn AttentionBackend>> {
        self.backends.insert(backend.name().to_lowercase(), backend)
    }

    /// The backend called `name`, upper and lower case alike.
    ///
    /// # Errors
    /// [`UnknownBackend`] with the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<dyn AttentionBackend>, UnknownBackend> {
        let backend = self.backends.get(&name.to_lowercase()).cloned();
        backend.ok_or_else(|| UnknownBackend(UnknownName::new("attention backend", name, self.names())))
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.keys().map(String::as_str)
    }
}

/// Registers the backends of this crate: `cpu`, and `reference`, which is exact and slow; with the feature `cube` also
/// `wgmma`, `mma` and `portable`, and `cuda`, the first of these that serves a call.
pub fn register(registry: &mut AttentionRegistry) {
    registry.insert(Arc::new(CpuAttention));
    registry.insert(Arc::new(ReferenceAttention));
    #[cfg(feature = "cube")]
    {
        use crate::cube::{MmaAttention, PortableAttention, WgmmaAttention};
        // The faster first, wherever both serve a call; see the report on attention in the documentation.
        let backends: [Arc<dyn AttentionBackend>; 3] = [
            Arc::new(WgmmaAttention::default()),
            Arc::new(MmaAttention::default()),
            Arc::new(PortableAttention::default()),
        ];
        for backend in &backends {
            registry.insert(backend.clone());
        }
        let capability = AttentionCapability {
            devices: &["cuda"],
            ..PortableAttention::default().capability()
        };
        let automatic = crate::AutomaticAttention::new("cuda", capability, backends.into());
        registry.insert(Arc::new(automatic));
    }
}
