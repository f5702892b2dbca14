//! Backward with five products against the two kernels with seven, on an H100: `joint_speed check` compares
//! results, `joint_speed time` times both in turns, and forward; `joint_speed time tokens` does so with tensors in which a token's
//! heads lie side by side, as models have them. `joint_speed long` is one call of 31,200 tokens of that kind, again and again, for profilers.
//! A line for each call.

use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_cube::call::Call;
use flow_attention_cube::run::Kernels;
use flow_attention_cube::tensors::{Heads, Part};
use flow_attention_cube::wgmma::{BackwardTiles, Prepared, Wgmma};
use flow_cube::wgmma::Factor;
use half::bf16;

/// Channels of a head.
const HEAD_DIM: usize = 128;

/// Windows timed of each, in turns.
const REPEATS: usize = 9;

fn call(batch: usize, [heads, kv_heads]: [usize; 2], queries: usize, keys: [usize; 2], d: usize) -> Call {
    Call {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim: d,
        factor: Factor::Bf16,
    }
}

/// Random values, bell-shaped enough; tensors are pieces of it.
fn pool(count: usize) -> Vec<bf16> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let part = |shift: u32| ((state >> shift) & 0x1F_FFFF) as f32 / (1u64 << 20) as f32 - 1.0;
        part(0) + part(21) + part(42)
    };
    (0..count).map(|_| bf16::from_f32(next())).collect()
}

/// What lies side by side in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The tokens of a head.
    HeadsFirst,
    /// The heads of a token.
    TokensFirst,
}

/// Tensors of one call.
struct Operands {
    scale: f32,
    q: Heads,
    d_o: Heads,
    o: Heads,
    dq: Heads,
    lse: Handle,
    /// Keys, values, and their gradients, of each part.
    parts: Vec<[Heads; 4]>,
}

impl Operands {
    fn new(client: &Client, call: Call, scale: f32, pool: &[bf16], order: Order) -> Result<Self, String> {
        let tensor = |rows: usize, heads: usize, piece: usize| {
            let shape = [call.batch, heads, rows, call.head_dim];
            let count: usize = shape.iter().product();
            let handle = client.create_from_slice(bf16::as_bytes(&pool[piece * 4099..][..count]));
            let mut tensor = Heads::contiguous(handle, shape);
            if order == Order::TokensFirst {
                tensor.strides = [count / call.batch, call.head_dim, heads * call.head_dim, 1];
            }
            tensor
        };
        let of_queries = |piece| tensor(call.queries, call.heads, piece);
        let parts = call.keys.into_iter().enumerate().filter(|(_, n)| *n > 0);
        let parts: Vec<[Heads; 4]> = parts
            .map(|(i, n)| [4, 5, 6, 7].map(|piece| tensor(n, call.kv_heads, piece + 4 * i)))
            .collect();
        let prepared = prepare(client, call, scale, None)?;
        let [q, d_o, o, dq] = [0, 1, 2, 3].map(of_queries);
        let lse = client.empty(prepared.statistics() * 4);
        let all = Self {
            scale,
            q,
            d_o,
            o,
            dq,
            lse,
            parts,
        };
        prepared.forward(&all.q, &all.keys(), &all.o, &all.lse);
        Ok(all)
    }

    fn keys(&self) -> Vec<Part<'_>> {
        self.parts.iter().map(|[k, v, ..]| Part { k, v }).collect()
    }

    fn backward(&self, prepared: &Prepared, scratch: &Handle) {
        let gradients: Vec<[&Heads; 2]> = self.parts.iter().map(|[.., dk, dv]| [dk, dv]).collect();
        prepared.backward(
            [&self.q, &self.o, &self.d_o],
            &self.keys(),
            &self.lse,
            scratch,
            &self.dq,
            &gradients,
        );
    }

    /// `dq`, then `dk` and `dv` of each part, from scratch full of `poison`.
    fn gradients(&self, client: &Client, prepared: &Prepared, poison: u8) -> Result<Vec<Vec<u8>>, String> {
        let scratch = client.create_from_slice(&vec![poison; prepared.scratch_bytes()]);
        self.backward(prepared, &scratch);
        let gradients = self.parts.iter().flat_map(|[.., dk, dv]| [dk, dv]);
        let read = |tensor: &Heads| client.read_one(tensor.handle.clone()).map(|bytes| bytes.to_vec());
        let all = std::iter::once(&self.dq).chain(gradients).map(read);
        all.collect::<Result<_, _>>()
            .map_err(|error| format!("{error:?}"))
    }
}

fn prepare(
    client: &Client,
    call: Call,
    scale: f32,
    joint: Option<BackwardTiles>,
) -> Result<Prepared, String> {
    Prepared::with_joint(client, call, scale, None, joint).map_err(|error| error.to_string())
}

/// Relative L2 distance.
fn distance(got: &[u8], want: &[u8]) -> f64 {
    let (got, want) = (bf16::from_bytes(got), bf16::from_bytes(want));
    let squares = got.iter().zip(want).fold([0.0f64; 2], |[apart, size], (g, w)| {
        [
            apart + (g.to_f64() - w.to_f64()).powi(2),
            size + w.to_f64().powi(2),
        ]
    });
    (squares[0] / squares[1].max(1e-30)).sqrt()
}

fn name(call: &Call) -> String {
    let Call {
        batch,
        heads,
        kv_heads,
        queries,
        keys: [first, second],
        head_dim,
        ..
    } = call;
    format!("B{batch} H{heads}/{kv_heads} {queries}x{first}+{second} D{head_dim}")
}

/// Whether the joint kernel gives the bits of `dk` and `dv`, `dq` but for rounding, and the same bits again.
fn check(client: &Client, call: Call, scale: f32, pool: &[bf16]) -> Result<bool, String> {
    let all = Operands::new(client, call, scale, pool, Order::HeadsFirst)?;
    let want = all.gradients(client, &prepare(client, call, all.scale, None)?, 0)?;
    let joint = prepare(client, call, all.scale, Wgmma::joint(&call, false))?;
    let got = all.gradients(client, &joint, 0xFF)?;
    let mut again = true;
    for poison in [0, 1, 0x7F] {
        again &= all.gradients(client, &joint, poison)? == got;
    }
    let keys = got[1..] == want[1..];
    let apart = distance(&got[0], &want[0]);
    let right = keys && again && apart <= 4e-3;
    println!(
        "{} {}: dq apart {apart:.1e}, dk and dv the same bits: {keys}, four times the same bits: {again}",
        if right { "ok   " } else { "WRONG" },
        name(&call)
    );
    Ok(right)
}

fn checks(client: &Client) -> Result<bool, String> {
    let calls = [
        call(1, [1, 1], 64, [64, 0], HEAD_DIM),
        call(2, [3, 3], 333, [333, 0], HEAD_DIM),
        call(2, [4, 4], 1024, [1024, 0], HEAD_DIM),
        call(2, [3, 3], 1357, [777, 0], HEAD_DIM),
        call(1, [2, 2], 333, [4096, 0], HEAD_DIM),
        call(2, [4, 2], 1357, [1357, 0], HEAD_DIM),
        call(2, [4, 4], 1024, [700, 333], HEAD_DIM),
        // More blocks than the device holds, and many waves of them.
        call(1, [12, 12], 9999, [9999, 0], HEAD_DIM),
        call(2, [16, 16], 4096, [4096, 0], HEAD_DIM),
    ];
    let pool = pool(2 * 16 * 4096 * HEAD_DIM + 16 * 4099);
    let mut good = true;
    for call in calls {
        good &= check(client, call, 1.0 / (HEAD_DIM as f32).sqrt(), &pool)?;
    }
    // Large scores: what keys that do not exist would have is beyond f32.
    good &= check(client, call(2, [2, 2], 130, [77, 0], HEAD_DIM), 5.0, &pool)?;
    Ok(good)
}

/// Replays a graph.
type Replay = Box<dyn Fn() -> Result<(), String>>;

/// A graph of `count` launches, ready.
fn graph(client: &Client, count: usize, mut launch: impl FnMut()) -> Result<Replay, String> {
    let say = |error: &dyn std::fmt::Debug| format!("{error:?}");
    client.graph_prepare().map_err(|e| say(&e))?;
    launch();
    client.start_capture().map_err(|e| say(&e))?;
    (0..count).for_each(|_| launch());
    let graph = client.stop_capture().map_err(|e| say(&e))?;
    // The buffers of the captured launches live until the caller returns.
    let replay: Replay = Box::new(move || unsafe { graph.replay() }.map_err(|e| format!("{e:?}")));
    replay()?;
    cubecl::future::block_on(client.sync()).map_err(|e| say(&e))?;
    Ok(replay)
}

fn window(client: &Client, rounds: usize, replay: &Replay) -> Result<f64, String> {
    let window = client.profile_start().map_err(|e| format!("{e:?}"))?;
    for _ in 0..rounds {
        replay()?;
    }
    let ticks = client.profile_end(window).map_err(|e| format!("{e:?}"))?;
    let ticks = cubecl::future::block_on(ticks.into_future()).ok_or("the device gave no time")?;
    Ok(ticks.duration().as_secs_f64())
}

/// Median, least and most of [`REPEATS`] times, and the rate of so many operations; sorts the times.
fn spread(times: &mut [f64], operations: f64) -> String {
    times.sort_by(f64::total_cmp);
    let median = times[REPEATS / 2];
    format!(
        "{:.3} ms ({:.3} to {:.3}), {:.0} TFLOP/s",
        median * 1e3,
        times[0] * 1e3,
        times[REPEATS - 1] * 1e3,
        operations / median / 1e12
    )
}

fn time(client: &Client, call: Call, pool: &[bf16], order: Order) -> Result<(), String> {
    let all = Operands::new(client, call, 1.0 / (call.head_dim as f32).sqrt(), pool, order)?;
    let products = 2.0 * (call.batch * call.heads * call.head_dim * call.queries * call.keys[0]) as f64;
    let guess = 5.0 * products / 400e12;
    let count = ((0.004 / guess) as usize).clamp(1, 8);
    let rounds = ((0.02 / guess) as usize / count).clamp(1, 50);
    let variants = [
        ("two kernels", None),
        ("joint kernel", Wgmma::joint(&call, false)),
    ];
    let mut replays = Vec::new();
    let mut kept = Vec::new();
    for (_, joint) in variants {
        let prepared = prepare(client, call, all.scale, joint)?;
        let scratch = client.empty(prepared.scratch_bytes());
        replays.push(graph(client, count, || all.backward(&prepared, &scratch))?);
        kept.push((prepared, scratch));
    }
    let mut times = vec![Vec::new(); replays.len()];
    for _ in 0..REPEATS {
        for (replay, times) in replays.iter().zip(&mut times) {
            times.push(window(client, rounds, replay)? / (rounds * count) as f64);
        }
    }
    for ((way, _), times) in variants.iter().zip(&mut times) {
        println!(
            "{} {way}: {} of five products",
            name(&call),
            spread(times, 5.0 * products)
        );
    }
    println!(
        "  the joint kernel takes {:.3} of the two kernels' time",
        times[1][REPEATS / 2] / times[0][REPEATS / 2]
    );
    let prepared = prepare(client, call, all.scale, None)?;
    let replay = graph(client, 2 * count, || {
        prepared.forward(&all.q, &all.keys(), &all.o, &all.lse);
    })?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        times.push(window(client, rounds, &replay)? / (2 * rounds * count) as f64);
    }
    println!("  forward: {}", spread(&mut times, 2.0 * products));
    Ok(())
}

/// Launches alone, a few of each kernel.
fn long(client: &Client) -> Result<(), String> {
    let call = call(1, [12, 12], 31200, [31200, 0], HEAD_DIM);
    let pool = pool(12 * 31200 * HEAD_DIM + 16 * 4099);
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();
    let all = Operands::new(client, call, scale, &pool, Order::TokensFirst)?;
    let prepared = prepare(client, call, scale, Wgmma::joint(&call, false))?;
    let scratch = client.empty(prepared.scratch_bytes());
    for _ in 0..3 {
        prepared.forward(&all.q, &all.keys(), &all.o, &all.lse);
        all.backward(&prepared, &scratch);
    }
    cubecl::future::block_on(client.sync()).map_err(|e| format!("{e:?}"))
}

fn times(client: &Client, order: Order) -> Result<(), String> {
    let full = |batch, heads, rows| call(batch, [heads, heads], rows, [rows, 0], HEAD_DIM);
    let calls = [
        full(1, 12, 31200),
        full(1, 12, 16384),
        full(1, 12, 12480),
        full(2, 24, 4429),
        full(2, 16, 4096),
        full(4, 16, 2048),
    ];
    let most = |call: &Call| call.batch * call.heads * call.queries * HEAD_DIM;
    let pool = pool(calls.iter().map(most).max().unwrap_or(0) + 16 * 4099);
    for call in calls {
        time(client, call, &pool, order)?;
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let client = cubecl::Device::cuda(0)
        .expect("an NVIDIA GPU and its driver")
        .client();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["check"] => checks(&client),
        ["time"] => times(&client, Order::HeadsFirst).map(|()| true),
        ["time", "tokens"] => times(&client, Order::TokensFirst).map(|()| true),
        ["long"] => long(&client).map(|()| true),
        _ => Err("usage: joint_speed check | time [tokens] | long".into()),
    };
    match done {
        Ok(true) => println!("done"),
        Ok(false) => std::process::exit(1),
        Err(why) => {
            println!("error: {why}");
            std::process::exit(2);
        }
    }
}
