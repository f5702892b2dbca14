//! The portable backward kernel for queries.

use super::block::*;
use super::tiles::{CHUNK, ROWS, Tiles};
use cubecl::prelude::*;

/// `dq`, and `delta`, the sum of `o · do` over the channels of each row, which the kernel for keys needs. One block for
/// 64 queries of a head; see [`portable_forward`](super::forward::portable_forward) for the operands.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_backward_queries<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    k2: &Tensor<F>,
    v2: &Tensor<F>,
    o: &Tensor<F>,
    d_o: &Tensor<F>,
    dq: &mut Tensor<F>,
    lse: &[f32],
    delta: &mut [f32],
    mask: &[u32],
    queries: usize,
    lse_rows: usize,
    keys: usize,
    keys2: usize,
    group: usize,
    mask_batch_stride: usize,
    entries_at: usize,
    patterns_at: usize,
    chunk: usize,
    scale: f32,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    let owned_channels = comptime!(tiles.owned_channels());
    let columns_at = comptime!(CHUNK * (ROWS + 1));
    let columns = comptime!(tiles.columns);
    let head_dim = comptime!(tiles.head_dim);
    let mut stage: Shared<[f32]> = Shared::new_slice(comptime!(tiles.stage_elements()));
    let mut gradients: Shared<[f32]> = Shared::new_slice(comptime!(tiles.scores_elements()));
    let mut partial: Shared<[f32]> = Shared::new_slice(comptime!(ROWS * (CHUNK + 1)));

    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let first = CUBE_POS_X as usize * ROWS;
    let q_base = batch * q.stride(0) + head * q.stride(1);
    let o_base = batch * o.stride(0) + head * o.stride(1);
    let d_o_base = batch * d_o.stride(0) + head * d_o.stride(1);
    let k_base = batch * k.stride(0) + head / group * k.stride(1);
    let v_base = batch * v.stride(0) + head / group * v.stride(1);
    let k2_base = batch * k2.stride(0) + head / group * k2.stride(1);
    let v2_base = batch * v2.stride(0) + head / group * v2.stride(1);
    let tiles_of_first = (keys + comptime!(tiles.columns - 1)) / comptime!(tiles.columns);
    let statistics = (batch * CUBE_COUNT_Y as usize + head) * lse_rows;

    #[unroll]
    for r in 0..4usize {
        let row = first + y + comptime!(16 * r);
        let mut sum = 0.0f32;
        #[unroll]
        for j in 0..owned_channels {
            let channel = x + comptime!(16 * j);
            let a = read_or_zero(o, o_base, row, queries, channel, head_dim);
            sum += a * read_or_zero(d_o, d_o_base, row, queries, channel, head_dim);
        }
        partial[(y + comptime!(16 * r)) * comptime!(CHUNK + 1) + x] = sum;
    }
    sync_cube();
    let mut row_lse = Array::<f32>::new(4usize);
    let mut row_delta = Array::<f32>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        let row = first + y + comptime!(16 * r);
        row_delta[r] = combine(&partial, y + comptime!(16 * r), chunk, false);
        row_lse[r] = lse[statistics + select(row < queries, row, 0usize)];
        if x == 0 && row < queries {
            delta[statistics + row] = row_delta[r];
        }
    }

    let mut sums = Array::<f32>::new(comptime!(4 * owned_channels));
    clear(&mut sums, comptime!(4 * owned_channels));
    let mut scores = Array::<f32>::new(comptime!(4 * owned));
    let mut products = Array::<f32>::new(comptime!(4 * owned));
    let mut words = Array::<u32>::new(4usize);

    let list = batch * mask_batch_stride + CUBE_POS_X as usize;
    let begin = mask[list] as usize;
    let end = mask[list + 1] as usize;
    for entry in begin..end {
        let tile = mask[entries_at + 2 * entry] as usize;
        let number = mask[entries_at + 2 * entry + 1];
        if number != 1 {
            clear(&mut scores, comptime!(4 * owned));
            clear(&mut products, comptime!(4 * owned));
            for part in 0..comptime!(tiles.channels()) / chunk {
                let channel = part * chunk;
                load_channels(
                    q, q_base, first, queries, channel, &mut stage, 0usize, chunk, ROWS, head_dim,
                );
                if tile < tiles_of_first {
                    load_channels(
                        k,
                        k_base,
                        tile * columns,
                        keys,
                        channel,
                        &mut stage,
                        columns_at,
                        chunk,
                        columns,
                        head_dim,
                    );
                } else {
                    let from = (tile - tiles_of_first) * columns;
                    load_channels(
                        k2, k2_base, from, keys2, channel, &mut stage, columns_at, chunk, columns, head_dim,
                    );
                }
                sync_cube();
                add_products(&stage, &mut scores, x, y, chunk, tiles);
                sync_cube();
                load_channels(
                    d_o, d_o_base, first, queries, channel, &mut stage, 0usize, chunk, ROWS, head_dim,
                );
                if tile < tiles_of_first {
                    load_channels(
                        v,
                        v_base,
                        tile * columns,
                        keys,
                        channel,
                        &mut stage,
                        columns_at,
                        chunk,
                        columns,
                        head_dim,
                    );
                } else {
                    let from = (tile - tiles_of_first) * columns;
                    load_channels(
                        v2, v2_base, from, keys2, channel, &mut stage, columns_at, chunk, columns, head_dim,
                    );
                }
                sync_cube();
                add_products(&stage, &mut products, x, y, chunk, tiles);
                sync_cube();
            }
            partial_mask(mask, patterns_at, number, &mut words, x, y);
            #[unroll]
            for r in 0..4usize {
                #[unroll]
                for j in 0..owned {
                    let at = comptime!(r * owned + j);
                    let weight = (scores[at] * scale - row_lse[r]).exp();
                    let gradient = weight * (products[at] - row_delta[r]);
                    scores[at] = select(allowed(words[r], j), gradient, 0.0f32);
                }
            }
            share(&scores, &mut gradients, x, y, tiles);
            for part in 0..comptime!(tiles.columns) / chunk {
                let column = part * chunk;
                if tile < tiles_of_first {
                    load_rows(k, k_base, tile * columns + column, keys, &mut stage, chunk, tiles);
                } else {
                    let from = (tile - tiles_of_first) * columns + column;
                    load_rows(k2, k2_base, from, keys2, &mut stage, chunk, tiles);
                }
                sync_cube();
                add_weighted(&gradients, &stage, &mut sums, column, x, y, chunk, tiles);
                sync_cube();
            }
        }
    }

    let mut row_scales = Array::<f32>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        row_scales[r] = scale;
    }
    let dq_base = batch * dq.stride(0) + head * dq.stride(1);
    store(dq, dq_base, first, queries, &sums, &row_scales, x, y, tiles);
}
