//! The generator against the Random123 known-answer vectors, and its streams against their definitions.

use flow_data::philox::{Stream, philox4x32_10};

#[test]
fn the_generator_gives_the_known_answers_of_random123() {
    let cases = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in cases {
        assert_eq!(philox4x32_10(counter, key), expected);
    }
}

#[test]
fn a_stream_is_the_blocks_of_its_counter_one_after_another() {
    let (seed, purpose, index) = (0x0123_4567_89ab_cdef_u64, 7, 0xfedc_ba98_7654_3210_u64);
    let mut stream = Stream::new(seed, purpose, index);
    let words: Vec<u32> = (0..9).map(|_| stream.next_u32()).collect();
    let block = |block| philox4x32_10([block, 7, 0x7654_3210, 0xfedc_ba98], [0x89ab_cdef, 0x0123_4567]);
    assert_eq!(words[..4], block(0));
    assert_eq!(words[4..8], block(1));
    assert_eq!(words[8], block(2)[0]);
}

#[test]
fn uniform_numbers_below_a_bound_are_even_and_never_reach_it() {
    let mut stream = Stream::new(3, 0, 0);
    let mut counts = [0u32; 7];
    for _ in 0..70_000 {
        counts[stream.below(7) as usize] += 1;
    }
    // Five standard deviations of a binomial with n = 70,000 and p = 1/7.
    for count in counts {
        assert!(count.abs_diff(10_000) < 463, "{counts:?}");
    }
    assert_eq!(stream.below(0), 0);
    assert_eq!(stream.below(1), 0);
}

#[test]
fn normal_numbers_have_the_moments_of_the_standard_normal() {
    let mut stream = Stream::new(11, 2, 5);
    let n = 100_000;
    let draws: Vec<f64> = (0..n).map(|_| f64::from(stream.normal())).collect();
    let moment = |power: i32| draws.iter().map(|x| x.powi(power)).sum::<f64>() / f64::from(n);
    // Five standard errors each: 1, √2, √15 and √96 over √n.
    assert!(moment(1).abs() < 0.016);
    assert!((moment(2) - 1.0).abs() < 0.023);
    assert!(moment(3).abs() < 0.062);
    assert!((moment(4) - 3.0).abs() < 0.155);
}

#[test]
fn a_shuffle_keeps_every_item_and_follows_the_seed() {
    let shuffled = |seed| {
        let mut items: Vec<u32> = (0..100).collect();
        Stream::new(seed, 0, 0).shuffle(&mut items);
        items
    };
    assert_eq!(shuffled(1), shuffled(1));
    assert_ne!(shuffled(1), shuffled(2));
    let mut sorted = shuffled(1);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
}
