//! Cases of matrices in 8 and 4 bits a value, and of activations in e4m3, against the definition of their codes in f64.

use super::checker::Checker;
use crate::Element;
use crate::low_precision::activations::{ScaledSums, quantise};
use crate::low_precision::{CodeFormat, LowPrecision};
use cubecl::prelude::*;

/// Rows and columns: one value, rows that do not fill their words, blocks of 64 values and one more, an even and an odd number of
/// blocks, rows longer than a block of threads.
const SIZES: [[usize; 2]; 7] = [[1, 1], [3, 7], [5, 130], [2, 2304], [33, 16], [3, 65], [2, 192]];
/// The values of NF4 by code: QLoRA, appendix E.
const NORMAL_FLOATS: [f64; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

pub(super) fn check(checker: &mut Checker<'_>) {
    for format in [CodeFormat::E4m3, CodeFormat::Int8, CodeFormat::Nf4] {
        for [rows, columns] in SIZES {
            widen(
                checker,
                LowPrecision {
                    format,
                    rows,
                    columns,
                },
            );
        }
    }
    for [rows, columns] in SIZES {
        activations(checker, rows, columns);
        scaled_sums(checker, rows, columns);
    }
}

/// The value of a code by the definition of its format.
fn value(format: CodeFormat, code: u8) -> f64 {
    match format {
        CodeFormat::Int8 => f64::from(code as i8),
        CodeFormat::E4m3 => {
            let (exponent, mantissa) = (i32::from((code >> 3) & 0xF), f64::from(code & 7));
            let magnitude = match exponent {
                0 => mantissa / 8.0 * 2f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            if code & 0x80 == 0 { magnitude } else { -magnitude }
        }
        CodeFormat::Nf4 => f64::from(NORMAL_FLOATS[usize::from(code)] as f32),
    }
}

fn widen(checker: &mut Checker<'_>, call: LowPrecision) {
    let LowPrecision {
        format,
        rows,
        columns,
    } = call;
    let name = format!("{format:?} of {rows} x {columns}");
    let element = checker.element();
    let bits = format.code_bits();
    // Every code but those of NaN; scales of 8 significant bits.
    let code = |row: usize, column: usize| {
        let code = ((row * 31 + column * 7) % (1usize << bits)) as u8;
        if format == CodeFormat::E4m3 && code & 0x7F == 0x7F {
            0
        } else {
            code
        }
    };
    let block = if format == CodeFormat::Nf4 { 64 } else { columns };
    let scale = |row: usize, block: usize| (129 + (row + 5 * block) % 127) as f32 / 16_384.0;
    let (mut words, mut scales, mut want) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows {
        let codes: Vec<u8> = (0..columns).map(|column| code(row, column)).collect();
        want.extend(codes.iter().enumerate().map(|(column, code)| {
            // In f32: the product of a value of NF4 and a scale is rounded.
            let product = value(format, *code) * f64::from(scale(row, column / block));
            f64::from(product as f32)
        }));
        words.extend(codes.chunks(32 / bits).map(|of_word| {
            let with = |word: u32, code: &u8| (word << bits) | u32::from(*code);
            of_word.iter().rev().fold(0, with) as i32
        }));
        let of_row: Vec<u32> = (0..columns.div_ceil(block))
            .map(|block| scale(row, block).to_bits())
            .collect();
        // The upper halves of two, the first above the second.
        scales.extend(
            of_row
                .chunks(2)
                .map(|pair| (pair[0] | pair.get(1).map_or(0, |second| second >> 16)) as i32),
        );
    }
    words.extend(scales);
    let client = checker.client().clone();
    let words = client.create_from_slice(i32::as_bytes(&words));
    let values = checker.room(rows * columns, element);
    let done = call.widen(&client, &words, &values);
    checker.accept(&name, done);
    let got = checker.download(&values);
    checker.close(&name, &got, &want, element, 1);
    if format == CodeFormat::E4m3 {
        let done = call.codes(&client, &words, &values);
        checker.accept(&name, done);
        let codes = (0..rows * columns).map(|at| value(format, code(at / columns, at % columns)) + 0.0);
        let got: Vec<f64> = checker.download(&values).iter().map(|code| code + 0.0).collect();
        // Exact in every type.
        checker.same(&format!("{name}, codes"), &got, &codes.collect::<Vec<_>>());
    }
    if element == Element::F32 {
        // A product is exact, or rounded once.
        let signless = |values: &[f64]| values.iter().map(|value| value + 0.0).collect::<Vec<_>>();
        checker.same(&format!("{name}, bits"), &signless(&got), &signless(&want));
    }
}

/// Activations whose codes are known: numbers of e4m3 times a power of two, or 1.5 % beside them, or in the middle of two; a row of zeros
/// and one with an infinite value.
fn activations(checker: &mut Checker<'_>, rows: usize, columns: usize) {
    let name = format!("activations of {rows} x {columns}");
    let element = checker.element();
    let (mut x, mut codes, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows {
        let scale = 2f64.powi(row as i32 % 5 - 2);
        scales.push(scale);
        for column in 0..columns {
            let sign = if (row + column) % 3 == 0 { -1.0 } else { 1.0 };
            // An even code below that of 416, and the one after it; the row's largest value stands first.
            let code = 2 * ((row * 5 + column * 7) % 0x3E) as u8;
            let [low, high] = [code, code + 1].map(|code| value(CodeFormat::E4m3, code));
            let (number, activation) = match column % 4 {
                _ if column == 0 => (448.0, 448.0),
                1 => (low, low * 1.015),
                2 => (high, high * 0.985),
                _ => (low, (low + high) / 2.0),
            };
            x.push(sign * activation * scale);
            codes.push(sign * number);
        }
    }
    x.extend(vec![0.0; columns]);
    codes.extend(vec![0.0; columns]);
    scales.push(2f64.powi(-116));
    x.extend((0..columns).map(|column| if column == columns / 2 { f64::INFINITY } else { 1.0 }));
    let client = checker.client().clone();
    let x = Buffer::upload(&client, &x, element);
    let values = checker.room(x.length, element);
    let found_scales = checker.room(rows + 2, Element::F32);
    let done = quantise(&client, &x, columns, &values, &found_scales);
    checker.accept(&name, done);
    let signless = |values: &[f64]| values.iter().map(|value| value + 0.0).collect::<Vec<_>>();
    let found = checker.download(&values);
    checker.same(&name, &signless(&found[..codes.len()]), &signless(&codes));
    let found = checker.download(&found_scales);
    checker.same(&format!("{name}, scales"), &found[..=rows], &scales);
    if !found[rows + 1].is_nan() {
        checker.fail(format!(
            "{name}: a row with an infinite value has the scale {}",
            found[rows + 1]
        ));
    }
}

/// Sums of a product with a matrix of `rows`, for 7 rows of activations: scaled, with and without what is added.
fn scaled_sums(checker: &mut Checker<'_>, rows: usize, columns: usize) {
    const TOKENS: usize = 7;
    let call = LowPrecision {
        format: CodeFormat::E4m3,
        rows,
        columns,
    };
    let element = checker.element();
    let scale = |row: usize| (129 + row % 127) as f32 / 16_384.0;
    let mut words = vec![0i32; rows * columns.div_ceil(4)];
    words.extend((0..rows).map(|row| scale(row).to_bits() as i32));
    let client = checker.client().clone();
    let words = client.create_from_slice(i32::as_bytes(&words));
    let [sums, added] = [100.0, 1.0].map(|size| checker.draw(TOKENS * rows, Element::F32, size, 0.0));
    let activation_scales = checker.draw(TOKENS, Element::F32, 1.0, 0.0);
    let bias = checker.normal(rows);
    for [is_added, has_bias] in [[false, false], [true, false], [false, true], [true, true]] {
        let name = format!("sums of {rows}, added {is_added}, bias {has_bias}");
        let want: Vec<f64> = (0..TOKENS * rows)
            .map(|at| {
                let (token, row) = (at / rows, at % rows);
                let scaled = sums.values[at] * f64::from(scale(row)) * activation_scales.values[token];
                let bias = if has_bias { bias.values[row] } else { 0.0 };
                scaled + bias + if is_added { added.values[at] } else { 0.0 }
            })
            .collect();
        let [of_sums, of_added, of_scales, of_bias] =
            [&sums, &added, &activation_scales, &bias].map(|values| checker.upload(values));
        let result = checker.room(TOKENS * rows, element);
        let operands = ScaledSums {
            sums: &of_sums,
            activation_scales: &of_scales,
            added: is_added.then_some(&of_added),
            bias: has_bias.then_some(&of_bias),
        };
        let done = call.scale_sums(&client, &words, operands, &result);
        checker.accept(&name, done);
        let got = checker.download(&result);
        checker.close(&name, &got, &want, element, 4);
    }
}
