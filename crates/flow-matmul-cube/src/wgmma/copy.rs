//! Copies of operands to stages of shared memory, by the tensor memory accelerator.
//!
//! A tile is a row of panels of 64 elements, with the 128-byte swizzle. An operand whose rows in memory are rows of the tile
//! is one panel, as high as the tile; one whose rows are summands has a panel of 64 summands for each 64 rows of the tile.
//! What the matrix does not have arrives as zeros.

use super::cursor::{A_ROW, B_ROW, STEP_AT};
use super::tiles::Tiles;
use crate::schedule::STEP;
use cubecl::prelude::*;
use flow_cube::Issue;
use flow_cube::barrier::arrive_and_expect;
use flow_cube::tma;

/// Starts the copy of one operand's tile, from row `row` and step `step` on.
#[cube]
fn copy_operand<E: Numeric>(
    full: u32,
    map: &TensorMap<E, Tiled>,
    to: &mut [E],
    start: usize,
    row: u32,
    step: u32,
    #[comptime] rows: usize,
    #[comptime] transposed: bool,
    #[comptime] caller: Issue,
) {
    let summand = step * comptime!(STEP as u32);
    if comptime!(transposed) {
        #[unroll]
        for panel in 0..comptime!(rows / 64) {
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
            &to[start..start + comptime!(rows * STEP)],
            full,
            row as i32,
            summand as i32,
            caller,
        );
    }
}

/// Starts the copies of the cursor's step to stage `stage`. For one thread.
#[cube]
pub(super) fn fill<E: Numeric>(
    full: u32,
    a: &TensorMap<E, Tiled>,
    b: &TensorMap<E, Tiled>,
    low_rank_a: &TensorMap<E, Tiled>,
    low_rank_b: &TensorMap<E, Tiled>,
    a_tiles: &mut [E],
    b_tiles: &mut [E],
    stage: usize,
    cursor: &Array<u32>,
    first_steps: u32,
    frame_stride: u32,
    row_stride: u32,
    #[comptime] tiles: Tiles,
    #[comptime] caller: Issue,
) {
    let a_at = stage * comptime!(tiles.a_elements());
    let b_at = stage * comptime!(tiles.b_elements());
    let (rows, columns) = comptime!((tiles.rows(), tiles.columns));
    let step = cursor[STEP_AT];
    arrive_and_expect(full, comptime!(tiles.stage_bytes() as u32), caller);
    if comptime!(tiles.low_rank) {
        if step < first_steps {
            copy_operand::<E>(
                full,
                a,
                a_tiles,
                a_at,
                cursor[A_ROW],
                step,
                rows,
                comptime!(tiles.a_transposed()),
                caller,
            );
            copy_operand::<E>(
                full,
                b,
                b_tiles,
                b_at,
                cursor[B_ROW],
                step,
                columns,
                comptime!(tiles.b_transposed()),
                caller,
            );
        } else {
            let step = step - first_steps;
            copy_operand::<E>(
                full,
                low_rank_a,
                a_tiles,
                a_at,
                cursor[A_ROW],
                step,
                rows,
                comptime!(tiles.a_transposed()),
                caller,
            );
            copy_operand::<E>(
                full,
                low_rank_b,
                b_tiles,
                b_at,
                cursor[B_ROW],
                step,
                columns,
                comptime!(tiles.b_transposed()),
                caller,
            );
        }
    } else {
        let mut a_row = cursor[A_ROW];
        let mut a_step = step;
        if comptime!(tiles.is_convolution()) {
            let kernel_row = step / comptime!(tiles.kernel_row[0] as u32);
            a_step = step % comptime!(tiles.kernel_row[0] as u32);
            a_row += kernel_row / comptime!(tiles.kernel_row[1] as u32) * frame_stride
                + kernel_row % comptime!(tiles.kernel_row[1] as u32) * row_stride;
        }
        copy_operand::<E>(
            full,
            a,
            a_tiles,
            a_at,
            a_row,
            a_step,
            rows,
            comptime!(tiles.a_transposed()),
            caller,
        );
        copy_operand::<E>(
            full,
            b,
            b_tiles,
            b_at,
            cursor[B_ROW],
            step,
            columns,
            comptime!(tiles.b_transposed()),
            caller,
        );
    }
}
