//! `attention_backend`: another implementation of attention, in rollout and training alike.

use burn::backend::DispatchTensor;
use flow_accel::{Accelerator, AcceleratorStage, Engagement, Meter, Refusal, Safety, Target};
use flow_attention::AttentionRegistry;
use flow_core::ops::Stash;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Backends, KeyValue, RegionKind,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `attention_backend`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionBackendParams {
    /// Name of a registered backend; `flow-train list attention` shows them. Case does not matter.
    #[schemars(length(min = 1, max = 100))]
    pub backend: String,
}

/// Puts a backend in the place of the plan's.
#[derive(Clone, Debug)]
pub struct AttentionBackendAccelerator {
    backend: Arc<dyn AttentionBackend>,
}

impl AttentionBackendAccelerator {
    /// The name in configs.
    pub const NAME: &'static str = "attention_backend";

    /// With the backend that `params` names.
    ///
    /// # Errors
    /// If `backends` does not have it.
    pub fn new(params: &AttentionBackendParams, backends: &AttentionRegistry) -> Result<Self, Refusal> {
        let backend = backends.get(&params.backend).map_err(|error| {
            Refusal::new(
                error.to_string(),
                "Remove the entry: without it the fastest attention of the device computes. `reference` is the slow one that the \
                 others are compared with",
            )
        })?;
        Ok(Self { backend })
    }

    /// Whether `backend` can serve calls of `plan`, whose device is that of its own backend.
    ///
    /// # Errors
    /// [`Refusal`] if it serves another device or another type.
    pub fn serves(backend: &dyn AttentionBackend, plan: &Backends) -> Result<(), Refusal> {
        let (name, can) = (backend.name(), backend.capability());
        let here = plan.attention.capability().devices;
        if !can.devices.iter().any(|device| here.contains(device)) {
            return Err(Refusal::new(
                format!(
                    "`{name}` computes on {}; the run computes on {}",
                    can.devices.join(" or "),
                    here.join(" or ")
                ),
                "Name a backend of the run's device (`flow-train list attention`), or remove the entry",
            ));
        }
        let activations = plan.kernels.activations();
        if !can.dtypes.contains(&activations) {
            let takes: Vec<&str> = can.dtypes.iter().map(|dtype| dtype.name()).collect();
            return Err(Refusal::new(
                format!(
                    "`{name}` takes {}; the run computes in {}",
                    takes.join(" or "),
                    activations.name()
                ),
                "Set `device.dtype` to one of them, or name another backend (`flow-train list attention`)",
            ));
        }
        Ok(())
    }
}

impl Accelerator for AttentionBackendAccelerator {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // A backend is one kernel for plain and tracked operands by its contract, and both stages get it.
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        if !target.model.regions.contains(&RegionKind::Attention) {
            let regions: Vec<String> = target.model.regions.iter().map(ToString::to_string).collect();
            let regions = if regions.is_empty() {
                "none".to_owned()
            } else {
                regions.join(", ")
            };
            return Err(Refusal::new(
                format!(
                    "the model `{}` announces no attention region (its regions: {regions})",
                    target.model.architecture
                ),
                "Remove the entry",
            ));
        }
        if self.backend.name() == plan.attention.name() {
            return Err(Refusal::new(
                format!("`{}` is the backend without it, too", self.backend.name()),
                "Remove the entry, or name another backend",
            ));
        }
        Self::serves(&*self.backend, &plan)?;
        Ok(Backends {
            attention: Arc::new(Metered {
                backend: self.backend.clone(),
                meter: target.meter.clone(),
            }),
            ..plan
        })
    }

    fn why_idle(&self) -> String {
        "no attention was computed in the iteration; remove the entry".into()
    }
}

/// Counts calls.
#[derive(Debug)]
struct Metered {
    backend: Arc<dyn AttentionBackend>,
    meter: Meter,
}

impl AttentionBackend for Metered {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn capability(&self) -> AttentionCapability {
        self.backend.capability()
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        self.backend.kernel(call)
    }

    fn is_row_independent(&self) -> bool {
        self.backend.is_row_independent()
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        let attended = self.backend.attend(stash, q, parts, call)?;
        self.meter.count(Engagement::KernelReplaced, 1);
        Ok(attended)
    }
}
