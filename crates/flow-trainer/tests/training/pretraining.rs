//! Pretraining learns, and is a function of its seed.

use crate::support::{config, environment, registries};
use flow_trainer::conditions::Conditioner;
use flow_trainer::observer::Silent;
use flow_trainer::pretrain::{PretrainSettings, Pretrained, Pretraining, pretrain};
use flow_trainer::setup;

fn run(seed: u64, steps: u64) -> Pretrained {
    run_with(&[], seed, steps, 0.01)
}

fn run_with(overrides: &[&str], seed: u64, steps: u64, balance_weight: f64) -> Pretrained {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(overrides);
    let dataset = setup::dataset(&config, &environment).expect("digits");
    let model = setup::model(&config, &environment).expect("a model");
    let device = &environment.device;
    let conditioner = Conditioner::new(&*dataset, model.model.spec(), true, device).expect("it fits");
    let mut optimizer = setup::optimizer_settings(&config);
    optimizer.learning_rate = 3e-3;
    let settings = PretrainSettings {
        steps,
        batch: 24,
        label_noise: 0.2,
        condition_dropout: 0.1,
        balance_weight,
        average_decay: 0.9,
        seed,
        optimizer,
    };
    let parts = Pretraining {
        model: &model.model,
        plan: &environment.plan,
        dataset: dataset.captioned_images().expect("it has images"),
        conditioner: &conditioner,
        device,
    };
    pretrain(&parts, model.weights, &settings, None, &mut Silent).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_loss_falls_below_that_of_the_best_constant() {
    let done = run(1, 150);
    // A model that answers 0 has the mean square of noise and data as its loss; it is what training starts from.
    let (start, end) = (f64::from(done.losses[0]), done.final_loss);
    assert!(start > 1.0, "{start}");
    assert!(end < 0.8 * start, "from {start} to {end}");
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_seed_does_not() {
    let (one, two, other) = (run(4, 6), run(4, 6), run(5, 6));
    assert_eq!(
        crate::support::bits(&one.weights),
        crate::support::bits(&two.weights)
    );
    assert_ne!(
        crate::support::bits(&one.weights),
        crate::support::bits(&other.weights)
    );
}

#[test]
fn the_load_balance_of_experts_is_in_the_loss_times_its_factor() {
    let experts = [
        "model.dit.moe.experts=4",
        "model.dit.moe.inner=12",
        "model.dit.moe.shared=0",
    ];
    let first = |overrides: &[&str], factor| f64::from(run_with(overrides, 1, 1, factor).losses[0]);
    let (none, one, three) = (first(&experts, 0.0), first(&experts, 1.0), first(&experts, 3.0));
    // Fresh routers are nearly indifferent, so the balance is near that of an even load, 1.
    assert!((0.9..1.2).contains(&(one - none)), "{none} and {one}");
    assert!(
        (three - none - 3.0 * (one - none)).abs() < 1e-5,
        "{none}, {one} and {three}"
    );
    assert_eq!(first(&[], 0.0), first(&[], 3.0), "without experts there is none");
}
