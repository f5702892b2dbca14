//! Tensors here and on the device, and attention in f64.

use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_cube::problem::Problem;
use flow_attention_cube::tensors::Heads;
use flow_attention_mask::Mask;
use flow_cube::wgmma::OperandType;
use half::{bf16, f16};

/// Xorshift; sums of three are bell-shaped enough.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    }
}

/// A tensor here and there. `values` are `[B, H, S, D]` row-major, as rounded for the device.
pub struct Both {
    pub device: Heads,
    pub values: Vec<f64>,
}

pub struct Setup {
    pub client: Client,
    pub problem: Problem,
    /// Rows before heads in memory.
    pub strided: bool,
    pub random: Random,
}

impl Setup {
    pub fn heads(&self, rows: usize, kv: bool) -> [usize; 4] {
        let heads = if kv {
            self.problem.kv_heads
        } else {
            self.problem.heads
        };
        [self.problem.batch, heads, rows, self.problem.head_dim]
    }

    /// Place of each value of a `[B, H, S, D]` tensor in memory.
    pub fn strides(&self, [_, heads, rows, channels]: [usize; 4]) -> [usize; 4] {
        if self.strided {
            [rows * heads * channels, channels, heads * channels, 1]
        } else {
            [heads * rows * channels, rows * channels, channels, 1]
        }
    }

    pub fn place(&self, shape: [usize; 4], at: usize) -> usize {
        let s = self.strides(shape);
        let [_, heads, rows, channels] = shape;
        at % channels
            + at / channels % rows * s[2]
            + at / channels / rows % heads * s[1]
            + at / channels / rows / heads * s[0]
    }

    pub fn tensor(&mut self, shape: [usize; 4]) -> Both {
        self.tensor_with(shape, |_| 1.0)
    }

    /// Each row times what `by` says of its number.
    pub fn tensor_with(&mut self, shape: [usize; 4], by: impl Fn(usize) -> f32) -> Both {
        let count = shape.iter().product();
        let mut values = Vec::with_capacity(count);
        let mut words = vec![0u16; count];
        for at in 0..count {
            let x =
                (self.random.next() + self.random.next() + self.random.next()) * by(at / shape[3] % shape[2]);
            let (word, value) = match self.problem.operand_type {
                OperandType::Bf16 => (bf16::from_f32(x).to_bits(), bf16::from_f32(x).to_f64()),
                OperandType::F16 => (f16::from_f32(x).to_bits(), f16::from_f32(x).to_f64()),
            };
            words[self.place(shape, at)] = word;
            values.push(value);
        }
        let handle = self.client.create_from_slice(u16::as_bytes(&words));
        Both {
            device: Heads {
                handle,
                shape,
                strides: self.strides(shape),
            },
            values,
        }
    }

    pub fn poisoned(&self, shape: [usize; 4]) -> Heads {
        let bytes = vec![0xff; shape.iter().product::<usize>() * 2];
        Heads {
            handle: self.client.create_from_slice(&bytes),
            shape,
            strides: self.strides(shape),
        }
    }

    pub fn floats(&self, count: usize) -> Handle {
        self.client.create_from_slice(&vec![0xff; count * 4])
    }

    pub fn bytes(&self, handle: &Handle) -> Vec<u8> {
        self.client
            .read_one(handle.clone())
            .map(|bytes| bytes.to_vec())
            .unwrap_or_default()
    }

    pub fn read(&self, tensor: &Heads) -> Vec<f64> {
        let bytes = self.bytes(&tensor.handle);
        let words = u16::from_bytes(&bytes);
        let value = |at| match self.problem.operand_type {
            OperandType::Bf16 => bf16::from_bits(words[at]).to_f64(),
            OperandType::F16 => f16::from_bits(words[at]).to_f64(),
        };
        let count: usize = tensor.shape.iter().product();
        if words.len() < count {
            return vec![f64::NAN; count];
        }
        (0..count).map(|at| value(self.place(tensor.shape, at))).collect()
    }
}

/// Output, log-sum-exp, and the gradients of queries and of each part's keys and values, in f64.
pub struct Reference {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub kv_segments: Vec<[Vec<f64>; 2]>,
}

pub fn reference(
    problem: &Problem,
    mask: Option<&Mask>,
    q: &[f64],
    kv_segments: &[[&[f64]; 2]],
    d_o: &[f64],
    scale: f64,
) -> Reference {
    let n = problem.head_dim;
    let bound = mask.map(|mask| mask.bind(problem.sizes()).expect("the mask fits"));
    let mut out = Reference {
        o: vec![0.0; q.len()],
        lse: Vec::new(),
        dq: vec![0.0; q.len()],
        kv_segments: kv_segments
            .iter()
            .map(|[k, v]| [vec![0.0; k.len()], vec![0.0; v.len()]])
            .collect(),
    };
    for r in 0..problem.batch * problem.heads * problem.queries {
        let (b, h, i) = (
            r / (problem.heads * problem.queries),
            r / problem.queries % problem.heads,
            r % problem.queries,
        );
        let kv = b * problem.kv_heads + h / (problem.heads / problem.kv_heads);
        // (part, row of the part's tensor, key over both parts)
        let keys: Vec<(usize, usize)> = (0..problem.keys[0] + problem.keys[1])
            .filter(|j| bound.as_ref().is_none_or(|m| m.allows(b, i, *j)))
            .map(|j| {
                if j < problem.keys[0] {
                    (0, kv * problem.keys[0] + j)
                } else {
                    (1, kv * problem.keys[1] + j - problem.keys[0])
                }
            })
            .collect();
        let qr = &q[r * n..][..n];
        let dor = &d_o[r * n..][..n];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let mut p: Vec<f64> = keys
            .iter()
            .map(|(s, j)| dot(qr, &kv_segments[*s][0][j * n..][..n]) * scale)
            .collect();
        let max = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f64 = p.iter().sum();
        out.lse.push(if keys.is_empty() {
            f64::INFINITY
        } else {
            max + sum.ln()
        });
        p.iter_mut().for_each(|x| *x /= sum);
        let dp: Vec<f64> = keys
            .iter()
            .map(|(s, j)| dot(dor, &kv_segments[*s][1][j * n..][..n]))
            .collect();
        for (at, (s, j)) in keys.iter().enumerate() {
            for x in 0..n {
                out.o[r * n + x] += p[at] * kv_segments[*s][1][j * n + x];
            }
        }
        // Backward starts from the output as it was kept, in 16 bits.
        let fragment: Vec<f64> = out.o[r * n..][..n]
            .iter()
            .map(|o| match problem.operand_type {
                OperandType::Bf16 => bf16::from_f64(*o).to_f64(),
                OperandType::F16 => f16::from_f64(*o).to_f64(),
            })
            .collect();
        let delta = dot(&fragment, dor);
        for (at, (s, j)) in keys.iter().enumerate() {
            let ds = p[at] * (dp[at] - delta) * scale;
            for x in 0..n {
                out.dq[r * n + x] += ds * kv_segments[*s][0][j * n + x];
                out.kv_segments[*s][0][j * n + x] += ds * qr[x];
                out.kv_segments[*s][1][j * n + x] += p[at] * dor[x];
            }
        }
    }
    out
}

/// Relative L2 distance; absolute where nothing is to be.
pub fn distance(got: &[f64], want: &[f64]) -> f64 {
    let num: f64 = got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum();
    let den: f64 = want.iter().map(|w| w * w).sum();
    if den == 0.0 {
        num.sqrt()
    } else {
        (num / den).sqrt()
    }
}
