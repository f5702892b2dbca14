//! Which tiles a call gets: a fixed table of shapes, measured on an H100 (`bench/results/attention-ladder.md`).

use super::tiles::MULTIPROCESSORS;
use super::{BackwardTiles, ForwardTiles, KvGradients};
pub use crate::problem::{Problem, Refusal};

/// Tiles of the three kernels.
pub type Selection = crate::prepared::Selection<ForwardTiles, BackwardTiles>;

/// The table. `masked`: whether the call has a mask.
pub fn select(problem: &Problem, masked: bool) -> Selection {
    let (head_dim, operand_type, two_segments) =
        (problem.head_dim, problem.operand_type, problem.keys[1] > 0);
    // (keys of a tile, warpgroups, stages, ping-pong)
    let (keys, warpgroups, stages, ping_pong) = match head_dim {
        ..=64 => (128, 1, 2, false),
        // Tiles of masks are narrow, so that fewer of them are partial.
        65..=128 if problem.keys[0] >= 4096 && !masked => (176, 2, 2, true),
        65..=128 => (128, 2, 2, true),
        _ => (80, 2, 1, false),
    };
    // Fragments of the stationary operand kept in registers, in steps of 16 channels: as many as neither spill nor cost a block.
    let steps = |fragment: usize| fragment.min(head_dim.div_ceil(16));
    let q_register_steps = match head_dim {
        ..=64 => steps(2),
        65..=128 if keys == 128 => steps(8),
        _ => 0,
    };
    // (of the kernel for queries: queries, outputs' gradients; of that for keys: keys, values)
    let (beside_queries, beside_keys) = match head_dim {
        // With a third stage four steps of the queries would cost a block, but not where a list says what is seen.
        ..=64 if !masked => ([2, if two_segments { 2 } else { 3 }], [4, 4]),
        ..=64 => ([3, 3], [4, 4]),
        65..=128 => ([8, 8], [0, 0]),
        _ => ([0, 0], [0, 0]),
    };
    // (warpgroups, stages, launches of the kernel for keys)
    let (backward_warpgroups, backward_stages, launches) = match head_dim {
        ..=64 => (1, 3, &[KvGradients::Both][..]),
        65..=128 => (2, 3, &[KvGradients::Both][..]),
        _ => (1, 2, &[KvGradients::Values, KvGradients::Keys][..]),
    };
    let backward = |sums, fragment: [usize; 2]| BackwardTiles {
        head_dim,
        streamed_rows: 64,
        warpgroups: backward_warpgroups,
        stages: backward_stages,
        refill_late: head_dim <= 64,
        operand_type,
        sums,
        masked,
        two_segments,
        fragment: fragment.map(steps),
        split_q: 1,
        ping_pong: false,
        // The two warpgroups of the kernel for keys fall into step by it if many queries are streamed: 16,384 cost 6 %, 512 gain 3 %.
        uniform_warpgroup: problem.queries <= 2048,
    };
    Selection {
        forward: ForwardTiles {
            head_dim,
            keys,
            warpgroups,
            stages,
            ping_pong,
            q_register_steps,
            operand_type,
            masked,
            // Where one block fills a multiprocessor, nothing hides its prologue and epilogue. With 64 channels three blocks do.
            persistent: masked && ping_pong && q_register_steps == head_dim.div_ceil(16),
            two_segments,
        },
        queries: BackwardTiles {
            // With a mask the two warpgroups fall into step without ping-pong; without a mask they do not, and ping-pong costs 5 %.
            ping_pong: masked && backward_warpgroups == 2,
            uniform_warpgroup: true,
            ..backward(KvGradients::Both, beside_queries)
        },
        keys: (launches.iter())
            .map(|sums| split_queries(problem, backward(*sums, beside_keys)))
            .collect(),
    }
}

/// The kernel for keys, with queries in splits where keys are few, as in attention to a text: their blocks are fewer than the
/// multiprocessors of an H100, each with all queries to go through. Not by the batch: what else is in it changes no bit.
fn split_queries(problem: &Problem, tiles: BackwardTiles) -> BackwardTiles {
    /// Rounds of blocks, so that the last one, which is not full, costs little.
    const ROUNDS: usize = 4;
    /// Tiles that a split has at least, so that its sums are worth writing.
    const LEAST: usize = 16;
    let multiprocessors = MULTIPROCESSORS as usize;
    let keys = problem.keys[0];
    let blocks = problem.kv_heads * keys.div_ceil(tiles.stationary_rows());
    if tiles.masked || tiles.two_segments || blocks >= multiprocessors {
        return tiles;
    }
    let group = problem.heads / problem.kv_heads;
    let streamed_rows = problem.queries.div_ceil(tiles.streamed_rows) * group;
    // All sums, two for each value of keys and in f32, take no more memory than the queries.
    let fit = problem.queries * group / (4 * keys);
    let wanted = (ROUNDS * multiprocessors).div_ceil(blocks);
    let split_q = wanted.min(streamed_rows / LEAST).min(fit).max(1);
    BackwardTiles {
        // No split is empty.
        split_q: streamed_rows.div_ceil(streamed_rows.div_ceil(split_q)),
        ..tiles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_cube::wgmma::OperandType;
    use proptest::prelude::*;

    fn problem(batch: usize, [heads, kv_heads]: [usize; 2], queries: usize, keys: usize) -> Problem {
        Problem {
            batch,
            heads,
            kv_heads,
            queries,
            keys: [keys, 0],
            head_dim: 128,
            operand_type: OperandType::Bf16,
        }
    }

    #[test]
    fn attention_to_a_text_goes_backward_in_pieces_and_attention_among_tokens_does_not() {
        assert_eq!(
            select(&problem(1, [12, 12], 31_200, 512), false).keys[0].split_q,
            11
        );
        for [queries, keys] in [[31_200, 31_200], [4096, 4096], [256, 256], [512, 31_200]] {
            assert_eq!(
                select(&problem(1, [12, 12], queries, keys), false).keys[0].split_q,
                1
            );
        }
        assert_eq!(
            select(&problem(1, [12, 12], 31_200, 512), true).keys[0].split_q,
            1
        );
    }

    proptest! {
        #[test]
        fn pieces_do_not_depend_on_the_batch_and_none_is_empty(
            batch in 1usize..64, kv_heads in 1usize..32, group in 1usize..4, queries in 1usize..40_000, keys in 1usize..5000,
        ) {
            let of = |batch| select(&problem(batch, [kv_heads * group, kv_heads], queries, keys), false).keys[0];
            let tiles = of(batch);
            prop_assert_eq!(tiles, of(1));
            let streamed_rows = queries.div_ceil(tiles.streamed_rows) * group;
            let each = streamed_rows.div_ceil(tiles.split_q);
            prop_assert!((tiles.split_q - 1) * each < streamed_rows);
            let sums = 4 * tiles.partial_sums(kv_heads, keys.next_multiple_of(tiles.stationary_rows()));
            prop_assert!(tiles.split_q == 1 || sums <= 2 * kv_heads * group * queries * 128 * keys.next_multiple_of(128) / keys);
        }
    }
}
