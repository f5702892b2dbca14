//! Time and rate of the CPU's attention on this machine.
//!
//! `cargo run --release -p flow-attention --example attention_speed`

use flow_attention::{AttentionRegistry, register};
use flow_core::cpu::from_vec;
use flow_core::exec::Compute;
use flow_core::tensors::leaf;
use flow_core::{AttentionCall, AttentionSpec, KeyValue, Plain, op};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = AttentionRegistry::default();
    register(&mut registry);
    let attention = registry.get("cpu")?;
    println!(
        "{:<28} {:>12} {:>12} {:>9} {:>9}",
        "B, S, H, D", "forward µs", "backward µs", "GFLOP/s", "GFLOP/s"
    );
    for [batch, tokens, heads, head_dim] in [
        [32, 16, 4, 32],
        [32, 64, 4, 16],
        [64, 64, 4, 32],
        [8, 256, 4, 64],
        [1, 1024, 24, 64],
    ] {
        let operand = || leaf(&values(&[batch, tokens, heads, head_dim]));
        let (q, k, v) = (operand(), operand(), operand());
        let seed = values(&[batch, tokens, heads, head_dim]);
        let parts = [KeyValue { k: &k, v: &v }];
        let call = AttentionCall::new(&q, &parts, &AttentionSpec::default())?;
        let run = || {
            let attended = attention.attend(&Compute, &q, &parts, &call);
            attended.expect("the processor serves every call in f32").output
        };
        let forward = best(|| drop(run()));
        let backward = best(|| drop(op::backward_from(vec![run()], vec![Some(seed.clone())]))) - forward;
        let products = 4.0 * (batch * heads * tokens * tokens * head_dim) as f64;
        println!(
            "{:<28} {:>12.1} {:>12.1} {:>9.0} {:>9.0}",
            format!("{batch}, {tokens}, {heads}, {head_dim}"),
            forward * 1e6,
            backward * 1e6,
            products / forward / 1e9,
            2.5 * products / backward / 1e9
        );
    }
    Ok(())
}

/// The best of many runs, in seconds.
fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.3 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// A tensor of values between -1 and 1.
fn values(shape: &[usize]) -> Plain {
    let count: usize = shape.iter().product();
    from_vec(
        (0..count)
            .map(|index| ((index * 7919) % 2000) as f32 / 1000.0 - 1.0)
            .collect(),
        shape,
    )
}
