//! The portable backward kernel for keys and values.

use super::arguments::{PortableKeysInputs, PortableKeysProblem, PortableStatistics};
use super::block::*;
use super::tiles::{ChannelTile, ROWS, Tiles};
use cubecl::prelude::*;

/// A tile of queries of a head, and the thread in its block.
#[derive(CubeType)]
struct QueryTile {
    x: usize,
    /// The first query.
    from: usize,
    /// Where the statistics of the head begin.
    statistics: usize,
}

/// Turns this thread's scores into weights, and the `products` of values and gradients of the output into gradients of the scores.
#[cube]
fn weights_and_gradients(
    scores: &mut Array<f32>,
    products: &mut Array<f32>,
    words: &Array<u32>,
    tile: &QueryTile,
    rows: &PortableStatistics,
    problem: &PortableKeysProblem,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    #[unroll]
    for j in 0..owned {
        let query = tile.from + tile.x + comptime!(16 * j);
        // Columns behind the end are masked.
        let statistic = tile.statistics + select(query < problem.queries, query, 0usize);
        let query_lse = rows.lse[statistic];
        let query_delta = rows.delta[statistic];
        #[unroll]
        for r in 0..4usize {
            let at = comptime!(r * owned + j);
            let open = allowed(words[r], j);
            let weight = select(open, (scores[at] * problem.scale - query_lse).exp(), 0.0f32);
            scores[at] = weight;
            products[at] = select(open, weight * (products[at] - query_delta), 0.0f32);
        }
    }
}

/// `dk` and `dv` of one segment. One block for 64 keys of a head of keys; the heads of queries that share it are summed
/// up one after the other. Rows are keys, columns queries; `delta` is from
/// [`portable_backward_queries`](super::backward_queries::portable_backward_queries).
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_backward_keys<F: Float>(
    inputs: &PortableKeysInputs<F>,
    dk: &mut Tensor<F>,
    dv: &mut Tensor<F>,
    rows: &PortableStatistics,
    mask: &[u32],
    problem: &PortableKeysProblem,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    let owned_channels = comptime!(tiles.owned_channels());
    let columns = comptime!(tiles.columns);
    let to_rows = comptime!(ChannelTile::rows(tiles));
    let to_columns = comptime!(ChannelTile::columns(tiles));
    let mut stage: Shared<[f32]> = Shared::new_slice(comptime!(tiles.stage_elements()));
    let mut weights: Shared<[f32]> = Shared::new_slice(comptime!(tiles.scores_elements()));

    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    let chunk = problem.chunk;
    let kv_head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let first = CUBE_POS_X as usize * ROWS;
    let k_base = batch * inputs.k.stride(0) + kv_head * inputs.k.stride(1);
    let v_base = batch * inputs.v.stride(0) + kv_head * inputs.v.stride(1);

    let mut dk_sums = Array::<f32>::new(comptime!(4 * owned_channels));
    let mut dv_sums = Array::<f32>::new(comptime!(4 * owned_channels));
    clear(&mut dk_sums, comptime!(4 * owned_channels));
    clear(&mut dv_sums, comptime!(4 * owned_channels));
    let mut scores = Array::<f32>::new(comptime!(4 * owned));
    let mut products = Array::<f32>::new(comptime!(4 * owned));
    let mut words = Array::<u32>::new(4usize);

    let k_rows = HeadRows {
        base: k_base,
        first,
        end: problem.keys,
    };
    let v_rows = HeadRows {
        base: v_base,
        first,
        end: problem.keys,
    };
    let (begin, end) = list_range(mask, batch, problem.list.batch_stride);
    for member in 0..problem.group {
        let head = kv_head * problem.group + member;
        let q_base = batch * inputs.q.stride(0) + head * inputs.q.stride(1);
        let d_o_base = batch * inputs.d_o.stride(0) + head * inputs.d_o.stride(1);
        let statistics = (batch * CUBE_COUNT_Y as usize * problem.group + head) * problem.lse_rows;
        for entry in begin..end {
            let from = mask[problem.list.entries_at + 2 * entry] as usize * columns;
            let number = mask[problem.list.entries_at + 2 * entry + 1];
            if number != 1 {
                let q_rows = HeadRows {
                    base: q_base,
                    first: from,
                    end: problem.queries,
                };
                let d_o_rows = HeadRows {
                    base: d_o_base,
                    first: from,
                    end: problem.queries,
                };
                clear(&mut scores, comptime!(4 * owned));
                clear(&mut products, comptime!(4 * owned));
                for part in 0..comptime!(tiles.channels()) / chunk {
                    let channel = part * chunk;
                    load_channels(inputs.k, &k_rows, channel, &mut stage, chunk, to_rows);
                    load_channels(inputs.q, &q_rows, channel, &mut stage, chunk, to_columns);
                    sync_cube();
                    add_products(&stage, &mut scores, x, y, chunk, tiles);
                    sync_cube();
                    load_channels(inputs.v, &v_rows, channel, &mut stage, chunk, to_rows);
                    load_channels(inputs.d_o, &d_o_rows, channel, &mut stage, chunk, to_columns);
                    sync_cube();
                    add_products(&stage, &mut products, x, y, chunk, tiles);
                    sync_cube();
                }
                partial_mask(mask, problem.list.patterns_at, number, &mut words, x, y);
                let query_tile = QueryTile { x, from, statistics };
                weights_and_gradients(
                    &mut scores,
                    &mut products,
                    &words,
                    &query_tile,
                    rows,
                    problem,
                    tiles,
                );
                share(&scores, &mut weights, x, y, tiles);
                for part in 0..comptime!(tiles.columns) / chunk {
                    let column = part * chunk;
                    load_rows(
                        inputs.d_o,
                        d_o_base,
                        from + column,
                        problem.queries,
                        &mut stage,
                        chunk,
                        tiles,
                    );
                    sync_cube();
                    add_weighted(&weights, &stage, &mut dv_sums, column, x, y, chunk, tiles);
                    sync_cube();
                }
                share(&products, &mut weights, x, y, tiles);
                for part in 0..comptime!(tiles.columns) / chunk {
                    let column = part * chunk;
                    load_rows(
                        inputs.q,
                        q_base,
                        from + column,
                        problem.queries,
                        &mut stage,
                        chunk,
                        tiles,
                    );
                    sync_cube();
                    add_weighted(&weights, &stage, &mut dk_sums, column, x, y, chunk, tiles);
                    sync_cube();
                }
            }
        }
    }

    let mut row_scales = Array::<f32>::new(4usize);
    set_all(&mut row_scales, 1.0f32);
    let dv_rows = HeadRows {
        base: batch * dv.stride(0) + kv_head * dv.stride(1),
        first,
        end: problem.keys,
    };
    store(dv, &dv_rows, &dv_sums, &row_scales, x, y, tiles);
    set_all(&mut row_scales, problem.scale);
    let dk_rows = HeadRows {
        base: batch * dk.stride(0) + kv_head * dk.stride(1),
        first,
        end: problem.keys,
    };
    store(dk, &dk_rows, &dk_sums, &row_scales, x, y, tiles);
}
