//! The launch order of blocks whose mask leaves them different numbers of tiles: longest first, a few heads interleaved.

use flow_attention_mask::MaskTiles;
use std::cmp::Reverse;

/// A grid of blocks that each have a list of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Samples of the batch, at most 65,535.
    pub samples: usize,
    /// Heads of a sample, at most 65,535.
    pub heads: usize,
    /// Size of the operands streamed through the blocks of a head, in bytes.
    pub streamed_bytes: usize,
}

/// A block of rows of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridBlock {
    pub sample: usize,
    pub head: usize,
    pub block: usize,
}

/// Most heads whose blocks are interleaved.
const MAX_INTERLEAVED_HEADS: usize = 8;

/// Fewest heads whose blocks are interleaved.
const MIN_INTERLEAVED_HEADS: usize = 2;

/// Largest size of the streamed operands of the blocks that run at a time, in bytes: what the L2 cache holds.
const STREAMED_IN_CACHE: usize = 8 << 20;

impl Grid {
    /// The blocks in launch order, sample by sample.
    ///
    /// Two things decide the time of a grid. The operands streamed through the blocks that run at a time should fit into the L2 cache,
    /// so few heads are interleaved. And the last blocks should be short: head by head, a grid ends on the long blocks of the last head,
    /// which costs packed sequences 5 to 10 % of their time. So blocks with long lists come first, and the short ones of all heads come
    /// last, if there are some. `bench/attention_cache.py` models both, and agrees to 5 % with the memory traffic that `ncu` counts on
    /// an H100.
    pub(crate) fn order(self, tiles: &MaskTiles) -> Vec<GridBlock> {
        let all_heads: Vec<usize> = (0..self.heads).collect();
        let mut order = Vec::with_capacity(self.samples * self.heads * tiles.row_blocks);
        for sample in 0..self.samples {
            let mut blocks: Vec<(usize, u32)> = (0..tiles.row_blocks)
                .map(|block| (block, tiles.list(sample, block).len() as u32))
                .collect();
            blocks.sort_by_key(|(_, length)| Reverse(*length));
            let lengths: Vec<u32> = blocks.iter().map(|(_, length)| *length).collect();
            let (long_blocks, short_blocks) =
                blocks.split_at(blocks.len() - self.short_block_count(&lengths));
            let interleaved = all_heads
                .chunks(self.interleaved_heads())
                .map(|heads| (heads, long_blocks));
            for (heads, blocks) in interleaved.chain([(&all_heads[..], short_blocks)]) {
                for &(block, _) in blocks {
                    order.extend(heads.iter().map(|&head| GridBlock { sample, head, block }));
                }
            }
        }
        order
    }

    /// Heads whose blocks are interleaved: a power of two.
    fn interleaved_heads(self) -> usize {
        let fit = (STREAMED_IN_CACHE / self.streamed_bytes.max(1))
            .clamp(MIN_INTERLEAVED_HEADS, MAX_INTERLEAVED_HEADS);
        1 << fit.ilog2()
    }

    /// How many of a sample's blocks come late: the last ones with at most two fifths of the tiles of the first, which together have at most
    /// an eighth of all; a half and a quarter, where what passes all heads' blocks nearly finds room. `lengths` in falling order.
    fn short_block_count(self, lengths: &[u32]) -> usize {
        let nearly = self.heads * self.streamed_bytes <= 4 * STREAMED_IN_CACHE;
        let (tenths_of_longest, part_of_all) = if nearly { (5, 4) } else { (4, 8) };
        let all: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let longest = u64::from(lengths.first().copied().unwrap_or(0));
        let mut tiles = 0;
        (lengths.iter().rev().map(|length| u64::from(*length)))
            .take_while(|length| {
                tiles += length;
                10 * length <= tenths_of_longest * longest && part_of_all * tiles <= all
            })
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::{Grid, GridBlock};
    use flow_attention_mask::{Mask, MaskTiles, Side, Sizes, Tiling};
    use proptest::prelude::*;

    #[test]
    fn heads_that_take_turns_find_room_in_the_cache_and_two_always_do() {
        let interleaved_heads = |rows: usize, channels: usize| {
            let streamed_bytes = 2 * rows * channels * 2;
            Grid {
                samples: 1,
                heads: 16,
                streamed_bytes,
            }
            .interleaved_heads()
        };
        assert_eq!(interleaved_heads(8192, 128), 2);
        assert_eq!(interleaved_heads(8192, 64), 4);
        assert_eq!(interleaved_heads(4096, 64), 8);
        assert_eq!(interleaved_heads(1_000_000, 256), 2);
        assert_eq!(interleaved_heads(0, 64), 8);
    }

    #[test]
    fn short_lists_come_late_where_there_are_some_and_they_are_little_of_the_work() {
        let late = |streamed_bytes, lengths: &[u32]| {
            Grid {
                samples: 1,
                heads: 16,
                streamed_bytes,
            }
            .short_block_count(lengths)
        };
        let [few, many] = [2 << 20, 4 << 20];
        let causal: Vec<u32> = (1..=64).rev().collect();
        // 1 + 2 + … + 22, or 31, of 2080.
        assert_eq!(late(many, &causal), 22);
        assert_eq!(late(few, &causal), 31);
        assert_eq!(late(many, &[100, 100, 100, 41, 40, 10, 10]), 2);
        for bytes in [few, many] {
            assert_eq!(late(bytes, &[100; 40]), 0);
            assert_eq!(late(bytes, &[100]), 0);
            assert_eq!(late(bytes, &[]), 0);
        }
    }

    #[test]
    fn heads_take_turns_with_long_blocks_first_and_short_blocks_of_all_heads_end_a_sample() {
        let mask = Mask::packed(vec![0, 64, 1024], vec![0, 64, 1024]).expect("a mask");
        let tiling = Tiling {
            side: Side::Queries,
            row_groups_per_block: 1,
            columns: 64,
        };
        let tiles = MaskTiles::new(&mask, Sizes::new(2, 1024, 1024), tiling).expect("a mask that fits");
        let order = Grid {
            samples: 2,
            heads: 5,
            streamed_bytes: 4 << 20,
        }
        .order(&tiles);
        assert_eq!(order.len(), 160);
        for (sample, order) in order.chunks(80).enumerate() {
            assert!(order.iter().all(|of| of.sample == sample));
            let heads: Vec<usize> = order.iter().map(|of| of.head).collect();
            assert_eq!(heads[..4], [0, 1, 0, 1]);
            assert_eq!(heads[60..75], [4; 15]);
            let short = |head| GridBlock {
                sample,
                head,
                block: 0,
            };
            assert_eq!(order[75..], [0, 1, 2, 3, 4].map(short));
        }
    }

    proptest! {
        #[test]
        fn every_block_of_every_head_and_sample_has_one_turn(
            samples in 1usize..4, heads in 1usize..20, rows in 1usize..900, boundary in 0usize..900, streamed_bytes in 0usize..20_000_000,
            differing in proptest::bool::ANY,
        ) {
            let boundary = boundary.min(rows);
            let mask = match differing {
                true => Mask::key_padding((0..samples).map(|sample| rows * (sample + 1) / samples).collect()).expect("a mask"),
                false => Mask::packed(vec![0, boundary, rows], vec![0, boundary, rows]).expect("a mask"),
            };
            let tiling = Tiling { side: Side::Queries, row_groups_per_block: 1, columns: 64 };
            let tiles = MaskTiles::new(&mask, Sizes::new(samples, rows, rows), tiling).expect("a mask that fits");
            let order = Grid { samples, heads, streamed_bytes }.order(&tiles);
            let mut seen = vec![false; samples * heads * tiles.row_blocks];
            for GridBlock { sample, head, block } in order {
                let seen = &mut seen[(sample * heads + head) * tiles.row_blocks + block];
                prop_assert!(!*seen);
                *seen = true;
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }
}
