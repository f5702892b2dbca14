//! Rollouts that are an update behind: which weights sample them, what their ratios are taken to, and that a run which was stopped goes on
//! to the same bytes.

use crate::losses::{HostStep, OF_GARDO, host};
use crate::support::{Left, RunTo, Visit, config, environment, registries, scramble, with_trainer};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_core::{InferencePass, Weights};
use flow_report::{CheckpointReader, Manifest, OnExists, RunDirectory};
use flow_trainer::Trainer;
use flow_trainer::algorithm::{Algorithm, Grpo, LossContext, LossPoint, PointLoss, ReferenceWeights};
use flow_trainer::observer::{Observer, Phase};
use flow_trainer::scheduler::Schedule;
use flow_trainer::setup;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

const BEHIND: &str = "sampling.staleness=1";

/// A run in a folder, from the first iteration or from the newest checkpoint.
fn run(root: &Path, overrides: &[&str], (resume, until): (bool, u64)) -> Left {
    let registries = registries();
    let run = RunTo { root, resume, until };
    with_trainer(&config(overrides), &environment(&registries), run)
        .unwrap_or_else(|error| panic!("{overrides:?}: {error}"))
}

/// A run in a folder of its own.
fn fresh(overrides: &[&str], until: u64) -> Left {
    let root = tempfile::tempdir().expect("a temporary directory");
    run(root.path(), overrides, (false, until))
}

/// The values of a key in the records that have it.
fn values(metrics: &str, key: &str) -> Vec<f64> {
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a record"));
    records.filter_map(|record| record.get(key)?.as_f64()).collect()
}

/// Whether the checkpoint after an iteration has the weights before its update.
fn has_previous(root: &Path, iteration: u64) -> bool {
    let path = root.join(format!("run/checkpoints/step-{iteration:06}.ckpt"));
    let reader = CheckpointReader::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let mut sections = reader.sections().iter();
    sections.any(|section| section.name.starts_with("previous/"))
}

#[test]
fn a_run_that_is_not_behind_has_the_bytes_of_one_that_does_not_say() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let said = run(root.path(), &["sampling.staleness=0"], (false, 2));
    assert_eq!(said, fresh(&[], 2));
    assert!(!said.metrics.contains("off_policy"), "{}", said.metrics);
    assert!(!has_previous(root.path(), 2));
}

#[test]
fn the_first_update_is_on_policy_and_later_rollouts_are_audited_under_the_weights_that_sampled_them() {
    for algorithm in ["grpo", "grpo-guard", "dppo"] {
        let kind = format!("algorithm.kind=\"{algorithm}\"");
        let overrides = [&*kind, "evaluation.every=0"];
        let behind = [&overrides[..], &[BEHIND]].concat();
        assert_eq!(
            fresh(&behind, 1).weights,
            fresh(&overrides, 1).weights,
            "{algorithm}"
        );
        let metrics = fresh(&behind, 3).metrics;
        for key in ["on_policy/max_ratio_deviation", "on_policy/other_bits"] {
            assert_eq!(values(&metrics, key), [0.0; 3], "{algorithm}: {key}");
        }
        let [first, second, third] = values(&metrics, "off_policy/ratio_deviation")[..] else {
            panic!("{algorithm}: {metrics}");
        };
        assert_eq!(first, 0.0, "{algorithm}");
        assert!(second > 0.0 && third > 0.0, "{algorithm}: {second}, {third}");
    }
}

#[test]
fn a_run_that_was_stopped_after_any_iteration_goes_on_to_the_bytes_of_one_that_was_not() {
    let variants: [&[&str]; 3] = [
        &[
            "algorithm.kl={ kind = \"velocity\", beta = 0.1 }",
            "ema.enabled=true",
            "audit.drift_groups=1",
        ],
        &[
            "algorithm.kind=\"grpo-guard\"",
            "model.finetune=\"lora\"",
            "optimizer.gradient_accumulation=2",
        ],
        // What is remembered is of the rewards so far, not of the rollout ahead; and the window, which moves, is that of each rollout.
        &[
            "algorithm={ kind = \"gardo\", judges = [\"jpeg-compressibility\"], kl_beta = 1.0, \
             gate = { share = 0.5, share_range = [0.3, 0.8] }, renewal = { divergence = 1e3, iterations = 2 } }",
            OF_GARDO,
            "scheduler.steps=8",
            "scheduler.window={ kind = \"sliding\", size = 2, hold = 1 }",
            "scheduler.after_window={ kind = \"dpm-solver\", share = 0.75 }",
        ],
    ];
    for overrides in variants {
        let overrides = [overrides, &[BEHIND]].concat();
        let whole = fresh(&overrides, 4);
        for stopped in 0..4 {
            let root = tempfile::tempdir().expect("a temporary directory");
            run(root.path(), &overrides, (false, stopped + 1));
            // As if it had been killed before it saved its end.
            let newest = root
                .path()
                .join(format!("run/checkpoints/step-{:06}.ckpt", stopped + 1));
            std::fs::remove_file(&newest).expect("the run saved its end");
            let resumed = run(root.path(), &overrides, (true, 4));
            assert_eq!(whole, resumed, "{overrides:?}, stopped after {stopped}");
        }
    }
}

#[test]
fn a_run_may_begin_and_cease_to_be_behind_when_it_goes_on() {
    for (before, after) in [("0", "1"), ("1", "0")] {
        let root = tempfile::tempdir().expect("a temporary directory");
        let staleness = |updates: &str| format!("sampling.staleness={updates}");
        run(root.path(), &[&*staleness(before)], (false, 2));
        assert_eq!(has_previous(root.path(), 2), before == "1");
        run(root.path(), &[&*staleness(after)], (true, 4));
        assert_eq!(has_previous(root.path(), 4), after == "1");
    }
}

/// A run that a panic ends as a rollout begins; gives how many iterations it says that it did.
struct Ends<'a> {
    root: &'a Path,
    /// Rollouts before that one.
    left: usize,
}

impl Observer for Ends<'_> {
    fn phase(&mut self, phase: Phase, _total: usize) {
        if phase == Phase::Rollout {
            assert!(self.left > 0, "this rollout is not wanted");
            self.left -= 1;
        }
    }
}

impl Visit for Ends<'_> {
    type Output = u64;

    fn visit<A: Algorithm + 'static>(mut self, trainer: Trainer<A>) -> u64 {
        let directory = RunDirectory::open(self.root, "run", OnExists::Error).expect("a new folder");
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.root);
        let mut trainer = trainer
            .start(directory, &manifest)
            .unwrap_or_else(|error| panic!("{error}"));
        let error = trainer.train(&mut self).expect_err("a rollout panics");
        assert!(error.to_string().contains("not wanted"), "{error}");
        trainer.state.iteration
    }
}

#[test]
fn a_run_that_ends_in_a_rollout_ahead_says_how_many_iterations_it_did() {
    let registries = registries();
    // Those of the first iteration and of the second one are sampled in the first, that of the third in the second.
    for (left, done) in [(0, 0), (1, 0), (2, 1)] {
        let root = tempfile::tempdir().expect("a temporary directory");
        let ends = Ends {
            root: root.path(),
            left,
        };
        let found = with_trainer(&config(&[BEHIND]), &environment(&registries), ends);
        assert_eq!(found, done, "{left}");
    }
}

#[test]
fn an_algorithm_that_reads_no_recorded_log_probabilities_is_refused_by_name() {
    let registries = registries();
    let environment = environment(&registries);
    let mut config = config(&["algorithm.kind=\"nft\""]);
    config.sampling.staleness = 1;
    let algorithm = setup::algorithm(&config, environment.plugins, 16).expect("there is one");
    let error = setup::trainer(&config, &environment, algorithm)
        .err()
        .expect("it is refused");
    let text = error.to_string();
    assert!(
        text.contains("`nft`") && text.contains("remove `sampling.staleness`"),
        "{text}"
    );
}

/// GRPO that notes what it sees of the rollout of the second iteration.
#[derive(Debug)]
struct Noting {
    inner: Grpo,
    /// The weights that the run begins with.
    first: OnceLock<Weights>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// What a loss saw, by row.
#[derive(Debug)]
struct Seen {
    ratios: Vec<f64>,
    /// Of the weights that the loss is taken in to what was recorded, in f64.
    expected: Vec<f64>,
    recorded: Vec<f64>,
    /// Log-probabilities under the weights that the run begins with, in f64.
    of_first: Vec<f64>,
}

impl Noting {
    fn note(&self, context: &LossContext<'_, '_>, position: LossPoint, loss_term: &PointLoss) {
        let LossPoint::Recorded(index) = position else {
            unreachable!("GRPO takes its loss at recorded steps");
        };
        let record = &context.batch.records[index];
        let velocity = |pass: &InferencePass<'_>| {
            let exec = pass.exec(context.policy.call(context.site, &context.batch.samples));
            let x: Tensor<2> = Tensor::from_dispatch(record.x.clone());
            let sigma = context.device.tensor(vec![record.step.sigma as f32; 4], [4]);
            let v = context
                .policy
                .velocity(&exec, x, sigma, &context.batch.conditions);
            host(&v.into_dispatch())
        };
        let first = self.first.get().expect("it was given");
        let of_first = velocity(&InferencePass::new(first, context.current.backends().clone()));
        let step = HostStep::of(record, &velocity(context.current), &of_first);
        let replayed = loss_term.replayed.as_ref().expect("GRPO has ratios");
        self.seen.lock().expect("no loss panics").push(Seen {
            ratios: host(&replayed.ratio),
            expected: step.ratios(),
            recorded: step.old_log_prob,
            of_first: HostStep::of(record, &of_first, &of_first).log_prob,
        });
    }
}

impl Algorithm for Noting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn paradigm(&self) -> Paradigm {
        self.inner.paradigm()
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.inner.reference()
    }

    fn inner_epochs(&self) -> usize {
        self.inner.inner_epochs()
    }

    fn advantage_clip(&self) -> f32 {
        self.inner.advantage_clip()
    }

    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        self.inner.positions(schedule, seed, iteration, pass)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let loss_term = self.inner.loss(context, position);
        if context.site.iteration == 1 {
            self.note(context, position, &loss_term);
        }
        loss_term
    }
}

#[test]
fn the_second_rollout_is_one_of_the_first_weights_and_its_ratio_is_that_to_what_it_recorded() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&[
        BEHIND,
        "sampling.micro_batch=4",
        "optimizer.learning_rate=1e-2",
        "evaluation.every=0",
    ]);
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let algorithm = Noting {
        inner: Grpo::default(),
        first: OnceLock::new(),
        seen: Arc::clone(&seen),
    };
    let mut trainer =
        setup::trainer(&config, &environment, algorithm).unwrap_or_else(|error| panic!("{error}"));
    scramble(&mut trainer.state.weights.current, 11);
    let first = trainer.state.weights.current.clone();
    assert!(trainer.algorithm.first.set(first).is_ok());
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 2,
    };
    run.visit(trainer).unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.lock().expect("no loss panicked");
    // Three steps of the micro-batch that is audited, and of the three that are learnt from.
    let (audited, learnt) = seen.split_at(3);
    assert_eq!(learnt.len(), 9);
    assert!(audited.iter().all(|seen| seen.ratios == [1.0; 4]), "{audited:?}");
    let mut largest = 0.0_f64;
    for Seen {
        ratios,
        expected,
        recorded,
        of_first,
    } in seen.iter()
    {
        for row in 0..4 {
            let off = (recorded[row] - of_first[row]).abs();
            assert!(
                off < 2e-5 * of_first[row].abs().max(1.0),
                "{recorded:?} and {of_first:?}"
            );
            let off = (ratios[row] - expected[row]).abs();
            assert!(off < 2e-5 * expected[row].max(1.0), "{ratios:?} and {expected:?}");
            largest = largest.max((expected[row] - 1.0).abs());
        }
    }
    assert!(largest > 1e-4, "the weights have hardly moved: {largest}");
}
