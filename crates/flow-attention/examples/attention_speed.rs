//! Time of the CPU's attention on this machine, beside Burn's on the same problem: Burn's fused kernel forward, and forward
//! and backward through its autodiff. The two take turns; medians and what they were.
//!
//! `cargo run --release -p flow-attention --example attention_speed`

use burn::tensor::{Device, Tensor, module, ops::AttentionModuleOptions};
use flow_attention::{AttentionBackend, AttentionSpec, CpuAttention, attention};
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

const SHAPES: [[usize; 4]; 5] = [
    [32, 16, 4, 32],
    [32, 64, 4, 16],
    [64, 64, 4, 32],
    [8, 256, 4, 64],
    [1, 1024, 24, 64],
];

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<18} {:>9} {:>9} {:>6} {:>8}   {:>9} {:>9} {:>6} {:>8}",
        "B, S, H, D", "fwd µs", "Burn's", "ratio", "GFLOP/s", "f+b µs", "Burn's", "ratio", "GFLOP/s"
    );
    for shape in SHAPES {
        let [batch, tokens, heads, head_dim] = shape;
        let products = 4.0 * (batch * heads * tokens * tokens * head_dim) as f64;
        let [forward, burns_forward] = in_turn(&mut ours(shape, false)?, &mut burns(shape, false)?);
        let [both, burns_both] = in_turn(&mut ours(shape, true)?, &mut burns(shape, true)?);
        println!(
            "{:<18} {:>9.1} {:>9.1} {:>6.2} {:>8.0}   {:>9.1} {:>9.1} {:>6.2} {:>8.0}",
            format!("{batch}, {tokens}, {heads}, {head_dim}"),
            forward * 1e6,
            burns_forward * 1e6,
            burns_forward / forward,
            products / forward / 1e9,
            both * 1e6,
            burns_both * 1e6,
            burns_both / both,
            3.5 * products / both / 1e9
        );
    }
    println!("ratio: Burn's time by ours, above 1 where ours is faster");
    Ok(())
}

type Pass = Box<dyn FnMut()>;

/// A pass of this crate's attention; operands are `[B, S, H, D]`.
fn ours(shape: [usize; 4], tracked: bool) -> Result<Pass, Box<dyn Error>> {
    let [q, k, v] = operands(shape, tracked);
    let spec = AttentionSpec::default();
    let backend: &dyn AttentionBackend = &CpuAttention;
    attention(backend, q.clone(), [(k.clone(), v.clone())], &spec)?;
    Ok(Box::new(move || {
        let done = attention(backend, q.clone(), [(k.clone(), v.clone())], &spec);
        end(done.expect("served a moment ago").output, tracked);
    }))
}

/// A pass of Burn's; operands are `[B, H, S, D]`, as it wants them.
fn burns([batch, tokens, heads, head_dim]: [usize; 4], tracked: bool) -> Result<Pass, Box<dyn Error>> {
    let [q, k, v] = operands([batch, heads, tokens, head_dim], tracked);
    Ok(Box::new(move || {
        let options = AttentionModuleOptions::default();
        let done = module::attention(q.clone(), k.clone(), v.clone(), None, None, options);
        end(done, tracked);
    }))
}

fn end(output: Tensor<4>, tracked: bool) {
    if tracked {
        black_box(output.sum().backward());
    } else {
        black_box(output);
    }
}

fn operands(shape: [usize; 4], tracked: bool) -> [Tensor<4>; 3] {
    let device = if tracked {
        Device::flex().autodiff()
    } else {
        Device::flex()
    };
    [1, 2, 3].map(|which| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|index| ((index * 7919 + which * 31) % 2000) as f32 / 1000.0 - 1.0)
            .collect();
        let tensor = Tensor::<1>::from_data(values.as_slice(), &device).reshape(shape);
        if tracked {
            tensor.detach().require_grad()
        } else {
            tensor
        }
    })
}

/// Median seconds of two passes that take turns for two thirds of a second, after one of each.
fn in_turn(first: &mut Pass, second: &mut Pass) -> [f64; 2] {
    let mut passes = [first, second];
    let mut times = [Vec::new(), Vec::new()];
    passes.iter_mut().for_each(|pass| pass());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(666) {
        for (pass, times) in passes.iter_mut().zip(&mut times) {
            let start = Instant::now();
            pass();
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}
