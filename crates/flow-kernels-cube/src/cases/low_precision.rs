//! Cases of matrices in 8 bits a value, against the definition of their codes in f64.

use super::checker::Checker;
use crate::Element;
use crate::low_precision::{CodeFormat, LowPrecision};
use cubecl::prelude::*;

/// Rows and columns: one value, rows that do not fill their words, rows longer than a block.
const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 7], [5, 130], [2, 2304], [33, 16]];

pub(super) fn check(checker: &mut Checker<'_>) {
    for format in [CodeFormat::E4m3, CodeFormat::Int8] {
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
    // Every code but those of NaN; scales of 8 significant bits.
    let code = |row: usize, column: usize| {
        let code = ((row * 31 + column * 7) % 256) as u8;
        if format == CodeFormat::E4m3 && code & 0x7F == 0x7F {
            0
        } else {
            code
        }
    };
    let scale = |row: usize| (129 + row % 127) as f32 / 16_384.0;
    let (mut words, mut want) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let codes: Vec<u8> = (0..columns).map(|column| code(row, column)).collect();
        want.extend(
            codes
                .iter()
                .map(|code| value(format, *code) * f64::from(scale(row))),
        );
        for of_word in codes.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..of_word.len()].copy_from_slice(of_word);
            words.push(i32::from_le_bytes(bytes));
        }
    }
    words.extend((0..rows).map(|row| scale(row).to_bits() as i32));
    let client = checker.client().clone();
    let words = client.create_from_slice(i32::as_bytes(&words));
    let values = checker.room(rows * columns, element);
    let done = call.widen(&client, &words, &values);
    checker.accept(&name, done);
    let got = checker.download(&values);
    checker.close(&name, &got, &want, element, 1);
    if element == Element::F32 {
        // 12 significant bits are exact.
        let signless = |values: &[f64]| values.iter().map(|value| value + 0.0).collect::<Vec<_>>();
        checker.same(&format!("{name}, bits"), &signless(&got), &signless(&want));
    }
}
