//! Cases of matrices in 8 and 4 bits a value, against the definition of their codes in f64.

use super::checker::Checker;
use crate::Element;
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
}

/// The value of a code by the definition of its format.
pub(super) fn value(format: CodeFormat, code: u8) -> f64 {
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
    if element == Element::F32 {
        // A product is exact, or rounded once.
        let signless = |values: &[f64]| values.iter().map(|value| value + 0.0).collect::<Vec<_>>();
        checker.same(&format!("{name}, bits"), &signless(&got), &signless(&want));
    }
}
