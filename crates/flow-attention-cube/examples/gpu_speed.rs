//! Our side of `cargo xtask bench attention`: serves one request a line on standard input, answers with one line of JSON.
//!
//! Requests: `about`, `time INDEX REPEATS` with an index of [`cases`], or `launch INDEX TIMES`. Times are seconds of one call, from events
//! around replays of a captured graph, so that the host has no share in them. What is launched is for a profiler: forward as often, then
//! backward, and nothing else.

use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_cube::prepared::{DeviceCapabilities, Kernels, Prepared};
use flow_attention_cube::problem::Problem;
use flow_attention_cube::tensors::{Heads, KvSegment};
use flow_attention_cube::wgmma::Wgmma;
use flow_attention_mask::{Extent, Mask};
use flow_cube::wgmma::OperandType;
use half::bf16;
use std::io::BufRead;
use std::sync::Arc;

/// Calls in a captured graph.
const CALLS: usize = 4;

struct Case {
    name: String,
    problem: Problem,
    mask: Option<Mask>,
}

/// What is timed, in the order of the report.
fn cases() -> Vec<Case> {
    let of = |name: &str, batch, heads, rows: [usize; 3], head_dim, mask| Case {
        name: name.into(),
        problem: Problem {
            batch,
            heads,
            kv_heads: heads,
            queries: rows[0],
            keys: [rows[1], rows[2]],
            head_dim,
            operand_type: OperandType::Bf16,
        },
        mask,
    };
    let full = |batch, heads, rows, head_dim| of("full", batch, heads, [rows, rows, 0], head_dim, None);
    let mut cases = vec![
        full(16, 16, 256, 64),
        full(16, 16, 512, 64),
        full(16, 16, 1024, 64),
        full(4, 16, 4096, 64),
        full(16, 8, 512, 128),
        full(2, 16, 4096, 128),
        full(1, 12, 16384, 128),
        full(64, 16, 256, 72),
        full(4, 16, 2048, 96),
        full(2, 8, 2048, 256),
        of("text and image", 8, 24, [1357, 1024, 333], 64, None),
    ];
    for head_dim in [64, 128] {
        let masked = |name, mask| of(name, 2, 16, [8192, 8192, 0], head_dim, mask);
        let ends = vec![0, 1000, 3000, 3500, 6000, 8192];
        let blocks = (0..64 * 64).map(|i| (i * 7919) % 10 < 3).collect();
        cases.push(masked("full", None));
        cases.push(masked("causal", Some(Mask::Causal)));
        cases.push(masked(
            "window of 2049",
            Some(Mask::Window {
                before: 1024,
                after: 1024,
            }),
        ));
        cases.push(masked(
            "5 packed sequences",
            Mask::packed(ends.clone(), ends).ok(),
        ));
        cases.push(masked(
            "30 % of blocks",
            Mask::block_sparse(128, 128, blocks).ok(),
        ));
    }
    let grid = Extent {
        frames: 8,
        height: 32,
        width: 32,
    };
    let near = Extent {
        frames: 2,
        height: 8,
        width: 8,
    };
    cases.push(of(
        "video window",
        2,
        12,
        [8192, 8192, 0],
        128,
        Mask::video(grid, near).ok(),
    ));
    cases.push(of("video and text", 1, 12, [31_200, 512, 0], 128, None));
    cases
}

/// Tensors that a call reads: queries and their output's gradient, then keys and values of up to two parts.
const TENSORS: usize = 6;

/// Random values on the device, bell-shaped enough.
///
/// Made once, as a case would take the host a second otherwise.
struct Pool {
    values: Handle,
    /// From one tensor to the next, as much as the largest has; a multiple of 64: rows of tiles are 128 bytes, and one that lies across two lines of the cache takes both
    /// (forward at D64 had 0.6 of its speed).
    apart: usize,
}

/// Room for each tensor of the largest case, none of which overlap: what the cache holds of one would serve another.
fn pool(client: &Client, cases: &[Case]) -> Pool {
    let rows = |problem: &Problem| problem.queries.max(problem.keys[0]).max(problem.keys[1]);
    let most = cases
        .iter()
        .map(|Case { problem, .. }| problem.batch * problem.heads * rows(problem) * problem.head_dim)
        .max();
    let apart = most.unwrap_or(0).next_multiple_of(64);
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let part = |shift: u32| ((state >> shift) & 0x1F_FFFF) as f32 / (1u64 << 20) as f32 - 1.0;
        part(0) + part(21) + part(42)
    };
    let values: Vec<bf16> = (0..TENSORS * apart).map(|_| bf16::from_f32(next())).collect();
    Pool {
        values: client.create_from_slice(bf16::as_bytes(&values)),
        apart,
    }
}

/// The tensor at one of `TENSORS` places in the pool.
fn tensor(pool: &Pool, shape: [usize; 4], place: usize) -> Heads {
    let start = place * pool.apart * size_of::<bf16>();
    Heads::contiguous(pool.values.clone().offset_start(start as u64), shape)
}

/// A tensor that is written.
fn result(client: &Client, shape: [usize; 4]) -> Heads {
    let bytes = shape.iter().product::<usize>() * size_of::<bf16>();
    Heads::contiguous(client.empty(bytes), shape)
}

/// Seconds of one call, `repeats` times.
fn replayed(
    client: &Client,
    flops: f64,
    repeats: usize,
    mut launch: impl FnMut(),
) -> Result<Vec<f64>, String> {
    let say = |error: &dyn std::fmt::Debug| format!("{error:?}");
    client.graph_prepare().map_err(|e| say(&e))?;
    (0..3).for_each(|_| launch());
    client.start_capture().map_err(|e| say(&e))?;
    (0..CALLS).for_each(|_| launch());
    let graph = client.stop_capture().map_err(|e| say(&e))?;
    // SAFETY: the buffers of the captured launches live until the caller returns.
    let replay = || unsafe { graph.replay() }.map_err(|e| say(&e));
    replay()?;
    cubecl::future::block_on(client.sync()).map_err(|e| say(&e))?;
    let rounds = ((0.02 / (flops / 400e12)) as usize / CALLS).clamp(2, 50);
    (0..repeats)
        .map(|_| {
            let window = client.profile_start().map_err(|e| say(&e))?;
            for _ in 0..rounds {
                replay()?;
            }
            let ticks = client.profile_end(window).map_err(|e| say(&e))?;
            let ticks = cubecl::future::block_on(ticks.into_future()).ok_or("the device gave no time")?;
            Ok(ticks.duration().as_secs_f64() / (rounds * CALLS) as f64)
        })
        .collect()
}

/// What a request asks for.
#[derive(Clone, Copy)]
enum Wanted {
    /// As many measurements.
    Times(usize),
    /// As many calls.
    Launches(usize),
}

/// Serves a request; the answer describes the case.
fn serve(client: &Client, pool: &Pool, case: Case, wanted: Wanted) -> Result<String, String> {
    let Case { name, problem, mask } = case;
    let scale = 1.0 / (problem.head_dim as f32).sqrt();
    let counts = match &mask {
        Some(mask) => Some(
            Wgmma::select(&problem, true, DeviceCapabilities::of(client))
                .forward_mask(mask, problem.sizes())
                .map_err(|e| e.to_string())?
                .counts,
        ),
        None => None,
    };
    let of = |part: u64, all: u64| part as f64 / all as f64;
    let pairs = counts.map_or(1.0, |c| of(c.allowed_pairs, c.dense_pairs));
    let tiles = counts.map_or(1.0, |c| of(c.tiles_visited, c.tiles_dense));
    let causal = mask == Some(Mask::Causal);
    let masked = mask.is_some();
    let prepared =
        Prepared::<Wgmma>::new(client, problem, scale, mask.map(Arc::new)).map_err(|e| e.to_string())?;
    let rows = |rows, kv: bool| {
        [
            problem.batch,
            if kv { problem.kv_heads } else { problem.heads },
            rows,
            problem.head_dim,
        ]
    };
    let [q, d_o] = [0, 1].map(|place| tensor(pool, rows(problem.queries, false), place));
    let [o, dq] = [(); 2].map(|()| result(client, rows(problem.queries, false)));
    let kv_segments: Vec<[Heads; 4]> = problem
        .keys
        .into_iter()
        .enumerate()
        .filter(|(_, n)| *n > 0)
        .map(|(part, n)| {
            let [k, v] = [2, 3]
                .map(|place| 2 * part + place)
                .map(|place| tensor(pool, rows(n, true), place));
            let [dk, dv] = [(); 2].map(|()| result(client, rows(n, true)));
            [k, v, dk, dv]
        })
        .collect();
    let keys: Vec<KvSegment<'_>> = kv_segments.iter().map(|[k, v, ..]| KvSegment { k, v }).collect();
    let gradients: Vec<[&Heads; 2]> = kv_segments.iter().map(|[.., dk, dv]| [dk, dv]).collect();
    let lse = client.empty(prepared.statistics() * 4);
    let delta = client.empty(prepared.scratch() * 4);
    let flops = 4.0
        * (problem.batch * problem.heads * problem.head_dim * problem.queries) as f64
        * (problem.keys[0] + problem.keys[1]) as f64
        * pairs;
    let forward = || prepared.forward(&q, &keys, &o, &lse);
    let backward = || prepared.backward([&q, &o, &d_o], &keys, &lse, &delta, &dq, &gradients);
    let [forward, backward] = match wanted {
        Wanted::Times(repeats) => [
            replayed(client, flops, repeats, forward)?,
            replayed(client, 2.5 * flops, repeats, backward)?,
        ],
        Wanted::Launches(times) => {
            (0..times).for_each(|_| forward());
            (0..times).for_each(|_| backward());
            cubecl::future::block_on(client.sync()).map_err(|error| format!("{error:?}"))?;
            [vec![], vec![]]
        }
    };
    let tiles_of = prepared.selection();
    let kernel = format!(
        "wgmma {}x{}{}",
        tiles_of.forward.queries(),
        tiles_of.forward.keys,
        match (tiles_of.forward.ping_pong, tiles_of.forward.persistent) {
            (_, true) => " in turns, blocks stay",
            (true, false) => " in turns",
            (false, false) => "",
        }
    );
    let backward_kernel = format!(
        "wgmma {}x{}",
        tiles_of.queries.stationary_rows(),
        tiles_of.queries.streamed_rows
    );
    Ok(format!(
        r#"{{"name":"{name}","kernel":"{kernel}","backward_kernel":"{backward_kernel}","batch":{},"heads":{},"queries":{},"keys":{},"head_dim":{},"causal":{causal},"masked":{masked},"segments":{},"pairs":{pairs},"tiles":{tiles},"flops":{flops},"forward":{forward:?},"backward":{backward:?}}}"#,
        problem.batch,
        problem.heads,
        problem.queries,
        problem.keys[0] + problem.keys[1],
        problem.head_dim,
        kv_segments.len()
    ))
}

fn main() {
    let client = cubecl::Device::cuda(0)
        .expect("an NVIDIA GPU and its driver")
        .client();
    let pool = pool(&client, &cases());
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["about"] => Ok(format!(r#"{{"cases":{}}}"#, cases().len())),
            [what @ ("time" | "launch"), index, often] => match (index.parse::<usize>(), often.parse()) {
                (Ok(index), Ok(often)) if index < cases().len() => {
                    let wanted = match what {
                        "time" => Wanted::Times(often),
                        _ => Wanted::Launches(often),
                    };
                    serve(&client, &pool, cases().swap_remove(index), wanted)
                }
                _ => Err(format!("`{line}`: there are {} cases", cases().len())),
            },
            _ => Err(format!(
                "`{line}` is none of `about`, `time INDEX REPEATS` and `launch INDEX TIMES`"
            )),
        };
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(why) => println!(r#"{{"error":{why:?}}}"#),
        }
    }
}
