//! The worker pool: scores batches on std threads beside whatever the caller does meanwhile.
//!
//! A batch is cut into tasks (portions of samples for pointwise rewards, whole groups for group-wise ones) by a rule
//! that knows neither the number of threads nor their timing, and the results are put together in the order of the
//! tasks.
//! So the scores, and the error if there is one, are the same for one thread and for many.

mod pool;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use flow_data::{Image, Prompt};

use crate::error::RewardError;
use crate::reward::Reward;
use pool::Pool;
use task::{Job, Outcome, Task};

/// A reward with the name under which its scores are reported.
#[derive(Clone)]
pub struct NamedReward {
    /// Name in results, metrics and errors.
    pub name: String,
    /// The reward.
    pub reward: Arc<dyn Reward>,
}

impl From<Arc<dyn Reward>> for NamedReward {
    fn from(reward: Arc<dyn Reward>) -> Self {
        Self {
            name: reward.name().to_owned(),
            reward,
        }
    }
}

/// A sample that the pool owns while it scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The generated image; of a video, its first frame.
    pub image: Image,
    /// The frames of a video, the first among them; empty for an image.
    pub frames: Vec<Image>,
    /// Its prompt.
    pub prompt: Prompt,
    /// The group within the batch: samples with equal numbers are scored together by group-wise rewards.
    pub group: u64,
}

/// The scores of one reward for a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardScores {
    /// The name given in [`NamedReward`].
    pub name: String,
    /// One score per sample, in the order of the batch.
    pub values: Vec<f32>,
    /// Mean of the scores.
    pub mean: f32,
    /// Standard deviation of the scores around their mean, divided by n (not n - 1).
    pub std: f32,
    /// Milliseconds that threads spent in this reward, all threads together.
    pub busy_ms: f64,
}

/// The scores of every reward for a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardBatch {
    /// The id given to [`RewardWorkers::submit`].
    pub id: u64,
    /// In the order of the rewards of the pool.
    pub rewards: Vec<RewardScores>,
    /// Milliseconds from the submission to the end of the last task.
    pub wall_ms: f64,
}

fn no_reward() -> RewardError {
    RewardError::Setting {
        setting: "rewards",
        value: "[]".to_owned(),
        allowed: "there must be at least one reward",
    }
}

/// Threads that score batches; dropping it finishes the batches at hand and joins the threads.
pub struct RewardWorkers {
    rewards: Arc<[NamedReward]>,
    pool: Pool,
}

impl RewardWorkers {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`RewardError::Setting`] for a number of threads outside 1 to 1024 or no reward at all;
    /// [`RewardError::NameTaken`] for two rewards of one name; [`RewardError::Workers`] if the system starts
    /// no more threads.
    pub fn new(rewards: Vec<NamedReward>, threads: usize) -> Result<Self, RewardError> {
        if !(1..=1024).contains(&threads) {
            return Err(RewardError::Setting {
                setting: "threads",
                value: threads.to_string(),
                allowed: "rewards run on 1 to 1024 threads",
            });
        }
        if rewards.is_empty() {
            return Err(no_reward());
        }
        for (index, reward) in rewards.iter().enumerate() {
            if rewards[..index].iter().any(|other| other.name == reward.name) {
                return Err(RewardError::NameTaken {
                    name: reward.name.clone(),
                });
            }
        }
        Ok(Self {
            rewards: rewards.into(),
            pool: Pool::start(threads)?,
        })
    }

    /// No rewards, of a run that scores nothing: it takes no batch.
    ///
    /// # Errors
    /// [`RewardError::Workers`] if the system starts no thread.
    pub fn none() -> Result<Self, RewardError> {
        Ok(Self {
            rewards: Arc::new([]),
            pool: Pool::start(1)?,
        })
    }

    /// Names of the rewards in the order of the results.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rewards.iter().map(|reward| reward.name.as_str())
    }

    /// [`Reward::range`] of the rewards in the order of the results.
    pub fn ranges(&self) -> impl Iterator<Item = (f64, f64)> {
        self.rewards.iter().map(|reward| reward.reward.range())
    }

    /// Hands over a batch and returns at once; `id` comes back with the result and stands in errors.
    ///
    /// A ticket that is dropped cancels what has not begun.
    ///
    /// # Errors
    /// [`RewardError::EmptyBatch`] for a batch without samples.
    pub fn submit(&self, batch: Vec<Sample>, id: u64) -> Result<Ticket, RewardError> {
        if self.rewards.is_empty() {
            return Err(no_reward());
        }
        if batch.is_empty() {
            return Err(RewardError::EmptyBatch { batch: id });
        }
        let submitted = Instant::now();
        let (outcomes, receiver) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let job = Arc::new(Job {
            id,
            samples: batch,
            rewards: Arc::clone(&self.rewards),
            cancelled: Arc::clone(&cancelled),
        });
        let tasks = Task::cut(&job, &outcomes);
        let ticket = Ticket {
            id,
            samples: job.samples.len(),
            rewards: Arc::clone(&self.rewards),
            submitted,
            outcomes: receiver,
            expected: tasks.len(),
            received: Vec::new(),
            cancelled,
        };
        self.pool.push(tasks);
        Ok(ticket)
    }
}

/// A batch that is being scored.
#[must_use = "a ticket that is dropped cancels its batch"]
pub struct Ticket {
    id: u64,
    samples: usize,
    rewards: Arc<[NamedReward]>,
    submitted: Instant,
    outcomes: mpsc::Receiver<Outcome>,
    expected: usize,
    received: Vec<Outcome>,
    cancelled: Arc<AtomicBool>,
}

impl Ticket {
    /// The id of the batch.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// When the batch was handed over.
    pub fn submitted(&self) -> Instant {
        self.submitted
    }

    /// Whether [`Ticket::wait`] would return at once.
    pub fn is_ready(&mut self) -> bool {
        self.received.extend(self.outcomes.try_iter());
        self.received.len() == self.expected
    }

    /// Waits for the scores.
    ///
    /// # Errors
    /// [`RewardError::Failed`], [`RewardError::Panicked`], [`RewardError::NotFinite`] or [`RewardError::WrongCount`],
    /// each with the reward's name and the sample.
    /// Of several errors it is the one of the first reward and, in it, of the first portion of samples, whichever
    /// thread was first.
    pub fn wait(mut self) -> Result<RewardBatch, RewardError> {
        while self.received.len() < self.expected {
            let outcome = self.outcomes.recv().map_err(|_| RewardError::Workers {
                problem: format!("the threads ended before batch {} was scored", self.id),
            })?;
            self.received.push(outcome);
        }
        // Threads finish in any order; tasks were numbered when the batch was cut.
        let mut received = std::mem::take(&mut self.received);
        received.sort_by_key(|outcome| outcome.task);
        let finished = received
            .iter()
            .map(|outcome| outcome.finished)
            .max()
            .unwrap_or(self.submitted);
        let mut values = vec![vec![0.0f32; self.samples]; self.rewards.len()];
        let mut busy_ms = vec![0.0; self.rewards.len()];
        for outcome in received {
            busy_ms[outcome.reward] += outcome.busy_ms;
            for (&sample, score) in outcome.samples.iter().zip(outcome.scores?) {
                values[outcome.reward][sample] = score;
            }
        }
        let rewards = self.rewards.iter().zip(values).zip(busy_ms);
        let rewards = rewards.map(|((reward, values), busy_ms)| {
            let (mean, std) = mean_and_std(&values);
            RewardScores {
                name: reward.name.clone(),
                values,
                mean,
                std,
                busy_ms,
            }
        });
        let wall_ms = finished.duration_since(self.submitted).as_secs_f64() * 1e3;
        Ok(RewardBatch {
            id: self.id,
            rewards: rewards.collect(),
            wall_ms,
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// In f64 and in the order of the samples, in two passes.
fn mean_and_std(values: &[f32]) -> (f32, f32) {
    let n = values.len().max(1) as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / n;
    let variance = values
        .iter()
        .map(|&value| (f64::from(value) - mean).powi(2))
        .sum::<f64>()
        / n;
    (mean as f32, variance.sqrt() as f32)
}
