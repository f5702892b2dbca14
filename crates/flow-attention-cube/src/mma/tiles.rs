//! Sizes of tiles, and the products over them.

use crate::run::Sums;
use flow_cube::mma::{Left, Product};
use flow_cube::wgmma::Factor;

/// How the forward kernel cuts its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForwardTiles {
    /// Channels of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Keys of a tile; a multiple of 16 for each unit, at most 256.
    pub keys: usize,
    /// Units of a block, each four warps with 64 queries.
    pub units: usize,
    /// Tiles of keys, and of values, that shared memory holds; two at least.
    pub stages: usize,
    /// Element type.
    pub factor: Factor,
    /// Whether a list says which tiles of keys are visited, and what of them is seen.
    pub masked: bool,
    /// Whether keys and values are in two parts.
    pub two_parts: bool,
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
        64 * self.units
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        128 * self.units
    }

    /// Shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> usize {
        128 * self.panels() * (self.queries() + 2 * self.keys * self.stages)
    }

    /// `Q Kᵀ`.
    pub fn scores(&self) -> Product {
        over_channels(self.head_dim, self.queries(), self.keys, self.factor)
    }

    /// `P V`.
    pub fn values(&self) -> Product {
        over_rows(self.head_dim, self.keys, self.factor)
    }
}

/// How the backward kernels cut their work. One kind of rows is *resident*: a block keeps its tile and sums up its
/// gradient. The other kind *passes*, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardTiles {
    /// Channels of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Rows of a passing tile: 16, 32 or 64, and 16 at least for each unit.
    pub passing: usize,
    /// Units of a block, each four warps with 64 resident rows.
    pub units: usize,
    /// Passing tiles that shared memory holds; two at least.
    pub stages: usize,
    /// Element type.
    pub factor: Factor,
    /// What the kernel for keys sums up; that for queries does not read it.
    pub sums: Sums,
    /// Whether a list says which passing tiles are visited, and what of them is seen.
    pub masked: bool,
    /// Whether keys and values are in two parts.
    pub two_parts: bool,
}

impl BackwardTiles {
    /// Sizes of the vectors in registers: scores, gradients of the resident rows, probabilities.
    pub fn vectors(&self) -> [usize; 3] {
        let (scores, gradients) = (self.scores().accumulator(), self.weighted().accumulator());
        [scores, gradients, scores / 2]
    }

    /// Panels of 64 channels.
    pub fn panels(&self) -> usize {
        self.head_dim.div_ceil(64)
    }

    /// Resident rows of a block.
    pub fn resident(&self) -> usize {
        64 * self.units
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        128 * self.units
    }

    /// Shared memory of a block, in bytes; statistics of rows included.
    pub fn shared_bytes(&self) -> usize {
        let rows = self.resident() + self.passing * self.stages;
        256 * self.panels() * rows + 8 * rows
    }

    /// Resident rows times passing rows, summed over channels.
    pub fn scores(&self) -> Product {
        over_channels(self.head_dim, self.resident(), self.passing, self.factor)
    }

    /// Passing rows, summed up with weights.
    pub fn weighted(&self) -> Product {
        over_rows(self.head_dim, self.passing, self.factor)
    }
}

/// `A Bᵀ`: A has panels of `a_rows` rows, B of `b_rows`.
fn over_channels(head_dim: usize, a_rows: usize, b_rows: usize, factor: Factor) -> Product {
    Product {
        n: b_rows,
        k: head_dim.next_multiple_of(16),
        left: Left::Tile { rows: a_rows },
        rows: b_rows,
        over_channels: true,
        factor,
    }
}

/// `A B` over the `rows` rows of B, A in registers.
fn over_rows(head_dim: usize, rows: usize, factor: Factor) -> Product {
    Product {
        n: head_dim,
        k: rows,
        left: Left::Registers,
        rows,
        over_channels: false,
        factor,
    }
}
