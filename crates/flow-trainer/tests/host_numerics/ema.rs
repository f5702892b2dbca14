//! Decay schedules and the update of an average.

use flow_trainer::ema::{EmaPlan, EmaSchedule};
use proptest::prelude::*;

fn schedules() -> Vec<EmaSchedule> {
    vec![
        EmaSchedule::Constant { decay: 0.995 },
        EmaSchedule::Power {
            decay: 0.995,
            warmup_steps: 10.0,
        },
        EmaSchedule::Linear {
            decay: 0.99,
            initial_decay: 0.2,
            warmup_steps: 40,
        },
        EmaSchedule::PiecewiseLinear {
            decay: 0.5,
            flat_steps: 7,
            ramp_rate: 0.03,
        },
        EmaSchedule::Cosine {
            decay: 0.999,
            initial_decay: 0.9,
            total_steps: 50,
        },
        EmaSchedule::WarmupCosine {
            decay: 0.999,
            initial_decay: 0.9,
            warmup_steps: 10,
            total_steps: 60,
        },
    ]
}

#[test]
fn every_schedule_follows_its_formula() {
    let pi = std::f64::consts::PI;
    for step in 0..120_u64 {
        let t = step as f64;
        let expected = [
            0.995,
            f64::min(0.995, (1.0 + t) / (10.0 + t)),
            0.2 + 0.79 * f64::min(t / 40.0, 1.0),
            if t < 7.0 {
                0.0
            } else {
                f64::min((t - 7.0) * 0.03, 0.5)
            },
            0.9 + 0.099 * (1.0 - (pi * f64::min(t / 50.0, 1.0)).cos()) / 2.0,
            if t < 10.0 {
                0.9 * t / 10.0
            } else {
                0.9 + 0.099 * (1.0 - (pi * f64::min((t - 10.0) / 50.0, 1.0)).cos()) / 2.0
            },
        ];
        for (schedule, expected) in schedules().iter().zip(expected) {
            let decay = schedule.decay_at(step);
            assert!(
                (decay - expected).abs() < 1e-14,
                "{schedule:?} at {step}: {decay}, expected {expected}"
            );
        }
    }
}

#[test]
fn the_final_decay_is_met_exactly_and_kept() {
    let last = [0.995, 0.995, 0.99, 0.5, 0.999, 0.999];
    for (schedule, last) in schedules().iter().zip(last) {
        for step in [2000, 1_000_000, u64::MAX] {
            assert_eq!(schedule.decay_at(step), last, "{schedule:?} at {step}");
        }
    }
}

#[test]
fn the_presets_are_those_of_diffusion_nft() {
    assert_eq!(EmaSchedule::NFT_ON_POLICY.decay_at(1000), 0.0);
    assert_eq!(EmaSchedule::NFT_RAMP_TO_HALF.decay_at(100), 0.1);
    assert_eq!(EmaSchedule::NFT_RAMP_TO_HALF.decay_at(1000), 0.5);
    assert_eq!(EmaSchedule::NFT_FLAT_THEN_SLOW.decay_at(75), 0.0);
    assert_eq!(EmaSchedule::NFT_FLAT_THEN_SLOW.decay_at(77), 0.015);
    assert_eq!(EmaSchedule::NFT_FLAT_THEN_SLOW.decay_at(1000), 0.999);
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let message = |schedule: EmaSchedule| schedule.validate().unwrap_err().to_string();
    assert!(message(EmaSchedule::Constant { decay: 1.5 }).contains("decay is 1.5"));
    assert!(
        message(EmaSchedule::Power {
            decay: f64::NAN,
            warmup_steps: 0.0
        })
        .contains("decay is NaN")
    );
    let linear = EmaSchedule::Linear {
        decay: 0.9,
        initial_decay: -0.1,
        warmup_steps: 5,
    };
    assert!(message(linear).contains("initial_decay is -0.1"));
    let early = EmaSchedule::Power {
        decay: 0.9,
        warmup_steps: 0.5,
    };
    assert!(message(early).contains("0 (no warm-up) or at least 1"));
    let ramp = EmaSchedule::PiecewiseLinear {
        decay: 0.9,
        flat_steps: 0,
        ramp_rate: -1.0,
    };
    assert!(message(ramp).contains("ramp_rate is -1"));
    assert!(
        message(EmaSchedule::Cosine {
            decay: 0.9,
            initial_decay: 0.1,
            total_steps: 0
        })
        .contains("total_steps")
    );
    let short = EmaSchedule::WarmupCosine {
        decay: 0.9,
        initial_decay: 0.1,
        warmup_steps: 9,
        total_steps: 9,
    };
    assert!(message(short).contains("above warmup_steps, which is 9"));
    assert!(
        EmaPlan::new(EmaSchedule::Constant { decay: 0.9 }, 0)
            .unwrap_err()
            .to_string()
            .contains("at least 1")
    );
}

#[test]
fn a_plan_updates_after_every_interval() {
    let schedule = EmaSchedule::Power {
        decay: 0.9,
        warmup_steps: 10.0,
    };
    let plan = EmaPlan::new(schedule, 4).unwrap();
    let steps: Vec<u64> = (0..13).filter(|&step| plan.decay_after(step).is_some()).collect();
    assert_eq!(steps, [3, 7, 11]);
    assert_eq!(plan.decay_after(7), Some(schedule.decay_at(7)));
}

proptest! {
    #[test]
    fn a_valid_schedule_never_leaves_zero_to_one(
        decay in 0.0..=1.0_f64, initial in 0.0..=1.0_f64, a in 1_u64..50, b in 1_u64..50, step in any::<u64>(),
        rate in 0.0..10.0_f64,
    ) {
        for schedule in [
            EmaSchedule::Constant { decay },
            EmaSchedule::Power { decay, warmup_steps: a as f64 },
            EmaSchedule::Linear { decay, initial_decay: initial, warmup_steps: a },
            EmaSchedule::PiecewiseLinear { decay, flat_steps: a, ramp_rate: rate },
            EmaSchedule::Cosine { decay, initial_decay: initial, total_steps: a },
            EmaSchedule::WarmupCosine { decay, initial_decay: initial, warmup_steps: a, total_steps: a + b },
        ] {
            schedule.validate().unwrap();
            for step in [step, step % 100] {
                prop_assert!((0.0..=1.0).contains(&schedule.decay_at(step)), "{schedule:?} at {step}");
            }
        }
    }
}
