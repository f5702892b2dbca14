//! Whether computing on the processor works, and is deterministic.

use crate::failure::{Failure, OrFailure};
use flow_core::device::ComputeDevice;
use flow_core::rng::{Purpose, Stream};
use flow_core::{Backends, CallContext, Condition, InferencePass, ModelInput, Stage, cpu};
use flow_train::Registries;
use serde_json::json;
use std::sync::Arc;

/// Runs a small model twice, then on one thread, and compares the bits.
pub fn computes() -> Result<String, Failure> {
    let failed = |text: &str| {
        Failure::Run(format!(
            "{text}; please report this with the output of `flow-train doctor`"
        ))
    };
    let many = velocity()?;
    if many.iter().any(|value| !value.is_finite()) || many.iter().all(|value| *value == 0.0) {
        return Err(failed("a small model gives values that cannot be right"));
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    if bits(&many) != bits(&velocity()?) {
        return Err(failed("the same computation gives other bits the second time"));
    }
    let mut config = Registries::built_in().or_failed()?.catalog().defaults().clone();
    config.device.threads = 1;
    let one = flow_train::worker_pool(&config).or_failed()?.install(velocity)?;
    if bits(&many) != bits(&one) {
        return Err(failed("one thread gives other bits than several"));
    }
    Ok("works, same bits on every run and with any number of threads".into())
}

/// The velocity of a DiT with drawn weights.
fn velocity() -> Result<Vec<f32>, Failure> {
    let registries = Registries::built_in().or_failed()?;
    let device = ComputeDevice::open("cpu", 0).or_failed()?;
    let settings = json!({
        "latent": { "channels": 3, "height": 16, "width": 16 },
        "patch": 2, "hidden": 96, "layers": 2, "heads": 4, "mlp_ratio": 4.0,
        "vocabulary": { "size": 5, "length": 2 }, "qk_norm": true, "position": "rope",
    });
    let model = registries
        .plugins
        .models
        .build("dit", &settings, &device)
        .or_failed()?;
    let mut weights = flow_models::initialize(&*model, model.layout(), 0, &device);
    let stream = Stream::new(0, Purpose::Weights);
    // Some layers of a fresh model are zero, and so would be its velocity.
    for (index, spec) in model.layout().specs().iter().enumerate() {
        let mut values = vec![0.0; spec.shape.iter().product()];
        stream.at(index as u64, 0).fill_normal(&mut values);
        values.iter_mut().for_each(|value| *value *= 0.05);
        weights.set_host(index, values).or_failed()?;
    }
    let batch = 3;
    let mut x = vec![0.0; batch * model.spec().latent.values()];
    Stream::new(0, Purpose::InitialNoise).at(0, 0).fill_normal(&mut x);
    let plan = Backends::new(
        registries.attention.get("cpu").or_failed()?,
        registries.kernels.get("cpu").or_failed()?,
    );
    let rollout = InferencePass::new(&weights, Arc::new(plan));
    let input = ModelInput {
        x: device.tensor(x, [batch, model.spec().latent.values()]),
        sigma: device.tensor(vec![0.9, 0.5, 0.1], [batch]),
        condition: Condition {
            tokens: Some(device.int_tensor(vec![0, 1, 2, 3, 4, 0], [batch, 2])),
            ..Condition::default()
        },
    };
    let v = model.velocity(&rollout.exec(CallContext::single(Stage::Evaluation)), input);
    Ok(cpu::to_host(&flow_core::tensors::plain(&v.into_dispatch())))
}
