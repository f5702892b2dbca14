//! Tile sizes of the `wgmma` kernel, and how products walk through shared memory.

use crate::problem::{Accumulation, Layout};
use crate::schedule::STEP;
use flow_cube::wgmma::{OperandType, Steps};

/// Sizes that a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Where rows and columns of the operands are.
    pub layout: Layout,
    /// Type of the operands.
    pub operand_type: OperandType,
    /// Warpgroups of a block.
    pub warpgroups: usize,
    /// Row groups of 64 rows that a warpgroup sums up: 1 or 2.
    pub row_groups: usize,
    /// Columns of a tile; a multiple of 64, at most 256.
    pub columns: usize,
    /// Steps of 64 summands that shared memory holds.
    pub stages: usize,
    /// Whether warpgroups compute tiles of their own, in ping-pong, so that one finishes a tile while the other multiplies.
    /// Else they share a tile.
    pub ping_pong: bool,
    /// Epilogue subtiles of 64 rows by 128 bytes that a warpgroup holds while it finishes a tile: 1 to 3.
    pub subtile_buffers: usize,
    /// Whether there is a second pair of operands.
    pub low_rank: bool,
    /// Steps of a row of a convolution's kernel, and rows of a frame of it; zeros if there is none.
    pub kernel_row: [usize; 2],
    /// How products of e4m3 are added up, if the first pair of operands is codes. In tiles, copies and steps two codes stand for one
    /// element of 16 bits: a step is 128 of them. Sums are scaled before the second pair is added.
    pub e4m3: Option<Accumulation>,
}

impl Tiles {
    /// Rows of a tile.
    pub fn rows(&self) -> usize {
        64 * self.row_groups * if self.ping_pong { 1 } else { self.warpgroups }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        128 * self.warpgroups as u32
    }

    /// Registers of a vector that holds the sums of 64 rows.
    pub fn vector(&self) -> usize {
        (self.columns / 2).next_power_of_two()
    }

    /// Elements of a stage's tile of A.
    pub fn a_elements(&self) -> usize {
        self.rows() * STEP
    }

    /// Elements of a stage's tile of B.
    pub fn b_elements(&self) -> usize {
        self.columns * STEP
    }

    /// Bytes that the copies of a stage bring.
    pub fn stage_bytes(&self) -> usize {
        2 * (self.a_elements() + self.b_elements())
    }

    /// Warps that read a stage.
    pub fn readers(&self) -> usize {
        4 * if self.ping_pong { 1 } else { self.warpgroups }
    }

    /// Shared memory of a block, in bytes, with barriers.
    pub fn shared_bytes(&self) -> usize {
        self.stages * (self.stage_bytes() + 12) + self.warpgroups * self.subtile_buffers * (8192 + 8)
    }

    /// `A Bᵀ` of 64 rows over a step of the first pair.
    pub fn products(&self) -> Steps {
        Steps {
            e4m3: self.is_e4m3(),
            ..self.low_rank_products()
        }
    }

    /// `A Bᵀ` of 64 rows over a step of the second pair.
    pub fn low_rank_products(&self) -> Steps {
        let by_sixteen = |along: bool| (0..STEP / 16).map(|k| k * if along { 128 } else { 2 }).collect();
        let (a_transposed, b_transposed) = (self.a_transposed(), self.b_transposed());
        Steps {
            n: self.columns,
            padded: self.vector(),
            a: by_sixteen(a_transposed),
            b: by_sixteen(b_transposed),
            a_transposed,
            b_transposed,
            operand_type: self.operand_type,
            e4m3: false,
        }
    }

    /// Whether the first pair of operands is codes.
    pub fn is_e4m3(&self) -> bool {
        self.e4m3.is_some()
    }

    /// Whether the sums of each step are added up in registers apart.
    pub fn is_promoted(&self) -> bool {
        self.e4m3 == Some(Accumulation::Promoted)
    }

    /// Whether the second pair is added to sums that were scaled.
    pub fn adds_low_rank_to_scaled(&self) -> bool {
        self.is_e4m3() && self.low_rank
    }

    /// Whether summands are rows of a convolution's kernel.
    pub fn is_convolution(&self) -> bool {
        self.kernel_row[0] > 0
    }

    /// Whether rows of A in memory are summands.
    pub fn a_transposed(&self) -> bool {
        self.layout == Layout::Tn
    }

    /// Whether rows of B in memory are summands.
    pub fn b_transposed(&self) -> bool {
        self.layout != Layout::Nt
    }

    /// For file names and manifests.
    pub fn name(&self) -> String {
        let layout = match self.layout {
            Layout::Nt => "nt",
            Layout::Nn => "nn",
            Layout::Tn => "tn",
        };
        format!(
            "wgmma_{layout}_{}x{}_{}{}{}{}",
            self.rows(),
            self.columns,
            self.stages,
            if self.ping_pong { "_turns" } else { "" },
            if self.is_convolution() { "_convolution" } else { "" },
            match self.e4m3 {
                None => "",
                Some(Accumulation::Promoted) => "_e4m3",
                Some(Accumulation::Fast) => "_e4m3_fast",
            }
        )
    }
}
