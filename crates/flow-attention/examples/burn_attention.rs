//! Attention in a Burn program: forward, backward, a causal mask, beside Burn's own operations in f32.
//!
//! `cargo run --release -p flow-attention --example burn_attention` computes on the processor; built with the feature
//! `cuda` and started where there is an NVIDIA GPU, each backend of CUDA devices computes there, too.

use burn::tensor::{DType, Device, Distribution, Tensor, activation::softmax};
use flow_attention::{AttentionBackend, AttentionRegistry, AttentionSpec, Mask, attention, register};
use std::error::Error;
use std::sync::Arc;

const SHAPE: [usize; 4] = [2, 333, 4, 64];

/// `softmax(q kᵀ / √D) v` by Burn's operations; `[B, S, H, D]`.
fn plainly(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, causal: bool) -> Tensor<4> {
    let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
    let mut scores = q.matmul(k.transpose()).div_scalar((SHAPE[3] as f32).sqrt());
    if causal {
        let device = scores.device();
        let mask = Tensor::<2>::ones([SHAPE[1], SHAPE[1]], &device)
            .triu(1)
            .greater_elem(0.5);
        scores = scores.mask_fill(
            mask.unsqueeze::<4>()
                .expand([SHAPE[0], SHAPE[2], SHAPE[1], SHAPE[1]]),
            f32::NEG_INFINITY,
        );
    }
    softmax(scores, 3).matmul(v).swap_dims(1, 2)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(DType::F32).into_data().iter::<f32>().collect()
}

fn distance(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    (difference / want.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
}

/// Output and gradients of `compute`, whose output's gradient is `upstream`.
fn differentiated(
    operands: [&Tensor<4>; 3],
    upstream: &Tensor<4>,
    compute: impl FnOnce([Tensor<4>; 3]) -> Result<Tensor<4>, Box<dyn Error>>,
) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let leaves = operands.map(|x| x.clone().require_grad());
    let output = compute(leaves.clone())?;
    let gradients = (output.clone() * upstream.clone()).sum().backward();
    let mut all = vec![values(output.inner())];
    for leaf in &leaves {
        all.push(values(leaf.grad(&gradients).ok_or("a leaf without gradient")?));
    }
    Ok(all)
}

/// Prints how far `backend` is from Burn's operations, and whether it gives the same twice.
fn compare(backend: &dyn AttentionBackend, device: &Device, dtype: DType) -> Result<(), Box<dyn Error>> {
    let random = || Tensor::<4>::random(SHAPE, Distribution::Normal(0.0, 1.0), device).cast(dtype);
    let [q, k, v, upstream] = [0; 4].map(|_| random().detach());
    for causal in [false, true] {
        let spec = AttentionSpec {
            mask: causal.then(|| Arc::new(Mask::Causal)),
            ..AttentionSpec::default()
        };
        let wide = [&q, &k, &v, &upstream].map(|x| x.clone().cast(DType::F32));
        let [wide_q, wide_k, wide_v, wide_upstream] = &wide;
        let expected = differentiated([wide_q, wide_k, wide_v], wide_upstream, |[q, k, v]| {
            Ok(plainly(q, k, v, causal))
        })?;
        let ours = || {
            differentiated([&q, &k, &v], &upstream, |[q, k, v]| {
                Ok(attention(backend, q, [(k, v)], &spec)?.output)
            })
        };
        let found = ours()?;
        let same = found == ours()?;
        let errors: Vec<String> = expected
            .iter()
            .zip(&found)
            .map(|(want, got)| format!("{:.1e}", distance(got, want)))
            .collect();
        println!(
            "{} in {dtype:?}, causal {causal}: o, dq, dk, dv differ from Burn's in f32 by {}; twice the same: {same}",
            backend.name(),
            errors.join(", ")
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut registry = AttentionRegistry::default();
    register(&mut registry)?;
    compare(&*registry.get("cpu")?, &Device::flex().autodiff(), DType::F32)?;
    #[cfg(feature = "cuda")]
    if Device::enumerate(burn::tensor::DeviceType::Cuda)
        .into_iter()
        .next()
        .is_some()
    {
        let device = Device::cuda(0).autodiff();
        for (name, dtype) in [
            ("wgmma", DType::BF16),
            ("mma", DType::BF16),
            ("portable", DType::BF16),
            ("portable", DType::F32),
            ("cuda", DType::F16),
        ] {
            compare(&*registry.get(name)?, &device, dtype)?;
        }
    }
    Ok(())
}
