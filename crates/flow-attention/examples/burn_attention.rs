//! Attention on tensor cores in a Burn program: forward, backward, a causal mask, beside Burn's own operations in f32.

use burn::tensor::{DType, Device, DeviceType, Distribution, Tensor, activation::softmax};
use flow_attention::cube::{AttentionSpec, MmaAttention, WgmmaAttention};
use flow_attention_mask::Mask;
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

fn main() -> Result<(), Box<dyn Error>> {
    if Device::enumerate(DeviceType::Cuda).into_iter().count() == 0 {
        return Err("this example needs an NVIDIA GPU and its driver".into());
    }
    let device = Device::cuda(0).autodiff();
    let random = || Tensor::<4>::random(SHAPE, Distribution::Normal(0.0, 1.0), &device).cast(DType::BF16);
    let [q, k, v, gradient] = [0; 4].map(|_| random().detach());
    let wgmma = WgmmaAttention::default();
    let mma = MmaAttention::default();
    for causal in [false, true] {
        let spec = AttentionSpec {
            mask: causal.then(|| Arc::new(Mask::Causal)),
            ..AttentionSpec::default()
        };
        let leaves = || [&q, &k, &v].map(|x| x.clone().cast(DType::F32).require_grad());
        let reference = leaves();
        let [rq, rk, rv] = reference.clone();
        let wanted = plainly(rq, rk, rv, causal);
        let grads = (wanted.clone() * gradient.clone().cast(DType::F32))
            .sum()
            .backward();
        let wanted_grads: Vec<Vec<f32>> = reference
            .iter()
            .map(|x| values(x.grad(&grads).expect("a gradient")))
            .collect();
        let wanted = values(wanted.inner());
        for name in ["wgmma", "mma"] {
            let run = || -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
                let ours = [&q, &k, &v].map(|x| x.clone().require_grad());
                let [q, k, v] = ours.clone().map(Tensor::into_dispatch);
                let attended = match name {
                    "wgmma" => wgmma.attend(&q, &[[&k, &v]], &spec)?,
                    _ => mma.attend(&q, &[[&k, &v]], &spec)?,
                };
                let output = Tensor::<4>::from_dispatch(attended.output);
                let grads = (output.clone() * gradient.clone()).sum().backward();
                let mut all = vec![values(output.inner())];
                for x in &ours {
                    all.push(values(x.grad(&grads).ok_or("no gradient")?));
                }
                Ok(all)
            };
            let first = run()?;
            let same = first == run()?;
            let errors: Vec<String> = std::iter::once(&wanted)
                .chain(&wanted_grads)
                .zip(&first)
                .map(|(want, got)| format!("{:.1e}", distance(got, want)))
                .collect();
            println!(
                "{name}, causal {causal}: o, dq, dk, dv differ from f32 by {}; twice the same: {same}",
                errors.join(", ")
            );
        }
    }
    Ok(())
}
