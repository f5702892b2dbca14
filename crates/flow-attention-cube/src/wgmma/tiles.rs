//! Sizes of tiles, and how products walk through them.

use crate::block_mask::{BlockMaskShape, words_per_load};
pub use crate::prepared::KvGradients;
use crate::softmax::StagingTile;
use flow_cube::wgmma::{OperandType, Steps};

/// Multiprocessors of an H100.
pub(super) const MULTIPROCESSORS: u32 = 132;

/// Tile sizes of the forward kernel.
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
    /// Whether two warpgroups run in ping-pong: one uses the tensor cores while the other computes its softmax.
    pub ping_pong: bool,
    /// Steps of 16 channels of its queries that a warpgroup keeps in registers, and does not read from shared memory for each
    /// tile.
    pub q_register_steps: usize,
    /// Element type.
    pub operand_type: OperandType,
    /// Whether a list says which tiles of keys are visited, and what of them is seen.
    pub masked: bool,
    /// Whether blocks are persistent and go through assigned work items, or one block is launched for each. Needs a mask, ping-pong, two
    /// stages, and all steps of the queries in registers, so that those of the next item may come meanwhile.
    pub persistent: bool,
    /// Whether keys and values are in two segments.
    pub two_segments: bool,
}

impl ForwardTiles {
    /// Sizes of the vectors in registers: scores, output, probabilities, queries, and what is read at once of a partial mask.
    pub fn vectors(&self) -> [usize; 5] {
        let [scores, output] = [self.score_vector(), self.output_vector()];
        let queries = fragment_vector(self.q_register_steps);
        [scores, output, scores / 2, queries, words_per_load(self.keys)]
    }

    /// Shape of the block mask.
    pub(crate) fn mask_shape(&self) -> BlockMaskShape {
        BlockMaskShape {
            masked: self.masked,
            row_groups: self.warpgroups,
            columns: self.keys,
        }
    }

    /// Panels of 64 channels.
    pub fn panels(&self) -> usize {
        self.head_dim.div_ceil(64)
    }

    /// Queries of a block.
    pub fn queries(&self) -> usize {
        64 * self.warpgroups
    }

    /// The tile that takes the output.
    pub(crate) fn staging(&self) -> StagingTile {
        StagingTile {
            rows: self.queries(),
            head_dim: self.head_dim,
            operand_type: self.operand_type,
        }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        128 * self.warpgroups as u32
    }

    /// Blocks that an H100 runs at a time: 3 or 1 on a multiprocessor. Elsewhere only what is brought to the cache ahead of its
    /// time comes at another.
    pub fn blocks_at_a_time(&self) -> u32 {
        MULTIPROCESSORS * if self.head_dim <= 64 { 3 } else { 1 }
    }

    /// Registers of the vector that holds the scores.
    pub fn score_vector(&self) -> usize {
        (self.keys / 2).next_power_of_two()
    }

    /// Registers of the vector that holds the output.
    pub fn output_vector(&self) -> usize {
        (self.head_dim / 2).next_power_of_two()
    }

    /// Shared memory of a block, in bytes, without barriers.
    pub fn shared_bytes(&self) -> usize {
        // The output takes the place of the queries where no others come meanwhile.
        let stationary_rows = if self.persistent {
            2 * self.queries()
        } else {
            self.queries()
        };
        2 * 64 * self.panels() * (stationary_rows + 2 * self.keys * self.stages)
    }

    /// `Q Kᵀ`.
    pub fn scores(&self) -> Steps {
        over_channels(self.head_dim, self.queries(), self.keys, self.operand_type)
    }

    /// `P V`.
    pub fn values(&self) -> Steps {
        over_rows(self.head_dim, self.keys, self.operand_type)
    }
}

/// Tile sizes of the backward kernels. One operand is *stationary*: a block keeps its tile and sums up its
/// gradient. The other is *streamed*, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardTiles {
    /// Channels of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Rows of a streamed tile: 16, 32, 64 or 128, so that tiles of queries end where the rows of `lse` do.
    pub streamed_rows: usize,
    /// Warpgroups of a block, each with 64 stationary rows.
    pub warpgroups: usize,
    /// Streamed tiles that shared memory holds.
    pub stages: usize,
    /// Whether a stage is filled again a tile later than it could be, by a warp that would wait for products otherwise: what a
    /// warp does at another time, the other three of its warpgroup wait for. Wants three stages, and a tile that leaves the copy
    /// time: with 128 channels, where tiles are as high and twice as wide, it costs a tenth.
    pub refill_late: bool,
    /// Element type.
    pub operand_type: OperandType,
    /// What the kernel for keys sums up; that for queries does not read it.
    pub sums: KvGradients,
    /// Whether a list says which streamed tiles are visited, and what of them is seen.
    pub masked: bool,
    /// Whether keys and values are in two segments.
    pub two_segments: bool,
    /// Steps of 16 channels of its stationary rows that a warpgroup keeps in registers: of queries and of outputs' gradients, or of
    /// keys and of values.
    pub fragment: [usize; 2],
    /// Splits of the streamed queries in the kernel for keys, a block for each. Their sums go to memory, and are summed by
    /// a kernel of their own. That for queries does not read it.
    pub split_q: usize,
    /// Whether two warpgroups of the kernel for queries run in ping-pong; the kernel for keys ignores it.
    pub ping_pong: bool,
    /// Whether the compiler sees that a warpgroup's number is the same in all threads of a warp, and keeps what follows from it out of their
    /// registers.
    pub uniform_warpgroup: bool,
}

impl BackwardTiles {
    /// Sizes of the vectors in registers: scores, gradients of the stationary rows, probabilities, kept rows of both kinds.
    pub fn vectors(&self) -> [usize; 5] {
        let [first, second] = self.fragment.map(fragment_vector);
        [
            self.score_vector(),
            self.gradient_vector(),
            self.score_vector() / 2,
            first,
            second,
        ]
    }

    /// Shape of the block mask.
    pub(crate) fn mask_shape(&self) -> BlockMaskShape {
        BlockMaskShape {
            masked: self.masked,
            row_groups: self.warpgroups,
            columns: self.streamed_rows,
        }
    }

    /// Panels of 64 channels.
    pub fn panels(&self) -> usize {
        self.head_dim.div_ceil(64)
    }

    /// Stationary rows of a block.
    pub fn stationary_rows(&self) -> usize {
        64 * self.warpgroups
    }

    /// The tile of stationary rows, which takes their gradient.
    pub(crate) fn staging(&self) -> StagingTile {
        StagingTile {
            rows: self.stationary_rows(),
            head_dim: self.head_dim,
            operand_type: self.operand_type,
        }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        128 * self.warpgroups as u32
    }

    /// Registers of the vector that holds scores, and of that which holds their gradients.
    pub fn score_vector(&self) -> usize {
        (self.streamed_rows / 2).next_power_of_two()
    }

    /// Registers of the vector that holds a gradient of the stationary rows.
    pub fn gradient_vector(&self) -> usize {
        (self.head_dim / 2).next_power_of_two()
    }

    /// Sums that the splits of `heads` heads, of `keys` keys each, leave in memory: of values, then of keys.
    pub fn partial_sums(&self, heads: usize, keys: usize) -> usize {
        match self.split_q {
            1 => 0,
            split_q => 2 * heads * split_q * keys.next_multiple_of(self.stationary_rows()) * self.head_dim,
        }
    }

    /// Stationary rows times streamed rows, summed over channels.
    pub fn scores(&self) -> Steps {
        over_channels(
            self.head_dim,
            self.stationary_rows(),
            self.streamed_rows,
            self.operand_type,
        )
    }

    /// Streamed rows, summed up with weights.
    pub fn weighted(&self) -> Steps {
        over_rows(self.head_dim, self.streamed_rows, self.operand_type)
    }
}

/// Registers of the vector that holds `steps` steps of stationary rows.
fn fragment_vector(steps: usize) -> usize {
    (4 * steps).next_power_of_two()
}

/// `A Bᵀ` over channels: A has panels of `a_rows` rows, B of `b_rows`.
fn over_channels(head_dim: usize, a_rows: usize, b_rows: usize, operand_type: OperandType) -> Steps {
    let walk = |rows: usize| {
        (0..head_dim.div_ceil(16))
            .map(|k| (k / 4) * rows * 8 + (k % 4) * 2)
            .collect()
    };
    Steps {
        n: b_rows,
        padded: (b_rows / 2).next_power_of_two(),
        a: walk(a_rows),
        b: walk(b_rows),
        a_transposed: false,
        b_transposed: false,
        operand_type,
        e4m3: false,
    }
}

/// `A B` over the `rows` rows of B, A in registers.
fn over_rows(head_dim: usize, rows: usize, operand_type: OperandType) -> Steps {
    Steps {
        n: head_dim,
        padded: (head_dim / 2).next_power_of_two(),
        a: Vec::new(),
        b: (0..rows / 16).map(|k| k * 128).collect(),
        a_transposed: false,
        b_transposed: true,
        operand_type,
        e4m3: false,
    }
}
