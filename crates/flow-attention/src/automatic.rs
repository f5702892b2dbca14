//! The choice among backends, by a table.

use burn::backend::DispatchTensor;
use flow_core::ops::Stash;
use flow_core::{Attended, AttentionBackend, AttentionCall, AttentionCapability, KeyValue, Refusal};
use std::sync::Arc;

/// The first of several backends that serves a call. Which that is follows from the call alone (its sizes, types, mask and
/// device), so rollout and training get the same; nothing is ever timed.
#[derive(Debug)]
pub struct AutomaticAttention {
    name: &'static str,
    capability: AttentionCapability,
    backends: Vec<Arc<dyn AttentionBackend>>,
}

impl AutomaticAttention {
    /// Tries `backends` in this order. `name` is the name in logs, manifests and configs; `capability`, what they can serve
    /// together.
    pub fn new(
        name: &'static str,
        capability: AttentionCapability,
        backends: Vec<Arc<dyn AttentionBackend>>,
    ) -> Self {
        Self {
            name,
            capability,
            backends,
        }
    }

    /// The backend that serves `call`, and its kernel.
    fn choose(&self, call: &AttentionCall) -> Result<(&dyn AttentionBackend, String), Refusal> {
        let mut reasons = Vec::new();
        for backend in &self.backends {
            let allowed = backend.capability().check_bias(call);
            match allowed.and_then(|()| backend.kernel(call)) {
                Ok(kernel) => return Ok((&**backend, kernel)),
                Err(declined) => reasons.push(format!("`{}`: {declined}", backend.name())),
            }
        }
        Err(Refusal::because(format!(
            "no backend serves the call; {}",
            reasons.join("; ")
        )))
    }
}

impl AttentionBackend for AutomaticAttention {
    fn name(&self) -> &str {
        self.name
    }

    fn capability(&self) -> AttentionCapability {
        self.capability
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        self.choose(call).map(|(_, kernel)| kernel)
    }

    fn is_row_independent(&self) -> bool {
        self.backends.iter().all(|backend| backend.is_row_independent())
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        self.choose(call)?.0.attend(stash, q, parts, call)
    }
}
