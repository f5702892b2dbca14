//! Sizes of tiles, and how products walk through them.

use flow_cube::wgmma::{Factor, Steps};

/// How the forward kernel cuts its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForwardTiles {
    /// Channels of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Keys of a tile; a multiple of 16, at most 256.
    pub keys: usize,
    /// Warpgroups of a block, each with 64 queries.
    pub warpgroups: usize,
    /// Tiles of keys, and of values, that shared memory holds.
    pub stages: usize,
    /// Whether two warpgroups take turns at the tensor cores.
    pub ping_pong: bool,
    /// Element type.
    pub factor: Factor,
}

impl ForwardTiles {
    /// Panels of 64 channels.
    pub fn panels(&self) -> usize {
        self.head_dim.div_ceil(64)
    }

    /// Queries of a block.
    pub fn queries(&self) -> usize {
        64 * self.warpgroups
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        128 * self.warpgroups as u32
    }

    /// Registers of the vector that holds the scores.
    pub fn score_vector(&self) -> usize {
        (self.keys / 2).next_power_of_two()
    }

    /// Registers of the vector that holds the output.
    pub fn output_vector(&self) -> usize {
        (self.head_dim / 2).next_power_of_two()
    }

    /// Registers of the vector that holds the probabilities, two in each.
    pub fn probability_vector(&self) -> usize {
        (self.keys / 4).next_power_of_two()
    }

    /// Shared memory of a block, in bytes, without barriers.
    pub fn shared_bytes(&self) -> usize {
        2 * 64 * self.panels() * (self.queries() + 2 * self.keys * self.stages)
    }

    /// `Q Kᵀ`.
    pub fn scores(&self) -> Steps {
        let walk = |rows: usize| {
            (0..self.head_dim.div_ceil(16))
                .map(|k| (k / 4) * rows * 8 + (k % 4) * 2)
                .collect()
        };
        Steps {
            n: self.keys,
            padded: self.score_vector(),
            a: walk(self.queries()),
            b: walk(self.keys),
            a_transposed: false,
            b_transposed: false,
            factor: self.factor,
        }
    }

    /// `P V`.
    pub fn values(&self) -> Steps {
        Steps {
            n: self.head_dim,
            padded: self.output_vector(),
            a: Vec::new(),
            b: (0..self.keys / 16).map(|k| k * 128).collect(),
            a_transposed: false,
            b_transposed: true,
            factor: self.factor,
        }
    }
}
