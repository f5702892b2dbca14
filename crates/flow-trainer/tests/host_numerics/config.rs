//! From the sections of a config to the options of this crate.

use flow_config as config;
use flow_trainer::advantage::AdvantageOptions;
use flow_trainer::algorithm::{NftSettings, TrainTimestepsConfig};
use flow_trainer::ema::EmaSchedule;
use flow_trainer::geometry::BatchGeometry;
use flow_trainer::scheduler::{Dynamics, Schedule, ScheduleOptions, SigmaGrid, SigmaShift};
use flow_trainer::timesteps::TimestepSampler;

#[test]
fn the_default_sections_make_the_default_options() {
    let schedule = Schedule::new(&ScheduleOptions::from_config(
        &config::SchedulerConfig::default(),
        64,
    ))
    .unwrap();
    assert_eq!(schedule.grid(), &SigmaGrid::new(10, SigmaShift::NONE).unwrap());
    assert_eq!(schedule.trained_steps(3), (0..9).collect::<Vec<_>>());
    assert_eq!(
        schedule.steps_for(0)[4],
        Dynamics::FlowSde.coefficients(schedule.grid(), 4, 0.7).unwrap()
    );
    assert_eq!(
        AdvantageOptions::from(&config::AdvantageConfig::default()),
        AdvantageOptions::default()
    );
    let nft = NftSettings::default();
    assert_eq!(EmaSchedule::from(&nft.old_policy), EmaSchedule::NFT_RAMP_TO_HALF);
    let geometry = BatchGeometry::from_config(
        &config::SamplingConfig::default(),
        &config::OptimizerConfig::default(),
    )
    .unwrap();
    assert_eq!(
        (geometry.samples(), geometry.micro_batches(), geometry.updates()),
        (128, 4, 1)
    );
    // Sigmas 1 to 0.1 of ten steps: the range of 0.9 holds them all.
    assert_eq!(
        TimestepSampler::from_config(&nft.train_timesteps, schedule.grid())
            .unwrap()
            .count(),
        10
    );
}

#[test]
fn every_dynamics_has_the_same_name_in_the_config() {
    for dynamics in Dynamics::ALL {
        let named: config::Dynamics = serde_json::from_value(dynamics.name().into()).unwrap();
        assert_eq!(Dynamics::from(named), dynamics);
    }
}

#[test]
fn windows_shift_and_noise_of_a_config_reach_the_schedule() {
    let section = |text: &str| -> config::SchedulerConfig { serde_json::from_str(text).unwrap() };
    let random = section(
        r#"{"dynamics": "cps", "steps": 8, "noise_level": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
            "shift": {"kind": "dynamic"}, "window": {"kind": "random", "count": 2, "from": [1, 3, 5], "seed": 9}}"#,
    );
    let options = ScheduleOptions::from_config(&random, 256);
    assert_eq!(options.seed, 9);
    let schedule = Schedule::new(&options).unwrap();
    // 256 tokens: mu is 0.5.
    let expected = SigmaGrid::new(8, SigmaShift::Static(0.5_f64.exp())).unwrap();
    assert!(
        schedule
            .grid()
            .sigmas()
            .iter()
            .zip(expected.sigmas())
            .all(|(ours, theirs)| (ours - theirs).abs() < 1e-15)
    );
    let trained = schedule.trained_steps(0);
    assert_eq!(trained.len(), 2);
    for step in trained {
        assert!([1, 3, 5].contains(&step));
        let level = 0.1 * (step + 1) as f64;
        let coefficients = Dynamics::Cps.coefficients(schedule.grid(), step, level).unwrap();
        assert!((schedule.steps_for(0)[step].noise - coefficients.noise).abs() < 1e-15);
    }

    let sliding =
        section(r#"{"steps": 6, "window": {"kind": "sliding", "size": 2, "stride": 1, "hold": 3}}"#);
    let schedule = Schedule::new(&ScheduleOptions::from_config(&sliding, 64)).unwrap();
    let starts: Vec<usize> = (0..15)
        .map(|iteration| schedule.trained_steps(iteration)[0])
        .collect();
    assert_eq!(starts, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0]);
}

#[test]
fn every_ema_schedule_of_a_config_passes_the_checks_and_keeps_its_meaning() {
    let schedule = |text: &str| -> EmaSchedule {
        let section: config::EmaSchedule = serde_json::from_str(text).unwrap();
        let schedule = EmaSchedule::from(&section);
        schedule.validate().unwrap();
        schedule
    };
    assert_eq!(schedule(r#"{"kind": "constant", "decay": 0.9}"#).decay_at(5), 0.9);
    assert_eq!(
        schedule(r#"{"kind": "power", "decay": 0.9, "warmup": 4.5}"#).decay_at(1),
        2.0 / 5.5
    );
    assert_eq!(
        schedule(r#"{"kind": "linear", "initial": 0.5, "decay": 0.75, "steps": 4}"#).decay_at(2),
        0.625
    );
    let piecewise = schedule(r#"{"kind": "piecewise-linear", "flat": 3, "rate": 0.25, "maximum": 0.6}"#);
    assert_eq!([3, 4, 9].map(|step| piecewise.decay_at(step)), [0.0, 0.25, 0.6]);
    let cosine = schedule(r#"{"kind": "cosine", "initial": 0.5, "decay": 0.75, "steps": 4}"#);
    assert!((cosine.decay_at(2) - 0.625).abs() < 1e-15);
    // The cosine part begins after the warm-up and lasts its own number of steps.
    let both =
        schedule(r#"{"kind": "warmup-cosine", "warmup": 2, "initial": 0.5, "decay": 0.75, "steps": 4}"#);
    assert_eq!([0, 1, 2].map(|step| both.decay_at(step)), [0.0, 0.25, 0.5]);
    assert!((both.decay_at(4) - 0.625).abs() < 1e-15);
    assert!(both.decay_at(5) < 0.75);
    assert_eq!(both.decay_at(6), 0.75);
}

#[test]
fn a_count_of_zero_trains_every_step_in_the_range() {
    let grid = SigmaGrid::new(10, SigmaShift::NONE).unwrap();
    let section = |text: &str| -> TrainTimestepsConfig { serde_json::from_str(text).unwrap() };
    let count =
        |text: &str| TimestepSampler::from_config(&section(text), &grid).map(|sampler| sampler.count());
    assert_eq!(count(r#"{"range": [0.0, 0.5]}"#), Ok(6));
    assert_eq!(
        count(r#"{"range": [0.0, 0.5], "strategy": "discrete-without-init"}"#),
        Ok(5)
    );
    assert_eq!(count(r#"{"range": [0.0, 0.5], "strategy": "uniform"}"#), Ok(6));
    assert_eq!(count(r#"{"range": [0.0, 0.5], "count": 2}"#), Ok(2));
    assert!(
        count(r#"{"range": [0.92, 0.98]}"#)
            .unwrap_err()
            .to_string()
            .contains("0 of the 10 sampling steps")
    );
}
