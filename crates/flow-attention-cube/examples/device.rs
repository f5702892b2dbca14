//! Checks the kernels for tensor cores on a GPU against f64 on the host, over a catalogue of shapes and masks, then times
//! them.
//!
//! `device check`, `device time`, or both without an argument; then `wgmma` or `mma`, or both without one. Each group runs
//! in a process of its own, so that a fault or a hang costs that group alone.

use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_cube::call::Call;
use flow_attention_cube::mma::Mma;
use flow_attention_cube::run::{Kernels, Offer, Prepared};
use flow_attention_cube::tensors::{Heads, Part, lse_rows};
use flow_attention_cube::wgmma::Wgmma;
use flow_attention_mask::Mask;
use flow_cube::wgmma::Factor;
use half::{bf16, f16};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Xorshift; sums of three are bell-shaped enough.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    }
}

/// A tensor here and there. `values` are `[B, H, S, D]` row-major, as rounded for the device.
struct Both {
    device: Heads,
    values: Vec<f64>,
}

struct Setup {
    client: Client,
    call: Call,
    /// Rows before heads in memory.
    strided: bool,
    random: Random,
}

impl Setup {
    fn heads(&self, rows: usize, kv: bool) -> [usize; 4] {
        let heads = if kv { self.call.kv_heads } else { self.call.heads };
        [self.call.batch, heads, rows, self.call.head_dim]
    }

    /// Place of each value of a `[B, H, S, D]` tensor in memory.
    fn strides(&self, [_, heads, rows, channels]: [usize; 4]) -> [usize; 4] {
        if self.strided {
            [rows * heads * channels, channels, heads * channels, 1]
        } else {
            [heads * rows * channels, rows * channels, channels, 1]
        }
    }

    fn place(&self, shape: [usize; 4], at: usize) -> usize {
        let s = self.strides(shape);
        let [_, heads, rows, channels] = shape;
        at % channels
            + at / channels % rows * s[2]
            + at / channels / rows % heads * s[1]
            + at / channels / rows / heads * s[0]
    }

    fn tensor(&mut self, shape: [usize; 4], scale: f32) -> Both {
        let count = shape.iter().product();
        let mut values = Vec::with_capacity(count);
        let mut words = vec![0u16; count];
        for at in 0..count {
            let x = (self.random.next() + self.random.next() + self.random.next()) * scale;
            let (word, value) = match self.call.factor {
                Factor::Bf16 => (bf16::from_f32(x).to_bits(), bf16::from_f32(x).to_f64()),
                Factor::F16 => (f16::from_f32(x).to_bits(), f16::from_f32(x).to_f64()),
            };
            words[self.place(shape, at)] = word;
            values.push(value);
        }
        let handle = self.client.create_from_slice(u16::as_bytes(&words));
        Both { device: Heads { handle, shape, strides: self.strides(shape) }, values }
    }

    fn poisoned(&self, shape: [usize; 4]) -> Heads {
        let bytes = vec![0xff; shape.iter().product::<usize>() * 2];
        Heads { handle: self.client.create_from_slice(&bytes), shape, strides: self.strides(shape) }
    }

    fn floats(&self, count: usize) -> Handle {
        self.client.create_from_slice(&vec![0xff; count * 4])
    }

    fn bytes(&self, handle: &Handle) -> Vec<u8> {
        self.client.read_one(handle.clone()).map(|bytes| bytes.to_vec()).unwrap_or_default()
    }

    fn read(&self, tensor: &Heads) -> Vec<f64> {
        let bytes = self.bytes(&tensor.handle);
        let words = u16::from_bytes(&bytes);
        let value = |at| match self.call.factor {
            Factor::Bf16 => bf16::from_bits(words[at]).to_f64(),
            Factor::F16 => f16::from_bits(words[at]).to_f64(),
        };
        let count: usize = tensor.shape.iter().product();
        if words.len() < count {
            return vec![f64::NAN; count];
        }
        (0..count).map(|at| value(self.place(tensor.shape, at))).collect()
    }
}

/// Output, log-sum-exp, and the gradients of queries and of each part's keys and values, in f64.
struct Reference {
    o: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    parts: Vec<[Vec<f64>; 2]>,
}

fn reference(call: &Call, mask: Option<&Mask>, q: &[f64], parts: &[[&[f64]; 2]], d_o: &[f64], scale: f64) -> Reference {
    let n = call.head_dim;
    let bound = mask.map(|mask| mask.bind(call.sizes()).expect("the mask fits"));
    let mut out = Reference {
        o: vec![0.0; q.len()],
        lse: Vec::new(),
        dq: vec![0.0; q.len()],
        parts: parts.iter().map(|[k, v]| [vec![0.0; k.len()], vec![0.0; v.len()]]).collect(),
    };
    for r in 0..call.batch * call.heads * call.queries {
        let (b, h, i) = (r / (call.heads * call.queries), r / call.queries % call.heads, r % call.queries);
        let kv = b * call.kv_heads + h / (call.heads / call.kv_heads);
        // (part, row of the part's tensor, key over both parts)
        let keys: Vec<(usize, usize)> = (0..call.keys[0] + call.keys[1])
            .filter(|j| bound.as_ref().is_none_or(|m| m.allows(b, i, *j)))
            .map(|j| if j < call.keys[0] { (0, kv * call.keys[0] + j) } else { (1, kv * call.keys[1] + j - call.keys[0]) })
            .collect();
        let qr = &q[r * n..][..n];
        let dor = &d_o[r * n..][..n];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let mut p: Vec<f64> = keys.iter().map(|(s, j)| dot(qr, &parts[*s][0][j * n..][..n]) * scale).collect();
        let max = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f64 = p.iter().sum();
        out.lse.push(if keys.is_empty() { f64::INFINITY } else { max + sum.ln() });
        p.iter_mut().for_each(|x| *x /= sum);
        let dp: Vec<f64> = keys.iter().map(|(s, j)| dot(dor, &parts[*s][1][j * n..][..n])).collect();
        for (at, (s, j)) in keys.iter().enumerate() {
            for x in 0..n {
                out.o[r * n + x] += p[at] * parts[*s][1][j * n + x];
            }
        }
        // Backward starts from the output as it was kept, in 16 bits.
        let kept: Vec<f64> = out.o[r * n..][..n]
            .iter()
            .map(|o| match call.factor {
                Factor::Bf16 => bf16::from_f64(*o).to_f64(),
                Factor::F16 => f16::from_f64(*o).to_f64(),
            })
            .collect();
        let delta = dot(&kept, dor);
        for (at, (s, j)) in keys.iter().enumerate() {
            let ds = p[at] * (dp[at] - delta) * scale;
            for x in 0..n {
                out.dq[r * n + x] += ds * parts[*s][0][j * n + x];
                out.parts[*s][0][j * n + x] += ds * qr[x];
                out.parts[*s][1][j * n + x] += p[at] * dor[x];
            }
        }
    }
    out
}

/// Relative L2 distance; absolute where nothing is to be.
fn distance(got: &[f64], want: &[f64]) -> f64 {
    let num: f64 = got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum();
    let den: f64 = want.iter().map(|w| w * w).sum();
    if den == 0.0 { num.sqrt() } else { (num / den).sqrt() }
}

struct Case {
    call: Call,
    mask: Option<Mask>,
    strided: bool,
    scale: f32,
}

fn check<K: Kernels>(client: &Client, case: Case) -> bool {
    let Case { call, mask, strided, scale } = case;
    let mut s = Setup { client: client.clone(), call, strided, random: Random(0x9E37_79B9_7F4A_7C15) };
    let mask = mask.map(Arc::new);
    let name = format!(
        "B{} H{}/{} {}x{}+{} D{} {:?}{} {}",
        call.batch, call.heads, call.kv_heads, call.queries, call.keys[0], call.keys[1], call.head_dim, call.factor,
        if strided { " strided" } else { "" },
        mask.as_ref().map_or("full".into(), |m| format!("{m:?}").chars().take(40).collect::<String>()),
    );
    let prepared = match Prepared::<K>::new(client, call, scale, mask.clone()) {
        Ok(prepared) => prepared,
        Err(error) => {
            println!("  {name}: declined: {error}");
            return false;
        }
    };
    let q = s.tensor(s.heads(call.queries, false), 1.0);
    let d_o = s.tensor(s.heads(call.queries, false), 1.0);
    let sizes: Vec<usize> = call.keys.into_iter().filter(|n| *n > 0).collect();
    let parts: Vec<[Both; 2]> = sizes.iter().map(|n| [0, 1].map(|_| s.tensor(s.heads(*n, true), 1.0))).collect();
    let o = s.poisoned(q.device.shape);
    let dq = s.poisoned(q.device.shape);
    let d_parts: Vec<[Heads; 2]> = sizes.iter().map(|n| [0, 1].map(|_| s.poisoned(s.heads(*n, true)))).collect();
    let lse = s.floats(prepared.statistics());
    let delta = s.floats(prepared.statistics());
    let part_refs: Vec<Part<'_>> = parts.iter().map(|[k, v]| Part { k: &k.device, v: &v.device }).collect();
    let grad_refs: Vec<[&Heads; 2]> = d_parts.iter().map(|[k, v]| [k, v]).collect();
    let run = || {
        prepared.forward(&q.device, &part_refs, &o, &lse);
        prepared.backward([&q.device, &o, &d_o.device], &part_refs, &lse, &delta, &dq, &grad_refs);
        let tensors = [&o, &dq].into_iter().chain(d_parts.iter().flatten());
        tensors.map(|t| s.bytes(&t.handle)).collect::<Vec<_>>()
    };
    let first = run();
    let again = first == run();
    let values: Vec<[&[f64]; 2]> = parts.iter().map(|[k, v]| [&k.values[..], &v.values[..]]).collect();
    let want = reference(&call, mask.as_deref(), &q.values, &values, &d_o.values, scale as f64);
    let mut errors = vec![distance(&s.read(&o), &want.o), distance(&s.read(&dq), &want.dq)];
    for (got, want) in d_parts.iter().zip(&want.parts) {
        errors.extend([0, 1].map(|i| distance(&s.read(&got[i]), &want[i])));
    }
    let got_lse = s.bytes(&lse);
    let got_lse = f32::from_bytes(&got_lse);
    let padded = lse_rows(call.queries);
    let lse_error = want.lse.iter().enumerate().fold(0.0f64, |worst, (r, w)| {
        let got = got_lse[r / call.queries * padded + r % call.queries] as f64;
        if got == *w { worst } else { worst.max((got - w).abs() / w.abs().max(1.0)) }
    });
    let limit = if call.factor == Factor::Bf16 { 6e-3 } else { 1e-3 };
    let good = errors.iter().all(|e| *e < limit) && lse_error < 1e-4 && again;
    let errors: Vec<String> = errors.iter().map(|e| format!("{e:.1e}")).collect();
    println!("  {} {name}: {} lse {lse_error:.0e} twice {again}", if good { "ok   " } else { "WRONG" }, errors.join(" "));
    good
}

fn call(batch: usize, heads: usize, kv_heads: usize, queries: usize, keys: [usize; 2], head_dim: usize) -> Call {
    Call { batch, heads, kv_heads, queries, keys, head_dim, factor: Factor::Bf16 }
}

fn plain(call: Call) -> Case {
    Case { call, mask: None, strided: false, scale: 1.0 / (call.head_dim as f32).sqrt() }
}

/// The catalogue of one head dimension.
fn cases(d: usize) -> Vec<Case> {
    use flow_attention_mask::Extent;
    let mut out = Vec::new();
    for (b, h, kv, q, k) in [
        (1, 1, 1, 64, [64, 0]), (1, 1, 1, 1, [1, 0]), (2, 2, 2, 13, [13, 0]), (1, 4, 2, 333, [357, 0]), (1, 2, 1, 77, [1357, 0]),
        (1, 2, 2, 1357, [77, 0]), (1, 2, 2, 333, [333, 77]), (2, 4, 1, 200, [13, 250]),
    ] {
        out.push(plain(call(b, h, kv, q, k, d)));
    }
    out.push(Case { strided: true, ..plain(call(2, 3, 3, 333, [77, 130], d)) });
    let half = call(1, 2, 2, 333, [357, 0], d);
    out.push(plain(Call { factor: Factor::F16, ..half }));
    // large scores
    out.push(Case { scale: 3.0, ..plain(call(1, 1, 1, 130, [257, 0], d)) });
    let with = |call: Call, mask: Mask| Case { mask: Some(mask), ..plain(call) };
    let ok = "a valid mask";
    out.push(with(call(1, 2, 1, 333, [333, 0], d), Mask::Causal));
    out.push(with(call(1, 1, 1, 77, [513, 0], d), Mask::Causal));
    // more queries than keys: the first rows see nothing
    out.push(with(call(1, 1, 1, 513, [77, 0], d), Mask::Causal));
    out.push(with(call(1, 2, 2, 600, [600, 0], d), Mask::Window { before: 100, after: 30 }));
    out.push(with(call(3, 2, 2, 150, [333, 0], d), Mask::key_padding(vec![333, 1, 200]).expect(ok)));
    out.push(with(call(1, 2, 2, 400, [400, 0], d), Mask::packed(vec![0, 13, 90, 290, 400], vec![0, 13, 90, 290, 400]).expect(ok)));
    let ids: Vec<u32> = (0..300).map(|i| (i * i / 700) as u32 % 5).collect();
    out.push(with(call(2, 2, 2, 300, [300, 0], d), Mask::documents(vec![ids.clone()], vec![ids]).expect(ok)));
    let blocks: Vec<bool> = (0..36).map(|i| i % 3 != 1).collect();
    out.push(with(call(1, 2, 2, 333, [333, 0], d), Mask::block_sparse(64, 64, blocks).expect(ok)));
    let grid = Extent { frames: 5, height: 8, width: 12 };
    out.push(with(call(1, 2, 2, 480, [480, 0], d), Mask::video(grid, Extent { frames: 1, height: 2, width: 3 }).expect(ok)));
    out.push(with(call(2, 2, 2, 200, [150, 77], d), Mask::key_padding(vec![227, 160]).expect(ok)));
    out
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
    let replay = || unsafe { graph.replay() }.expect("the graph runs");
    replay();
    let _ = cubecl::future::block_on(client.sync());
    let iterations = ((0.02 / (work / 400e12)) as usize / count).clamp(2, 50);
    let mut samples: Vec<f64> = (0..9).map(|_| seconds(client, iterations, replay) / count as f64).collect();
    samples.sort_by(f64::total_cmp);
    samples[4]
}

fn time<K: Kernels>(client: &Client, call: Call, mask: Option<Mask>, label: &str) {
    let mut s = Setup { client: client.clone(), call, strided: false, random: Random(0x9E37_79B9_7F4A_7C15) };
    let scale = 1.0 / (call.head_dim as f32).sqrt();
    let dense = (call.queries * (call.keys[0] + call.keys[1])) as f64;
    let (share, visited) = mask.as_ref().map_or((1.0, 1.0), |mask| {
        let counts = K::select(&call, true, Offer::of(client)).forward_list(mask, call.sizes()).expect("the mask fits").counts;
        let share = counts.allowed_pairs as f64 / counts.dense_pairs as f64;
        (share, counts.tiles_visited as f64 / counts.tiles_dense as f64)
    });
    let prepared = match Prepared::<K>::new(client, call, scale, mask.map(Arc::new)) {
        Ok(prepared) => prepared,
        Err(error) => return println!("  {label}: declined: {error}"),
    };
    let q = s.tensor(s.heads(call.queries, false), 1.0).device;
    let d_o = s.tensor(s.heads(call.queries, false), 1.0).device;
    let sizes: Vec<usize> = call.keys.into_iter().filter(|n| *n > 0).collect();
    let parts: Vec<[Heads; 2]> = sizes.iter().map(|n| [0, 1].map(|_| s.tensor(s.heads(*n, true), 1.0).device)).collect();
    let o = s.poisoned(q.shape);
    let dq = s.poisoned(q.shape);
    let d_parts: Vec<[Heads; 2]> = sizes.iter().map(|n| [0, 1].map(|_| s.poisoned(s.heads(*n, true)))).collect();
    let lse = s.floats(prepared.statistics());
    let delta = s.floats(prepared.statistics());
    let part_refs: Vec<Part<'_>> = parts.iter().map(|[k, v]| Part { k, v }).collect();
    let grad_refs: Vec<[&Heads; 2]> = d_parts.iter().map(|[k, v]| [k, v]).collect();
    let flops = 4.0 * (call.batch * call.heads * call.head_dim) as f64 * dense * share;
    let forward = median(client, flops, || prepared.forward(&q, &part_refs, &o, &lse));
    let backward = median(client, 2.5 * flops, || {
        prepared.backward([&q, &o, &d_o], &part_refs, &lse, &delta, &dq, &grad_refs)
    });
    println!(
        "  B{} H{} S{}x{} D{} {label}: {:.1} % of pairs, {:.1} % of tiles; forward {:.3} ms {:.0} TFLOP/s, backward {:.3} ms {:.0} TFLOP/s",
        call.batch, call.heads, call.queries, call.keys[0] + call.keys[1], call.head_dim, share * 100.0, visited * 100.0,
        forward * 1e3, flops / forward / 1e12, backward * 1e3, 2.5 * flops / backward / 1e12
    );
}

const DIMENSIONS: [usize; 7] = [64, 128, 72, 96, 40, 192, 256];

fn group<K: Kernels>(i: usize) -> bool {
    let client = cubecl::Device::cuda(0).expect("a device").client();
    if let Some(d) = DIMENSIONS.get(i) {
        let start = Instant::now();
        let cases = cases(*d);
        let count = cases.len();
        let good = cases.into_iter().map(|case| check::<K>(&client, case)).filter(|good| *good).count();
        println!("{} head dimension {d}: {good} of {count} right, {:.0} s", K::NAME, start.elapsed().as_secs_f64());
        return good == count;
    }
    use flow_attention_mask::Extent;
    time::<K>(&client, call(1, 1, 1, 64, [64, 0], 64), None, "host floor");
    for (b, h, s, d) in [
        (4, 16, 4096, 64), (16, 16, 256, 64), (16, 16, 1024, 64), (2, 16, 4096, 128), (1, 12, 16384, 128), (16, 8, 512, 128),
        (64, 16, 256, 72), (4, 16, 2048, 96), (2, 8, 2048, 256),
    ] {
        time::<K>(&client, call(b, h, h, s, [s, 0], d), None, "full");
    }
    time::<K>(&client, call(8, 24, 24, 1357, [1024, 333], 64), None, "two parts");
    for d in [64, 128] {
        let at = call(2, 16, 16, 8192, [8192, 0], d);
        time::<K>(&client, at, None, "full");
        time::<K>(&client, at, Some(Mask::Causal), "causal");
        time::<K>(&client, at, Some(Mask::Window { before: 1024, after: 1024 }), "window");
        let ends: Vec<usize> = vec![0, 1000, 3000, 3500, 6000, 8192];
        time::<K>(&client, at, Some(Mask::packed(ends.clone(), ends).expect("valid")), "packed");
        let blocks: Vec<bool> = (0..64 * 64).map(|i| (i * 7919) % 10 < 3).collect();
        time::<K>(&client, at, Some(Mask::block_sparse(128, 128, blocks).expect("valid")), "block-sparse");
    }
    let grid = Extent { frames: 8, height: 32, width: 32 };
    let video = Mask::video(grid, Extent { frames: 2, height: 8, width: 8 }).expect("valid");
    time::<K>(&client, call(2, 12, 12, 8192, [8192, 0], 128), Some(video), "video window");
    true
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize| arguments.get(i).map(String::as_str);
    if let (Some(name), Some(i)) = (argument(0), argument(1).and_then(|a| a.parse().ok())) {
        let good = if name == Mma::NAME { group::<Mma>(i) } else { group::<Wgmma>(i) };
        std::process::exit(if good { 0 } else { 1 });
    }
    let backends: Vec<&str> = match arguments.iter().find(|a| [Mma::NAME, Wgmma::NAME].contains(&a.as_str())) {
        Some(name) => vec![name],
        None => vec![Wgmma::NAME, Mma::NAME],
    };
    let range = match argument(0) {
        Some("check") => 0..DIMENSIONS.len(),
        Some("time") => DIMENSIONS.len()..DIMENSIONS.len() + 1,
        _ => 0..DIMENSIONS.len() + 1,
    };
    for name in backends {
        range.clone().for_each(|i| run_group(name, i));
    }
}

/// Runs a group in a process of its own.
fn run_group(name: &str, i: usize) {
    let this = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(this).args([name, &i.to_string()]).spawn().expect("a child");
    let start = Instant::now();
    loop {
        match child.try_wait().expect("the child's state") {
            Some(status) => {
                if !status.success() {
                    println!("  {name} group {i}: {status}");
                }
                break;
            }
            None if start.elapsed() > Duration::from_secs(120) => {
                println!("  {name} group {i}: killed after 120 s");
                child.kill().ok();
                child.wait().ok();
                break;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
