//! The published masks, digit for digit as cache-dit's `steps_mask` gives them.

use flow_cache::{Mask, Moment, PublishedMask};

const GOLDEN: [(usize, [&str; 4]); 8] = [
    (
        28,
        [
            "1111111101110011100110010001",
            "1111110110001100011000110001",
            "1111110100010000100000100001",
            "1111001000001000000100000001",
        ],
    ),
    (10, ["1111011111", "1111011011", "1110100101", "1101001001"]),
    (9, ["111110111", "111110101", "111101001", "111001001"]),
    (8, ["11111011", "11110101", "11101001", "11001001"]),
    (6, ["111001"; 4]),
    (4, ["1101"; 4]),
    (20, ["", "", "11111101000000000001", "11110000000000000001"]),
    (3, [""; 4]),
];

const MASKS: [PublishedMask; 4] = [
    PublishedMask::Slow,
    PublishedMask::Medium,
    PublishedMask::Fast,
    PublishedMask::Ultra,
];

fn digits(flags: &[bool]) -> String {
    flags
        .iter()
        .map(|computed| if *computed { '1' } else { '0' })
        .collect()
}

#[test]
fn published_masks_are_those_of_the_original() {
    for (steps, masks) in GOLDEN {
        for (mask, expected) in MASKS
            .into_iter()
            .zip(masks)
            .filter(|(_, expected)| !expected.is_empty())
        {
            let found = mask.flags(steps).map(|flags| digits(&flags));
            assert_eq!(found.as_deref(), Some(expected), "{mask:?} of {steps}");
        }
    }
}

#[test]
fn masks_of_other_lengths_have_them_and_begin_and_end_with_a_computed_step() {
    for mask in MASKS {
        for steps in [0, 1, 2, 3, 5, 7] {
            assert_eq!(mask.flags(steps), None, "{steps} steps");
        }
        for steps in (8..120).chain([1000]) {
            let flags = mask.flags(steps).expect("defined from 8 on");
            assert_eq!(flags.len(), steps);
            assert!(flags[0] && flags[steps - 1], "{mask:?} of {steps}");
            assert!(flags.contains(&false), "{mask:?} of {steps} leaves something out");
        }
    }
}

#[test]
fn a_mask_of_another_length_computes_everything() {
    let mask = Mask::Steps(vec![true, false, true]);
    let moment = |step, steps| Moment {
        step,
        steps,
        sigma: 0.5,
    };
    let computed: Vec<bool> = (0..3).map(|step| mask.computes(&moment(step, 3))).collect();
    assert_eq!(computed, [true, false, true]);
    assert!((0..4).all(|step| mask.computes(&moment(step, 4))));
}
