//! The generator against published vectors, and the distribution of what is made of it.

use flow_rng::{Purpose, Stream, philox4x32_10};

#[test]
fn philox_gives_the_known_answers_of_random123() {
    // kat_vectors of Random123 1.14, philox4x32 with 10 rounds.
    let ones = u32::MAX;
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let cases = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [ones; 4],
            [ones; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            pi,
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in cases {
        assert_eq!(philox4x32_10(counter, key), expected);
    }
}

#[test]
fn a_draw_depends_on_its_address_only() {
    let stream = Stream::new(9, Purpose::Test);
    let mut long = stream.at(3, 5);
    let values: Vec<u32> = (0..37).map(|_| long.next_u32()).collect();
    let mut other = stream.at(4, 5);
    assert_ne!(values[0], other.next_u32());
    let mut again = stream.at(3, 5);
    assert!(values.iter().all(|value| *value == again.next_u32()));
    for first in [0, 3, 4, 9, 36] {
        let mut later = again.clone().from_number(first as u64);
        assert_eq!(later.next_u32(), values[first], "number {first}");
    }
}

#[test]
fn purposes_seeds_samples_and_steps_share_no_numbers() {
    let mut seen = std::collections::HashSet::new();
    for seed in [0, 1, 1 << 32] {
        for purpose in [Purpose::InitialNoise, Purpose::SdeNoise, Purpose::Evaluation] {
            for sample in [0, 1, 1 << 32] {
                for step in [0, 1, 1 << 23] {
                    assert!(seen.insert(Stream::new(seed, purpose).at(sample, step).next_u64()));
                }
            }
        }
    }
}

#[test]
fn normal_values_have_the_moments_of_the_normal_distribution() {
    let count = 200_000;
    let mut draws = Stream::new(1, Purpose::Test).at(0, 0);
    let values: Vec<f64> = (0..count).map(|_| draws.normal()).collect();
    let moment = |power: i32| values.iter().map(|value| value.powi(power)).sum::<f64>() / f64::from(count);
    // Five standard errors of each moment: sqrt(variance / n) with variances 1, 2, 15 and 96.
    for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
        let bound = 5.0 * f64::sqrt(variance / f64::from(count));
        assert!(
            (moment(power) - expected).abs() < bound,
            "moment {power} is {}",
            moment(power)
        );
    }
}

#[test]
fn a_bounded_draw_reaches_every_value_about_equally_often() {
    let mut draws = Stream::new(2, Purpose::Test).at(0, 0);
    let mut counts = [0u32; 7];
    for _ in 0..70_000 {
        counts[draws.below(7) as usize] += 1;
    }
    // Five standard deviations of a binomial count with n = 70000, p = 1/7.
    assert!(
        counts.iter().all(|count| count.abs_diff(10_000) < 463),
        "{counts:?}"
    );
}

#[test]
fn a_permutation_holds_every_index_once() {
    let mut order = Stream::new(3, Purpose::Test).at(0, 0).permutation(101);
    assert_ne!(order, (0..101).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..101).collect::<Vec<_>>());
}
