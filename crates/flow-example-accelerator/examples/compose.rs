//! Composes the accelerator with a model of flow-train and counts what it leaves out of a trajectory.
//!
//! `cargo run --release -p flow-example-accelerator --example compose`

use flow_accel::{AcceleratorRegistry, Engagement, Params};
use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::{Backends, CallContext, Condition, ModelInput, Stage, TrajectoryId, Weights};
use flow_kernels::CpuKernels;
use flow_models::ModelRegistry;
use std::sync::Arc;

const STEPS: u32 = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = ComputeDevice::cpu();
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models).expect("a new registry");
    let settings = serde_json::json!({
        "latent": { "channels": 1, "height": 8, "width": 8 }, "patch": 2, "hidden": 32, "layers": 4, "heads": 4,
    });
    let model = models.build("dit", &settings, &device)?;
    let weights = Weights::init(model.layout().clone(), 1, &device);

    let mut registry = AcceleratorRegistry::default();
    flow_example_accelerator::register(&mut registry)?;
    let params = Params::from([("every".into(), 3.into())]);
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let acceleration = registry
        .arrangement(base, [], [("step_reuse", &params)], model.spec())
        .map_err(|errors| errors[0].clone())?
        .set_up(&weights)?;
    println!("{acceleration}");

    let scope = acceleration.rollout(&weights)?;
    let trajectory = TrajectoryId {
        sample: 0,
        conditional: true,
    };
    for step in 0..STEPS {
        let exec = scope.rollout().exec(CallContext {
            step,
            steps: STEPS,
            trajectories: Arc::from([trajectory]),
            ..CallContext::single(Stage::Rollout)
        });
        let sigma = 1.0 - step as f32 / STEPS as f32;
        let input = ModelInput {
            x: device.tensor(
                vec![0.5; model.spec().latent.values()],
                [1, model.spec().latent.values()],
            ),
            sigma: device.tensor(vec![sigma], [1]),
            condition: Condition::default(),
        };
        model.velocity(&exec, input);
        let activity = acceleration.take_activity();
        let skipped = activity[0].engagements.of(Engagement::BlockSkipped);
        println!("step {step}: {skipped} of 4 blocks left out");
    }
    Ok(())
}
