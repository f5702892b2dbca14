//! The sigmas at which forward-process losses are evaluated.

use flow_core::rng::{Draws, Purpose, Stream};
use flow_trainer::scheduler::{SigmaGrid, SigmaShift};
use flow_trainer::timesteps::{TimestepRange, TimestepSampler, TimestepStrategy};
use proptest::prelude::*;

fn draws(seed: u64, iteration: u64) -> Draws {
    Stream::new(seed, Purpose::Timesteps).at(iteration, 0)
}

fn grid(steps: usize) -> SigmaGrid {
    SigmaGrid::new(steps, SigmaShift::Static(3.0)).unwrap()
}

fn sampler(strategy: TimestepStrategy, count: usize, low: f64, high: f64, steps: usize) -> TimestepSampler {
    TimestepSampler::new(
        strategy,
        count,
        TimestepRange::new(low, high).unwrap(),
        &grid(steps),
    )
    .unwrap()
}

const DISCRETE: [TimestepStrategy; 3] = [
    TimestepStrategy::Discrete,
    TimestepStrategy::DiscreteWithInit,
    TimestepStrategy::DiscreteWithoutInit,
];

/// The fraction whose shifted value is `fraction`.
fn unshifted(fraction: f64, shift: f64) -> f64 {
    fraction / (shift - (shift - 1.0) * fraction)
}

proptest! {
    #[test]
    fn uniform_times_fall_one_into_each_stratum_of_the_range(
        count in 1_usize..20, low in 0.0..0.4_f64, width in 0.1..0.6_f64, shift in 0.3..5.0_f64, seed in any::<u64>(),
    ) {
        let sampler = sampler(TimestepStrategy::Uniform { shift }, count, low, low + width, 10);
        let sigmas = sampler.sample(&mut draws(seed, 0));
        let mut strata: Vec<usize> = sigmas
            .iter()
            .map(|sigma| ((unshifted(1.0 - sigma, shift) - low) / width * count as f64 + 1e-9) as usize)
            .collect();
        strata.sort_unstable();
        // The smallest allowance for rounding at the upper border of the last stratum.
        let strata: Vec<usize> = strata.into_iter().map(|stratum| stratum.min(count - 1)).collect();
        prop_assert_eq!(strata, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn logit_normal_times_stay_inside_the_range(
        count in 1_usize..20, low in 0.0..0.4_f64, width in 0.1..0.6_f64, mean in -2.0..2.0_f64, std in 0.1..3.0_f64,
        shift in 0.3..5.0_f64, seed in any::<u64>(),
    ) {
        let strategy = TimestepStrategy::LogitNormal { mean, std, shift };
        let sigmas = sampler(strategy, count, low, low + width, 10).sample(&mut draws(seed, 0));
        prop_assert_eq!(sigmas.len(), count);
        // The fraction of the range is clamped to 0.01 and 1 - 1e-6.
        let (most, least) = (1.0 - low - 0.01 * width, 1.0 - low - width);
        prop_assert!(sigmas.iter().all(|&sigma| sigma <= most + 1e-12 && sigma > least));
    }

    #[test]
    fn discrete_times_are_different_steps_of_the_grid_from_noise_to_data(
        steps in 2_usize..20, wanted in 1_usize..20, high in 0.3..1.0_f64, seed in any::<u64>(),
    ) {
        let grid = grid(steps);
        let range = TimestepRange::new(0.0, high).unwrap();
        let inside: Vec<f64> =
            grid.sigmas()[..steps].iter().copied().filter(|sigma| *sigma >= 1.0 - high - 1e-6).collect();
        for strategy in DISCRETE {
            let available = inside.len() - usize::from(strategy == TimestepStrategy::DiscreteWithoutInit);
            match TimestepSampler::new(strategy, wanted, range, &grid) {
                Err(message) => prop_assert!(wanted > available, "{message}"),
                Ok(sampler) => {
                    let sigmas = sampler.sample(&mut draws(seed, 3));
                    prop_assert_eq!(sigmas.len(), wanted);
                    prop_assert!(sigmas.windows(2).all(|pair| pair[0] > pair[1]), "{:?}", sigmas);
                    prop_assert!(sigmas.iter().all(|sigma| inside.contains(sigma)));
                    let has_first = sigmas.contains(&inside[0]);
                    prop_assert!(has_first || strategy != TimestepStrategy::DiscreteWithInit);
                    prop_assert!(!has_first || strategy != TimestepStrategy::DiscreteWithoutInit);
                }
            }
        }
    }

    #[test]
    fn a_draw_is_a_pure_function_of_its_address(seed in any::<u64>(), iteration in any::<u64>()) {
        for strategy in [
            TimestepStrategy::Uniform { shift: 3.0 },
            TimestepStrategy::LogitNormal { mean: 0.0, std: 1.0, shift: 3.0 },
            TimestepStrategy::Discrete,
        ] {
            let sampler = sampler(strategy, 4, 0.0, 0.9, 10);
            prop_assert_eq!(sampler.sample(&mut draws(seed, iteration)), sampler.sample(&mut draws(seed, iteration)));
        }
    }
}

#[test]
fn discrete_times_take_every_step_of_the_range_equally_often() {
    let sampler = sampler(TimestepStrategy::Discrete, 3, 0.0, 1.0, 10);
    let grid = grid(10);
    let mut times = [0_u32; 10];
    for iteration in 0..5000 {
        for sigma in sampler.sample(&mut draws(1, iteration)) {
            times[grid.sigmas().iter().position(|&known| known == sigma).unwrap()] += 1;
        }
    }
    // 1500 each, with a standard deviation of at most 33.
    assert!(
        times.iter().all(|&times| (1360..=1640).contains(&times)),
        "{times:?}"
    );
}

#[test]
fn all_steps_of_the_grid_are_trained_when_as_many_are_asked_for() {
    for strategy in [TimestepStrategy::Discrete, TimestepStrategy::DiscreteWithInit] {
        let sampler = sampler(strategy, 10, 0.0, 1.0, 10);
        assert_eq!(sampler.sample(&mut draws(0, 0)), grid(10).sigmas()[..10]);
    }
}

#[test]
fn logit_normal_times_have_the_logits_mean_and_spread() {
    let sampler = sampler(
        TimestepStrategy::LogitNormal {
            mean: 0.4,
            std: 0.8,
            shift: 1.0,
        },
        50,
        0.0,
        1.0,
        10,
    );
    let logits: Vec<f64> = (0..200)
        .flat_map(|iteration| sampler.sample(&mut draws(9, iteration)))
        .map(|sigma| ((1.0 - sigma) / sigma).ln())
        .collect();
    let mean = logits.iter().sum::<f64>() / logits.len() as f64;
    let std = (logits.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / logits.len() as f64).sqrt();
    // 10,000 stratified draws; independent ones would have standard errors of 0.008 and 0.006.
    assert!(
        (mean - 0.4).abs() < 0.01 && (std - 0.8).abs() < 0.01,
        "mean {mean}, std {std}"
    );
}

#[test]
fn the_order_of_continuous_times_is_random() {
    let sampler = sampler(TimestepStrategy::Uniform { shift: 1.0 }, 8, 0.0, 1.0, 10);
    let falling = |iteration| {
        sampler
            .sample(&mut draws(2, iteration))
            .windows(2)
            .all(|pair| pair[0] > pair[1])
    };
    assert!((0..20).filter(|&iteration| falling(iteration)).count() < 2);
}

#[test]
fn the_range_is_a_fraction_of_the_way_from_noise_to_data() {
    assert_eq!(TimestepRange::new(0.0, 0.75).unwrap().sigmas(), (1.0, 0.25));
    for (low, high) in [
        (0.5, 0.5),
        (0.9, 0.1),
        (-0.1, 0.5),
        (0.0, 1.1),
        (f64::NAN, 1.0),
        (0.0, f64::NAN),
    ] {
        assert!(
            TimestepRange::new(low, high)
                .unwrap_err()
                .to_string()
                .contains("0 <= low < high <= 1")
        );
    }
}

#[test]
fn impossible_samplers_are_refused_with_a_way_out() {
    let range = TimestepRange::new(0.0, 0.3).unwrap();
    let message = |strategy, count| {
        TimestepSampler::new(strategy, count, range, &grid(10))
            .unwrap_err()
            .to_string()
    };
    assert!(message(TimestepStrategy::Discrete, 0).contains("use at least 1"));
    // Sigmas 1, 27/28, 12/13, 7/8, 9/11 and 3/4 are at or above 0.7.
    assert!(message(TimestepStrategy::Discrete, 7).contains("6 of the 10 sampling steps"));
    let without = message(TimestepStrategy::DiscreteWithoutInit, 6);
    assert!(
        without.contains("5 of the 10") && without.contains("after leaving out the first"),
        "{without}"
    );
    assert!(message(TimestepStrategy::Uniform { shift: 0.0 }, 1).contains("shift 0"));
    let narrow = TimestepStrategy::LogitNormal {
        mean: 0.0,
        std: 0.0,
        shift: 1.0,
    };
    assert!(message(narrow, 1).contains("positive standard deviation"));
}
