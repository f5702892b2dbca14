//! Measures the ratios of `magcache` on a small DiT: a rollout with every block computed, and what to write in a config.

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_cache::MagnitudeRatios;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::{
    Backends, CallContext, Condition, FlowModel, InferencePass, LatentShape, ModelInput, Stage, TrajectoryId,
    Weights,
};
use flow_kernels::CpuKernels;
use flow_models::{Dit, DitConfig, Position};
use std::sync::Arc;

const STEPS: u32 = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = ComputeDevice::cpu();
    let config = DitConfig {
        latent: LatentShape {
            channels: 1,
            frames: 1,
            height: 8,
            width: 8,
        },
        patch: 2,
        hidden: 32,
        layers: 4,
        heads: 4,
        mlp_ratio: 4.0,
        vocabulary: None,
        qk_norm: false,
        position: Position::Rope,
        moe: None,
    };
    let model = Dit::new(&config, &device)?;
    // A trained model is loaded here; a fresh one has gates of 0, so this one gets noise.
    let mut weights = Weights::init(model.layout().clone(), 0, &device);
    for (index, spec) in model.layout().specs().iter().enumerate() {
        let mut values = vec![0.0; spec.shape.iter().product()];
        Stream::new(1, Purpose::Test)
            .at(index as u64, 0)
            .fill_normal(&mut values);
        values.iter_mut().for_each(|value| *value *= 0.1);
        weights.set_host(index, values)?;
    }

    let measured = Arc::new(MagnitudeRatios::new());
    let plan = Backends {
        stacks: measured.clone(),
        ..Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
    };
    let rollout = InferencePass::new(&weights, Arc::new(plan));
    let sigma = |step| 1.0 - step as f32 / STEPS as f32;
    let mut x = vec![0.0f32; 64];
    Stream::new(2, Purpose::InitialNoise).at(0, 0).fill_normal(&mut x);
    for step in 0..STEPS {
        let trajectory = TrajectoryId {
            sample: 0,
            conditional: true,
        };
        let call = CallContext {
            step,
            steps: STEPS,
            trajectories: Arc::from([trajectory]),
            ..CallContext::single(Stage::Rollout)
        };
        let input = ModelInput {
            x: device.tensor(x.clone(), [1, 64]),
            sigma: device.tensor(vec![sigma(step)], [1]),
            condition: Condition::default(),
        };
        let v: Tensor<2> = rollout.exec(call).velocity(&model, input);
        let dt = sigma(step + 1) - sigma(step);
        x.iter_mut()
            .zip(to_host(&v.into_dispatch()))
            .for_each(|(x, v)| *x += dt * v);
    }
    let ratios: Vec<String> = measured
        .ratios()
        .iter()
        .map(|ratio| format!("{ratio:.4}"))
        .collect();
    println!(
        "{{ name = \"feature_cache\", params = {{ policy = \"magcache\", ratios = [{}] }} }}",
        ratios.join(", ")
    );
    Ok(())
}
