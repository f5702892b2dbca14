//! Rewards that fail in the middle of a run: it stops with a checkpoint, and goes on to the bytes of an unharmed run.

use crate::support::{Left, RunTo, Visit, config, environment, registries, with_trainer};
use flow_exchange::{Alone, Exchange, Lanes, Lost, Values, World};
use flow_rewards::{NamedReward, Reward, RewardError, RewardRegistry, RewardSample, RewardWorkers};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::{IterationSummary, Observer, Silent};
use flow_trainer::{TrainError, Trainer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const REWARD: &str = "jpeg-compressibility";

/// A reward whose server is gone once `is_gone` says so.
struct Server {
    reward: Arc<dyn Reward>,
    is_gone: Arc<AtomicBool>,
}

impl Reward for Server {
    fn name(&self) -> &str {
        REWARD
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        if self.is_gone.load(Ordering::SeqCst) {
            return Err(gone());
        }
        self.reward.score(samples)
    }
}

/// What a server that is gone answers.
fn gone() -> RewardError {
    RewardError::Sample {
        index: 0,
        problem: "the server is gone".to_owned(),
    }
}

/// The reward that servers compute.
fn reward() -> Arc<dyn Reward> {
    let registry = RewardRegistry::with_built_in().expect("names that differ");
    let reward = registry.build(REWARD, &serde_json::Map::new(), Path::new("."));
    reward.expect("a reward without parameters that must be given")
}

/// A thread that asks a server.
fn asking(server: impl Reward + 'static) -> RewardWorkers {
    let named = NamedReward::from(Arc::new(server) as Arc<dyn Reward>);
    RewardWorkers::new(vec![named], 1).expect("a thread")
}

/// A thread that asks the server that may end.
fn workers(is_gone: Arc<AtomicBool>) -> RewardWorkers {
    let reward = reward();
    asking(Server { reward, is_gone })
}

/// Ends the server after an iteration, and hears what the run says.
struct Ends {
    after: u64,
    is_gone: Arc<AtomicBool>,
    heard: Vec<String>,
}

impl Observer for Ends {
    fn iteration(&mut self, summary: &IterationSummary) {
        if summary.done == self.after {
            self.is_gone.store(true, Ordering::SeqCst);
        }
    }

    fn notice(&mut self, text: &str) {
        self.heard.push(text.to_owned());
    }
}

/// Whose server ends, and after which iteration.
#[derive(Clone, Copy, Debug)]
struct End {
    of_evaluation: bool,
    after: u64,
}

/// A run of four iterations, perhaps with a server that ends; gives what is left and what was heard.
struct Run<'a> {
    root: &'a Path,
    resume: bool,
    end: Option<End>,
}

impl Visit for Run<'_> {
    type Output = (Result<Left, TrainError>, Vec<String>);

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        let run = RunTo {
            root: self.root,
            resume: self.resume,
            until: 4,
        };
        let Some(end) = self.end else {
            return (run.observed(trainer, &mut Silent), Vec::new());
        };
        let is_gone = Arc::new(AtomicBool::new(false));
        let workers = workers(is_gone.clone());
        match end.of_evaluation {
            true => trainer.evaluation_rewards.workers = workers,
            false => trainer.rewards.workers = workers,
        }
        let mut ends = Ends {
            after: end.after,
            is_gone,
            heard: Vec::new(),
        };
        (run.observed(trainer, &mut ends), ends.heard)
    }
}

fn run(root: &Path, resume: bool, end: Option<End>) -> (Result<Left, TrainError>, Vec<String>) {
    visited(&[], Run { root, resume, end })
}

/// What a visitor gives of a run whose only reward is the server's. No checkpoint is due but those of the first evaluation and of the end.
fn visited<V: Visit>(more: &[&str], visitor: V) -> V::Output {
    let registries = registries();
    let overrides = [
        "rewards=[{ kind = \"jpeg-compressibility\" }]",
        "checkpoints.every=0",
        "evaluation.every=2",
    ];
    let config = config(&[&overrides[..], more].concat());
    with_trainer(&config, &environment(&registries), visitor)
}

#[test]
fn a_run_whose_rewards_fail_keeps_its_state_and_goes_on_to_the_same_bytes() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let whole_root = place.path().join("whole");
    let whole = run(&whole_root, false, None).0.expect("nothing fails");
    let timing = std::fs::read_to_string(whole_root.join("run/timing.jsonl")).expect("written");
    assert_eq!(timing.matches("\"hidden_s\"").count(), 4, "{timing}");
    for (of_evaluation, after) in [
        // In the rewards of the fourth iteration, in an evaluation, and in the last one.
        (false, 3),
        (true, 2),
        (true, 4),
    ] {
        let (end, kept) = (End { of_evaluation, after }, after);
        let root = place
            .path()
            .join(format!("ends-{}-{}", end.of_evaluation, end.after));
        let (outcome, heard) = run(&root, false, Some(end));
        let error = outcome.expect_err("the server is gone");
        assert!(matches!(error, TrainError::Unscored { .. }), "{end:?}: {error}");
        assert!(
            error.to_string().contains("the server is gone"),
            "{end:?}: {error}"
        );
        let told = format!("the state after iteration {kept} is saved");
        assert!(heard.iter().any(|notice| notice.contains(&told)), "{heard:?}");
        let checkpoint = root.join(format!("run/checkpoints/step-{kept:06}.ckpt"));
        assert!(checkpoint.is_file(), "{end:?}");
        let resumed = run(&root, true, None).0.expect("the server is back");
        assert_eq!(resumed, whole, "{end:?}");
    }
}

#[test]
fn a_run_whose_rollouts_are_an_update_behind_keeps_the_weights_that_sampled_the_next_one() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let behind = ["sampling.staleness=1"];
    let run = |name: &str, resume: bool, end: Option<End>| {
        let root = &place.path().join(name);
        visited(&behind, Run { root, resume, end })
    };
    let whole = run("whole", false, None).0.expect("nothing fails");
    // The rollout after it is scored beside the update: before the server ends, or not.
    let end = End {
        of_evaluation: false,
        after: 2,
    };
    let (outcome, heard) = run("ends", false, Some(end));
    let error = outcome.expect_err("the server is gone");
    assert!(matches!(error, TrainError::Unscored { .. }), "{error}");
    assert!(
        heard.iter().any(|notice| notice.contains("is saved")),
        "{heard:?}"
    );
    let resumed = run("ends", true, None).0.expect("the server is back");
    assert_eq!(resumed, whole);
}

/// A server that counts how often it is asked, and may fail once.
struct Counting {
    reward: Arc<dyn Reward>,
    asked: Arc<AtomicUsize>,
    fails_at: Option<usize>,
}

impl Reward for Counting {
    fn name(&self) -> &str {
        REWARD
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        if self.fails_at == Some(self.asked.fetch_add(1, Ordering::SeqCst)) {
            return Err(gone());
        }
        self.reward.score(samples)
    }
}

/// A run of four iterations whose server counts.
struct Counted<'a> {
    root: &'a Path,
    resume: bool,
    asked: Arc<AtomicUsize>,
    fails_at: Option<usize>,
}

impl Visit for Counted<'_> {
    type Output = Result<Left, TrainError>;

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        trainer.rewards.workers = asking(Counting {
            reward: reward(),
            asked: self.asked,
            fails_at: self.fails_at,
        });
        let run = RunTo {
            root: self.root,
            resume: self.resume,
            until: 4,
        };
        run.visit(trainer)
    }
}

#[test]
fn rewards_that_fail_for_samples_without_the_accelerators_leave_a_checkpoint_too() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let asked = Arc::new(AtomicUsize::new(0));
    let run = |name: &str, resume: bool, fails_at: Option<usize>| {
        let root = &place.path().join(name);
        let asked = asked.clone();
        let counted = Counted {
            root,
            resume,
            asked,
            fails_at,
        };
        visited(&["audit.drift_groups=1"], counted)
    };
    let whole = run("whole", false, None).expect("nothing fails");
    // They are the last that an iteration scores.
    let last = asked.swap(0, Ordering::SeqCst) - 1;
    let error = run("ends", false, Some(last)).expect_err("the server is gone");
    assert!(matches!(error, TrainError::Unscored { .. }), "{error}");
    assert!(
        place
            .path()
            .join("ends/run/checkpoints/step-000003.ckpt")
            .is_file()
    );
    let resumed = run("ends", true, None).expect("the server is back");
    assert_eq!(resumed, whole);
}

#[test]
fn rewards_that_fail_before_the_first_iteration_leave_no_checkpoint_of_it() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let registries = registries();
    let gone = GoneFromTheStart(RunTo {
        root: place.path(),
        resume: false,
        until: 1,
    });
    let config = config(&["rewards=[{ kind = \"jpeg-compressibility\" }]"]);
    let error = with_trainer(&config, &environment(&registries), gone);
    assert!(matches!(error, TrainError::Unscored { .. }), "{error}");
    assert!(!place.path().join("run/checkpoints/step-000000.ckpt").exists());
}

/// A run whose evaluation has a server that is gone.
struct GoneFromTheStart<'a>(RunTo<'a>);

impl Visit for GoneFromTheStart<'_> {
    type Output = TrainError;

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> TrainError {
        trainer.evaluation_rewards.workers = workers(Arc::new(AtomicBool::new(true)));
        self.0.visit(trainer).expect_err("nothing can be scored")
    }
}

/// A run of one process whose exchange is lost once there is a file.
#[derive(Debug)]
struct LostAfter(PathBuf);

impl LostAfter {
    fn look(&self) -> Result<(), Lost> {
        match self.0.is_file() {
            false => Ok(()),
            true => Err(Lost::Stopped {
                rank: 1,
                words: "rewards failed here as well".into(),
            }),
        }
    }
}

impl Exchange for LostAfter {
    fn world(&self) -> World {
        Alone.world()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.look()?;
        Alone.gather(mine)
    }

    fn sum(&self, lanes: &Lanes, parts: &mut [&mut dyn Values]) -> Result<(), Lost> {
        Alone.sum(lanes, parts)
    }

    fn reduce_scatter(
        &self,
        lanes: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost> {
        Alone.reduce_scatter(lanes, parts, counts, own)
    }

    fn settle(&self) -> Result<(), Lost> {
        self.look()
    }

    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost> {
        Alone.broadcast(values, from)
    }

    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        Alone.share(values, counts)
    }

    fn transfer(&self, values: &mut dyn Values, from: usize, to: usize) -> Result<(), Lost> {
        Alone.transfer(values, from, to)
    }

    fn check(&self) -> Result<(), Lost> {
        self.look()
    }

    fn abort(&self, _: &str) {}
}

/// A run whose server ends after its third iteration, and whose other processes end as soon as the state is saved.
struct Deserted<'a>(&'a Path);

impl Visit for Deserted<'_> {
    type Output = (Result<Left, TrainError>, Vec<String>);

    fn visit<A: Algorithm + 'static>(self, mut trainer: Trainer<A>) -> Self::Output {
        let checkpoint = self.0.join("run/checkpoints/step-000003.ckpt");
        trainer.distribution.exchange = Arc::new(LostAfter(checkpoint));
        let end = Some(End {
            of_evaluation: false,
            after: 3,
        });
        let run = Run {
            root: self.0,
            resume: false,
            end,
        };
        run.visit(trainer)
    }
}

#[test]
fn a_process_that_ends_when_the_state_is_saved_does_not_make_it_unsaved() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let root = place.path();
    let (outcome, heard) = visited(&[], Deserted(root));
    let error = outcome.expect_err("the server is gone");
    assert!(matches!(error, TrainError::Unscored { .. }), "{error}");
    let told = "the state after iteration 3 is saved";
    assert!(heard.iter().any(|notice| notice.contains(told)), "{heard:?}");
    assert!(
        !heard.iter().any(|notice| notice.contains("could not")),
        "{heard:?}"
    );
}
