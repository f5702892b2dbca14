//! The attention backends that a config can name.

use crate::{CpuAttention, ReferenceAttention};
use flow_core::AttentionBackend;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name that no registered backend has.
#[derive(Debug, thiserror::Error)]
#[error("there is no attention backend `{asked}`; available: {available}. The nearest name is `{nearest}`")]
pub struct UnknownBackend {
    /// The name asked for.
    pub asked: String,
    /// All registered names.
    pub available: String,
    /// The registered name that looks most like it.
    pub nearest: String,
}

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
        let asked = name.to_lowercase();
        self.backends.get(&asked).cloned().ok_or_else(|| {
            let likeness = |known: &&str| strsim::jaro_winkler(known, &asked);
            UnknownBackend {
                asked: name.to_owned(),
                available: self.names().collect::<Vec<_>>().join(", "),
                nearest: self
                    .names()
                    .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
                    .unwrap_or_default()
                    .to_owned(),
            }
        })
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.keys().map(String::as_str)
    }
}

/// Registers the backends of this crate: `cpu`, and `reference`, which is exact and slow.
pub fn register(registry: &mut AttentionRegistry) {
    registry.insert(Arc::new(CpuAttention));
    registry.insert(Arc::new(ReferenceAttention));
}
