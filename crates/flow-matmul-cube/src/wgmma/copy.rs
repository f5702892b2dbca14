//! Copies of operands to stages of shared memory, by the tensor memory accelerator.
//!
//! A tile is a row of panels of 64 elements, with the 128-byte swizzle. An operand whose rows in memory are rows of the tile
//! is one panel, as high as the tile; one whose rows are summands has a panel of 64 summands for each 64 rows of the tile.
//! What the matrix does not have arrives as zeros.

use super::arguments::{Factors, Sizes};
use super::block::Memory;
use super::cursor::{A_ROW, B_ROW, STEP_AT};
use super::tiles::Tiles;
use crate::schedule::STEP;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::{self, arrive_and_expect};
use flow_cube::tma;

/// An operand's tile of a step.
#[derive(Clone, Copy, Debug)]
struct OperandTile {
    /// Rows of A, or of B by columns of the result.
    rows: usize,
    /// Whether rows in memory are summands.
    transposed: bool,
}

impl OperandTile {
    fn of_a(tiles: Tiles) -> Self {
        Self {
            rows: tiles.rows(),
            transposed: tiles.a_transposed(),
        }
    }

    fn of_b(tiles: Tiles) -> Self {
        Self {
            rows: tiles.columns,
            transposed: tiles.b_transposed(),
        }
    }
}

/// Starts the copy of one operand's tile, from row `row` and step `step` on, to `start` in all stages' tiles.
#[cube]
fn copy_operand<E: Numeric>(
    full: u32,
    map: &TensorMap<E, Tiled>,
    to: &[E],
    start: usize,
    row: u32,
    step: u32,
    #[comptime] tile: OperandTile,
    #[comptime] caller: Issue,
) {
    let summand = step * comptime!(STEP as u32);
    if comptime!(tile.transposed) {
        #[unroll]
        for panel in 0..comptime!(tile.rows / 64) {
            let at = start + comptime!(panel * 64 * STEP);
            let column = row + comptime!((panel * 64) as u32);
            tma::load_2d::<E>(
                map,
                &to[at..at + comptime!(64 * STEP)],
                full,
                summand as i32,
                column as i32,
                caller,
            );
        }
    } else {
        tma::load_2d::<E>(
            map,
            &to[start..start + comptime!(tile.rows * STEP)],
            full,
            row as i32,
            summand as i32,
            caller,
        );
    }
}

/// Starts the copies of the cursor's step to stage `stage`. For one thread.
#[cube]
pub(super) fn fill<E: Numeric, O: Numeric>(
    memory: &Memory<E, O>,
    factors: &Factors<E>,
    sizes: &Sizes,
    cursor: &Array<u32>,
    stage: u32,
    #[comptime] tiles: Tiles,
    #[comptime] caller: Issue,
) {
    let full = barrier::at(memory.full, stage as usize);
    let stage = stage as usize;
    let a_at = stage * comptime!(tiles.a_elements());
    let b_at = stage * comptime!(tiles.b_elements());
    let (a_tile, b_tile) = comptime!((OperandTile::of_a(tiles), OperandTile::of_b(tiles)));
    let step = cursor[STEP_AT];
    arrive_and_expect(full, comptime!(tiles.stage_bytes() as u32), caller);
    if comptime!(tiles.low_rank) {
        if step < sizes.first_steps {
            copy_operand::<E>(
                full,
                &factors.a,
                &memory.a_tiles,
                a_at,
                cursor[A_ROW],
                step,
                a_tile,
                caller,
            );
            copy_operand::<E>(
                full,
                &factors.b,
                &memory.b_tiles,
                b_at,
                cursor[B_ROW],
                step,
                b_tile,
                caller,
            );
        } else {
            let step = step - sizes.first_steps;
            copy_operand::<E>(
                full,
                &factors.low_rank_a,
                &memory.a_tiles,
                a_at,
                cursor[A_ROW],
                step,
                a_tile,
                caller,
            );
            copy_operand::<E>(
                full,
                &factors.low_rank_b,
                &memory.b_tiles,
                b_at,
                cursor[B_ROW],
                step,
                b_tile,
                caller,
            );
        }
    } else {
        let mut a_row = cursor[A_ROW];
        let mut a_step = step;
        if comptime!(tiles.is_convolution()) {
            let kernel_row = step / comptime!(tiles.kernel_row[0] as u32);
            a_step = step % comptime!(tiles.kernel_row[0] as u32);
            a_row += kernel_row / comptime!(tiles.kernel_row[1] as u32) * sizes.frame_stride
                + kernel_row % comptime!(tiles.kernel_row[1] as u32) * sizes.row_stride;
        }
        copy_operand::<E>(
            full,
            &factors.a,
            &memory.a_tiles,
            a_at,
            a_row,
            a_step,
            a_tile,
            caller,
        );
        copy_operand::<E>(
            full,
            &factors.b,
            &memory.b_tiles,
            b_at,
            cursor[B_ROW],
            step,
            b_tile,
            caller,
        );
    }
}
