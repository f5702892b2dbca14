//! NF4: its values against the quantiles that they are, and where codes and scales of blocks lie.

use super::super::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat, SMALLEST_SCALE};

/// The values of NF4 as QLoRA's appendix E prints them.
pub(super) const VALUES: [f64; 16] = [
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

/// The share of normal values below `x`, by `1/2 + φ(x) (x + x³/3 + x⁵/(3·5) + …)`.
fn normal_cdf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// Below what `x` the share `cdf` of normal values is, for shares above a half.
fn normal_quantile(cdf: f64) -> f64 {
    let (mut low, mut high) = (0.0, 4.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal_cdf(middle) < cdf {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[test]
fn the_values_are_evenly_spaced_quantiles_seven_below_zero_and_eight_above() {
    // Section 3: from the quantile that half a step of 15 and of 16 leaves out, on both sides, so that zero is a value.
    let last = 1.0 - (1.0 / 32.0 + 1.0 / 30.0) / 2.0;
    let one = normal_quantile(last);
    let quantile = |step: usize, steps: usize| {
        let share = step as f64 / steps as f64;
        normal_quantile(0.5 + share * (last - 0.5)) / one
    };
    let below = (1..=7).rev().map(|step| -quantile(step, 7));
    let above = (1..=8).map(|step| quantile(step, 8));
    for (code, defined) in below.chain([0.0]).chain(above).enumerate() {
        let found = f64::from(LowPrecisionFormat::Nf4.decode(code as u8));
        // Those printed in the paper were computed in f32.
        assert!((found - defined).abs() < 1e-6, "{code}: {found}, not {defined}");
        assert_eq!(found, f64::from(VALUES[code] as f32), "{code}");
    }
}

#[test]
fn blocks_of_64_values_have_scales_of_their_own_and_a_row_begins_with_a_word() {
    let of = LowPrecision {
        format: LowPrecisionFormat::Nf4,
        compute: LowPrecisionCompute::Storage,
        rows: 2,
        columns: 130,
    };
    // Blocks of 64, 64 and 2 values in each row; the third of the first row is zero.
    let mut values = vec![0.0f32; 2 * 130];
    values[0] = 1.0;
    values[1] = -0.5;
    values[63] = -1.0;
    values[64] = -2.0;
    values[130 + 129] = 0.5;
    let words = of.quantise(&values).expect("finite values");
    // 130 codes in 17 words, 3 scales in 2 words, for each row.
    assert_eq!((words.len(), of.bytes()), (2 * (17 + 2), 4 * 2 * (17 + 2)));
    // Code 7 is zero, 15 is 1, 0 is -1, 2 is the nearest to -0.5.
    let words: Vec<u32> = words.iter().map(|word| *word as u32).collect();
    assert_eq!(words[0], 0x7777_772F);
    assert_eq!(words[7], 0x0777_7777);
    assert_eq!(words[8], 0x7777_7770);
    // Beyond the end of a row there are zeros.
    assert_eq!((words[16], words[33]), (0x77, 0xF7));
    let smallest = SMALLEST_SCALE.to_bits();
    assert_eq!(words[34..36], [0x3F80_4000, smallest]);
    assert_eq!(words[36..], [smallest | smallest >> 16, 0x3F00_0000]);
}
