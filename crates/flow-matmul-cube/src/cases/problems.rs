//! Calls that every backend is checked with, and how: all or sampled elements against f64, NaN where nothing was written,
//! gaps left alone, two runs with the same bits.

use super::data::{Both, Case, Random, decode};
use crate::Element;
use crate::column_sums::column_sums;
use crate::prepared::{Plan, Prepared};
use crate::problem::{Accumulation, Activation, Epilogue, Layout, Matmul, Storage};
use crate::tensors::{Matrix, Operands};
use cubecl::prelude::*;

/// Sizes `[m, n, k]` that tiles do not divide, and some that they do.
pub const SIZES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 64, 64],
    [13, 8, 13],
    [77, 136, 333],
    [128, 192, 64],
    [333, 78, 1357],
    [1357, 334, 77],
    [600, 520, 200],
    [1100, 1544, 456],
];

/// All calls of the cases for one layout, in each size `[m, n, k]`.
pub fn problems(layout: Layout, element: Element, sizes: &[[usize; 3]]) -> Vec<Matmul> {
    let mut out = Vec::new();
    for size in sizes.iter().copied() {
        let plain = Matmul::plain(layout, size, element);
        let even = size[1].is_multiple_of(2);
        let wide = |epilogue| Matmul {
            output: Element::F32,
            epilogue,
            ..plain
        };
        let with = |epilogue, rank| Matmul {
            epilogue,
            rank,
            bias: even,
            ..plain
        };
        out.extend([
            plain,
            wide(Epilogue::Store),
            wide(Epilogue::Accumulate),
            Matmul { rank: 32, ..plain },
            Matmul {
                epilogue: Epilogue::Add,
                ..plain
            },
            with(Epilogue::Store, 0),
        ]);
        for activation in [Activation::GeluTanh, Activation::Silu] {
            for keep_sum in [false, true] {
                out.push(with(
                    Epilogue::Activate { activation, keep_sum },
                    if keep_sum { 8 } else { 0 },
                ));
            }
            out.push(with(Epilogue::TimesDerivative(activation), 0));
        }
        if even {
            for tokens in [1, 50, 4096] {
                out.push(with(Epilogue::GateAndAdd { tokens }, 72));
            }
        }
    }
    out
}

/// What is wrong with `got`, if anything: a number that is none, a gap that was written, or the relative L2 distance on
/// all elements or some.
fn compare(
    got: &[u8],
    matrix: &Matrix,
    (element, limit): (Element, f64),
    want: impl Fn(usize, usize) -> f64,
    work: usize,
) -> Result<(), String> {
    let all = matrix.rows * matrix.columns;
    let size = element.bytes();
    let value = |i: usize, j: usize| {
        let at = (i * matrix.stride + j) * size;
        decode(&got[at..at + size], element)
    };
    for i in 0..matrix.rows {
        for j in 0..matrix.columns {
            if !value(i, j).is_finite() {
                return Err(format!("row {i} column {j} is {}", value(i, j)));
            }
        }
        // Gaps hold NaN before and after.
        let row = &got[i * matrix.stride * size..(i + 1) * matrix.stride * size];
        if row[matrix.columns * size..].iter().any(|byte| *byte != 0xff) {
            return Err(format!("the gap behind row {i} was written"));
        }
    }
    let mut random = Random(77);
    let some = (all * work > 20_000_000).then(|| (20_000_000 / work).clamp(200, all));
    let (mut off, mut of) = (0.0, 0.0);
    for s in 0..some.unwrap_or(all) {
        let at = if some.is_some() {
            random.word() as usize % all
        } else {
            s
        };
        let (i, j) = (at / matrix.columns, at % matrix.columns);
        let want = want(i, j);
        off += (value(i, j) - want).powi(2);
        of += want * want;
    }
    let distance = (off / of.max(1e-30)).sqrt();
    match distance <= limit {
        true => Ok(()),
        false => Err(format!("off by {distance:.1e}")),
    }
}

fn limit(element: Element) -> f64 {
    match element {
        Element::F32 => 2e-5,
        Element::F16 => 6e-4,
        Element::Bf16 => 4e-3,
    }
}

/// The relative L2 distance that a result of a call may have, written as `element`.
fn limit_of(call: &Matmul, plan: Plan, element: Element) -> f64 {
    // Accumulators for FP8 keep some 14 bits of a sum.
    let by_tensor_cores = match (call.storage, plan) {
        (Storage::E4m3(Accumulation::Promoted), Plan::Wgmma { .. }) => 1e-3,
        (Storage::E4m3(Accumulation::Fast), Plan::Wgmma { .. }) => 3e-3,
        _ => 0.0,
    };
    limit(element) + by_tensor_cores
}

/// Computes a call twice and compares; says what is wrong.
pub fn wrong(client: &Client, call: Matmul, plan: Plan) -> Option<String> {
    let prepared = match Prepared::with(client, call, plan) {
        Ok(prepared) => prepared,
        Err(error) => return Some(format!("declined: {error}")),
    };
    let pass = || {
        let case = Case::new(client, call, 5);
        if let Err(error) = prepared.run(&case.operands()) {
            return Err(format!("declined: {error}"));
        }
        let d = case.d.bytes(client);
        let kept = call.epilogue.writes_other().then(|| {
            let other = case.other.as_ref().expect("there is a place for sums");
            other.bytes(client)
        });
        Ok((case, d, kept))
    };
    let (case, d, kept) = match pass() {
        Ok(done) => done,
        Err(error) => return Some(error),
    };
    let work = call.k + call.rank;
    let as_far = |element| (element, limit_of(&call, plan, element));
    if let Err(why) = compare(
        &d,
        &case.d.device,
        as_far(call.output),
        |i, j| case.result(i, j),
        work,
    ) {
        return Some(format!("result: {why}"));
    }
    if let (Some(kept), Some(other)) = (&kept, &case.other)
        && let Err(why) = compare(
            kept,
            &other.device,
            as_far(call.element),
            |i, j| case.sum(i, j),
            work,
        )
    {
        return Some(format!("sums: {why}"));
    }
    match pass() {
        Ok((_, again, kept_again)) if again == d && kept_again == kept => None,
        Ok(_) => Some("two runs differ".into()),
        Err(error) => Some(error),
    }
}

/// Column sums of random numbers, twice; says what is wrong.
pub fn wrong_sums(client: &Client, shape: [usize; 2], element: Element, accumulate: bool) -> Option<String> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let x = Both::random(client, shape, element, 1.0, &mut random);
    let [rows, columns] = shape;
    let pass = || {
        let start: Vec<u8> = (0..columns)
            .flat_map(|_| if accumulate { 1f32 } else { f32::NAN }.to_ne_bytes())
            .collect();
        let out = client.create_from_slice(&start);
        match column_sums(client, &x.device, element, &out, Element::F32, accumulate) {
            Ok(()) => Ok(client
                .read_one(out)
                .expect("the device gives its memory back")
                .to_vec()),
            Err(error) => Err(error.to_string()),
        }
    };
    let (first, second) = match (pass(), pass()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(why), _) | (_, Err(why)) => return Some(why),
    };
    if first != second {
        return Some("two runs differ".into());
    }
    for column in 0..columns {
        let values = (0..rows).map(|row| x.values[row * columns + column]);
        let (want, size) = values.fold((f64::from(u8::from(accumulate)), 1.0), |(sum, size), x| {
            (sum + x, size + x.abs())
        });
        let got = decode(&first[4 * column..], Element::F32);
        // Rounding of each addition, of at most the sum of sizes.
        let limit = size * 2f64.powi(-24) * 64.0;
        if got.is_nan() || (got - want).abs() > limit {
            return Some(format!("column {column} is {got}, not {want}"));
        }
    }
    None
}

/// A product of groups of rows, twice; says what is wrong. `sizes`: rows of the groups. Weight gradients are f32.
pub fn wrong_groups(
    client: &Client,
    layout: Layout,
    sizes: &[usize],
    [n, k]: [usize; 2],
    element: Element,
    plan: Plan,
) -> Option<String> {
    let rows: usize = sizes.iter().sum();
    // In weight gradients `n x k` is the gradient's size.
    let size = match layout {
        Layout::Tn => [n, k, rows],
        _ => [rows, n, k],
    };
    let call = Matmul {
        groups: sizes.len(),
        bias: layout != Layout::Tn,
        output: match layout {
            Layout::Tn => Element::F32,
            _ => element,
        },
        ..Matmul::plain(layout, size, element)
    };
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut matrix = |shape| Both::random(client, shape, element, 0.3, &mut random);
    let (a, b) = (matrix(call.a_shape(call.k)), matrix(call.b_shape(call.k)));
    let bias = matrix([1, sizes.len() * n]);
    let mut offsets = vec![0u32];
    for rows in sizes {
        offsets.push(offsets[offsets.len() - 1] + *rows as u32);
    }
    let on_device = client.create_from_slice(u32::as_bytes(&offsets));
    let pass = || {
        let d = Both::poisoned(client, call.d_shape(), call.output);
        let operands = Operands {
            bias: call.bias.then_some(&bias.device.handle),
            offsets: Some(&on_device),
            ..Operands::new(&a.device, &b.device, &d.device)
        };
        let done = Prepared::with(client, call, plan).and_then(|prepared| prepared.run(&operands));
        done.map(|()| (d.bytes(client), d))
            .map_err(|error| error.to_string())
    };
    let ((first, d), (second, _)) = match (pass(), pass()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(why), _) | (_, Err(why)) => return Some(why),
    };
    if first != second {
        return Some("two runs differ".into());
    }
    let at = |x: &Both, i: usize, j: usize| x.values[i * x.device.columns + j];
    let want = |i: usize, j: usize| -> f64 {
        match layout {
            Layout::Tn => {
                let (group, row) = (i / n, i % n);
                let lines = offsets[group] as usize..offsets[group + 1] as usize;
                lines.map(|line| at(&a, line, row) * at(&b, line, j)).sum()
            }
            _ => {
                let group = offsets.iter().take_while(|begin| **begin as usize <= i).count() - 1;
                let sum: f64 = (0..k)
                    .map(|s| {
                        let y = match layout {
                            Layout::Nt => at(&b, group * n + j, s),
                            _ => at(&b, group * k + s, j),
                        };
                        at(&a, i, s) * y
                    })
                    .sum();
                sum + bias.values[group * n + j]
            }
        }
    };
    let work = if layout == Layout::Tn {
        rows / sizes.len()
    } else {
        k
    };
    compare(
        &first,
        &d.device,
        (call.output, limit(call.output)),
        want,
        work.max(1),
    )
    .err()
}
