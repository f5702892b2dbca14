//! A whole model on a CubeCL device: the loss and every weight's gradient of a small DiT, with and without experts, are the
//! CPU's, and no bit of them depends on what backward computes again.

use crate::setting::{config, cube, noise};
use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_attention::cube::PortableAttention;
use flow_checkpoint::{Checkpointing, Policy};
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Stage, TrainingPass};
use flow_core::model::{Condition, ModelInput};
use flow_core::{
    AttentionBackend, Backends, CallContext, FlowModel, Kernels, NoCheckpointing, RegionEngine, Weights,
};
use flow_kernels::CpuKernels;
use flow_models::{Dit, DitConfig, MoeConfig, Position};
use std::sync::Arc;

/// The loss and the gradient of every weight.
fn losses_and_gradients(
    config: &DitConfig,
    device: &ComputeDevice,
    attention: Arc<dyn AttentionBackend>,
    kernels: Arc<dyn Kernels>,
    regions: Arc<dyn RegionEngine>,
) -> Vec<(String, Vec<f32>)> {
    let model = Dit::new(config, device).expect("a valid model");
    let mut weights = Weights::init(model.layout().clone(), 0, device);
    for (index, spec) in model.layout().specs().iter().enumerate() {
        // All different from zero, so that no path is shut by a zero gate.
        let offset = if spec.name.contains(".norm_") { 1.0 } else { 0.0 };
        let values = noise(spec.shape.iter().product(), 1000 + index as u64);
        let values = values.iter().map(|value| offset + 0.2 * value).collect();
        let set = weights.set(index, device.plain(values, &spec.shape));
        set.expect("a weight of its shape");
    }
    let (batch, values) = (2, config.latent.values());
    let input = ModelInput {
        x: device.tensor(noise(batch * values, 1), [batch, values]),
        sigma: device.tensor(vec![0.3, 0.8], [batch]),
        condition: Condition {
            tokens: Some(device.int_tensor(vec![3, 0, 2, 4, 4, 1], [batch, 3])),
            ..Condition::default()
        },
    };
    let trained: Arc<[bool]> = vec![true; weights.layout().len()].into();
    let plan = Arc::new(Backends {
        regions,
        ..Backends::new(attention, kernels.clone())
    });
    let training = TrainingPass::new(&weights, plan, trained);
    let exec = training.exec(CallContext::single(Stage::Training));
    let (velocity, balance) = model.velocity_and_balance(&exec, input);
    let velocity = velocity.into_dispatch();
    let target = device.plain(noise(batch * values, 2), &[batch, values]);
    let distance = kernels.ops().loss.mean_squared_distance(&velocity, &target);
    let mut loss = Tensor::<1>::from_dispatch(distance).sum_dim(0);
    if let Some(balance) = balance {
        loss = loss + balance.sum_dim(0);
    }
    let value = loss.clone().into_data().iter::<f32>().collect();
    let gradients = training.gradients(&loss);
    let gradients = model.layout().specs().iter().zip(&gradients);
    let gradients = gradients.map(|(spec, gradient)| {
        let gradient = gradient
            .as_ref()
            .unwrap_or_else(|| panic!("{} has no gradient", spec.name));
        (spec.name.clone(), to_host(gradient))
    });
    std::iter::once(("loss".to_owned(), value))
        .chain(gradients)
        .collect()
}

/// Both positions, dense and with experts.
fn configs() -> [DitConfig; 4] {
    let moe = MoeConfig {
        experts: 5,
        top_k: 2,
        inner: 20,
        shared: 28,
        normalize: true,
    };
    let alone = MoeConfig {
        shared: 0,
        normalize: false,
        ..moe
    };
    [
        config(Position::Sincos, None),
        config(Position::Rope, None),
        config(Position::Sincos, Some(moe)),
        config(Position::Rope, Some(alone)),
    ]
}

#[test]
fn a_small_dit_has_the_cpus_loss_and_gradients() {
    let (device, kernels) = cube();
    for config in configs() {
        let expected = losses_and_gradients(
            &config,
            &ComputeDevice::cpu(),
            Arc::new(CpuAttention),
            Arc::new(CpuKernels::default()),
            Arc::new(NoCheckpointing),
        );
        let found = losses_and_gradients(
            &config,
            &device,
            Arc::new(PortableAttention::default()),
            kernels.clone(),
            Arc::new(NoCheckpointing),
        );
        // Gradients that are zero but for rounding (a bias of the keys) are measured against the largest.
        let length = |values: &[f32]| values.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        let largest = expected
            .iter()
            .map(|(_, values)| length(values))
            .fold(0.0, f64::max);
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            let differences: Vec<f32> = expected.iter().zip(found).map(|(a, b)| a - b).collect();
            let (error, size) = (length(&differences), length(expected));
            assert!(
                error <= 1e-5 * size + 1e-6 * largest,
                "{config:?} {name}: {error:e} apart, length {size:e}"
            );
        }
    }
}

#[test]
fn no_bit_depends_on_what_is_computed_again() {
    let (device, kernels) = cube();
    for config in configs() {
        let run = |regions: Arc<dyn RegionEngine>| {
            let attention = Arc::new(PortableAttention::default());
            let found = losses_and_gradients(&config, &device, attention, kernels.clone(), regions);
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let found = found.into_iter().map(|(name, values)| (name, bits(values)));
            found.collect::<Vec<(String, Vec<u32>)>>()
        };
        let expected = run(Arc::new(NoCheckpointing));
        let large = if config.moe.is_some() {
            "moe:grouped_linear"
        } else {
            "mlp:linear"
        };
        for policy in [
            Policy::Full { split: false },
            Policy::Full { split: true },
            Policy::AttnOnly { split: false },
            Policy::EveryNthLinear { n: 2 },
            Policy::BlockSkip { every: 2 },
            Policy::Regions {
                save: vec![large.into(), "attention".into()],
            },
        ] {
            let model = Dit::new(&config, &device).expect("a valid model");
            let assignment = policy.assign(model.spec()).expect("it fits");
            let assignment = assignment.expect("it needs no planner");
            let engine = Arc::new(Checkpointing::new(policy.to_string(), assignment));
            let found = run(engine.clone());
            assert_eq!(engine.counts().held_bytes, 0, "{policy}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found == expected, "{config:?}, {policy}: {}", expected.0);
            }
        }
    }
}
