//! Advantages against a plain f64 restatement, and what a user relies on when groups or rewards are awkward.

use flow_trainer::advantage::{
    AdvantageError, AdvantageOptions, Advantages, Aggregation, RewardColumn, compute_advantages,
};
use proptest::prelude::*;

const SUM_GLOBAL: AdvantageOptions = AdvantageOptions {
    aggregation: Aggregation::Sum,
    global_std: true,
    std_floor: 1e-6,
};
const SUM_GROUP: AdvantageOptions = AdvantageOptions {
    aggregation: Aggregation::Sum,
    global_std: false,
    std_floor: 1e-6,
};
const GDPO: AdvantageOptions = AdvantageOptions {
    aggregation: Aggregation::Gdpo,
    global_std: true,
    std_floor: 1e-6,
};
/// Without the last step.
const GDPO_GROUP: AdvantageOptions = AdvantageOptions {
    aggregation: Aggregation::Gdpo,
    global_std: false,
    std_floor: 1e-6,
};

fn one(values: &[f32], groups: &[u64], options: &AdvantageOptions) -> Advantages {
    compute_advantages(
        &[RewardColumn {
            name: "r",
            weight: 1.0,
            values,
        }],
        groups,
        options,
    )
    .unwrap()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn std(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// The members of sample `i`'s group, found by comparing ids one by one.
fn group_of(values: &[f64], groups: &[u64], i: usize) -> Vec<f64> {
    (0..values.len())
        .filter(|&j| groups[j] == groups[i])
        .map(|j| values[j])
        .collect()
}

/// The definitions of flow matching's usual advantages, sample by sample.
fn restated(columns: &[Vec<f64>], weights: &[f64], groups: &[u64], options: &AdvantageOptions) -> Vec<f64> {
    let samples = groups.len();
    let floor = options.std_floor;
    match options.aggregation {
        Aggregation::Sum => {
            let total: Vec<f64> = (0..samples)
                .map(|i| columns.iter().zip(weights).map(|(c, w)| c[i] * w).sum())
                .collect();
            (0..samples)
                .map(|i| {
                    let group = group_of(&total, groups, i);
                    let spread = if options.global_std {
                        std(&total)
                    } else {
                        std(&group)
                    };
                    (total[i] - mean(&group)) / spread.max(floor)
                })
                .collect()
        }
        Aggregation::Gdpo => {
            let combined: Vec<f64> = (0..samples)
                .map(|i| {
                    let normalised = |column: &Vec<f64>| {
                        let group = group_of(column, groups, i);
                        (column[i] - mean(&group)) / std(&group).max(floor)
                    };
                    columns
                        .iter()
                        .zip(weights)
                        .map(|(column, weight)| weight * normalised(column))
                        .sum()
                })
                .collect();
            if !options.global_std {
                return combined;
            }
            combined
                .iter()
                .map(|value| (value - mean(&combined)) / std(&combined).max(floor))
                .collect()
        }
    }
}

/// Groups of 2 to 5 members in mixed-up order, with two rewards per sample.
fn batch() -> impl Strategy<Value = Vec<(u64, f32, f32)>> {
    let group = (
        any::<u64>(),
        prop::collection::vec((-5.0..5.0_f32, 0.0..1.0_f32), 2..6),
    );
    prop::collection::vec(group, 1..6).prop_flat_map(|groups| {
        let samples: Vec<_> = groups
            .into_iter()
            .flat_map(|(id, members)| members.into_iter().map(move |(a, b)| (id, a, b)))
            .collect();
        Just(samples).prop_shuffle()
    })
}

proptest! {
    #[test]
    fn advantages_are_the_definitions_ones(batch in batch(), weights in (0.1..2.0_f64, -1.0..1.0_f64)) {
        let groups: Vec<u64> = batch.iter().map(|sample| sample.0).collect();
        let (a, b): (Vec<f32>, Vec<f32>) = batch.iter().map(|sample| (sample.1, sample.2)).unzip();
        let columns = [&a, &b].map(|column| column.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>());
        let rewards = [
            RewardColumn { name: "a", weight: weights.0, values: &a },
            RewardColumn { name: "b", weight: weights.1, values: &b },
        ];
        for options in [SUM_GLOBAL, SUM_GROUP, GDPO, GDPO_GROUP] {
            let ours = compute_advantages(&rewards, &groups, &options).unwrap();
            let expected = restated(&columns, &[weights.0, weights.1], &groups, &options);
            for (ours, expected) in ours.values.iter().zip(&expected) {
                // The f32 rounding of the result, and f64 rounding divided by a standard deviation of at least 1e-6.
                let tolerance = 2.0_f64.powi(-24) * expected.abs() + 1e-8;
                prop_assert!((f64::from(*ours) - expected).abs() <= tolerance, "{ours} and {expected}");
            }
        }
    }

    #[test]
    fn a_sample_keeps_its_advantage_when_the_batch_is_reordered(batch in batch()) {
        let split = |batch: &[(u64, f32, f32)]| -> (Vec<u64>, Vec<f32>) {
            batch.iter().map(|sample| (sample.0, sample.1)).unzip()
        };
        let (groups, values) = split(&batch);
        let reversed: Vec<_> = batch.iter().rev().copied().collect();
        let (groups_reversed, values_reversed) = split(&reversed);
        for options in [SUM_GLOBAL, SUM_GROUP, GDPO, GDPO_GROUP] {
            let forward = one(&values, &groups, &options).values;
            let mut backward = one(&values_reversed, &groups_reversed, &options).values;
            backward.reverse();
            for (forward, backward) in forward.iter().zip(&backward) {
                prop_assert!((forward - backward).abs() <= 1e-6 * (1.0 + forward.abs()));
            }
        }
    }
}

#[test]
fn a_small_case_worked_by_hand() {
    // Group 1: mean 2, std 1. Group 2: mean 6, std 2. Batch: mean 4, variance (9 + 1 + 0 + 16) / 4.
    let (values, groups) = ([1.0, 3.0, 4.0, 8.0], [1, 1, 2, 2]);
    assert_eq!(one(&values, &groups, &SUM_GROUP).values, [-1.0, 1.0, -1.0, 1.0]);
    let batch_std = 6.5_f64.sqrt();
    let expected = [-1.0, 1.0, -2.0, 2.0].map(|centred: f64| (centred / batch_std) as f32);
    assert_eq!(one(&values, &groups, &SUM_GLOBAL).values, expected);
    assert_eq!(one(&values, &groups, &GDPO).values, [-1.0, 1.0, -1.0, 1.0]);
}

#[test]
fn without_a_global_std_gdpo_leaves_the_weighted_sum_as_it_is_and_a_group_depends_on_no_other() {
    let column = |name, weight, values| RewardColumn { name, weight, values };
    // Within the first group -1, 1 of the one reward and 1, -1 of the other; the second has -1, 1 of the first alone.
    let (a, b) = ([1.0_f32, 3.0, 4.0, 8.0], [7.0_f32, 5.0, 2.0, 2.0]);
    let of = |options: &AdvantageOptions, count: usize| {
        let rewards = [column("a", 2.0, &a[..count]), column("b", 0.5, &b[..count])];
        compute_advantages(&rewards, &[1, 1, 2, 2][..count], options)
            .unwrap()
            .values
    };
    assert_eq!(of(&GDPO_GROUP, 4), [-1.5, 1.5, -2.0, 2.0]);
    assert_eq!(of(&GDPO_GROUP, 2), [-1.5, 1.5]);
    let batch_std = (12.5_f64 / 4.0).sqrt();
    let expected = [-1.5, 1.5, -2.0, 2.0].map(|value: f64| (value / batch_std) as f32);
    for (found, expected) in of(&GDPO, 4).iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
    }
}

#[test]
fn group_ids_that_differ_only_beyond_f32_precision_are_kept_apart() {
    // 2^24 and 2^24 + 1, and two ids that differ in their last bit of 64: all one number in f32.
    for base in [1_u64 << 24, u64::MAX - 1] {
        assert_eq!(base as f32, (base + 1) as f32);
        let groups = [base, base + 1, base, base + 1];
        let result = one(&[0.0, 10.0, 1.0, 11.0], &groups, &SUM_GROUP);
        assert_eq!(result.values, [-1.0, -1.0, 1.0, 1.0]);
        assert_eq!(result.metrics.groups, 2);
    }
}

#[test]
fn a_group_of_equal_rewards_has_advantages_of_exactly_zero() {
    // 0.1 and weights are not exact in binary; a naive mean would leave a residue for the floor to blow up.
    let values = [0.1_f32, 0.1, 0.1, 0.7, 0.2, 0.9];
    let groups = [5, 5, 5, 9, 9, 9];
    for options in [SUM_GLOBAL, SUM_GROUP, GDPO, GDPO_GROUP] {
        let rewards = [
            RewardColumn {
                name: "a",
                weight: 0.3,
                values: &values,
            },
            RewardColumn {
                name: "b",
                weight: 0.7,
                values: &values,
            },
        ];
        let result = compute_advantages(&rewards, &groups, &options).unwrap();
        if options != GDPO {
            assert_eq!(result.values[..3], [0.0; 3]);
        } else {
            // The batch mean that gdpo takes out is 0 to rounding.
            assert!(result.values[..3].iter().all(|value| value.abs() < 1e-15));
        }
        assert_eq!(result.metrics.total.zero_std_ratio, 0.5);
        assert_eq!(result.metrics.total.group_std_min, 0.0);
    }
}

#[test]
fn when_every_group_is_silent_every_advantage_is_zero() {
    for options in [SUM_GLOBAL, SUM_GROUP, GDPO, GDPO_GROUP] {
        let result = one(&[0.3, 0.3, 0.8, 0.8], &[0, 0, 1, 1], &options);
        assert_eq!(result.values, [0.0; 4]);
        assert_eq!(result.metrics.total.zero_std_ratio, 1.0);
        assert_eq!(result.metrics.advantage_abs_mean, 0.0);
    }
}

#[test]
fn gdpo_does_not_let_a_reward_of_large_spread_drown_another() {
    let (large, small) = ([1000.0_f32, -1000.0, 1000.0, -1000.0], [0.0_f32, 0.0, 0.01, 0.01]);
    let rewards = [
        RewardColumn {
            name: "large",
            weight: 1.0,
            values: &large,
        },
        RewardColumn {
            name: "small",
            weight: 1.0,
            values: &small,
        },
    ];
    let groups = [0; 4];
    let drowned = compute_advantages(&rewards, &groups, &SUM_GLOBAL).unwrap().values;
    assert!((drowned[0] - drowned[2]).abs() < 1e-4);
    let heard = compute_advantages(&rewards, &groups, &GDPO).unwrap().values;
    assert!((heard[2] - heard[0]) > 1.0);
}

#[test]
fn metrics_describe_each_reward_and_the_weighted_total() {
    let (a, b) = ([1.0_f32, 3.0, 4.0, 8.0], [0.0_f32, 1.0, 1.0, 1.0]);
    let rewards = [
        RewardColumn {
            name: "legible",
            weight: 2.0,
            values: &a,
        },
        RewardColumn {
            name: "small",
            weight: -1.0,
            values: &b,
        },
    ];
    let metrics = compute_advantages(&rewards, &[7, 7, 8, 8], &SUM_GROUP)
        .unwrap()
        .metrics;
    let legible = &metrics.rewards[0];
    assert_eq!(
        (legible.name.as_str(), legible.mean, legible.std),
        ("legible", 4.0, 6.5_f64.sqrt())
    );
    assert_eq!(
        (
            legible.group_std_mean,
            legible.group_std_max,
            legible.group_std_min
        ),
        (1.5, 2.0, 1.0)
    );
    assert_eq!((legible.group_mean_std, legible.zero_std_ratio), (2.0, 0.0));
    assert_eq!(
        (metrics.rewards[1].mean, metrics.rewards[1].zero_std_ratio),
        (0.75, 0.5)
    );
    // Totals 2, 5, 7, 15.
    assert_eq!((metrics.total.name.as_str(), metrics.total.mean), ("total", 7.25));
    assert_eq!(
        (metrics.total.group_std_min, metrics.total.group_std_max),
        (1.5, 4.0)
    );
    assert_eq!(
        (
            metrics.advantage_abs_mean,
            metrics.advantage_min,
            metrics.advantage_max
        ),
        (1.0, -1.0, 1.0)
    );
}

#[test]
fn rewards_that_are_not_finite_stop_with_the_reward_the_sample_and_the_group() {
    let values = [0.0, 1.0, f32::NAN, 1.0];
    let rewards = [RewardColumn {
        name: "aesthetic",
        weight: 1.0,
        values: &values,
    }];
    let error = compute_advantages(&rewards, &[3, 3, 4, 4], &GDPO).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("`aesthetic` of sample 2 (group 4) is NaN"),
        "{message}"
    );
}

#[test]
fn inputs_without_advantages_are_refused() {
    let values = [1.0_f32, 2.0, 3.0];
    let column = RewardColumn {
        name: "r",
        weight: 1.0,
        values: &values,
    };
    let error = |rewards: &[RewardColumn<'_>], groups: &[u64], options: &AdvantageOptions| {
        compute_advantages(rewards, groups, options).unwrap_err()
    };
    assert_eq!(error(&[], &[1, 1], &GDPO), AdvantageError::NoRewards);
    assert_eq!(
        error(
            &[RewardColumn {
                values: &[],
                ..column
            }],
            &[],
            &GDPO
        ),
        AdvantageError::NoSamples
    );
    assert!(matches!(
        error(&[column], &[1, 1], &GDPO),
        AdvantageError::Length {
            given: 3,
            samples: 2,
            ..
        }
    ));
    assert_eq!(
        error(&[column], &[1, 1, 2], &GDPO),
        AdvantageError::LoneSample { group: 2 }
    );
    let weightless = RewardColumn {
        weight: f64::INFINITY,
        ..column
    };
    assert!(matches!(
        error(&[weightless], &[1, 1, 1], &GDPO),
        AdvantageError::Weight { .. }
    ));
    let floorless = AdvantageOptions {
        std_floor: 0.0,
        ..GDPO
    };
    assert_eq!(
        error(&[column], &[1, 1, 1], &floorless),
        AdvantageError::Floor { floor: 0.0 }
    );
    let huge = RewardColumn {
        weight: 1e300,
        ..column
    };
    assert!(
        error(&[huge], &[1, 1, 1], &GDPO)
            .to_string()
            .contains("at most 1e30 in size")
    );
}

#[test]
fn rewards_at_the_limits_of_f32_still_have_finite_advantages() {
    let values = [f32::MAX, f32::MIN, f32::MAX, f32::MIN_POSITIVE];
    for options in [SUM_GLOBAL, SUM_GROUP, GDPO] {
        let options = AdvantageOptions {
            std_floor: 1e-30,
            ..options
        };
        let rewards = [RewardColumn {
            name: "r",
            weight: 1e30,
            values: &values,
        }];
        let result = compute_advantages(&rewards, &[1, 1, 1, 1], &options).unwrap();
        // No sample of four is further than sqrt(3) standard deviations from their mean.
        assert!(
            result.values.iter().all(|value| value.abs() < 1.74),
            "{:?}",
            result.values
        );
        assert!(
            result.values.iter().any(|value| value.abs() > 0.5),
            "{:?}",
            result.values
        );
    }
}
