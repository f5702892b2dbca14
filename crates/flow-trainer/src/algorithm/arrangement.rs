//! Which rows of a rollout a loss sees together, where that is not the micro-batch in which they were made.

/// What a rollout left, for an algorithm that arranges its rows.
#[derive(Clone, Copy, Debug)]
pub struct RolledOut<'a> {
    /// One advantage per image, in the order of the rollout, before any clamp.
    pub advantages: &'a [f32],
    /// Group of each image.
    pub groups: &'a [u64],
    /// Most rows of a micro-batch.
    pub micro_batch: usize,
    /// Optimizer steps of a pass.
    pub updates: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// The iteration.
    pub iteration: u64,
    /// The pass over the rollout.
    pub pass: usize,
}

/// The rows of one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSet {
    /// Images by their place in the rollout.
    pub rows: Vec<usize>,
    /// For each row the image whose noise it takes: the row itself, or the same image for rows that share noise.
    pub noise: Vec<usize>,
}
