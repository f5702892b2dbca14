//! An accelerator of one's own: it swaps the attention backend of a plan.

use flow_accel::{Accelerator, AcceleratorRegistry, AcceleratorStage, Params, Refusal};
use flow_attention::{AttentionRegistry, CpuAttention};
use flow_core::{AttentionBackend, Plan};
use flow_kernels::CpuKernels;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// What a config gives: `params = { backend = "cpu" }`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SwapParams {
    /// Name of a registered attention backend.
    backend: String,
}

#[derive(Debug)]
struct AttentionSwap {
    backend: Arc<dyn AttentionBackend>,
}

impl Accelerator for AttentionSwap {
    fn name(&self) -> &str {
        "attention-swap"
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Both
    }

    // Rollout and training get the same backend, whose one kernel serves tracked and plain tensors.
    fn lossless(&self, _: &Plan) -> bool {
        true
    }

    fn apply(&self, plan: Plan) -> Result<Plan, Refusal> {
        Ok(Plan {
            attention: self.backend.clone(),
            ..plan
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut backends = AttentionRegistry::default();
    flow_attention::register(&mut backends);

    let mut registry = AcceleratorRegistry::default();
    registry.register(
        "attention-swap",
        "Uses another attention backend.",
        move |params: SwapParams| {
            let backend = backends.get(&params.backend);
            let backend = backend
                .map_err(|error| Refusal::new(error.to_string(), "Set `params.backend` to one of them."))?;
            Ok(AttentionSwap { backend })
        },
    )?;

    let base = Plan::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let params = |backend: &str| Params::from([("backend".into(), backend.into())]);
    let known = params("cpu");
    match registry.plans(base.clone(), [("attention-swap", &known)], []) {
        Ok(plans) => println!("{plans}\ntraining runs with {}", plans.training.describe()),
        Err(errors) => {
            return Err(errors
                .into_iter()
                .map(|error| error.to_string())
                .collect::<String>()
                .into());
        }
    }
    let wrong = params("cpuu");
    for error in registry
        .plans(base, [("attention-swap", &wrong), ("atention-swap", &known)], [])
        .unwrap_err()
    {
        println!("refused: {error}");
    }
    Ok(())
}
