//! One portion of a batch for one reward: cutting, scoring, and finding the sample at fault.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use super::{NamedReward, Sample};
use crate::error::RewardError;
use crate::reward::{RewardKind, RewardSample, score_videos};

/// Samples per task of a pointwise reward; fixed, so that nothing depends on the number of threads.
const PORTION: usize = 16;

/// What the tasks of a batch share.
pub(super) struct Job {
    pub id: u64,
    pub samples: Vec<Sample>,
    pub rewards: Arc<[NamedReward]>,
    pub cancelled: Arc<AtomicBool>,
}

/// One call of a reward.
pub(super) struct Task {
    job: Arc<Job>,
    outcomes: Sender<Outcome>,
    number: usize,
    reward: usize,
    samples: Vec<usize>,
}

/// What came of a task.
pub(super) struct Outcome {
    pub task: usize,
    pub reward: usize,
    pub samples: Vec<usize>,
    pub scores: Result<Vec<f32>, RewardError>,
    pub busy_ms: f64,
    pub finished: Instant,
}

/// Why a call of a reward gave no scores.
enum Failure {
    Error(RewardError),
    Panic(String),
}

impl Task {
    /// Cuts a batch into tasks: reward by reward, and in the order of the samples or of the groups' first samples.
    pub(super) fn cut(job: &Arc<Job>, outcomes: &Sender<Outcome>) -> Vec<Self> {
        let all: Vec<usize> = (0..job.samples.len()).collect();
        let mut tasks = Vec::new();
        for (reward, named) in job.rewards.iter().enumerate() {
            let portions = match named.reward.kind() {
                RewardKind::Pointwise => all.chunks(PORTION).map(<[usize]>::to_vec).collect(),
                RewardKind::Groupwise => groups(&job.samples),
            };
            for samples in portions {
                let number = tasks.len();
                tasks.push(Self {
                    job: Arc::clone(job),
                    outcomes: outcomes.clone(),
                    number,
                    reward,
                    samples,
                });
            }
        }
        tasks
    }

    /// Scores and reports; never panics.
    pub(super) fn run(self) {
        if self.job.cancelled.load(Ordering::Relaxed) {
            return;
        }
        let started = Instant::now();
        let scores = self.score();
        let finished = Instant::now();
        let Self {
            outcomes,
            number,
            reward,
            samples,
            ..
        } = self;
        let busy_ms = finished.duration_since(started).as_secs_f64() * 1e3;
        // Nobody listens if the ticket was dropped meanwhile, and then nobody needs to.
        let _ = outcomes.send(Outcome {
            task: number,
            reward,
            samples,
            scores,
            busy_ms,
            finished,
        });
    }

    fn score(&self) -> Result<Vec<f32>, RewardError> {
        let scores = self
            .call(&self.samples)
            .map_err(|failure| self.explain(failure))?;
        if scores.len() != self.samples.len() {
            return Err(RewardError::WrongCount {
                reward: self.name(),
                batch: self.job.id,
                samples: self.describe(&self.samples),
                expected: self.samples.len(),
                found: scores.len(),
            });
        }
        if let Some(index) = scores.iter().position(|score| !score.is_finite()) {
            return Err(RewardError::NotFinite {
                reward: self.name(),
                batch: self.job.id,
                samples: self.describe(&self.samples[index..=index]),
                value: scores[index],
            });
        }
        Ok(scores)
    }

    fn call(&self, samples: &[usize]) -> Result<Vec<f32>, Failure> {
        let samples: Vec<RewardSample<'_>> = samples
            .iter()
            .map(|&index| &self.job.samples[index])
            .map(|sample| RewardSample {
                image: &sample.image,
                frames: &sample.frames,
                prompt: &sample.prompt,
            })
            .collect();
        let reward = &self.job.rewards[self.reward].reward;
        // The job is not used again after a panic but for describing samples, which a reward cannot change.
        match catch_unwind(AssertUnwindSafe(|| score_videos(&**reward, &samples))) {
            Ok(scores) => scores.map_err(Failure::Error),
            Err(payload) => Err(Failure::Panic(message(payload.as_ref()))),
        }
    }

    /// The error for a failure, with the sample at fault.
    ///
    /// A pointwise reward that does not say which sample it was is asked again, one sample at a time.
    fn explain(&self, failure: Failure) -> RewardError {
        if let Failure::Error(RewardError::Sample { index, problem }) = &failure
            && let Some(&sample) = self.samples.get(*index)
        {
            return self.error(
                &[sample],
                Failure::Error(RewardError::Workers {
                    problem: problem.clone(),
                }),
            );
        }
        let pointwise = self.job.rewards[self.reward].reward.kind() == RewardKind::Pointwise;
        if pointwise && self.samples.len() > 1 {
            for &sample in &self.samples {
                if let Err(failure) = self.call(&[sample]) {
                    return self.error(&[sample], failure);
                }
            }
        }
        self.error(&self.samples, failure)
    }

    fn error(&self, samples: &[usize], failure: Failure) -> RewardError {
        let (reward, batch, samples) = (self.name(), self.job.id, self.describe(samples));
        match failure {
            Failure::Panic(message) => RewardError::Panicked {
                reward,
                batch,
                samples,
                message,
            },
            Failure::Error(RewardError::Sample { problem, .. } | RewardError::Workers { problem }) => {
                RewardError::Failed {
                    reward,
                    batch,
                    samples,
                    problem,
                }
            }
            Failure::Error(error) => RewardError::Failed {
                reward,
                batch,
                samples,
                problem: error.to_string(),
            },
        }
    }

    fn name(&self) -> String {
        self.job.rewards[self.reward].name.clone()
    }

    /// "sample 3 ("bold 7")", or "samples 3 to 9 ("bold 7" …)".
    fn describe(&self, samples: &[usize]) -> String {
        let text = |index: usize| &self.job.samples[index].prompt.text;
        match samples {
            [] => "no samples".to_owned(),
            [only] => format!("sample {only} (\"{}\")", text(*only)),
            [first, .., last] => {
                format!(
                    "{} samples, {first} to {last} (\"{}\" …)",
                    samples.len(),
                    text(*first)
                )
            }
        }
    }
}

/// The samples of every group, groups in the order of their first samples.
fn groups(samples: &[Sample]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (index, sample) in samples.iter().enumerate() {
        let place = *places.entry(sample.group).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(index);
    }
    groups
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
