//! Counting what accelerators do, so that none is in force without effect unnoticed.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Something that an accelerator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Engagement {
    /// A call of the model was answered by the accelerator's implementation.
    CallAnswered,
    /// A block was not computed for a trajectory.
    BlockSkipped,
    /// An attention layer was not computed for a trajectory.
    AttentionSkipped,
    /// An operation ran on another kernel than without the accelerator.
    KernelReplaced,
    /// A captured graph was replayed.
    GraphReplayed,
    /// A part of the model was not computed for a row, because the same had been computed before.
    PartReused,
    /// The model was not called for a row, because it was called for another with the same inputs.
    ForwardShared,
}

impl Engagement {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::CallAnswered,
        Self::BlockSkipped,
        Self::AttentionSkipped,
        Self::KernelReplaced,
        Self::GraphReplayed,
        Self::PartReused,
        Self::ForwardShared,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::CallAnswered => "calls_answered",
            Self::BlockSkipped => "blocks_skipped",
            Self::AttentionSkipped => "attention_layers_skipped",
            Self::KernelReplaced => "kernels_replaced",
            Self::GraphReplayed => "graphs_replayed",
            Self::PartReused => "parts_reused",
            Self::ForwardShared => "forwards_shared",
        }
    }
}

/// Part of a rollout that a share of its rows was answered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// A step of the sampler.
    Step(u32),
    /// A block of the model.
    Block(usize),
}

impl fmt::Display for Part {
    /// As in metrics.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step_{step:03}"),
            Self::Block(block) => write!(f, "block_{block:03}"),
        }
    }
}

/// Something that an accelerator was in force for and did not do, so that the run is slower than its config says. Results
/// are the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shortfall {
    /// Name in metrics, for instance `calls_not_recorded`.
    pub name: Cow<'static, str>,
    /// What happened, why, and what to change; without a full stop.
    pub why: String,
}

/// Rows answered and rows asked for.
pub type Shares = BTreeMap<(Engagement, Part), (u64, u64)>;

/// Counts engagements of one accelerator. Clones count together, on any thread.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    counts: Arc<[AtomicU64; Engagement::ALL.len()]>,
    shares: Arc<Mutex<Shares>>,
    kept_bytes: Arc<AtomicU64>,
    predicted: Arc<Mutex<BTreeMap<u64, f64>>>,
    shortfalls: Arc<Mutex<BTreeMap<Shortfall, u64>>>,
}

impl Meter {
    /// `times` more of `what`.
    pub fn count(&self, what: Engagement, times: u64) {
        self.counts[what as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// What was counted since it was last taken, which it is not by this.
    pub fn counted(&self) -> Engagements {
        Engagements(Engagement::ALL.map(|what| self.counts[what as usize].load(Ordering::Relaxed)))
    }

    /// Counts once more what happened between `before` and `after`, two readings of [`counted`](Self::counted): a recorded
    /// call asks nobody when it is replayed, and does again what it was recorded with.
    pub fn count_again(&self, before: Engagements, after: Engagements) {
        for what in Engagement::ALL {
            self.count(what, after.of(what).saturating_sub(before.of(what)));
        }
    }

    /// Takes back what was counted between `before` and `after`, two readings of [`counted`](Self::counted): to record a call
    /// computes it more often than it is asked for, and how often a process records is not a property of the run.
    pub fn take_back(&self, before: Engagements, after: Engagements) {
        for what in Engagement::ALL {
            let times = after.of(what).saturating_sub(before.of(what));
            self.counts[what as usize].fetch_sub(times, Ordering::Relaxed);
        }
    }

    /// The accelerator was in force and did not do its part, once more; `why` is for a person, of the first time.
    pub fn falls_short(&self, name: &'static str, why: impl Into<String>) {
        let mut shortfalls = self.shortfalls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, times)) = shortfalls.iter_mut().find(|(known, _)| known.name == name) {
            *times += 1;
        } else {
            let why = why.into();
            let name = Cow::Borrowed(name);
            shortfalls.insert(Shortfall { name, why }, 1);
        }
    }

    /// What the accelerator did not do since this was last taken, with how often.
    pub fn take_shortfalls(&self) -> BTreeMap<Shortfall, u64> {
        std::mem::take(&mut *self.shortfalls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was counted since it was last taken.
    pub fn take(&self) -> Engagements {
        Engagements(Engagement::ALL.map(|what| self.counts[what as usize].swap(0, Ordering::Relaxed)))
    }

    /// The accelerator holds `bytes` of memory now.
    pub fn keeps(&self, bytes: u64) {
        self.kept_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// The most bytes held at a time since this was last taken.
    pub fn take_kept_bytes(&self) -> u64 {
        self.kept_bytes.swap(0, Ordering::Relaxed)
    }

    /// The accelerator predicts that the final latent of `sample` is off by `error`, relative L1. Predictions for one sample
    /// add up.
    pub fn predict(&self, sample: u64, error: f64) {
        let mut predicted = self.predicted.lock().unwrap_or_else(PoisonError::into_inner);
        *predicted.entry(sample).or_default() += error;
    }

    /// Predicted errors by sample since they were last taken.
    pub fn take_predicted(&self) -> BTreeMap<u64, f64> {
        std::mem::take(&mut *self.predicted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// In `part`, `what` happened for `answered` of `asked` more rows.
    pub fn share(&self, what: Engagement, part: Part, answered: u64, asked: u64) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, of) = shares.entry((what, part)).or_default();
        (*sum, *of) = (*sum + answered, *of + asked);
    }

    /// For how many rows each thing happened in each part, and how many there were, since it was last taken.
    pub fn take_shares(&self) -> Shares {
        std::mem::take(&mut *self.shares.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Numbers of engagements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engagements([u64; Engagement::ALL.len()]);

impl Engagements {
    /// How often `what` happened.
    pub fn of(&self, what: Engagement) -> u64 {
        self.0[what as usize]
    }

    /// These and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(Engagement::ALL.map(|what| self.of(what) + others.of(what)))
    }

    /// Whether nothing happened.
    pub fn is_idle(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// The kinds that happened, with their numbers.
    pub fn counted(&self) -> impl Iterator<Item = (Engagement, u64)> + '_ {
        Engagement::ALL
            .into_iter()
            .map(|what| (what, self.of(what)))
            .filter(|(_, count)| *count > 0)
    }
}
