//! Sizes of tiles, and the products over them.

use crate::block_mask::BlockMaskShape;
use crate::prepared::KvGradients;
use crate::softmax::StagingTile;
use flow_cube::mma::{Left, Product};
use flow_cube::wgmma::OperandType;

/// How a block streams tiles, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Streaming {
    /// Rows of a tile.
    pub rows: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Tiles that shared memory holds.
    pub stages: usize,
    /// Whether the streamed rows are in two segments.
    pub two_segments: bool,
    /// Shape of the mask.
    pub shape: BlockMaskShape,
}

impl Streaming {
    /// Bytes of a tile.
    pub(crate) fn tile_bytes(self) -> u32 {
        (self.rows * 128 * self.head_dim.div_ceil(64)) as u32
    }
}

/// Tile sizes of the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForwardTiles {
    /// Channels of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Keys of a tile; a multiple of 16 for each row group, at most 256.
    pub keys: usize,
    /// Row groups of a block, each four warps with 64 queries.
    pub row_groups: usize,
    /// Tiles of keys, and of values, that shared memory holds; two at least.
    pub stages: usize,
    /// Element type.
    pub operand_type: OperandType,
    /// Whether a list says which tiles of keys are visited, and what of them is seen.
    pub masked: bool,
    /// Whether keys and values are in two segments.
    pub two_segments: bool,
    /// Whether a bias by distance is added to the scores; keys are in one segment then.
    pub biased: bool,
}

impl ForwardTiles {
    /// Sizes of the vectors in registers: scores, output, probabilities.
    pub fn vectors(&self) -> [usize; 3] {
        let (scores, output) = (self.scores().accumulator(), self.values().accumulator());
        [scores, output, scores / 2]
    }

    /// Panels of 64 channels.
    pub fn panels(&self) -> usize {
        self.head_dim.div_ceil(64)
    }

    /// Queries of a block.
    pub fn queries(&self) -> usize {
        64 * self.row_groups
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        128 * self.row_groups
    }

    /// Shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> usize {
        128 * self.panels() * (self.queries() + 2 * self.keys * self.stages)
    }

    /// How keys and values are streamed.
    pub(crate) fn streaming(&self) -> Streaming {
        Streaming {
            rows: self.keys,
            head_dim: self.head_dim,
            threads: self.threads(),
            stages: self.stages,
            two_segments: self.two_segments,
            shape: BlockMaskShape {
                masked: self.masked,
                row_groups: self.row_groups,
                columns: self.keys,
            },
        }
    }

    /// The tile of queries, which takes the output.
    pub(crate) fn staging(&self) -> StagingTile {
        StagingTile {
            rows: self.queries(),
            head_dim: self.head_dim,
            operand_type: self.operand_type,
        }
    }

    /// `Q Kᵀ`.
    pub fn scores(&self) -> Product {
        over_channels(self.head_dim, self.queries(), self.keys, self.operand_type)
    }

    /// `P V`.
    pub fn values(&self) -> Product {
        over_rows(self.head_dim, self.keys, self.operand_type)
    }
}

/// Tile sizes of the backward kernels. One operand is *stationary*: a block keeps its tile and sums up its
/// gradient. The other is *streamed*, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardTiles {
    /// Channels of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Rows of a streamed tile: 16, 32 or 64, and 16 at least for each row group.
    pub streamed_rows: usize,
    /// Row groups of a block, each four warps with 64 stationary rows.
    pub row_groups: usize,
    /// Streamed tiles that shared memory holds; two at least.
    pub stages: usize,
    /// Element type.
    pub operand_type: OperandType,
    /// What the kernel for keys sums up; that for queries does not read it.
    pub sums: KvGradients,
    /// Whether a list says which streamed tiles are visited, and what of them is seen.
    pub masked: bool,
    /// Whether keys and values are in two segments.
    pub two_segments: bool,
}

impl BackwardTiles {
    /// Sizes of the vectors in registers: scores, gradients of the stationary rows, probabilities.
    pub fn vectors(&self) -> [usize; 3] {
        let (scores, gradients) = (self.scores().accumulator(), self.weighted().accumulator());
        [scores, gradients, scores / 2]
    }

    /// Panels of 64 channels.
    pub fn panels(&self) -> usize {
        self.head_dim.div_ceil(64)
    }

    /// Stationary rows of a block.
    pub fn stationary_rows(&self) -> usize {
        64 * self.row_groups
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        128 * self.row_groups
    }

    /// Shared memory of a block, in bytes; statistics of rows included.
    pub fn shared_bytes(&self) -> usize {
        let rows = self.stationary_rows() + self.streamed_rows * self.stages;
        256 * self.panels() * rows + 8 * rows
    }

    /// How the other operand is streamed.
    pub(crate) fn streaming(&self) -> Streaming {
        Streaming {
            rows: self.streamed_rows,
            head_dim: self.head_dim,
            threads: self.threads(),
            stages: self.stages,
            two_segments: self.two_segments,
            shape: BlockMaskShape {
                masked: self.masked,
                row_groups: self.row_groups,
                columns: self.streamed_rows,
            },
        }
    }

    /// The tile of stationary rows, which takes their gradient.
    pub(crate) fn staging(&self) -> StagingTile {
        StagingTile {
            rows: self.stationary_rows(),
            head_dim: self.head_dim,
            operand_type: self.operand_type,
        }
    }

    /// Stationary rows times streamed rows, summed over channels.
    pub fn scores(&self) -> Product {
        over_channels(
            self.head_dim,
            self.stationary_rows(),
            self.streamed_rows,
            self.operand_type,
        )
    }

    /// Streamed rows, summed up with weights.
    pub fn weighted(&self) -> Product {
        over_rows(self.head_dim, self.streamed_rows, self.operand_type)
    }
}

/// `A Bᵀ`: A has panels of `a_rows` rows, B of `b_rows`.
fn over_channels(head_dim: usize, a_rows: usize, b_rows: usize, operand_type: OperandType) -> Product {
    Product {
        n: b_rows,
        k: head_dim.next_multiple_of(16),
        left: Left::Tile { rows: a_rows },
        rows: b_rows,
        over_channels: true,
        operand_type,
    }
}

/// `A B` over the `rows` rows of B, A in registers.
fn over_rows(head_dim: usize, rows: usize, operand_type: OperandType) -> Product {
    Product {
        n: head_dim,
        k: rows,
        left: Left::Registers,
        rows,
        over_channels: false,
        operand_type,
    }
}
