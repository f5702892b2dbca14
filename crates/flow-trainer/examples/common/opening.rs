//! Opening a device: who computes on it, what backward keeps there, and how much memory was taken.

use burn::tensor::FloatDType;
use flow_accel::{Accelerator, Meter, Target};
use flow_accelerators::GraphCaptureAccelerator;
use flow_attention::AttentionRegistry;
use flow_checkpoint::{Checkpointing, Policy};
use flow_core::device::ComputeDevice;
use flow_core::{Backends, ModelSpec};
use flow_kernels::KernelRegistry;
use std::error::Error;
use std::sync::Arc;

/// The device called `kind`, and who computes on it: on a GPU in bf16, attention by the backend of a name or the device's own, with
/// fused operations if `fused`.
///
/// # Errors
/// If this build or this machine lacks it.
pub fn open(
    kind: &str,
    backend: Option<&str>,
    fused: bool,
) -> Result<(ComputeDevice, Backends), Box<dyn Error>> {
    let (mut kernels, mut attention) = (KernelRegistry::default(), AttentionRegistry::default());
    flow_kernels::register(&mut kernels)?;
    flow_attention::register(&mut attention)?;
    let device = ComputeDevice::open(kind, 0)?;
    let (device, name) = match kind {
        "cuda" => (device.computing_in(FloatDType::BF16), "cuda-bf16"),
        _ => (device, kind),
    };
    let kernels = kernels.get(name)?;
    let kernels = match fused {
        true => kernels.fused(Arc::new(|| ())).unwrap_or(kernels),
        false => kernels,
    };
    Ok((
        device,
        Backends::new(attention.get(backend.unwrap_or(kind))?, kernels),
    ))
}

/// `plan` with gradients of matrices stored as `dtype`.
///
/// # Errors
/// If its kernels cannot.
pub fn storing_gradients(plan: Backends, dtype: FloatDType) -> Result<Backends, Box<dyn Error>> {
    if dtype == FloatDType::F32 {
        return Ok(plan);
    }
    let kernels = plan.kernels.with_matrix_gradients(dtype);
    let kernels = kernels.ok_or("these kernels store gradients in f32 alone")?;
    Ok(Backends { kernels, ..plan })
}

/// `plan` under the policy of activation checkpointing called `name`.
///
/// # Errors
/// If there is no such policy without parameters, or the model has nothing that it speaks of.
pub fn under(plan: Backends, name: &str, spec: &ModelSpec) -> Result<Backends, Box<dyn Error>> {
    let policy = match name {
        "none" => return Ok(plan),
        "full" => Policy::Full { split: false },
        "attn_only" => Policy::AttnOnly { split: false },
        _ => {
            let known = "none, full, attn_only";
            return Err(format!("there is no checkpoint policy `{name}`; choose from {known}").into());
        }
    };
    let assignment = policy.assign(spec)?.ok_or("the policy is a fixed one")?;
    Ok(Backends {
        regions: Arc::new(Checkpointing::new(name, assignment)),
        ..plan
    })
}

/// `plan` with calls of the model recorded and replayed.
///
/// # Errors
/// If the device has no graphs.
pub fn captured(plan: Backends, spec: &ModelSpec) -> Result<Backends, Box<dyn Error>> {
    let target = Target {
        model: spec,
        meter: &Meter::default(),
        below: &[],
    };
    Ok(GraphCaptureAccelerator.apply(plan, &target)?)
}

/// GiB that the program took from the device, at the most: the pool of a GPU keeps what it once had.
pub fn peak_gib(device: &ComputeDevice) -> Option<f64> {
    let taken = device.taken_bytes();
    taken.map_or_else(flow_report::peak_resident_gib, |bytes| {
        Some(bytes as f64 / (1u64 << 30) as f64)
    })
}
