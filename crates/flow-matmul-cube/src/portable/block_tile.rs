//! The tile of a block, and what of the factors it is made of.

use super::arguments::Sizes;
use super::kind::{Kind, SIDE};
use crate::problem::Layout;
use cubecl::prelude::*;

/// What a block sums of an operand: rows (of B by columns) from `first` to before `end`, summands from `summand` to before
/// `summands`.
#[derive(CubeType)]
pub(super) struct Range {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) summand: usize,
    pub(super) summands: usize,
}

/// What a block computes.
#[derive(CubeType)]
pub(super) struct BlockTile {
    /// Its rows of the result, and A's summands.
    pub(super) of_a: Range,
    /// Its columns as rows of B, and B's summands.
    pub(super) of_b: Range,
    /// Its first column of the result.
    pub(super) first_column: usize,
    /// Where the bias of its group begins.
    pub(super) bias_first: usize,
    /// Where the rows of its group of results begin.
    pub(super) d_first: usize,
}

/// A thread.
#[derive(CubeType)]
pub(super) struct Thread {
    /// Its first column within a tile.
    pub(super) x: usize,
    /// Its first row within a tile.
    pub(super) y: usize,
    /// See [`Sizes::chunk`].
    pub(super) chunk: usize,
}

/// The tile of this block. `offsets` says where groups of rows begin; in weight gradients a group is `CUBE_POS_Z`.
#[cube]
pub(super) fn this_tile(sizes: &Sizes, offsets: &[u32], #[comptime] kind: Kind) -> BlockTile {
    let first_column = CUBE_POS_Y as usize * SIDE;
    let mut of_a = Range {
        first: CUBE_POS_X as usize * SIDE,
        end: sizes.m,
        summand: 0usize,
        summands: sizes.k,
    };
    let mut of_b = Range {
        first: first_column,
        end: sizes.n,
        summand: 0usize,
        summands: sizes.k,
    };
    let mut bias_first = 0usize;
    let mut d_first = 0usize;
    if comptime!(kind.grouped) {
        if comptime!(kind.layout == Layout::Tn) {
            // A group's rows are its summands.
            let group = CUBE_POS_Z as usize;
            of_a.summand = offsets[group] as usize;
            of_a.summands = offsets[group + 1] as usize;
            of_b.summand = of_a.summand;
            of_b.summands = of_a.summands;
            d_first = group * sizes.m;
        } else {
            // Tiles of 64 rows are those of the groups one after another. More are launched than there are.
            let tile = CUBE_POS_X as usize;
            let mut before = 0usize;
            let mut mine = 0usize;
            of_a.end = 0usize;
            for group in 0..sizes.groups {
                let begin = offsets[group] as usize;
                let end = offsets[group + 1] as usize;
                let count = (end - begin).div_ceil(SIDE);
                let here = tile >= before && tile < before + count;
                mine = select(here, group, mine);
                of_a.first = select(
                    here,
                    begin + (tile - select(here, before, tile)) * SIDE,
                    of_a.first,
                );
                of_a.end = select(here, end, of_a.end);
                before += count;
            }
            of_a.summands = select(of_a.end == 0, 0usize, sizes.k);
            if comptime!(kind.layout == Layout::Nt) {
                of_b.first += mine * sizes.n;
                of_b.end += mine * sizes.n;
            } else {
                of_b.summand = mine * sizes.k;
                of_b.summands = mine * sizes.k + sizes.k;
            }
            bias_first = mine * sizes.n;
        }
    }
    BlockTile {
        of_a,
        of_b,
        first_column,
        bias_first,
        d_first,
    }
}
