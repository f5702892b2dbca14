//! Codes against their definitions in f64, and bounds of errors.

mod activations;
mod normal_float;
mod transposed;

use super::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat, NotFinite, SMALLEST_SCALE};
use crate::rng::{Purpose, Stream};

const FORMATS: [LowPrecisionFormat; 3] = LowPrecisionFormat::ALL;

/// The value of a code by the definition of its format; none for those that do not occur.
fn value(format: LowPrecisionFormat, code: u8) -> Option<f64> {
    match format {
        LowPrecisionFormat::Int8 => (code != 0x80).then(|| f64::from(code as i8)),
        LowPrecisionFormat::Fp8 => {
            let (exponent, mantissa) = (i32::from((code >> 3) & 0xF), f64::from(code & 7));
            let magnitude = match exponent {
                0 => mantissa / 8.0 * 2f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            let is_nan = code & 0x7F == 0x7F;
            let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
            (!is_nan).then_some(sign * magnitude)
        }
        LowPrecisionFormat::Nf4 => normal_float::VALUES
            .get(usize::from(code))
            .map(|value| f64::from(*value as f32)),
    }
}

/// The codes of values that share the scale 1.
fn codes(format: LowPrecisionFormat, values: &[f32]) -> Vec<u8> {
    let mut words = vec![0; values.len().div_ceil(format.codes_per_word())];
    format.encode(values, 1.0, &mut words);
    let bits = format.code_bits();
    let of_word = |word: &i32| {
        let word = *word as u32;
        (0..format.codes_per_word())
            .map(move |place| (word >> (place * bits)) as u8 & ((1u32 << bits) - 1) as u8)
    };
    let codes = words.iter().flat_map(of_word);
    codes.take(values.len()).collect()
}

/// The nearest value of a format, of two equally near ones that of the even code.
fn nearest(format: LowPrecisionFormat, of: f64) -> f64 {
    // Of a value far beyond the largest code the differences from all codes round to the same f64.
    let largest = f64::from(format.largest());
    let of = of.clamp(-largest, largest);
    let values = (0..=255).filter_map(|code| Some((code, value(format, code)?)));
    let key = |(code, value): &(u8, f64)| ((value - of).abs(), code & 1);
    let smaller = |a: (u8, f64), b: (u8, f64)| if key(&b) < key(&a) { b } else { a };
    values.reduce(smaller).expect("there are codes").1
}

#[test]
fn every_code_is_the_number_that_its_format_defines_and_is_found_again() {
    for format in FORMATS {
        for code in 0..=255 {
            let Some(value) = value(format, code) else {
                continue;
            };
            let decoded = format.decode(code);
            assert_eq!(f64::from(decoded), value, "{format} {code:02x}");
            assert_eq!(codes(format, &[decoded]), [code], "{format} {code:02x}");
        }
    }
}

#[test]
fn a_value_gets_the_nearest_code_and_of_two_the_even_one() {
    let mut draws = Stream::new(5, Purpose::Test).at(0, 0);
    for format in FORMATS {
        let all: Vec<f64> = (0..=255).filter_map(|code| value(format, code)).collect();
        // Halves of the way to the neighbours, where ties are, a step beside them, and random values.
        let mut tried: Vec<f32> = Vec::new();
        for value in &all {
            let above = all.iter().filter(|other| *other > value).copied();
            let Some(next) = above.reduce(f64::min) else {
                continue;
            };
            let middle = ((value + next) / 2.0) as f32;
            tried.extend([middle, middle.next_up(), middle.next_down()]);
        }
        tried.extend((0..2000).map(|_| (draws.normal() * 100.0) as f32));
        tried.extend((0..2000).map(|_| (draws.normal() * 0.01) as f32));
        tried.extend([0.0, -0.0, f32::MIN_POSITIVE, f32::from_bits(1), 1e9, -1e9]);
        // Those of many values are made at a time, and those at the end one by one.
        for (value, code) in tried.iter().copied().zip(codes(format, &tried)) {
            let found = f64::from(format.decode(code));
            assert_eq!(found, nearest(format, f64::from(value)), "{format} {value:e}");
        }
    }
}

/// Rows of random values of very different size; the first is zero, the second tiny, and values of the third differ by orders.
fn matrix(rows: usize, columns: usize) -> Vec<f32> {
    let mut draws = Stream::new(9, Purpose::Test).at(columns as u64, 0);
    let mut value = |row: usize, column: usize| match row {
        0 => 0.0,
        1 => f32::from_bits(1 + column as u32),
        2 => (draws.normal() * 10f64.powi(-(column as i32 % 9))) as f32,
        _ => (draws.normal() * 10f64.powi(row as i32 % 20 - 10)) as f32,
    };
    (0..rows * columns)
        .map(|at| value(at / columns, at % columns))
        .collect()
}

#[test]
fn a_widened_value_is_within_the_documented_bound_and_is_stored_again_as_the_same_bits() {
    for format in FORMATS {
        for [rows, columns] in [[1, 1], [3, 7], [5, 16], [3, 64], [4, 65], [24, 130]] {
            let of = LowPrecision {
                format,
                compute: LowPrecisionCompute::Storage,
                rows,
                columns,
            };
            let values = matrix(rows, columns);
            let words = of.quantise(&values).expect("finite values");
            assert_eq!(words.len(), of.words());
            let widened = of.widen(&words);
            for (at, (value, found)) in values.iter().zip(&widened).enumerate() {
                let row = &values[at / columns * columns..][..columns];
                let block = format.block().unwrap_or(columns);
                let of_block = row.chunks(block).nth(at % columns / block).expect("a block");
                let largest = of_block
                    .iter()
                    .fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
                let scale = (largest / f64::from(format.largest()) * (1.0 + 2f64.powi(-8)))
                    .max(f64::from(SMALLEST_SCALE));
                let bound = match format {
                    LowPrecisionFormat::Fp8 => (f64::from(value.abs()) / 16.0).max(scale / 1024.0),
                    LowPrecisionFormat::Int8 => scale / 2.0,
                    LowPrecisionFormat::Nf4 => scale * 0.152,
                };
                let error = (f64::from(*value) - f64::from(*found)).abs();
                assert!(
                    error <= bound * 1.000_001,
                    "{format} {at}: {value:e} as {found:e}"
                );
            }
            assert!(
                widened[..columns].iter().all(|value| *value == 0.0),
                "zeros stay zero"
            );
            assert_eq!(of.quantise(&widened), Ok(words), "{format} {rows} x {columns}");
        }
    }
}

#[test]
fn the_largest_values_stay_finite_and_are_stored_again_as_the_same_bits() {
    for format in FORMATS {
        let of = LowPrecision {
            format,
            compute: LowPrecisionCompute::Storage,
            rows: 1,
            columns: 3,
        };
        let words = of.quantise(&[f32::MAX, f32::MIN, 1.0]).expect("finite values");
        let widened = of.widen(&words);
        for (found, value) in widened.iter().zip([f32::MAX, f32::MIN]) {
            // A scale is within 2^-8.
            assert!((found / value - 1.0).abs() <= 1.0 / 256.0, "{format}: {found:e}");
        }
        assert_eq!(of.quantise(&widened), Ok(words), "{format}");
    }
}

#[test]
fn of_normal_values_the_error_is_as_documented() {
    let (rows, columns) = (40, 3072);
    let mut values = vec![0.0; rows * columns];
    Stream::new(3, Purpose::Test).at(0, 0).fill_normal(&mut values);
    let square = |value: f32| f64::from(value) * f64::from(value);
    for (format, documented) in FORMATS.into_iter().zip([0.026, 0.0085, 0.092]) {
        let of = LowPrecision {
            format,
            compute: LowPrecisionCompute::Storage,
            rows,
            columns,
        };
        let widened = of.widen(&of.quantise(&values).expect("finite values"));
        let errors = values
            .iter()
            .zip(&widened)
            .map(|(value, found)| square(found - value));
        let sizes = values.iter().map(|value| square(*value));
        let error = (errors.sum::<f64>() / sizes.sum::<f64>()).sqrt();
        assert!((error / documented - 1.0).abs() < 0.05, "{format}: {error}");
    }
}

#[test]
fn what_is_not_finite_has_no_code() {
    for format in FORMATS {
        let of = LowPrecision {
            format,
            compute: LowPrecisionCompute::Storage,
            rows: 2,
            columns: 3,
        };
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let values = [1.0, -2.0, 0.5, 0.0, wrong, 3.0];
            assert_eq!(of.quantise(&values), Err(NotFinite), "{format} {wrong}");
        }
    }
}
