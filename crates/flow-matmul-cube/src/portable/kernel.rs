//! The portable kernel: a block of 256 threads sums up 64 x 64 elements, 16 summands at a time.
//!
//! Thread `(x, y)`, both below 16, owns the rows `y + 16 r` and the columns `x + 16 j`. Sums are in f32, in the order of the
//! summands, first pair of operands first: an element's bits depend on its row, its column and nothing else.

use super::arguments::{Inputs, Outputs, Sizes};
use super::block_tile::{BlockTile, Range, Thread, this_tile};
use super::epilogue::store_tile;
use super::kind::{CHUNK, Kind, SIDE, THREADS};
use crate::epilogue::scaled;
use crate::problem::Layout;
use cubecl::prelude::*;

/// From one summand's row of shared memory to the next; one more than there are, so that threads meet different banks.
const PITCH: usize = SIDE + 1;

/// From a row of an operand to the next.
#[derive(CubeType)]
struct Strides {
    a: usize,
    b: usize,
}

/// A thread's sums, and the stage of both operands that they are made of.
#[derive(CubeType)]
struct Accumulator {
    stage: Shared<[f32]>,
    sums: Array<f32>,
}

/// Copies 16 summands of `range` from the one after `done` on, of 64 rows, to `stage` from `at` on; zeros where there are none.
/// `transposed`: whether the matrix has a row for each summand. Without a branch: compilers for processors take a time that
/// grows with the square of the branches of a kernel with barriers.
#[cube]
fn load<F: Float>(
    source: &[F],
    stride: usize,
    range: &Range,
    done: usize,
    stage: &mut Shared<[f32]>,
    chunk: usize,
    #[comptime] at: usize,
    #[comptime] transposed: bool,
) {
    let summand = range.summand + done;
    for i in 0..chunk * SIDE / THREADS {
        let element = UNIT_POS as usize + i * THREADS;
        // Neighbouring threads read neighbouring elements of memory.
        let (offset, of) = if comptime!(transposed) {
            (element % SIDE, element / SIDE)
        } else {
            (element / CHUNK, element % CHUNK)
        };
        let row = range.first + offset;
        let s = summand + of;
        let exists = row < range.end && s < range.summands;
        let place = if comptime!(transposed) {
            s * stride + row
        } else {
            row * stride + s
        };
        let value = f32::cast_from(source[select(exists, place, 0usize)]);
        stage[at + of * PITCH + offset] = select(exists, value, 0.0f32);
    }
}

/// Adds up the products of a pair of operands, whose ranges have as many summands.
#[cube]
fn add_products<F: Float>(
    a: &[F],
    b: &[F],
    strides: &Strides,
    of_a: &Range,
    of_b: &Range,
    thread: &Thread,
    accumulator: &mut Accumulator,
    #[comptime] layout: Layout,
) {
    let mut done = 0usize;
    while of_a.summand + done < of_a.summands {
        load::<F>(
            a,
            strides.a,
            of_a,
            done,
            &mut accumulator.stage,
            thread.chunk,
            0usize,
            comptime!(layout == Layout::Tn),
        );
        load::<F>(
            b,
            strides.b,
            of_b,
            done,
            &mut accumulator.stage,
            thread.chunk,
            comptime!(CHUNK * PITCH),
            comptime!(layout != Layout::Nt),
        );
        sync_cube();
        for c in 0..thread.chunk {
            let mut columns = Array::<f32>::new(4usize);
            #[unroll]
            for j in 0..4usize {
                columns[j] =
                    accumulator.stage[comptime!(CHUNK * PITCH) + c * PITCH + thread.x + comptime!(16 * j)];
            }
            #[unroll]
            for r in 0..4usize {
                let row = accumulator.stage[c * PITCH + thread.y + comptime!(16 * r)];
                #[unroll]
                for j in 0..4usize {
                    accumulator.sums[comptime!(4 * r + j)] += row * columns[j];
                }
            }
        }
        sync_cube();
        done += thread.chunk;
    }
}

/// Scales the sums of codes by row and column.
#[cube]
fn scale_sums<F: Float>(
    sums: &mut Array<f32>,
    inputs: &Inputs<F>,
    sizes: &Sizes,
    tile: &BlockTile,
    thread: &Thread,
) {
    #[unroll]
    for r in 0..4usize {
        let row = tile.of_a.first + thread.y + comptime!(16 * r);
        let row_scale = inputs.row_scales[sizes.row_scale_start + select(row < sizes.m, row, 0usize)];
        #[unroll]
        for j in 0..4usize {
            let column = tile.first_column + thread.x + comptime!(16 * j);
            let column_scale =
                inputs.column_scales[sizes.column_scale_start + select(column < sizes.n, column, 0usize)];
            let at = comptime!(4 * r + j);
            sums[at] = scaled(sums[at], row_scale, column_scale);
        }
    }
}

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`. `offsets` says where the rows of groups begin; in weight gradients a
/// group is `CUBE_POS_Z`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_matmul<F: Float, O: Float>(
    inputs: &Inputs<F>,
    outputs: &mut Outputs<F, O>,
    offsets: &[u32],
    sizes: &Sizes,
    #[comptime] kind: Kind,
) {
    let stage: Shared<[f32]> = Shared::new_slice(comptime!(2 * CHUNK * PITCH));
    let thread = Thread {
        x: UNIT_POS as usize % 16,
        y: UNIT_POS as usize / 16,
        chunk: sizes.chunk,
    };
    let tile = this_tile(sizes, offsets, kind);
    let mut sums = Array::<f32>::new(16usize);
    #[unroll]
    for i in 0..16usize {
        sums[i] = 0.0f32;
    }
    let mut accumulator = Accumulator { stage, sums };
    let strides = Strides {
        a: sizes.a_stride,
        b: sizes.b_stride,
    };
    add_products::<F>(
        &inputs.a,
        &inputs.b,
        &strides,
        &tile.of_a,
        &tile.of_b,
        &thread,
        &mut accumulator,
        comptime!(kind.layout),
    );
    if comptime!(kind.scaled) {
        scale_sums::<F>(&mut accumulator.sums, inputs, sizes, &tile, &thread);
    }
    if comptime!(kind.low_rank) {
        let of_a = Range {
            first: tile.of_a.first,
            end: sizes.m,
            summand: 0usize,
            summands: sizes.rank,
        };
        let of_b = Range {
            first: tile.first_column,
            end: sizes.n,
            summand: 0usize,
            summands: sizes.rank,
        };
        let strides = Strides {
            a: sizes.low_rank_a_stride,
            b: sizes.low_rank_b_stride,
        };
        add_products::<F>(
            &inputs.low_rank_a,
            &inputs.low_rank_b,
            &strides,
            &of_a,
            &of_b,
            &thread,
            &mut accumulator,
            comptime!(kind.layout),
        );
    }
    store_tile::<F, O>(&accumulator.sums, inputs, outputs, sizes, &tile, &thread, kind);
}
