//! Times of the large kernels, and the bytes that they must move per second.

use cubecl::prelude::*;
use flow_kernels_cube::activation::{self, Activation};
use flow_kernels_cube::adamw::{AdamW, AdamWParam, MasterWeight, Rounding};
use flow_kernels_cube::cast::cast;
use flow_kernels_cube::gated_residual::Gate;
use flow_kernels_cube::modulated_layer_norm::{ModulatedNorm, NormGradients};
use flow_kernels_cube::normals::{Drawn, drawn_by};
use flow_kernels_cube::optimizer::{accumulate, sums_of_squares};
use flow_kernels_cube::rms_norm::{RmsGradients, RmsNorm, RotaryAfterNorm};
use flow_kernels_cube::rotary::Rotary;
use flow_kernels_cube::row_codes::RowCodes;
use flow_kernels_cube::sde::{Latents, Noise, Outcome, Step};
use flow_kernels_cube::{Buffer, Element, Refused};
use flow_rng::{Purpose, Stream};
use std::error::Error;
use std::time::Instant;

/// Operand sets in turn, so that none is found in the second-level cache.
const SETS: usize = 4;
/// Chunks of a modulation.
const CHUNKS: usize = 6;
/// Launches between two synchronisations.
const LAUNCHES: usize = 32;

struct Model {
    name: &'static str,
    batch: usize,
    tokens: usize,
    heads: usize,
    head_dim: usize,
    inner: usize,
}

const MODELS: [Model; 3] = [
    Model {
        name: "DiT-XL B64 S256",
        batch: 64,
        tokens: 256,
        heads: 16,
        head_dim: 72,
        inner: 4608,
    },
    Model {
        name: "SD3.5 B16 S1357",
        batch: 16,
        tokens: 1357,
        heads: 24,
        head_dim: 64,
        inner: 6144,
    },
    Model {
        name: "Wan S31200",
        batch: 1,
        tokens: 31_200,
        heads: 12,
        head_dim: 128,
        inner: 8960,
    },
];

/// Runs `launch` on operand set after operand set and prints its time and what `bytes` per launch come to.
fn time(
    client: &Client,
    name: &str,
    bytes: usize,
    launch: impl Fn(usize) -> Result<(), Refused>,
) -> Result<(), Box<dyn Error>> {
    let sync = || cubecl::future::block_on(client.sync());
    for set in 0..SETS {
        launch(set)?;
    }
    sync()?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for at in 0..LAUNCHES {
            launch(at % SETS)?;
        }
        sync()?;
        best = best.min(start.elapsed().as_secs_f64() / LAUNCHES as f64);
    }
    println!(
        "{name:48} {:8.1} us {:8.0} GB/s",
        best * 1e6,
        bytes as f64 / best / 1e9
    );
    Ok(())
}

fn sets<const N: usize>(client: &Client, length: usize, element: Element) -> Vec<[Buffer; N]> {
    // Whatever is there: times do not depend on values.
    (0..SETS)
        .map(|_| [(); N].map(|()| Buffer::empty(client, length, element)))
        .collect()
}

fn model(client: &Client, model: &Model, element: Element) -> Result<(), Box<dyn Error>> {
    println!("{}, {}", model.name, element.name());
    let length = model.batch * model.tokens * model.heads * model.head_dim;
    let of = sets::<4>(client, length, element);
    modulated(client, model, &of)?;
    norms_of_heads(client, model, &of)?;
    drop(of);
    activations(client, model, element)
}

/// The modulated norm and the gated residual, beside a copy of as many values.
fn modulated(client: &Client, model: &Model, of: &[[Buffer; 4]]) -> Result<(), Box<dyn Error>> {
    let Model {
        batch,
        tokens,
        heads,
        head_dim,
        ..
    } = *model;
    let (channels, chunks, element) = (heads * head_dim, CHUNKS, of[0][0].element);
    let size = batch * tokens * channels * element.bytes();
    let modulation = sets::<2>(client, batch * chunks * channels, element);
    let statistics = sets::<1>(client, batch * tokens * 2, Element::F32);
    time(client, "copy", 2 * size, |set| {
        cast(client, &of[set][0], &of[set][1], 1.0, true)
    })?;
    let norm = norm_of(model);
    time(client, "modulated layer norm, forward", 2 * size, |set| {
        let ([x, y, ..], [m, _], [s]) = (&of[set], &modulation[set], &statistics[set]);
        norm.forward(client, x, m, y, s)
    })?;
    for modulated in [false, true] {
        let name = format!("modulated layer norm, backward, modulation {modulated}");
        time(client, &name, 3 * size, |set| {
            let ([x, g, dx, _], [m, dm], [s]) = (&of[set], &modulation[set], &statistics[set]);
            let call = NormGradients {
                x,
                modulation: m,
                statistics: s,
                gradient: g,
                added: None,
                dx,
                dmodulation: modulated.then_some(dm),
            };
            norm.backward(client, call)
        })?;
    }
    let gate = Gate {
        batch,
        tokens,
        channels,
        chunks,
        gate: 2,
    };
    time(client, "gated residual, forward", 3 * size, |set| {
        let ([r, b, y, _], [m, _]) = (&of[set], &modulation[set]);
        gate.forward(client, r, b, m, y)
    })?;
    time(client, "gated residual, backward, both", 3 * size, |set| {
        let ([b, g, d, _], [m, dm]) = (&of[set], &modulation[set]);
        gate.backward(client, b, m, g, Some(d), Some(dm))
    })
}

/// The RMS norm of queries and keys, their rotation, and both in one kernel.
fn norms_of_heads(client: &Client, model: &Model, of: &[[Buffer; 4]]) -> Result<(), Box<dyn Error>> {
    let Model {
        batch,
        tokens,
        heads,
        head_dim,
        ..
    } = *model;
    let element = of[0][0].element;
    let size = batch * tokens * heads * head_dim * element.bytes();
    let rms = RmsNorm {
        rows: batch * tokens * heads,
        channels: head_dim,
        epsilon: 1e-6,
    };
    let weight = Buffer::upload(client, &vec![1.0; head_dim], element);
    let dweight = Buffer::empty(client, head_dim, Element::F32);
    let reciprocals = sets::<1>(client, rms.rows, Element::F32);
    let tables = sets::<2>(client, tokens * head_dim / 2, Element::F32);
    let turn = |set: usize| RotaryAfterNorm {
        tokens,
        heads,
        head_dim,
        cos: &tables[set][0],
        sin: &tables[set][1],
    };
    time(client, "RMS norm of heads, forward", 2 * size, |set| {
        let ([x, y, ..], [r]) = (&of[set], &reciprocals[set]);
        rms.forward(client, x, Some(&weight), None, y, r)
    })?;
    let rotary = Rotary {
        batch,
        tokens,
        heads,
        head_dim,
    };
    time(client, "rotary", 2 * size, |set| {
        let ([x, y, ..], [cos, sin]) = (&of[set], &tables[set]);
        rotary.forward(client, x, [cos, sin], y)
    })?;
    time(client, "RMS norm of heads and rotary, forward", 2 * size, |set| {
        let ([x, y, ..], [r]) = (&of[set], &reciprocals[set]);
        rms.forward(client, x, Some(&weight), Some(turn(set)), y, r)
    })?;
    time(client, "RMS norm of heads and rotary, dx", 3 * size, |set| {
        let ([x, g, d, _], [r]) = (&of[set], &reciprocals[set]);
        let call = RmsGradients {
            x,
            weight: Some(&weight),
            turn: Some(turn(set)),
            reciprocals: r,
            gradient: g,
            dx: Some(d),
            dweight: None,
        };
        rms.backward(client, call)
    })?;
    time(client, "RMS norm of heads and rotary, dweight", 2 * size, |set| {
        let ([x, g, ..], [r]) = (&of[set], &reciprocals[set]);
        let call = RmsGradients {
            x,
            weight: Some(&weight),
            turn: Some(turn(set)),
            reciprocals: r,
            gradient: g,
            dx: None,
            dweight: Some(&dweight),
        };
        rms.backward(client, call)
    })
}

/// GELU of the inner layer, with the sums of columns that are the gradient of its bias.
fn activations(client: &Client, model: &Model, element: Element) -> Result<(), Box<dyn Error>> {
    let inner = model.inner;
    let length = model.batch * model.tokens * inner;
    let size = length * element.bytes();
    let of = sets::<3>(client, length, element);
    let dbias = Buffer::empty(client, inner, Element::F32);
    time(client, "GELU, forward", 2 * size, |set| {
        activation::forward(client, &of[set][0], &of[set][1], Activation::GeluTanh)
    })?;
    for bias in [false, true] {
        time(client, &format!("GELU, backward, bias {bias}"), 3 * size, |set| {
            let call = activation::Backward {
                columns: inner,
                activation: Some(Activation::GeluTanh),
                x: Some(&of[set][0]),
                gradient: &of[set][1],
                dx: Some(&of[set][2]),
                dbias: bias.then_some(&dbias),
            };
            activation::backward(client, call)
        })?;
    }
    time(client, "column sums", size, |set| {
        let call = activation::Backward {
            columns: inner,
            activation: None,
            x: None,
            gradient: &of[set][0],
            dx: None,
            dbias: Some(&dbias),
        };
        activation::backward(client, call)
    })
}

fn norm_of(model: &Model) -> ModulatedNorm {
    ModulatedNorm {
        unit: 1.0,
        batch: model.batch,
        tokens: model.tokens,
        channels: model.heads * model.head_dim,
        chunks: CHUNKS,
        shift: 0,
        scale: 1,
        epsilon: 1e-6,
    }
}

/// Rows made as codes, alone and beside numbers.
fn row_codes(client: &Client, model: &Model, element: Element) -> Result<(), Box<dyn Error>> {
    let norm = norm_of(model);
    let rows = model.batch * model.tokens;
    let room = |columns: usize| -> Vec<RowCodes> {
        let codes = |_| RowCodes {
            codes: client.empty(rows * columns),
            scales: client.empty(4 * rows),
        };
        (0..SETS).map(codes).collect()
    };
    let bytes = |columns: usize, is_stored: bool| {
        let numbers = if is_stored { 2 } else { 1 };
        rows * columns * (numbers * element.bytes() + 1)
    };
    let of = sets::<2>(client, rows * norm.channels, element);
    let modulation = sets::<1>(client, model.batch * CHUNKS * norm.channels, element);
    let codes = room(norm.channels);
    for is_stored in [false, true] {
        let bytes = bytes(norm.channels, is_stored);
        let name = format!("modulated layer norm as codes, rows {is_stored}");
        time(client, &name, bytes, |set| {
            let ([x, y], [m]) = (&of[set], &modulation[set]);
            norm.forward_codes(client, x, m, is_stored.then_some(y), &codes[set])
        })?;
    }
    drop((of, codes));
    let of = sets::<2>(client, rows * model.inner, element);
    let codes = room(model.inner);
    for is_stored in [false, true] {
        let bytes = bytes(model.inner, is_stored);
        let name = format!("GELU as codes, rows {is_stored}");
        time(client, &name, bytes, |set| {
            let [x, y] = &of[set];
            let (y, gelu) = (is_stored.then_some(y), Activation::GeluTanh);
            activation::forward_codes(client, x, model.inner, y, &codes[set], gelu)
        })?;
    }
    Ok(())
}

fn updates(client: &Client) -> Result<(), Box<dyn Error>> {
    let length = 32 << 20;
    println!("updates of {length} weights");
    let wide = sets::<4>(client, length, Element::F32);
    let narrow = sets::<3>(client, length, Element::Bf16);
    let varying = Buffer::upload(client, &[1e-3, 0.1, 0.001, 1.0], Element::F32);
    let step = AdamW {
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        varying: &varying,
        rounding: Rounding::default(),
    };
    for (name, narrow_moments, copied) in [
        ("AdamW, f32", false, false),
        ("AdamW, f32, bf16 copy", false, true),
        ("AdamW, bf16 moments and copy", true, true),
    ] {
        let bytes = 12 + if narrow_moments { 8 } else { 16 } + if copied { 2 } else { 0 };
        time(client, name, bytes * length, |set| {
            let ([weight, gradient, m, v], [m16, v16, copy]) = (&wide[set], &narrow[set]);
            let (first, second) = if narrow_moments { (m16, v16) } else { (m, v) };
            let of = AdamWParam {
                weight,
                gradient,
                first,
                second,
                beside: if copied {
                    MasterWeight::Copy(copy)
                } else {
                    MasterWeight::Nothing
                },
                weight_decay: 0.01,
            };
            step.update(client, &[of])
        })?;
    }
    time(client, "accumulate", 12 * length, |set| {
        accumulate(client, &wide[set][0], &wide[set][1])
    })?;
    time(client, "sum of squares, read by the host", 4 * length, |set| {
        sums_of_squares(client, &[&wide[set][0]]);
        Ok(())
    })
}

fn latents(client: &Client) -> Result<(), Box<dyn Error>> {
    let call = Latents {
        rows: 16,
        values: 16 * 128 * 128,
    };
    println!("latents of 16 x {}", call.values);
    let length = call.rows * call.values;
    let of = sets::<4>(client, length, Element::F32);
    let v = sets::<1>(client, length, Element::Bf16);
    let coefficients = Buffer::upload(client, &vec![0.5; call.rows * 5], Element::F32);
    let log_prob = Buffer::empty(client, call.rows, Element::F32);
    let step = |set: usize, noise: Noise<'_>| {
        let ([x, _, x_next, mean], [v]) = (&of[set], &v[set]);
        let step = Step {
            x,
            v,
            coefficients: &coefficients,
        };
        let outcome = Outcome {
            mean,
            log_prob: &log_prob,
        };
        call.step(client, step, noise, x_next, outcome)
    };
    time(client, "SDE step", (5 * 4 + 2) * length, |set| {
        step(set, Noise::Given(&of[set][1]))
    })?;
    if !drawn_by(client) {
        return Ok(());
    }
    let samples: Vec<u64> = (0..call.rows as u64).collect();
    let drawn = Drawn {
        stream: Stream::new(1, Purpose::SdeNoise),
        samples: &samples,
        step: 1,
    };
    time(
        client,
        "SDE step that draws its noise",
        (4 * 4 + 2) * length,
        |set| step(set, Noise::Drawn(drawn)),
    )?;
    time(client, "normal values", 4 * length, |set| {
        drawn.draw(client, &of[set][1])
    })
}

/// Times what models of known sizes spend their time on.
pub fn time_all(client: &Client, element: Element) -> Result<(), Box<dyn Error>> {
    for of in &MODELS {
        model(client, of, element)?;
        row_codes(client, of, element)?;
    }
    updates(client)?;
    latents(client)
}
