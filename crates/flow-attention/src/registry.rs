//! The attention backends that a config can name.

use crate::{CpuAttention, ReferenceAttention};
use flow_core::AttentionBackend;
#[cfg(feature = "cube")]
use flow_core::AttentionCapability;
use flow_registry::{NameTaken, NotFound, Registry};
use std::sync::Arc;

/// Attention backends by name. Built by the program that uses it; there is no global one.
#[derive(Clone, Debug)]
pub struct AttentionRegistry {
    backends: Registry<Arc<dyn AttentionBackend>>,
}

impl Default for AttentionRegistry {
    fn default() -> Self {
        Self {
            backends: Registry::new("attention backend"),
        }
    }
}

impl AttentionRegistry {
    /// Adds `backend` under its own name.
    ///
    /// # Errors
    /// [`NameTaken`] if there is one of its name.
    pub fn register(&mut self, backend: Arc<dyn AttentionBackend>) -> Result<(), NameTaken> {
        let name = backend.name().to_owned();
        self.backends.register(&name, backend)?;
        Ok(())
    }

    /// The backend called `name`, upper and lower case alike.
    ///
    /// # Errors
    /// [`NotFound`] with the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<dyn AttentionBackend>, NotFound> {
        self.backends.find(name).cloned()
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.names()
    }
}

/// Registers the backends of this crate: `cpu`, and `reference`, which is exact and slow; with the feature `cube` also
/// `wgmma`, `mma` and `portable`, and `cuda`, the first of these that serves a call.
///
/// # Errors
/// [`NameTaken`] if one of the names is taken.
pub fn register(registry: &mut AttentionRegistry) -> Result<(), NameTaken> {
    registry.register(Arc::new(CpuAttention))?;
    registry.register(Arc::new(ReferenceAttention))?;
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
            registry.register(backend.clone())?;
        }
        let capability = AttentionCapability {
            devices: &["cuda"],
            // That of `mma`.
            bias: true,
            ..PortableAttention::default().capability()
        };
        let automatic = crate::AutomaticAttention::new("cuda", capability, backends.into());
        registry.register(Arc::new(automatic))?;
    }
    Ok(())
}
