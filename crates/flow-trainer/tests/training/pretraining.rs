//! Pretraining learns, and is a function of its seed.

use crate::support::{config, environment, registries};
use flow_config::DistributedConfig;
use flow_trainer::conditions::Conditioner;
use flow_trainer::distributed::{Alone, Distribution};
use flow_trainer::observer::{IterationSummary, Observer, Silent};
use flow_trainer::pretrain::{
    Clock, Keeping, PretrainCheckpoint, PretrainSettings, Pretrained, Pretraining, pretrain,
};
use flow_trainer::setup;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn run(seed: u64, steps: u64) -> Pretrained {
    run_with(&[], seed, steps, 0.01)
}

fn run_with(overrides: &[&str], seed: u64, steps: u64, balance_weight: f64) -> Pretrained {
    watched(overrides, seed, steps, balance_weight, None, &mut Silent)
}

fn watched(
    overrides: &[&str],
    seed: u64,
    steps: u64,
    balance_weight: f64,
    keeping: Option<&Keeping>,
    observer: &mut dyn Observer,
) -> Pretrained {
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
    let examples = setup::pixel_examples(&*dataset).expect("digits are images");
    let parts = Pretraining {
        models: std::slice::from_ref(&model.model),
        plan: &environment.plan,
        dataset: &examples,
        conditioner: &conditioner,
        device,
        distribution: &Distribution::of_config(&DistributedConfig::default(), Arc::new(Alone)),
    };
    pretrain(&parts, model.weights, &settings, keeping, observer).unwrap_or_else(|error| panic!("{error}"))
}

/// A clock that goes on when it is told to.
#[derive(Clone, Debug, Default)]
struct Minutes(Arc<AtomicU64>);

impl Clock for Minutes {
    fn elapsed(&self) -> Duration {
        Duration::from_secs(60 * self.0.load(Ordering::Relaxed))
    }
}

/// Lets four minutes go by in each step, and looks at what was saved in those before.
struct Watcher {
    clock: Minutes,
    state: PathBuf,
    seen: Vec<Option<u64>>,
    /// The state as somebody finds it who kills the process in step 5.
    killed: Option<Vec<u8>>,
    notices: Vec<String>,
}

impl Watcher {
    fn of(state: &Path) -> Self {
        Self {
            clock: Minutes::default(),
            state: state.to_owned(),
            seen: Vec::new(),
            killed: None,
            notices: Vec::new(),
        }
    }

    fn keeping(&self, from: Option<PretrainCheckpoint>) -> Keeping {
        Keeping {
            path: self.state.clone(),
            every: Duration::from_secs(600),
            clock: Box::new(self.clock.clone()),
            description: description(),
            from,
        }
    }
}

impl Observer for Watcher {
    fn iteration(&mut self, summary: &IterationSummary) {
        self.clock.0.fetch_add(4, Ordering::Relaxed);
        self.seen.push(saved(&self.state));
        if summary.done == 5 {
            self.killed = std::fs::read(&self.state).ok();
        }
    }

    fn notice(&mut self, text: &str) {
        self.notices.push(text.to_owned());
    }
}

fn description() -> Value {
    json!({ "seed": 4 })
}

/// The step of the state at `path`, if there is one.
fn saved(path: &Path) -> Option<u64> {
    path.exists().then(|| {
        PretrainCheckpoint::open(path, &description())
            .expect("a whole state")
            .steps()
    })
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

#[test]
fn the_state_is_saved_every_ten_minutes_and_after_the_last_step_and_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state.ckpt");
    let mut watcher = Watcher::of(&state);
    let keeping = watcher.keeping(None);
    let whole = watched(&[], 4, 8, 0.01, Some(&keeping), &mut watcher);
    // In 12 minutes of three steps ten are over.
    let [before, first, second] = [None, Some(3), Some(6)];
    assert_eq!(
        watcher.seen,
        [before, before, before, first, first, first, second, second]
    );
    assert_eq!(saved(&state), Some(8));
    assert!(watcher.notices.is_empty(), "{:?}", watcher.notices);
    assert_eq!(
        crate::support::bits(&whole.weights),
        crate::support::bits(&run(4, 8).weights)
    );

    let killed = folder.path().join("killed.ckpt");
    std::fs::write(&killed, watcher.killed.expect("a state")).expect("it is written");
    for (from, steps) in [(&killed, 3), (&state, 8)] {
        let from = PretrainCheckpoint::open(from, &description()).expect("a whole state");
        assert_eq!(from.steps(), steps);
        let mut watcher = Watcher::of(&folder.path().join("again.ckpt"));
        let keeping = watcher.keeping(Some(from));
        let resumed = watched(&[], 4, 8, 0.01, Some(&keeping), &mut watcher);
        assert_eq!(watcher.seen.len() as u64, 8 - steps);
        assert_eq!(resumed.losses, whole.losses);
        assert_eq!(
            crate::support::bits(&resumed.weights),
            crate::support::bits(&whole.weights)
        );
    }
}

#[test]
fn a_last_state_that_cannot_be_saved_costs_nobody_the_weights() {
    let mut watcher = Watcher::of(Path::new("/proc/no-folder/state.ckpt"));
    let keeping = watcher.keeping(None);
    let done = watched(&[], 4, 2, 0.01, Some(&keeping), &mut watcher);
    assert_eq!(
        crate::support::bits(&done.weights),
        crate::support::bits(&run(4, 2).weights)
    );
    let [notice] = &watcher.notices[..] else {
        panic!("{:?}", watcher.notices)
    };
    assert!(
        notice.contains("not saved") && notice.contains("no-folder"),
        "{notice}"
    );
}
