//! Time and rate of each kernel on this machine, at the sizes of a small diffusion transformer.
//!
//! `cargo run --release -p flow-kernels --example kernel_speed [batch tokens channels]`

use burn::backend::DispatchTensor;
use flow_core::cpu::from_vec;
use flow_core::ops::{Compute, GatedResidual, LinearWeights, ModulatedNorm, NormChunks, RotaryTables};
use flow_core::tensors::leaf;
use flow_core::{Activation, AdamWParam, AdamWStep, Kernels, MasterWeight, RawTensor, autograd};
use flow_kernels::CpuKernels;
use std::time::Instant;

fn main() {
    let sizes: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let (batch, tokens, channels) = match sizes[..] {
        [batch, tokens, channels] => (batch, tokens, channels),
        _ => (32, 64, 64),
    };
    println!(
        "batch {batch}, tokens {tokens}, channels {channels}, {} threads",
        rayon::current_num_threads()
    );
    println!(
        "{:<34} {:>12} {:>12} {:>10} {:>10}",
        "operation", "forward µs", "backward µs", "GFLOP/s", "GFLOP/s"
    );
    linear_layers(batch * tokens, channels);
    elementwise(batch, tokens, channels);
    optimizer();
}

fn linear_layers(rows: usize, channels: usize) {
    let layers = [
        ("qkv", channels, 3 * channels, Activation::None, None),
        ("projection", channels, channels, Activation::None, None),
        (
            "mlp up + gelu",
            channels,
            4 * channels,
            Activation::GeluTanh,
            None,
        ),
        ("mlp down", 4 * channels, channels, Activation::None, None),
        (
            "mlp up + gelu + adapter 8, frozen",
            channels,
            4 * channels,
            Activation::GeluTanh,
            Some(8),
        ),
    ];
    for (name, inputs, outputs, activation, rank) in layers {
        let x = leaf(&values(&[rows, inputs]));
        let base = |shape: &[usize]| {
            if rank.is_some() {
                values(shape)
            } else {
                leaf(&values(shape))
            }
        };
        let weights = LinearWeights {
            low_precision: None,
            weight: base(&[outputs, inputs]),
            bias: Some(base(&[outputs])),
            adapter: rank.map(|rank| {
                (
                    leaf(&values(&[rank, inputs])),
                    leaf(&values(&[outputs, rank])),
                    1.0,
                )
            }),
        };
        let products = 2.0 * (rows * inputs * outputs) as f64;
        let backward = products * if rank.is_some() { 1.0 } else { 2.0 };
        report(name, Some((products, backward)), &[rows, outputs], || {
            CpuKernels::default()
                .ops()
                .model
                .linear(&Compute, &x, &weights, activation)
        });
    }
}

fn elementwise(batch: usize, tokens: usize, channels: usize) {
    let shape = [batch, tokens, channels];
    let (x, branch) = (leaf(&values(&shape)), leaf(&values(&shape)));
    let modulation = leaf(&values(&[batch, 6, channels]));
    report("modulated layer norm", None, &shape, || {
        CpuKernels::default()
            .ops()
            .model
            .modulated_layer_norm(ModulatedNorm {
                x: &x,
                modulation: &modulation,
                chunks: NormChunks {
                    shift: 0,
                    scale: 1,
                    epsilon: 1e-6,
                },
            })
    });
    report("gated residual", None, &shape, || {
        CpuKernels::default().ops().model.gated_residual(
            GatedResidual {
                residual: &x,
                modulation: &modulation,
                gate: 2,
            },
            &branch,
        )
    });
    let heads = [batch, tokens, 4, channels / 4];
    let (q, weight) = (leaf(&values(&heads)), leaf(&values(&[channels / 4])));
    report("rms norm of a head", None, &heads, || {
        CpuKernels::default()
            .ops()
            .model
            .rms_norm(&q, Some(&weight), 1e-6)
    });
    let table = values(&[tokens, channels / 8]);
    report("rotary", None, &heads, || {
        CpuKernels::default().ops().model.rotary(
            &q,
            RotaryTables {
                cos: &table,
                sin: &table,
            },
        )
    });
    report("gelu", None, &shape, || {
        CpuKernels::default()
            .ops()
            .model
            .activation(&x, Activation::GeluTanh)
    });
}

fn optimizer() {
    let count = 200_000;
    let (mut weight, gradient) = (values(&[count]), values(&[count]));
    let (mut first, mut second) = (
        from_vec(vec![0.0; count], &[count]),
        from_vec(vec![0.0; count], &[count]),
    );
    let scalars = from_vec(vec![1e-3, 0.1, 0.001, 1.0], &[4]);
    let step = AdamWStep {
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.01,
        scalars,
        rounding: Default::default(),
    };
    let time = best(|| {
        CpuKernels::default().ops().optimizer.adamw(
            AdamWParam {
                weight: &mut weight,
                master: MasterWeight::F32,
                gradient: &gradient,
                first: &mut first,
                second: &mut second,
            },
            &step,
        )
    });
    println!("{:<34} {:>12.1}", format!("adamw, {count} values"), time * 1e6);
    let time = best(|| {
        std::hint::black_box(
            CpuKernels::default()
                .ops()
                .optimizer
                .sums_of_squares(&[&gradient]),
        );
    });
    println!(
        "{:<34} {:>12.1}",
        format!("sum of squares, {count} values"),
        time * 1e6
    );
}

/// Prints the best times of `forward` and of its backward.
fn report(name: &str, products: Option<(f64, f64)>, shape: &[usize], forward: impl Fn() -> DispatchTensor) {
    let seed = values(shape);
    let forward_time = best(|| drop(forward()));
    let both = best(|| drop(autograd::backward_from(vec![forward()], vec![Some(seed.clone())])));
    let backward_time = both - forward_time;
    print!(
        "{name:<34} {:>12.1} {:>12.1}",
        forward_time * 1e6,
        backward_time * 1e6
    );
    match products {
        Some((forward, backward)) => {
            println!(
                " {:>10.0} {:>10.0}",
                forward / forward_time / 1e9,
                backward / backward_time / 1e9
            );
        }
        None => println!(),
    }
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

/// A tensor of values between `-1/sqrt(n)` and `1/sqrt(n)` for a last axis of `n`.
fn values(shape: &[usize]) -> RawTensor {
    let count: usize = shape.iter().product();
    let bound = (*shape.last().unwrap_or(&1) as f32).sqrt().recip();
    let values = (0..count).map(|index| (((index * 7919) % 2000) as f32 / 1000.0 - 1.0) * bound);
    from_vec(values.collect(), shape)
}
