//! Checks the Hopper kernels on a GPU against f64 on the host, over a cases of shapes and masks, then times them.
//!
//! `device check`, `device time`, or both without an argument; with `mma` those of older tensor cores. Each group runs in
//! a process of its own, so that a fault or a hang costs that group alone.

use cubecl::prelude::*;
use flow_attention_cube::mma::Mma;
use flow_attention_cube::prepared::{DeviceCapabilities, Kernels, Prepared};
use flow_attention_cube::problem::Problem;
use flow_attention_cube::tensors::{Heads, KvSegment, lse_rows};
use flow_attention_cube::wgmma::Wgmma;
use flow_attention_mask::Mask;
use flow_cube::wgmma::OperandType;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod cases;
mod data;

use cases::{Case, cases, problem};
use data::*;

fn check<K: Kernels>(client: &Client, case: Case) -> bool {
    let name = case.name();
    let Case {
        problem,
        mask,
        strided,
        scale,
        rising,
    } = case;
    let mut s = Setup {
        client: client.clone(),
        problem,
        strided,
        random: Random(0x9E37_79B9_7F4A_7C15),
    };
    let mask = mask.map(Arc::new);
    let prepared = match Prepared::<K>::new(client, problem, scale, mask.clone()) {
        Ok(prepared) => prepared,
        Err(error) => {
            println!("  {name}: declined: {error}");
            return false;
        }
    };
    let q = s.tensor(s.heads(problem.queries, false));
    let d_o = s.tensor(s.heads(problem.queries, false));
    let sizes: Vec<usize> = problem.keys.into_iter().filter(|n| *n > 0).collect();
    let kv_segments: Vec<[Both; 2]> = sizes
        .iter()
        .map(|n| {
            let shape = s.heads(*n, true);
            let by = |row: usize| if rising { 1.0 + row as f32 / 32.0 } else { 1.0 };
            [s.tensor_with(shape, by), s.tensor(shape)]
        })
        .collect();
    let o = s.poisoned(q.device.shape);
    let dq = s.poisoned(q.device.shape);
    let d_kv_segments: Vec<[Heads; 2]> = sizes
        .iter()
        .map(|n| [0, 1].map(|_| s.poisoned(s.heads(*n, true))))
        .collect();
    let lse = s.floats(prepared.statistics());
    let delta = s.floats(prepared.scratch());
    let part_refs: Vec<KvSegment<'_>> = kv_segments
        .iter()
        .map(|[k, v]| KvSegment {
            k: &k.device,
            v: &v.device,
        })
        .collect();
    let grad_refs: Vec<[&Heads; 2]> = d_kv_segments.iter().map(|[k, v]| [k, v]).collect();
    let run = || {
        prepared.forward(&q.device, &part_refs, &o, &lse);
        prepared.backward(
            [&q.device, &o, &d_o.device],
            &part_refs,
            &lse,
            &delta,
            &dq,
            &grad_refs,
        );
        let tensors = [&o, &dq].into_iter().chain(d_kv_segments.iter().flatten());
        tensors.map(|t| s.bytes(&t.handle)).collect::<Vec<_>>()
    };
    let first = run();
    let again = first == run();
    let values: Vec<[&[f64]; 2]> = kv_segments
        .iter()
        .map(|[k, v]| [&k.values[..], &v.values[..]])
        .collect();
    let want = reference(
        &problem,
        mask.as_deref(),
        &q.values,
        &values,
        &d_o.values,
        scale as f64,
    );
    let mut errors = vec![distance(&s.read(&o), &want.o), distance(&s.read(&dq), &want.dq)];
    for (got, want) in d_kv_segments.iter().zip(&want.kv_segments) {
        errors.extend([0, 1].map(|i| distance(&s.read(&got[i]), &want[i])));
    }
    let lse_error = lse_distance(&s.bytes(&lse), &want.lse, problem.queries);
    let limit = if problem.operand_type == OperandType::Bf16 {
        6e-3
    } else {
        1e-3
    };
    let judged = if rising { 1 } else { errors.len() };
    let good = errors[..judged].iter().all(|e| *e < limit) && lse_error < 1e-4 && again;
    let errors: Vec<String> = errors.iter().map(|e| format!("{e:.1e}")).collect();
    println!(
        "  {} {name}: {} lse {lse_error:.0e} twice {again}",
        if good { "ok   " } else { "WRONG" },
        errors.join(" ")
    );
    good
}

/// The largest relative error of the rows' log-sum-exp, which lie in rows of their own length on the device.
fn lse_distance(got: &[u8], want: &[f64], queries: usize) -> f64 {
    let got = f32::from_bytes(got);
    let padded = lse_rows(queries);
    want.iter().enumerate().fold(0.0f64, |worst, (r, w)| {
        let got = got[r / queries * padded + r % queries] as f64;
        if got == *w {
            worst
        } else {
            worst.max((got - w).abs() / w.abs().max(1.0))
        }
    })
}

/// Whether rows keep their bits when others of their block are far above the tiles before, and so are done again.
fn independent<K: Kernels>(client: &Client, head_dim: usize) -> bool {
    let problem = problem(1, 2, 2, 200, [900, 0], head_dim);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let prepared = Prepared::<K>::new(client, problem, scale, None).expect("served");
    let outputs = [1.0f32, 64.0].map(|times| {
        let mut s = Setup {
            client: client.clone(),
            problem,
            strided: false,
            random: Random(0x9E37_79B9_7F4A_7C15),
        };
        let q = s.tensor_with(s.heads(problem.queries, false), |row| {
            if row % 7 == 3 { times } else { 1.0 }
        });
        let keys = s.heads(problem.keys[0], true);
        let k = s.tensor_with(keys, |row| 1.0 + row as f32 / 64.0);
        let v = s.tensor(keys);
        let o = s.poisoned(q.device.shape);
        let lse = s.floats(prepared.statistics());
        let part = KvSegment {
            k: &k.device,
            v: &v.device,
        };
        prepared.forward(&q.device, &[part], &o, &lse);
        s.read(&o)
    });
    let rows = |o: &[f64]| -> Vec<u64> {
        let fragment = o
            .iter()
            .enumerate()
            .filter(|(at, _)| at / head_dim % problem.queries % 7 != 3);
        fragment.map(|(_, value)| value.to_bits()).collect()
    };
    let good = rows(&outputs[0]) == rows(&outputs[1]) && outputs[0] != outputs[1];
    println!(
        "  {} rows do not see what others of their block do, D{head_dim}",
        if good { "ok   " } else { "WRONG" }
    );
    good
}

fn seconds(client: &Client, iterations: usize, mut launch: impl FnMut()) -> f64 {
    let window = client.profile_start().expect("profiling starts");
    for _ in 0..iterations {
        launch();
    }
    let ticks = client.profile_end(window).expect("profiling ends");
    let ticks = cubecl::future::block_on(ticks.into_future()).expect("ticks");
    ticks.duration().as_secs_f64() / iterations as f64
}

/// Median seconds of a launch, replayed from a graph so that the host's share is not in it.
fn median(client: &Client, work: f64, mut launch: impl FnMut()) -> f64 {
    let count = 8;
    client.graph_prepare().expect("capture can be prepared");
    (0..2 * count).for_each(|_| launch());
    client.start_capture().expect("capture starts");
    (0..count).for_each(|_| launch());
    let graph = client.stop_capture().expect("capture ends");
    // SAFETY: the buffers of the captured launches live until the caller returns, who launches nothing
    // beside.
    let replay = || unsafe { graph.replay() }.expect("the graph runs");
    replay();
    let _ = cubecl::future::block_on(client.sync());
    let iterations = ((0.02 / (work / 400e12)) as usize / count).clamp(2, 50);
    let mut samples: Vec<f64> = (0..9)
        .map(|_| seconds(client, iterations, replay) / count as f64)
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[4]
}

fn time<K: Kernels>(client: &Client, problem: Problem, mask: Option<Mask>, label: &str) {
    let mut s = Setup {
        client: client.clone(),
        problem,
        strided: false,
        random: Random(0x9E37_79B9_7F4A_7C15),
    };
    let scale = 1.0 / (problem.head_dim as f32).sqrt();
    let dense = (problem.queries * (problem.keys[0] + problem.keys[1])) as f64;
    let (share, visited) = mask.as_ref().map_or((1.0, 1.0), |mask| {
        let counts = K::select(&problem, true, DeviceCapabilities::of(client))
            .forward_mask(mask, problem.sizes())
            .expect("the mask fits")
            .counts;
        let share = counts.allowed_pairs as f64 / counts.dense_pairs as f64;
        (share, counts.tiles_visited as f64 / counts.tiles_dense as f64)
    });
    let prepared = Prepared::<K>::new(client, problem, scale, mask.map(Arc::new)).expect("served");
    let q = s.tensor(s.heads(problem.queries, false)).device;
    let d_o = s.tensor(s.heads(problem.queries, false)).device;
    let sizes: Vec<usize> = problem.keys.into_iter().filter(|n| *n > 0).collect();
    let kv_segments: Vec<[Heads; 2]> = sizes
        .iter()
        .map(|n| [0, 1].map(|_| s.tensor(s.heads(*n, true)).device))
        .collect();
    let o = s.poisoned(q.shape);
    let dq = s.poisoned(q.shape);
    let d_kv_segments: Vec<[Heads; 2]> = sizes
        .iter()
        .map(|n| [0, 1].map(|_| s.poisoned(s.heads(*n, true))))
        .collect();
    let lse = s.floats(prepared.statistics());
    let delta = s.floats(prepared.scratch());
    let part_refs: Vec<KvSegment<'_>> = kv_segments.iter().map(|[k, v]| KvSegment { k, v }).collect();
    let grad_refs: Vec<[&Heads; 2]> = d_kv_segments.iter().map(|[k, v]| [k, v]).collect();
    let flops = 4.0 * (problem.batch * problem.heads * problem.head_dim) as f64 * dense * share;
    let forward = median(client, flops, || prepared.forward(&q, &part_refs, &o, &lse));
    let backward = median(client, 2.5 * flops, || {
        prepared.backward([&q, &o, &d_o], &part_refs, &lse, &delta, &dq, &grad_refs)
    });
    println!(
        "  B{} H{} S{}x{} D{} {label}: {:.1} % of pairs, {:.1} % of tiles; forward {:.3} ms {:.0} TFLOP/s, backward {:.3} ms {:.0} TFLOP/s",
        problem.batch,
        problem.heads,
        problem.queries,
        problem.keys[0] + problem.keys[1],
        problem.head_dim,
        share * 100.0,
        visited * 100.0,
        forward * 1e3,
        flops / forward / 1e12,
        backward * 1e3,
        2.5 * flops / backward / 1e12
    );
}

const DIMENSIONS: [usize; 7] = [64, 128, 72, 96, 40, 192, 256];

fn group<K: Kernels>(i: usize) -> bool {
    let client = cubecl::Device::cuda(0).expect("a device").client();
    if let Some(d) = DIMENSIONS.get(i) {
        let start = Instant::now();
        let all = cases(*d);
        let count = all.len();
        let good = all
            .into_iter()
            .map(|case| check::<K>(&client, case))
            .filter(|good| *good)
            .count();
        println!(
            "{} head dimension {d}: {good} of {count} right, {:.0} s",
            K::NAME,
            start.elapsed().as_secs_f64()
        );
        return independent::<K>(&client, *d) && good == count;
    }
    use flow_attention_mask::Extent;
    time::<K>(&client, problem(1, 1, 1, 64, [64, 0], 64), None, "host floor");
    for (b, h, s, d) in [
        (4, 16, 4096, 64),
        (16, 16, 256, 64),
        (16, 16, 1024, 64),
        (2, 16, 4096, 128),
        (1, 12, 16384, 128),
        (16, 8, 512, 128),
        (64, 16, 256, 72),
        (4, 16, 2048, 96),
        (2, 8, 2048, 256),
    ] {
        time::<K>(&client, problem(b, h, h, s, [s, 0], d), None, "full");
    }
    time::<K>(
        &client,
        problem(8, 24, 24, 1357, [1024, 333], 64),
        None,
        "two parts",
    );
    for d in [64, 128] {
        let at = problem(2, 16, 16, 8192, [8192, 0], d);
        time::<K>(&client, at, None, "full");
        time::<K>(&client, at, Some(Mask::Causal), "causal");
        time::<K>(
            &client,
            at,
            Some(Mask::Window {
                before: 1024,
                after: 1024,
            }),
            "window",
        );
        let ends: Vec<usize> = vec![0, 1000, 3000, 3500, 6000, 8192];
        time::<K>(
            &client,
            at,
            Some(Mask::packed(ends.clone(), ends).expect("valid")),
            "packed",
        );
        let blocks: Vec<bool> = (0..64 * 64).map(|i| (i * 7919) % 10 < 3).collect();
        time::<K>(
            &client,
            at,
            Some(Mask::block_sparse(128, 128, blocks).expect("valid")),
            "block-sparse",
        );
    }
    let grid = Extent {
        frames: 8,
        height: 32,
        width: 32,
    };
    let video = Mask::video(
        grid,
        Extent {
            frames: 2,
            height: 8,
            width: 8,
        },
    )
    .expect("valid");
    time::<K>(
        &client,
        problem(2, 12, 12, 8192, [8192, 0], 128),
        Some(video),
        "video window",
    );
    true
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mma = arguments.iter().any(|a| a == "mma");
    if let Some(i) = arguments.get(1).and_then(|a| a.parse().ok()) {
        let good = if mma { group::<Mma>(i) } else { group::<Wgmma>(i) };
        std::process::exit(if good { 0 } else { 1 });
    }
    let backend = if mma { "mma" } else { "wgmma" };
    let range = match arguments.get(1).map(String::as_str) {
        Some("check") => 0..DIMENSIONS.len(),
        Some("time") => DIMENSIONS.len()..DIMENSIONS.len() + 1,
        _ => 0..DIMENSIONS.len() + 1,
    };
    let this = std::env::current_exe().expect("this program");
    let start = |i: usize| {
        std::process::Command::new(&this)
            .arg(i.to_string())
            .arg(backend)
            .spawn()
            .expect("a child")
    };
    // Checks are mostly of the host's f64, so they run beside one another; times do not.
    let (checks, times): (Vec<usize>, Vec<usize>) = range.partition(|i| *i < DIMENSIONS.len());
    let children = checks.into_iter().map(|i| (i, start(i))).collect();
    let mut good = finish(children);
    for i in times {
        good &= finish(vec![(i, start(i))]);
    }
    std::process::exit(if good { 0 } else { 1 });
}

/// Waits for groups, two minutes at most; whether all went well.
fn finish(mut children: Vec<(usize, std::process::Child)>) -> bool {
    let start = Instant::now();
    let mut good = true;
    while !children.is_empty() {
        std::thread::sleep(Duration::from_millis(20));
        let refill_late = start.elapsed() > Duration::from_secs(150);
        children.retain_mut(|(i, child)| match child.try_wait().expect("the child's state") {
            Some(status) => {
                good &= status.success();
                if !status.success() {
                    println!("  group {i}: {status}");
                }
                false
            }
            None if refill_late => {
                println!("  group {i}: killed");
                child.kill().ok();
                child.wait().ok();
                good = false;
                false
            }
            None => true,
        });
    }
    good
}
