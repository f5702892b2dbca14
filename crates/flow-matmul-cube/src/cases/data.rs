//! Operands with known values, and the result by definition in f64.

use crate::Element;
use crate::problem::{Activation, Epilogue, Layout, Matmul, Storage};
use crate::tensors::{Gate, Matrix, Operands, Scales};
use cubecl::prelude::*;
use half::{bf16, f16};

/// xorshift (Marsaglia 2003).
pub struct Random(
    /// Where it is; not 0.
    pub u64,
);

impl Random {
    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Bell-shaped enough, variance 1.
    pub fn value(&mut self) -> f32 {
        let mut one = || (self.word() >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0;
        one() + one() + one()
    }
}

/// Bytes of `value`, rounded to nearest.
pub fn encode(value: f32, element: Element) -> Vec<u8> {
    match element {
        Element::F32 => value.to_ne_bytes().to_vec(),
        Element::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        Element::Bf16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
    }
}

/// The value of the first bytes.
pub fn decode(bytes: &[u8], element: Element) -> f64 {
    match element {
        Element::F32 => f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        Element::F16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        Element::Bf16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
    }
}

/// A matrix on the device and its values.
#[derive(Debug)]
pub struct Both {
    /// On the device.
    pub device: Matrix,
    /// Row by row, without gaps; empty if there are none yet.
    pub values: Vec<f64>,
}

impl Both {
    /// Random values times `scale`; rows begin at multiples of 16 bytes, with gaps of NaN.
    pub fn random(
        client: &Client,
        shape: [usize; 2],
        element: Element,
        scale: f32,
        random: &mut Random,
    ) -> Self {
        let [rows, columns] = shape;
        let stride = stride(columns, element);
        let mut bytes = vec![0xffu8; rows * stride * element.bytes()];
        let mut values = Vec::with_capacity(rows * columns);
        for row in bytes.chunks_exact_mut(stride * element.bytes()) {
            for c in 0..columns {
                let one = encode(random.value() * scale, element);
                values.push(decode(&one, element));
                row[c * element.bytes()..(c + 1) * element.bytes()].copy_from_slice(&one);
            }
        }
        Self {
            device: Matrix {
                handle: client.create_from_slice(&bytes),
                rows,
                columns,
                stride,
            },
            values,
        }
    }

    /// NaN everywhere.
    pub fn poisoned(client: &Client, [rows, columns]: [usize; 2], element: Element) -> Self {
        let stride = stride(columns, element);
        Self {
            device: Matrix {
                handle: client.create_from_slice(&vec![0xffu8; rows * stride * element.bytes()]),
                rows,
                columns,
                stride,
            },
            values: Vec::new(),
        }
    }

    /// What the device holds, with gaps.
    pub fn bytes(&self, client: &Client) -> Vec<u8> {
        client
            .read_one(self.device.handle.clone())
            .expect("the device gives its memory back")
            .to_vec()
    }
}

fn stride(columns: usize, element: Element) -> usize {
    let eight = 16 / element.bytes();
    // Some matrices have gaps though they need none.
    columns.next_multiple_of(eight) + if columns.is_multiple_of(3) { eight } else { 0 }
}

/// A (0) or B (1) of a call: random values, or codes and their rows' scales.
fn factor(
    client: &Client,
    call: &Matmul,
    index: usize,
    scale: f32,
    random: &mut Random,
) -> (Both, Option<Scales>) {
    let shape = match index {
        0 => call.a_shape(call.k),
        _ => call.b_shape(call.k),
    };
    if !call.codes()[index] {
        return (Both::random(client, shape, call.element, scale, random), None);
    }
    let [rows, columns] = shape;
    let stride = columns.next_multiple_of(16) + if columns.is_multiple_of(3) { 16 } else { 0 };
    // Gaps hold NaN, too.
    let mut bytes = vec![0xffu8; rows * stride];
    let mut values = Vec::with_capacity(rows * columns);
    // Scales lie behind a number that is none of them.
    let mut scales = vec![f32::NAN];
    for (number, row) in bytes.chunks_exact_mut(stride).enumerate() {
        // The root mean square of all codes' values is 103.
        let of_row = scale / 103.0 * (1.0 + (number % 5) as f32 / 7.0);
        scales.push(of_row);
        for code in &mut row[..columns] {
            *code = (random.word() >> 40) as u8;
            if *code & 0x7F == 0x7F {
                *code = 0;
            }
            let value = code_value(*code) * f64::from(of_row);
            values.push(match call.storage {
                // Rounded right before the product, from f32.
                Storage::E4m3B => decode(&encode(value as f32, call.element), call.element),
                _ => value,
            });
        }
    }
    let device = Matrix {
        handle: client.create_from_slice(&bytes),
        rows,
        columns,
        stride,
    };
    let scales = Scales {
        handle: client.create_from_slice(f32::as_bytes(&scales)),
        start: 1,
    };
    (Both { device, values }, Some(scales))
}

/// The value of a code of e4m3, by definition (Micikevicius et al. 2022, arXiv:2209.05433, table 1).
pub fn code_value(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from((code >> 3) & 0xF), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa / 8.0 * 2f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The code of e4m3 whose value is nearest to `value`, of two equally near ones the even one.
pub fn nearest_code(value: f64) -> u8 {
    if value.is_nan() {
        return 0x7F;
    }
    let magnitude = value.abs();
    let distance = |code: u8| (code_value(code) - magnitude).abs();
    let nearer = |best: u8, code: u8| match distance(code).total_cmp(&distance(best)) {
        std::cmp::Ordering::Less => code,
        std::cmp::Ordering::Equal if code.is_multiple_of(2) => code,
        _ => best,
    };
    // Distances from numbers beyond the largest are ordered, too, up to 2^53 times as large.
    let code = (1..=0x7E).fold(0, nearer);
    if value.is_sign_negative() {
        code | 0x80
    } else {
        code
    }
}

/// All operands of a call.
#[derive(Debug)]
pub struct Case {
    /// The call.
    pub call: Matmul,
    /// First operand.
    pub a: Both,
    /// Second operand.
    pub b: Both,
    /// Scales of their rows, where they are codes.
    pub scales: [Option<Scales>; 2],
    /// Second pair.
    pub low_rank: Option<[Both; 2]>,
    /// A row.
    pub bias: Option<Both>,
    /// The middle of three chunks of a modulation, and its values row by row.
    pub gate: Option<(Gate, Vec<f64>)>,
    /// Residual, sums of forward, or a place for sums.
    pub other: Option<Both>,
    /// The place of the result.
    pub d: Both,
}

impl Case {
    /// Operands of variance 1, weights such that sums have variance 1, too; results hold NaN.
    pub fn new(client: &Client, call: Matmul, seed: u64) -> Self {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (seed + 1));
        let e = call.element;
        let scale = 1.0 / (call.k as f32).sqrt();
        let (a, a_scales) = factor(client, &call, 0, 1.0, &mut random);
        let (b, b_scales) = factor(client, &call, 1, scale, &mut random);
        let mut matrix = |shape, element, scale| Both::random(client, shape, element, scale, &mut random);
        let low_rank = (call.rank > 0).then(|| {
            [
                matrix(call.a_shape(call.rank), e, 1.0),
                matrix(call.b_shape(call.rank), e, 0.3),
            ]
        });
        let bias = call.bias.then(|| matrix([1, call.n], e, 1.0));
        let gate = match call.epilogue {
            Epilogue::GateAndAdd { tokens } => {
                // A chunk of a modulation of three.
                let all = matrix([call.m.div_ceil(tokens), 3 * call.n], e, 1.0);
                let gate = Gate {
                    handle: all.device.handle.clone(),
                    start: call.n,
                    stride: all.device.stride,
                };
                let values = all
                    .values
                    .chunks(3 * call.n)
                    .flat_map(|row| row[call.n..2 * call.n].to_vec());
                Some((gate, values.collect()))
            }
            _ => None,
        };
        let result = [call.m, call.n];
        let other = match call.epilogue {
            epilogue if epilogue.reads_other() => Some(matrix(result, e, 1.0)),
            epilogue if epilogue.writes_other() => Some(Both::poisoned(client, result, e)),
            _ => None,
        };
        let d = match call.epilogue {
            Epilogue::Accumulate => matrix(result, call.output, 1.0),
            _ => Both::poisoned(client, result, call.output),
        };
        Self {
            call,
            a,
            b,
            scales: [a_scales, b_scales],
            low_rank,
            bias,
            gate,
            other,
            d,
        }
    }

    /// As calls take them.
    pub fn operands(&self) -> Operands<'_> {
        Operands {
            a: &self.a.device,
            b: &self.b.device,
            scales: self.scales.each_ref().map(Option::as_ref),
            low_rank: self.low_rank.as_ref().map(|[t, u]| [&t.device, &u.device]),
            bias: self.bias.as_ref().map(|x| &x.device.handle),
            gate: self.gate.as_ref().map(|(gate, _)| gate),
            offsets: None,
            other: self.other.as_ref().map(|x| &x.device),
            d: &self.d.device,
        }
    }

    /// The sum of row `i` and column `j`, before the epilogue.
    pub fn sum(&self, i: usize, j: usize) -> f64 {
        let call = &self.call;
        let product = |a: &Both, b: &Both, k: usize| -> f64 {
            (0..k)
                .map(|s| {
                    let x = match call.layout {
                        Layout::Tn => a.values[s * call.m + i],
                        _ => a.values[i * k + s],
                    };
                    let y = match call.layout {
                        Layout::Nt => b.values[j * k + s],
                        _ => b.values[s * call.n + j],
                    };
                    x * y
                })
                .sum()
        };
        let mut sum = product(&self.a, &self.b, call.k);
        if let Some([t, u]) = &self.low_rank {
            sum += product(t, u, call.rank);
        }
        sum + self.bias.as_ref().map_or(0.0, |bias| bias.values[j])
    }

    /// The result of row `i` and column `j`.
    pub fn result(&self, i: usize, j: usize) -> f64 {
        let sum = self.sum(i, j);
        let sum = match self.call.epilogue {
            Epilogue::Store | Epilogue::Accumulate => sum,
            // Rounded first, as `Epilogue` says.
            _ => decode(&encode(sum as f32, self.call.element), self.call.element),
        };
        let at = i * self.call.n + j;
        let other = || self.other.as_ref().map_or(f64::NAN, |other| other.values[at]);
        match self.call.epilogue {
            Epilogue::Store => sum,
            Epilogue::Accumulate => self.d.values[at] + sum,
            Epilogue::Add => other() + sum,
            Epilogue::Activate { activation, .. } => activate(sum, activation),
            Epilogue::GateAndAdd { tokens } => {
                let (_, gate) = self.gate.as_ref().expect("a gated call has a gate");
                other() + gate[i / tokens * self.call.n + j] * sum
            }
            Epilogue::TimesDerivative(activation) => {
                // Central difference: the derivative from the function alone.
                let (x, h) = (other(), 1e-5);
                sum * (activate(x + h, activation) - activate(x - h, activation)) / (2.0 * h)
            }
        }
    }
}

/// `activation(x)`, by definition.
pub fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
