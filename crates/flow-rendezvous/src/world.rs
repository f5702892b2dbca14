//! A process's place among those of its run.

/// A process's place among those of its run. Ranks count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// This process.
    pub rank: usize,
    /// Processes of the run.
    pub ranks: usize,
    /// This process among those of its machine.
    pub local_rank: usize,
    /// Processes of the run on this machine.
    pub local_ranks: usize,
    /// How often the launcher has restarted the run.
    pub attempt: u64,
}

impl World {
    /// Of a run of one process.
    pub const ALONE: Self = Self {
        rank: 0,
        ranks: 1,
        local_rank: 0,
        local_ranks: 1,
        attempt: 0,
    };

    /// Whether this process writes the run's files and speaks to people.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Whether there are others.
    pub fn is_several(&self) -> bool {
        self.ranks > 1
    }
}
