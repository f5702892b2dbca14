//! The portable forward kernel.

use super::block::*;
use super::tiles::{CHUNK, ROWS, Tiles};
use cubecl::prelude::*;

/// Below every score, yet finite: shader languages promise nothing about infinities.
pub(super) const LOWEST: f32 = -3.0e38;

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each row, plus infinity (and `o = 0`) where no key is allowed.
/// One block for 64 queries of a head. Tensors are `[B, H, S, D]` of any strides; `k2` and `v2` follow on `k` and `v`.
/// `mask` holds offsets, entries from `entries_at` and partial masks from `patterns_at` on (`flow_attention_mask::MaskTiles`). `chunk` is always [`CHUNK`],
/// but not so that compilers know: Mesa's for processors would unroll all inner loops and take minutes.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_forward<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    k2: &Tensor<F>,
    v2: &Tensor<F>,
    o: &mut Tensor<F>,
    lse: &mut [f32],
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
    let mut stage: Shared<[f32]> = Shared::new_slice(comptime!(tiles.stage_elements()));
    let mut probabilities: Shared<[f32]> = Shared::new_slice(comptime!(tiles.scores_elements()));
    let mut partial: Shared<[f32]> = Shared::new_slice(comptime!(ROWS * (CHUNK + 1)));

    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let first = CUBE_POS_X as usize * ROWS;
    let q_base = batch * q.stride(0) + head * q.stride(1);
    let k_base = batch * k.stride(0) + head / group * k.stride(1);
    let v_base = batch * v.stride(0) + head / group * v.stride(1);
    let k2_base = batch * k2.stride(0) + head / group * k2.stride(1);
    let v2_base = batch * v2.stride(0) + head / group * v2.stride(1);
    let tiles_of_first = (keys + comptime!(tiles.columns - 1)) / comptime!(tiles.columns);

    let mut largest = Array::<f32>::new(4usize);
    let mut sum = Array::<f32>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        largest[r] = LOWEST;
        sum[r] = 0.0f32;
    }
    let mut output = Array::<f32>::new(comptime!(4 * owned_channels));
    clear(&mut output, comptime!(4 * owned_channels));
    let mut scores = Array::<f32>::new(comptime!(4 * owned));
    let mut words = Array::<u32>::new(4usize);

    let list = batch * mask_batch_stride + CUBE_POS_X as usize;
    let begin = mask[list] as usize;
    let end = mask[list + 1] as usize;
    for entry in begin..end {
        let tile = mask[entries_at + 2 * entry] as usize;
        let number = mask[entries_at + 2 * entry + 1];
        if number != 1 {
            clear(&mut scores, comptime!(4 * owned));
            for part in 0..comptime!(tiles.channels()) / chunk {
                let channel = part * chunk;
                load_channels(
                    q,
                    q_base,
                    first,
                    queries,
                    channel,
                    &mut stage,
                    0usize,
                    chunk,
                    ROWS,
                    comptime!(tiles.head_dim),
                );
                if tile < tiles_of_first {
                    let from = tile * comptime!(tiles.columns);
                    load_channels(
                        k,
                        k_base,
                        from,
                        keys,
                        channel,
                        &mut stage,
                        comptime!(CHUNK * (ROWS + 1)),
                        chunk,
                        comptime!(tiles.columns),
                        comptime!(tiles.head_dim),
                    );
                } else {
                    let from = (tile - tiles_of_first) * comptime!(tiles.columns);
                    load_channels(
                        k2,
                        k2_base,
                        from,
                        keys2,
                        channel,
                        &mut stage,
                        comptime!(CHUNK * (ROWS + 1)),
                        chunk,
                        comptime!(tiles.columns),
                        comptime!(tiles.head_dim),
                    );
                }
                sync_cube();
                add_products(&stage, &mut scores, x, y, chunk, tiles);
                sync_cube();
            }
            partial_mask(mask, patterns_at, number, &mut words, x, y);
            #[unroll]
            for r in 0..4usize {
                let mut best = largest[r];
                #[unroll]
                for j in 0..owned {
                    let score = scores[comptime!(r * owned + j)] * scale;
                    scores[comptime!(r * owned + j)] = score;
                    best = max(best, select(allowed(words[r], j), score, LOWEST));
                }
                partial[(y + comptime!(16 * r)) * comptime!(CHUNK + 1) + x] = best;
            }
            sync_cube();
            #[unroll]
            for r in 0..4usize {
                let now = combine(&partial, y + comptime!(16 * r), chunk, true);
                let keep = (largest[r] - now).exp();
                largest[r] = now;
                sum[r] *= keep;
                #[unroll]
                for j in 0..owned_channels {
                    output[comptime!(r * owned_channels + j)] *= keep;
                }
                #[unroll]
                for j in 0..owned {
                    let weight = (scores[comptime!(r * owned + j)] - now).exp();
                    let weight = select(allowed(words[r], j), weight, 0.0f32);
                    scores[comptime!(r * owned + j)] = weight;
                    sum[r] += weight;
                }
            }
            share(&scores, &mut probabilities, x, y, tiles);
            for part in 0..comptime!(tiles.columns) / chunk {
                let column = part * chunk;
                if tile < tiles_of_first {
                    load_rows(
                        v,
                        v_base,
                        tile * comptime!(tiles.columns) + column,
                        keys,
                        &mut stage,
                        chunk,
                        tiles,
                    );
                } else {
                    let from = (tile - tiles_of_first) * comptime!(tiles.columns) + column;
                    load_rows(v2, v2_base, from, keys2, &mut stage, chunk, tiles);
                }
                sync_cube();
                add_weighted(&probabilities, &stage, &mut output, column, x, y, chunk, tiles);
                sync_cube();
            }
        }
    }

    #[unroll]
    for r in 0..4usize {
        partial[(y + comptime!(16 * r)) * comptime!(CHUNK + 1) + x] = sum[r];
    }
    sync_cube();
    let mut row_scales = Array::<f32>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        let total = combine(&partial, y + comptime!(16 * r), chunk, false);
        let row = first + y + comptime!(16 * r);
        row_scales[r] = select(total > 0.0f32, 1.0f32 / total, 0.0f32);
        if x == 0 && row < queries {
            // Shader languages have no literal for infinity: it is chosen among bits.
            let bits = u32::reinterpret(largest[r] + total.ln());
            let bits = select(total > 0.0f32, bits, comptime!(f32::INFINITY.to_bits()));
            lse[(batch * CUBE_COUNT_Y as usize + head) * lse_rows + row] = f32::reinterpret(bits);
        }
    }
    let o_base = batch * o.stride(0) + head * o.stride(1);
    store(o, o_base, first, queries, &output, &row_scales, x, y, tiles);
}
