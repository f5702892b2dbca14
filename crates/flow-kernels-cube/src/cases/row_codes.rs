//! Cases of rows that kernels make as codes: those of the rows that they store, by the definition of e4m3 in f64.

use super::checker::Checker;
use super::low_precision::value;
use crate::activation::{self, Activation};
use crate::buffer::Refusal;
use crate::low_precision::CodeFormat;
use crate::modulated_layer_norm::ModulatedNorm;
use crate::row_codes::RowCodes;
use crate::{Buffer, Element};

/// The largest code's value.
const LARGEST: f64 = 448.0;

pub(super) fn check(checker: &mut Checker<'_>) {
    // Rows of a few threads, of a plane, of a block, and of a block whose threads have several vectors; the last two with threads behind
    // their end.
    for size in [
        [1, 1, 16],
        [3, 13, 64],
        [2, 5, 336],
        [2, 40, 1152],
        [1, 3, 2112],
        [1, 2, 5008],
    ] {
        norm(checker, size);
        for function in [Activation::Silu, Activation::GeluTanh] {
            activated(checker, function, size);
        }
    }
    refused(checker);
}

/// Codes and scales of rows.
#[derive(Debug, PartialEq)]
struct Made {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// Lets `make` write rows, if it is given room, and their codes.
fn made(
    checker: &mut Checker<'_>,
    name: &str,
    [rows, columns]: [usize; 2],
    make: impl FnOnce(&RowCodes) -> Result<(), Refusal>,
) -> Made {
    let client = checker.client().clone();
    let poisoned = |bytes: usize| client.create_from_slice(&vec![0xFF; bytes]);
    let room = RowCodes {
        codes: poisoned(rows * columns),
        scales: poisoned(4 * rows),
    };
    let done = make(&room);
    checker.accept(name, done);
    let read = |handle, bytes: usize| {
        let found = client.read_one(handle).map(|found| found[..bytes].to_vec());
        found.unwrap_or_else(|_| vec![0xFF; bytes])
    };
    let (codes, scales) = (read(room.codes, rows * columns), read(room.scales, 4 * rows));
    let scale = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    Made {
        codes,
        scales: scales.chunks_exact(4).map(scale).collect(),
    }
}

/// What is wrong with the scale and the codes of a row. A device need not divide to the last bit, so of two numbers that are all but
/// equally near either may be taken.
fn wrong(row: &[f64], codes: &[u8], scale: f32) -> Option<String> {
    let largest = row.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let exact = (largest / LARGEST).max(2f64.powi(-116));
    let is_short = scale.to_bits().trailing_zeros() >= 16;
    let scale = f64::from(scale);
    // Half a step of a bf16 is at most 2^-8 of it.
    if !is_short || (scale - exact).abs() > 1.001 * 2f64.powi(-8) * exact {
        return Some(format!("the scale is {scale:e}, not {exact:e} as a bf16"));
    }
    let is_off = |(x, code): (&f64, &u8)| {
        let quotient = (x / scale).clamp(-LARGEST, LARGEST);
        // Three bits behind the first one; below 2^-6 steps are 2^-9.
        let exponent = quotient.abs().max(2f64.powi(-6)).log2().floor() as i32;
        let bound = 0.5 * 2f64.powi(exponent - 3) + 1e-6 * quotient.abs();
        let error = (value(CodeFormat::E4m3, *code) - quotient).abs();
        error > bound || error.is_nan()
    };
    let at = row.iter().zip(codes).position(is_off)?;
    Some(format!("value {at}, {:e}, has code {:02x}", row[at], codes[at]))
}

/// Makes rows with `make` alone as codes, and twice beside the rows; compares these with `expected`, and the codes with their definition.
fn compare(
    checker: &mut Checker<'_>,
    name: &str,
    shape: [usize; 2],
    expected: &Buffer,
    make: impl Fn(Option<&Buffer>, &RowCodes) -> Result<(), Refusal>,
) {
    let [rows, columns] = shape;
    let y = checker.room(rows * columns, expected.element);
    let beside = made(checker, name, shape, |room| make(Some(&y), room));
    let again = made(checker, name, shape, |room| make(Some(&y), room));
    let alone = made(checker, name, shape, |room| make(None, room));
    if again != beside || alone != beside {
        checker.fail(format!("{name}: codes of three runs differ"));
    }
    let (stored, expected) = (checker.download(&y), checker.download(expected));
    checker.same(&format!("{name}: rows"), &stored, &expected);
    let each = stored.chunks(columns).zip(beside.codes.chunks(columns));
    for (row, ((values, codes), scale)) in each.zip(&beside.scales).enumerate() {
        if let Some(why) = wrong(values, codes, *scale) {
            checker.fail(format!("{name}: row {row}: {why}"));
        }
    }
}

fn norm(checker: &mut Checker<'_>, [batch, tokens, channels]: [usize; 3]) {
    let name = format!("codes of the layer norm of {batch} x {tokens} x {channels}");
    let element = checker.element();
    let (rows, chunks) = (batch * tokens, 3);
    let call = ModulatedNorm {
        batch,
        tokens,
        channels,
        chunks,
        shift: 2,
        scale: 0,
        unit: 1.0,
        epsilon: 1e-6,
    };
    let x = checker.draw(rows * channels, element, 1.5, 0.0);
    let mut modulation = checker.normal(batch * chunks * channels);
    // An outlier, in whose steps the others are rounded.
    modulation.values[2 * channels + channels / 2] = 60.0;
    let client = checker.client().clone();
    let [x, modulation] = [&x, &modulation].map(|values| checker.upload(values));
    let y = checker.room(rows * channels, element);
    let statistics = checker.room(2 * rows, Element::F32);
    let done = call.forward(&client, &x, &modulation, &y, &statistics);
    checker.accept(&name, done);
    compare(checker, &name, [rows, channels], &y, |y, codes| {
        call.forward_codes(&client, &x, &modulation, y, codes)
    });
}

fn activated(checker: &mut Checker<'_>, function: Activation, [batch, tokens, columns]: [usize; 3]) {
    let rows = batch * tokens;
    let name = format!("codes of {function:?} of {rows} x {columns}");
    let element = checker.element();
    let mut x = checker.draw(rows * columns, element, 3.0, 0.0);
    // The first row becomes zeros.
    x.values[..columns].fill(0.0);
    let client = checker.client().clone();
    let x = checker.upload(&x);
    let y = checker.room(rows * columns, element);
    let done = activation::forward(&client, &x, &y, function);
    checker.accept(&name, done);
    compare(checker, &name, [rows, columns], &y, |y, codes| {
        activation::forward_codes(&client, &x, columns, y, codes, function)
    });
}

/// Rows whose codes would have gaps, and room that is too small.
fn refused(checker: &mut Checker<'_>) {
    let client = checker.client().clone();
    let x = checker.normal(2 * 24);
    let x = checker.upload(&x);
    let room = |bytes: usize| RowCodes {
        codes: client.empty(bytes),
        scales: client.empty(16),
    };
    for (columns, bytes, part) in [(24, 48, "`columns` is 24"), (16, 32, "`codes` holds 32 values")] {
        let done = activation::forward_codes(&client, &x, columns, None, &room(bytes), Activation::Silu);
        match done {
            Err(why) if why.to_string().contains(part) => {}
            other => checker.fail(format!(
                "rows of {columns} as codes: {other:?} instead of `{part}`"
            )),
        }
    }
}
