//! Rows of activations in e4m3 against the definition in f64, and a matrix's codes without their scales.

use super::super::format::round_to_e4m3;
use super::super::{
    LowPrecision, LowPrecisionCompute, LowPrecisionFormat, SMALLEST_SCALE, quantise_activations,
};
use super::{matrix, nearest, value};
use half::bf16;

const FP8: LowPrecisionFormat = LowPrecisionFormat::Fp8;

#[test]
fn a_row_has_the_numbers_nearest_to_its_quotients_and_the_scale_of_its_largest_value() {
    for columns in [1, 7, 16, 130] {
        let rows = 24;
        for (number, row) in matrix(rows, columns).chunks(columns).enumerate() {
            let mut found = vec![f32::NAN; columns];
            let scale = quantise_activations(row, &mut found);
            let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let rounded = bf16::from_f32(largest / 448.0).to_f32();
            assert_eq!(scale, rounded.max(SMALLEST_SCALE), "row {number}");
            for (activation, found) in row.iter().zip(&found) {
                let quotient = f64::from(activation / scale);
                assert_eq!(
                    f64::from(*found),
                    nearest(FP8, quotient),
                    "row {number}: {activation:e}"
                );
            }
            if largest >= 1e-20 {
                let most = found.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert_eq!(most, 448.0, "row {number}");
            }
        }
    }
}

#[test]
fn a_row_is_quantised_as_that_of_a_matrix_which_is_stored() {
    let (rows, columns) = (24, 65);
    let values = matrix(rows, columns);
    let of = LowPrecision {
        format: FP8,
        compute: LowPrecisionCompute::Fp8,
        rows,
        columns,
    };
    let (codes, scales) = of.codes_and_scales(&of.quantise(&values).expect("finite values"));
    let mut found = vec![0.0; columns];
    for (number, row) in values.chunks(columns).enumerate() {
        assert_eq!(
            quantise_activations(row, &mut found),
            scales[number],
            "row {number}"
        );
        assert_eq!(found, codes[number * columns..][..columns], "row {number}");
    }
}

#[test]
fn a_row_of_zeros_gives_zeros_and_what_is_not_finite_does_not_become_small() {
    let mut found = [1.0; 3];
    assert!(quantise_activations(&[0.0, -0.0, 0.0], &mut found) > 0.0);
    assert!(found.iter().all(|value| *value == 0.0), "{found:?}");
    // The payloads that processors and GPUs give, and the largest.
    for wrong in [f32::NAN, f32::from_bits(0x7FFF_FFFF), f32::from_bits(0xFF80_0001)] {
        assert_eq!(quantise_activations(&[448.0, wrong, 1.0], &mut found), 1.0);
        assert!(
            found[1].is_nan() && found[0] == 448.0 && found[2] == 1.0,
            "{found:?}"
        );
    }
    for wrong in [f32::INFINITY, f32::NEG_INFINITY] {
        let scale = quantise_activations(&[1.0, wrong, 0.5], &mut found);
        assert_eq!((scale, found[1]), (bf16::MAX.to_f32(), 448f32.copysign(wrong)));
    }
    assert_eq!(quantise_activations(&[], &mut []), SMALLEST_SCALE);
}

#[test]
fn rounding_leaves_numbers_of_e4m3_and_takes_the_even_one_of_two() {
    let numbers: Vec<f64> = (0..=255).filter_map(|code| value(FP8, code)).collect();
    for number in &numbers {
        let rounded = round_to_e4m3(*number as f32);
        assert_eq!(f64::from(rounded).to_bits(), number.to_bits(), "{number}");
    }
    for (low, high) in numbers[..127].iter().zip(&numbers[1..127]) {
        let middle = ((low + high) / 2.0) as f32;
        for value in [middle, -middle, middle.next_up(), middle.next_down()] {
            let expected = nearest(FP8, f64::from(value));
            assert_eq!(f64::from(round_to_e4m3(value)), expected, "{value:e}");
        }
    }
}

#[test]
fn codes_times_scales_are_the_widened_matrix() {
    for format in [FP8, LowPrecisionFormat::Int8] {
        for [rows, columns] in [[1, 1], [5, 17], [24, 130]] {
            let of = LowPrecision {
                format,
                compute: LowPrecisionCompute::Storage,
                rows,
                columns,
            };
            let words = of.quantise(&matrix(rows, columns)).expect("finite values");
            let (codes, scales) = of.codes_and_scales(&words);
            assert_eq!(scales.len(), rows, "{format}");
            let products = codes
                .iter()
                .enumerate()
                .map(|(at, code)| code * scales[at / columns]);
            assert_eq!(
                products.collect::<Vec<_>>(),
                of.widen(&words),
                "{format} {rows} x {columns}"
            );
        }
    }
}
