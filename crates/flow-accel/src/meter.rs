//! Counting what accelerators do, so that none is in force without effect unnoticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Something that an accelerator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engagement {
    /// A call of the model was answered by the accelerator's implementation.
    CallAnswered,
    /// A block was not computed for a lane.
    BlockSkipped,
    /// An attention layer was not computed for a lane.
    AttentionSkipped,
    /// An operation ran on another kernel than without the accelerator.
    KernelReplaced,
    /// A captured graph was replayed.
    GraphReplayed,
}

impl Engagement {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::CallAnswered,
        Self::BlockSkipped,
        Self::AttentionSkipped,
        Self::KernelReplaced,
        Self::GraphReplayed,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::CallAnswered => "calls_answered",
            Self::BlockSkipped => "blocks_skipped",
            Self::AttentionSkipped => "attention_layers_skipped",
            Self::KernelReplaced => "kernels_replaced",
            Self::GraphReplayed => "graphs_replayed",
        }
    }
}

/// Counts engagements of one accelerator. Clones count together, on any thread.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<[AtomicU64; Engagement::ALL.len()]>);

impl Meter {
    /// `times` more of `what`.
    pub fn count(&self, what: Engagement, times: u64) {
        self.0[what as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// What was counted since it was last taken.
    pub fn take(&self) -> Engagements {
        Engagements(Engagement::ALL.map(|what| self.0[what as usize].swap(0, Ordering::Relaxed)))
    }
}

/// Numbers of engagements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engagements([u64; Engagement::ALL.len()]);

impl Engagements {
    /// How often `what` happened.
    pub fn of(&self, what: Engagement) -> u64 {
        self.0[what as usize]
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
