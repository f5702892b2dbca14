//! The portable backward kernel for keys and values.

use super::block::*;
use super::tiles::{CHUNK, ROWS, Tiles};
use cubecl::prelude::*;

/// `dk` and `dv` of one segment. One block for 64 keys of a head of keys; the heads of queries that share it are summed
/// up one after the other. Rows are keys, columns queries; `delta` is from
/// [`portable_backward_queries`](super::backward_queries::portable_backward_queries).
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_backward_keys<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    d_o: &Tensor<F>,
    dk: &mut Tensor<F>,
    dv: &mut Tensor<F>,
    lse: &[f32],
    delta: &[f32],
    mask: &[u32],
    queries: usize,
    lse_rows: usize,
    keys: usize,
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
    let mut weights: Shared<[f32]> = Shared::new_slice(comptime!(tiles.scores_elements()));

    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    let kv_head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let first = CUBE_POS_X as usize * ROWS;
    let k_base = batch * k.stride(0) + kv_head * k.stride(1);
    let v_base = batch * v.stride(0) + kv_head * v.stride(1);

    let mut dk_sums = Array::<f32>::new(comptime!(4 * owned_channels));
    let mut dv_sums = Array::<f32>::new(comptime!(4 * owned_channels));
    clear(&mut dk_sums, comptime!(4 * owned_channels));
    clear(&mut dv_sums, comptime!(4 * owned_channels));
    let mut scores = Array::<f32>::new(comptime!(4 * owned));
    let mut products = Array::<f32>::new(comptime!(4 * owned));
    let mut words = Array::<u32>::new(4usize);

    let list = batch * mask_batch_stride + CUBE_POS_X as usize;
    let begin = mask[list] as usize;
    let end = mask[list + 1] as usize;
    for member in 0..group {
        let head = kv_head * group + member;
        let q_base = batch * q.stride(0) + head * q.stride(1);
        let d_o_base = batch * d_o.stride(0) + head * d_o.stride(1);
        let statistics = (batch * CUBE_COUNT_Y as usize * group + head) * lse_rows;
        for entry in begin..end {
            let from = mask[entries_at + 2 * entry] as usize * columns;
            let number = mask[entries_at + 2 * entry + 1];
            if number != 1 {
                clear(&mut scores, comptime!(4 * owned));
                clear(&mut products, comptime!(4 * owned));
                for part in 0..comptime!(tiles.channels()) / chunk {
                    let channel = part * chunk;
                    load_channels(
                        k, k_base, first, keys, channel, &mut stage, 0usize, chunk, ROWS, head_dim,
                    );
                    load_channels(
                        q, q_base, from, queries, channel, &mut stage, columns_at, chunk, columns, head_dim,
                    );
                    sync_cube();
                    add_products(&stage, &mut scores, x, y, chunk, tiles);
                    sync_cube();
                    load_channels(
                        v, v_base, first, keys, channel, &mut stage, 0usize, chunk, ROWS, head_dim,
                    );
                    load_channels(
                        d_o, d_o_base, from, queries, channel, &mut stage, columns_at, chunk, columns,
                        head_dim,
                    );
                    sync_cube();
                    add_products(&stage, &mut products, x, y, chunk, tiles);
                    sync_cube();
                }
                partial_mask(mask, patterns_at, number, &mut words, x, y);
                #[unroll]
                for j in 0..owned {
                    let query = from + x + comptime!(16 * j);
                    // Columns behind the end are masked.
                    let statistic = statistics + select(query < queries, query, 0usize);
                    let query_lse = lse[statistic];
                    let query_delta = delta[statistic];
                    #[unroll]
                    for r in 0..4usize {
                        let at = comptime!(r * owned + j);
                        let open = allowed(words[r], j);
                        let weight = select(open, (scores[at] * scale - query_lse).exp(), 0.0f32);
                        scores[at] = weight;
                        products[at] = select(open, weight * (products[at] - query_delta), 0.0f32);
                    }
                }
                share(&scores, &mut weights, x, y, tiles);
                for part in 0..comptime!(tiles.columns) / chunk {
                    let column = part * chunk;
                    load_rows(d_o, d_o_base, from + column, queries, &mut stage, chunk, tiles);
                    sync_cube();
                    add_weighted(&weights, &stage, &mut dv_sums, column, x, y, chunk, tiles);
                    sync_cube();
                }
                share(&products, &mut weights, x, y, tiles);
                for part in 0..comptime!(tiles.columns) / chunk {
                    let column = part * chunk;
                    load_rows(q, q_base, from + column, queries, &mut stage, chunk, tiles);
                    sync_cube();
                    add_weighted(&weights, &stage, &mut dk_sums, column, x, y, chunk, tiles);
                    sync_cube();
                }
            }
        }
    }

    let mut row_scales = Array::<f32>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        row_scales[r] = 1.0f32;
    }
    let dv_base = batch * dv.stride(0) + kv_head * dv.stride(1);
    store(dv, dv_base, first, keys, &dv_sums, &row_scales, x, y, tiles);
    #[unroll]
    for r in 0..4usize {
        row_scales[r] = scale;
    }
    let dk_base = batch * dk.stride(0) + kv_head * dk.stride(1);
    store(dk, dk_base, first, keys, &dk_sums, &row_scales, x, y, tiles);
}
