//! An accelerator of one's own: it swaps the attention backend of a plan.

use flow_accel::{Accelerator, AcceleratorRegistry, AcceleratorStage, Params, Refusal, Safety, Target};
use flow_attention::{AttentionRegistry, CpuAttention};
use flow_core::{AttentionBackend, Backends, ModelSpec, RegionKind};
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
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossless
    }

    fn apply(&self, plan: Backends, _: &Target<'_>) -> Result<Backends, Refusal> {
        Ok(Backends {
            attention: self.backend.clone(),
            ..plan
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut backends = AttentionRegistry::default();
    flow_attention::register(&mut backends)?;

    let mut registry = AcceleratorRegistry::default();
    registry.register(
        "attention-swap",
        AcceleratorStage::Both,
        "Uses another attention backend.",
        move |params: SwapParams| {
            let backend = backends.get(&params.backend);
            let backend = backend
                .map_err(|error| Refusal::new(error.to_string(), "Set `params.backend` to one of them."))?;
            Ok(AttentionSwap { backend })
        },
    )?;

    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let params = |backend: &str| Params::from([("backend".into(), backend.into())]);
    let known = params("cpu");
    let model = ModelSpec {
        architecture: "example".into(),
        stacks: vec![("blocks".into(), 6)],
        regions: vec![RegionKind::Attention],
        ..ModelSpec::default()
    };
    match registry.arrangement(base.clone(), [("attention-swap", &known)], [], &model) {
        Ok(found) => println!("{found}\ntraining runs with {}", found.describe_training()),
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
        .arrangement(
            base,
            [("attention-swap", &wrong), ("atention-swap", &known)],
            [],
            &model,
        )
        .unwrap_err()
    {
        println!("refused: {error}");
    }
    Ok(())
}
