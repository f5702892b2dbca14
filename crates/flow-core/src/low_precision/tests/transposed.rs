//! The second copy of a matrix, against the definition of e4m3 in f64.

use super::super::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat, SMALLEST_SCALE};
use super::{matrix, nearest};
use crate::device::ComputeDevice;
use half::bf16;

fn form(compute: LowPrecisionCompute, [rows, columns]: [usize; 2]) -> LowPrecision {
    LowPrecision {
        format: LowPrecisionFormat::Fp8,
        compute,
        rows,
        columns,
    }
}

#[test]
fn a_row_of_the_second_copy_has_the_numbers_nearest_to_a_columns_quotients_and_a_scale_of_its_own() {
    for shape in [[1, 1], [7, 3], [5, 17], [33, 16], [24, 130]] {
        let [rows, columns] = shape;
        let [two, one] = [LowPrecisionCompute::Fp8WithDataGradient, LowPrecisionCompute::Fp8]
            .map(|compute| form(compute, shape));
        let values = matrix(rows, columns);
        let words = two.quantise(&values).expect("finite values");
        assert_eq!(words.len(), two.words(), "{shape:?}");
        let first = one.quantise(&values).expect("finite values");
        assert_eq!(
            words[..first.len()],
            first[..],
            "{shape:?}: what forward multiplies is the same"
        );

        let (start, of) = two.transposed().expect("there is a second copy");
        assert!(
            start >= first.len() && start.is_multiple_of(64),
            "{shape:?}: begins at word {start}"
        );
        assert_eq!([of.rows, of.columns], [columns, rows]);
        let stored = ComputeDevice::cpu().words(words.clone());
        let (codes, scales) = two.host_transposed(&stored).expect("there is a second copy");
        let widened = two.widen(&words);
        assert_eq!(scales.len(), columns, "{shape:?}");
        for (column, found_scale) in scales.iter().enumerate() {
            let of_column = || widened.iter().skip(column).step_by(columns);
            let largest = of_column().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let scale = bf16::from_f32(largest / 448.0).to_f32().max(SMALLEST_SCALE);
            assert_eq!(*found_scale, scale, "{shape:?}, column {column}");
            let found = &codes[column * rows..][..rows];
            for (value, found) in of_column().zip(found) {
                let quotient = f64::from(value / scale);
                assert_eq!(
                    f64::from(*found),
                    nearest(LowPrecisionFormat::Fp8, quotient),
                    "{shape:?}, column {column}: {value:e}"
                );
            }
        }
        assert_eq!(
            two.quantise(&widened),
            Ok(words),
            "{shape:?}: stored again as the same words"
        );
    }
}

#[test]
fn only_gradients_of_codes_have_a_second_copy() {
    for compute in [LowPrecisionCompute::Storage, LowPrecisionCompute::Fp8] {
        let of = form(compute, [5, 17]);
        assert_eq!(of.transposed(), None, "{compute:?}");
        let words = of.quantise(&matrix(5, 17)).expect("finite values");
        let stored = ComputeDevice::cpu().words(words);
        assert_eq!(of.host_transposed(&stored), None, "{compute:?}");
        // 5 rows of 17 codes in 5 words, and a scale each.
        assert_eq!(of.words(), 5 * (5 + 1), "{compute:?}");
    }
    // At word 64 the copy: 17 rows of 5 codes in 2 words, and a scale each.
    let of = form(LowPrecisionCompute::Fp8WithDataGradient, [5, 17]);
    assert_eq!(of.words(), 64 + 17 * (2 + 1));
}
