//! Checks the kernels on a GPU against f64 on the host, then times them.

use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_cube::wgmma::launch::{Heads, launch_backward, launch_forward, lse_rows};
use flow_attention_cube::wgmma::{BackwardTiles, ForwardTiles};
use flow_cube::wgmma::Factor;
use half::bf16;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    }
    fn values(&mut self, count: usize, scale: f32) -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32((self.next() + self.next() + self.next()) * scale)).collect()
    }
}

struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
}

struct Data {
    q: Heads,
    k: Heads,
    v: Heads,
    o: Heads,
    lse: Handle,
    host: [Vec<bf16>; 3],
}

fn data(client: &Client, c: &Case, seed: u64) -> Data {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (seed * 0x1234_5677 + 1));
    let qs = [c.batch, c.heads, c.queries, c.dim];
    let ks = [c.batch, c.kv_heads, c.keys, c.dim];
    let host = [
        random.values(qs.iter().product(), 1.0),
        random.values(ks.iter().product(), 1.0),
        random.values(ks.iter().product(), 1.0),
    ];
    let put = |x: &Vec<bf16>| client.create_from_slice(bf16::as_bytes(x));
    Data {
        q: Heads::contiguous(put(&host[0]), qs),
        k: Heads::contiguous(put(&host[1]), ks),
        v: Heads::contiguous(put(&host[2]), ks),
        o: Heads::contiguous(client.create_from_slice(&vec![0xff; host[0].len() * 2]), qs),
        lse: client.create_from_slice(&vec![0xff; c.batch * c.heads * lse_rows(c.queries) * 4]),
        host,
    }
}

/// `o` and the log-sum-exp of one row, in f64.
fn row(c: &Case, d: &Data, b: usize, h: usize, i: usize, scale: f64) -> (Vec<f64>, f64) {
    let q = &d.host[0][((b * c.heads + h) * c.queries + i) * c.dim..][..c.dim];
    let kv = (b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.keys * c.dim;
    let scores: Vec<f64> = (0..c.keys)
        .map(|j| {
            let k = &d.host[1][kv + j * c.dim..][..c.dim];
            q.iter().zip(k).map(|(a, b)| a.to_f64() * b.to_f64()).sum::<f64>() * scale
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    let mut o = vec![0.0; c.dim];
    for (j, s) in scores.iter().enumerate() {
        let p = (s - max).exp() / sum;
        for (o, v) in o.iter_mut().zip(&d.host[2][kv + j * c.dim..][..c.dim]) {
            *o += p * v.to_f64();
        }
    }
    (o, max + sum.ln())
}

fn read(client: &Client, handle: &Handle) -> Vec<u8> {
    client.read_one(handle.clone()).map(|b| b.to_vec()).unwrap_or_default()
}

fn check(client: &Client, c: &Case, tiles: ForwardTiles, rows: usize) -> bool {
    let d = data(client, c, 1);
    let scale = 1.0 / (c.dim as f32).sqrt();
    launch_forward(client, &d.q, &d.k, &d.v, &d.o, &d.lse, scale, tiles);
    let first = read(client, &d.o.handle);
    let lse = read(client, &d.lse);
    launch_forward(client, &d.q, &d.k, &d.v, &d.o, &d.lse, scale, tiles);
    let second = read(client, &d.o.handle);
    if first.is_empty() {
        println!("  nothing came back");
        return false;
    }
    let o = bf16::from_bytes(&first);
    let l = f32::from_bytes(&lse);
    let (mut num, mut den, mut worst_lse) = (0.0f64, 0.0f64, 0.0f64);
    let total = c.batch * c.heads * c.queries;
    let step = (total / rows).max(1);
    for r in (0..total).step_by(step).chain([total - 1]) {
        let (b, h, i) = (r / (c.heads * c.queries), r / c.queries % c.heads, r % c.queries);
        let (want, want_lse) = row(c, &d, b, h, i, scale as f64);
        for (w, g) in want.iter().zip(&o[r * c.dim..][..c.dim]) {
            num += (g.to_f64() - w).powi(2);
            den += w * w;
        }
        worst_lse = worst_lse.max((l[r / c.queries * lse_rows(c.queries) + i] as f64 - want_lse).abs());
    }
    let finite = o.iter().all(|x| x.is_finite());
    let error = (num / den).sqrt();
    let good = error < 6e-3 && worst_lse < 1e-4 && first == second && finite;
    println!(
        "  B{} H{}/{} {}x{} D{}: rel L2 {error:.2e}, lse {worst_lse:.1e}, twice {}, finite {finite} {}",
        c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.dim, first == second, if good { "ok" } else { "WRONG" }
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

/// Relative L2 distance.
fn distance(got: &[bf16], want: &[f64]) -> f64 {
    let num: f64 = got.iter().zip(want).map(|(g, w)| (g.to_f64() - w).powi(2)).sum();
    let den: f64 = want.iter().map(|w| w * w).sum();
    if got.len() == want.len() { (num / den).sqrt() } else { f64::NAN }
}

struct Back {
    d_o: Heads,
    grads: [Heads; 3],
    delta: Handle,
    host: Vec<bf16>,
}

fn back(client: &Client, c: &Case, d: &Data, seed: u64) -> Back {
    let host = Random(seed * 77 + 5).values(d.host[0].len(), 1.0);
    let poison = |n: usize| client.create_from_slice(&vec![0xff; n * 2]);
    Back {
        d_o: Heads::contiguous(client.create_from_slice(bf16::as_bytes(&host)), d.q.shape),
        grads: [
            Heads::contiguous(poison(d.host[0].len()), d.q.shape),
            Heads::contiguous(poison(d.host[1].len()), d.k.shape),
            Heads::contiguous(poison(d.host[2].len()), d.v.shape),
        ],
        delta: client.create_from_slice(&vec![0xff; c.batch * c.heads * lse_rows(c.queries) * 4]),
        host,
    }
}

/// All three gradients in f64.
fn gradients(c: &Case, d: &Data, d_o: &[bf16], scale: f64) -> [Vec<f64>; 3] {
    let f = |x: &[bf16]| x.iter().map(|v| v.to_f64()).collect::<Vec<f64>>();
    let (q, k, v, d_o) = (f(&d.host[0]), f(&d.host[1]), f(&d.host[2]), f(d_o));
    let n = c.dim;
    let [mut dq, mut dk, mut dv] = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    for r in 0..c.batch * c.heads * c.queries {
        let (b, h) = (r / (c.heads * c.queries), r / c.queries % c.heads);
        let kv = (b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.keys;
        let qr = &q[r * n..][..n];
        let dor = &d_o[r * n..][..n];
        let mut p: Vec<f64> =
            (0..c.keys).map(|j| qr.iter().zip(&k[(kv + j) * n..]).map(|(a, b)| a * b).sum::<f64>() * scale).collect();
        let max = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|x| *x /= sum);
        let dp: Vec<f64> = (0..c.keys).map(|j| dor.iter().zip(&v[(kv + j) * n..]).map(|(a, b)| a * b).sum()).collect();
        let delta: f64 = p.iter().zip(&dp).map(|(a, b)| a * b).sum();
        for j in 0..c.keys {
            let ds = p[j] * (dp[j] - delta) * scale;
            for x in 0..n {
                dq[r * n + x] += ds * k[(kv + j) * n + x];
                dk[(kv + j) * n + x] += ds * qr[x];
                dv[(kv + j) * n + x] += p[j] * dor[x];
            }
        }
    }
    [dq, dk, dv]
}

fn run_back(client: &Client, c: &Case, d: &Data, b: &Back, tiles: BackwardTiles) {
    let scale = 1.0 / (c.dim as f32).sqrt();
    let [dq, dk, dv] = &b.grads;
    launch_backward(client, [&d.q, &d.k, &d.v, &d.o, &b.d_o], [dq, dk, dv], &d.lse, &b.delta, scale, tiles, tiles);
}

fn check_back(client: &Client, c: &Case, tiles: BackwardTiles) -> bool {
    let d = data(client, c, 3);
    let b = back(client, c, &d, 9);
    let scale = 1.0 / (c.dim as f32).sqrt();
    launch_forward(client, &d.q, &d.k, &d.v, &d.o, &d.lse, scale, forward_tiles(c.dim));
    run_back(client, c, &d, &b, tiles);
    let first: Vec<Vec<u8>> = b.grads.iter().map(|g| read(client, &g.handle)).collect();
    run_back(client, c, &d, &b, tiles);
    let second: Vec<Vec<u8>> = b.grads.iter().map(|g| read(client, &g.handle)).collect();
    if first.iter().any(Vec::is_empty) {
        println!("  nothing came back");
        return false;
    }
    let want = gradients(c, &d, &b.host, scale as f64);
    let errors: Vec<f64> = first.iter().zip(&want).map(|(g, w)| distance(bf16::from_bytes(g), w)).collect();
    let good = errors.iter().all(|e| *e < 1e-2) && first == second;
    println!(
        "  B{} H{}/{} {}x{} D{}: dq {:.2e} dk {:.2e} dv {:.2e}, twice {} {}",
        c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.dim, errors[0], errors[1], errors[2], first == second,
        if good { "ok" } else { "WRONG" }
    );
    good
}

fn time_back(client: &Client, c: &Case, tiles: BackwardTiles) {
    let sets: Vec<(Data, Back)> = (0..2)
        .map(|s| {
            let d = data(client, c, s);
            let b = back(client, c, &d, s);
            (d, b)
        })
        .collect();
    let scale = 1.0 / (c.dim as f32).sqrt();
    for (d, _) in &sets {
        launch_forward(client, &d.q, &d.k, &d.v, &d.o, &d.lse, scale, forward_tiles(c.dim));
    }
    let launch = |i: usize| run_back(client, c, &sets[i % 2].0, &sets[i % 2].1, tiles);
    (0..4).for_each(launch);
    let _ = cubecl::future::block_on(client.sync());
    let flops = 10.0 * (c.batch * c.heads * c.queries * c.keys * c.dim) as f64;
    let iterations = ((0.02 / (flops / 400e12)) as usize).clamp(4, 200);
    let mut samples: Vec<f64> = (0..7)
        .map(|_| {
            let mut i = 0;
            seconds(client, iterations, || {
                launch(i);
                i += 1;
            })
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!(
        "  backward B{} H{} S{} D{}: {:.3} ms, {:.0} TFLOP/s (best {:.0})",
        c.batch, c.heads, c.queries, c.dim, samples[3] * 1e3, flops / samples[3] / 1e12, flops / samples[0] / 1e12
    );
}

fn forward_tiles(d: usize) -> ForwardTiles {
    let warpgroups = if d == 64 { 1 } else { 2 };
    ForwardTiles { head_dim: d, keys: 128, warpgroups, stages: 2, ping_pong: false, factor: Factor::Bf16 }
}

fn step_back(i: usize) {
    let (d, passing, warpgroups, stages) = BACK[i];
    let tiles = BackwardTiles { head_dim: d, passing, warpgroups, stages, factor: Factor::Bf16 };
    println!("backward D{d} passing {passing} warpgroups {warpgroups} stages {stages}");
    let client = cubecl::Device::cuda(0).expect("a device").client();
    let case = |batch, heads, kv_heads, queries, keys| Case { batch, heads, kv_heads, queries, keys, dim: d };
    let mut good = true;
    for c in [case(1, 1, 1, 64, 64), case(1, 4, 2, 333, 357), case(2, 2, 2, 1, 13), case(1, 1, 1, 457, 77)] {
        good &= check_back(&client, &c, tiles);
    }
    if !good {
        return;
    }
    for &(b, h, s) in shapes(d) {
        time_back(&client, &case(b, h, h, s, s), tiles);
    }
}

const BACK: &[(usize, usize, usize, usize)] = &[
    (128, 64, 2, 2),
    (128, 64, 2, 3),
    (128, 64, 1, 2),
    (64, 64, 2, 2),
    (64, 64, 2, 4),
    (64, 64, 1, 2),
    (64, 48, 1, 2),
    (64, 48, 1, 3),
];

fn shapes(d: usize) -> &'static [(usize, usize, usize)] {
    if d == 64 { &[(4, 16, 4096), (16, 16, 256), (16, 16, 1024)] } else { &[(2, 16, 4096), (1, 12, 16384), (16, 8, 512)] }
}

fn time(client: &Client, c: &Case, tiles: ForwardTiles) {
    let sets: Vec<Data> = (0..2).map(|s| data(client, c, s)).collect();
    let scale = 1.0 / (c.dim as f32).sqrt();
    let launch = |i: usize| {
        let d = &sets[i % 2];
        launch_forward(client, &d.q, &d.k, &d.v, &d.o, &d.lse, scale, tiles);
    };
    (0..4).for_each(launch);
    let _ = cubecl::future::block_on(client.sync());
    let flops = 4.0 * (c.batch * c.heads * c.queries * c.keys * c.dim) as f64;
    let iterations = ((0.02 / (flops / 400e12)) as usize).clamp(4, 200);
    let mut samples: Vec<f64> = (0..7)
        .map(|_| {
            let mut i = 0;
            seconds(client, iterations, || {
                launch(i);
                i += 1;
            })
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!(
        "  B{} H{} S{} D{}: {:.3} ms, {:.0} TFLOP/s (best {:.0})",
        c.batch, c.heads, c.queries, c.dim, samples[3] * 1e3, flops / samples[3] / 1e12, flops / samples[0] / 1e12
    );
}

const TILES: &[(usize, usize, usize, usize, bool)] = &[
    (128, 176, 2, 2, true),
    (128, 64, 1, 1, false),
    (128, 80, 1, 1, false),
    (64, 64, 1, 2, false),
    (64, 80, 1, 2, false),
    (64, 96, 1, 2, false),
    (64, 112, 1, 2, false),
    (64, 128, 1, 1, false),
    (64, 128, 1, 3, false),
    (64, 256, 1, 1, false),
];

fn step(i: usize) {
    let (d, keys, warpgroups, stages, ping_pong) = TILES[i];
    let tiles = ForwardTiles { head_dim: d, keys, warpgroups, stages, ping_pong, factor: Factor::Bf16 };
    println!("forward D{d} keys {keys} warpgroups {warpgroups} stages {stages} ping-pong {ping_pong}");
    let client = cubecl::Device::cuda(0).expect("a device").client();
    let start = Instant::now();
    let case = |batch, heads, kv_heads, queries, keys| Case { batch, heads, kv_heads, queries, keys, dim: d };
    let mut good = check(&client, &case(1, 1, 1, 64, 64), tiles, 64);
    println!("  first launch and check {:.1} s", start.elapsed().as_secs_f64());
    for c in [case(2, 3, 1, 333, 1357), case(1, 2, 2, 1, 13), case(1, 1, 1, 4097, 1024), case(2, 4, 2, 77, 4097)] {
        good &= check(&client, &c, tiles, 300);
    }
    if !good {
        return;
    }
    for &(b, h, s) in shapes(d) {
        time(&client, &case(b, h, h, s, s), tiles);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(i) = arguments.get(1) {
        let i: usize = i.parse().expect("a number");
        return if i < BACK.len() { step_back(i) } else { step(i - BACK.len()) };
    }
    // Each in a process of its own: a fault or a hang costs that one alone.
    let this = std::env::current_exe().expect("this program");
    for i in 0..TILES.len() + BACK.len() {
        let mut child = std::process::Command::new(&this).arg(i.to_string()).spawn().expect("a child");
        let start = Instant::now();
        loop {
            match child.try_wait().expect("the child's state") {
                Some(status) => {
                    if !status.success() {
                        println!("  step {i}: {status}");
                    }
                    break;
                }
                None if start.elapsed() > Duration::from_secs(60) => {
                    println!("  step {i}: hangs, killed");
                    child.kill().ok();
                    child.wait().ok();
                    break;
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}
