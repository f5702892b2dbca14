//! Why ranks do not go on together.

/// Why the ranks of a run do not go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// A connection broke without a farewell: the process was killed, or its machine.
    #[error(
        "rank {rank} of {ranks} is gone ({problem}); its own output says more. The run goes on from its newest checkpoint with \
         `--resume latest`, on as many ranks as there are"
    )]
    Gone {
        /// Which.
        rank: usize,
        /// Of how many.
        ranks: usize,
        /// What the operating system says.
        problem: String,
    },
    /// A rank that ended its run while others go on.
    #[error(
        "rank {rank} of {ranks} ended its run while rank {own} was waiting for it to {what}; see its own output"
    )]
    Ended {
        /// Which.
        rank: usize,
        /// Of how many.
        ranks: usize,
        /// Who waited.
        own: usize,
        /// For what.
        what: &'static str,
    },
    /// A rank that says nothing.
    #[error(
        "rank {own} waited {seconds} s for rank {rank} of {ranks} to {what}. If rank {rank} is only slow, raise \
         `distributed.timeout_s`; otherwise see its own output"
    )]
    Silent {
        /// Which.
        rank: usize,
        /// Of how many.
        ranks: usize,
        /// Who waited.
        own: usize,
        /// For what.
        what: &'static str,
        /// How long.
        seconds: u64,
    },
    /// A rank that stopped, and said why.
    #[error("rank {rank} stopped: {words}")]
    Stopped {
        /// Which.
        rank: usize,
        /// Its words.
        words: String,
    },
    /// The store, or whoever set its key `abort`.
    #[error("{0}")]
    Aborted(String),
    /// A rank whose device or its library does not do what it must.
    #[error("rank {rank}: {problem}")]
    Device {
        /// Which.
        rank: usize,
        /// What is the matter, and what helps.
        problem: String,
    },
    /// Ranks that do different things: another build, another config, a defect.
    #[error(
        "rank {rank} does something else than rank {own}: {problem}. All ranks must run the same program with the same config on \
         like machines"
    )]
    OutOfStep {
        /// The other one.
        rank: usize,
        /// This one.
        own: usize,
        /// What differs.
        problem: String,
    },
}
