//! Tile sizes of the `mma` kernel.

use super::product::Product;
use crate::problem::Layout;
use crate::schedule::STEP;
use flow_cube::wgmma::OperandType;

/// Rows and columns of a tile.
pub const SIDE: usize = 128;
/// Threads of a block: eight warps, two along rows and four along columns.
pub const THREADS: usize = 256;
/// Rows and columns that a warp sums up.
pub(super) const WARP: [usize; 2] = [64, 32];

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Where rows and columns of the operands are.
    pub layout: Layout,
    /// Type of the operands.
    pub operand_type: OperandType,
    /// Steps of 64 summands that shared memory holds.
    pub stages: usize,
    /// Whether there is a second pair of operands.
    pub low_rank: bool,
    /// Whether rows are in groups with a second operand each.
    pub grouped: bool,
    /// Whether a block writes a partial tile, the sum of one split of the summands.
    pub splits_k: bool,
    /// Whether sums are scaled by row and column: operands are codes that were widened.
    pub scaled: bool,
}

impl Tiles {
    /// Bytes of a stage's tile of A, and of B.
    pub const TILE_BYTES: usize = SIDE * STEP * 2;

    /// Stages for a device with `shared_bytes` of shared memory for a block, such that two blocks fit on a multiprocessor
    /// where three stages or two let them.
    pub fn stages(shared_bytes: usize) -> usize {
        let of =
            |blocks: usize, stages: usize| blocks * (stages * 2 * Self::TILE_BYTES + 1024) <= shared_bytes;
        if of(2, 3) || !of(2, 2) && of(1, 3) { 3 } else { 2 }
    }

    /// Shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> usize {
        self.stages * 2 * Self::TILE_BYTES
    }

    /// Whether rows of A in memory are summands.
    pub fn a_transposed(&self) -> bool {
        self.layout == Layout::Tn
    }

    /// Whether rows of B in memory are summands.
    pub fn b_transposed(&self) -> bool {
        self.layout != Layout::Nt
    }

    /// What a warp multiplies in a step.
    pub fn product(&self) -> Product {
        Product {
            row_groups: WARP[0] / 16,
            n: WARP[1],
            k: STEP,
            left_transposed: self.a_transposed(),
            right_transposed: self.b_transposed(),
            operand_type: self.operand_type,
        }
    }

    /// For file names and manifests.
    pub fn name(&self) -> String {
        let layout = match self.layout {
            Layout::Nt => "nt",
            Layout::Nn => "nn",
            Layout::Tn => "tn",
        };
        let grouped = if self.grouped { "_grouped" } else { "" };
        format!("mma_{layout}_{SIDE}x{SIDE}_{}{grouped}", self.stages)
    }
}
