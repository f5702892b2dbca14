//! In which order the blocks of a grid start that have lists.

use flow_attention_mask::MaskTiles;

/// The heads of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridHeads {
    /// How many there are; 1 for kernels that see to their heads themselves.
    pub heads: usize,
    /// What passes the blocks of one of them, in bytes.
    pub passing_bytes: usize,
}

/// A block of rows of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadBlock {
    pub head: usize,
    pub block: usize,
}

/// Most heads whose blocks take turns.
const MOST_TOGETHER: usize = 8;

/// And fewest.
const LEAST_TOGETHER: usize = 2;

/// What may pass the blocks that run at a time, in bytes.
const ROOM: usize = 8 << 20;

impl GridHeads {
    /// Blocks of sample `sample` in the order in which they start.
    ///
    /// Two things decide how long a grid takes. What passes the blocks that run at a time should find room in the cache of the device, so
    /// few heads take turns. And the device's last blocks should be short ones, which those of many heads are: head by head the grid ends on
    /// the long blocks of the last head, which costs packed sequences 5 to 10 % of their time. So blocks with long lists come first, and
    /// those with short ones of all heads come last, if there are some. `bench/attention_cache.py` models both: it is right to 5 % about
    /// what `ncu` counts of an H100's memory.
    pub(crate) fn order(self, tiles: &MaskTiles, sample: usize) -> Vec<HeadBlock> {
        let mut blocks: Vec<(usize, u32)> = (0..tiles.row_blocks)
            .map(|block| {
                let at = sample * tiles.row_blocks + block;
                (block, tiles.offsets[at + 1] - tiles.offsets[at])
            })
            .collect();
        blocks.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
        let lengths: Vec<u32> = blocks.iter().map(|(_, length)| *length).collect();
        let (early, late) = blocks.split_at(blocks.len() - self.late_blocks(&lengths));
        let heads: Vec<usize> = (0..self.heads).collect();
        let of = |heads: &[usize], blocks: &[(usize, u32)]| -> Vec<HeadBlock> {
            let of_block =
                |&(block, _): &(usize, u32)| heads.iter().map(move |&head| HeadBlock { head, block });
            blocks.iter().flat_map(of_block).collect()
        };
        let mut order: Vec<HeadBlock> = (heads.chunks(self.together()))
            .flat_map(|heads| of(heads, early))
            .collect();
        order.extend(of(&heads, late));
        order
    }

    /// Heads whose blocks take turns: a power of two.
    fn together(self) -> usize {
        let fit = (ROOM / self.passing_bytes.max(1)).clamp(LEAST_TOGETHER, MOST_TOGETHER);
        1 << fit.ilog2()
    }

    /// How many of a sample's blocks come late: the last ones with at most two fifths of the tiles of the first, which together have at most
    /// an eighth of all; a half and a quarter, where what passes all heads' blocks nearly finds room. `lengths` in falling order.
    fn late_blocks(self, lengths: &[u32]) -> usize {
        let nearly = self.heads * self.passing_bytes <= 4 * ROOM;
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
    use super::{GridHeads, HeadBlock};
    use flow_attention_mask::{Mask, MaskTiles, Side, Sizes, Tiling};
    use proptest::prelude::*;

    #[test]
    fn heads_that_take_turns_find_room_in_the_cache_and_two_always_do() {
        let together = |rows: usize, channels: usize| {
            let passing_bytes = 2 * rows * channels * 2;
            GridHeads {
                heads: 16,
                passing_bytes,
            }
            .together()
        };
        assert_eq!(together(8192, 128), 2);
        assert_eq!(together(8192, 64), 4);
        assert_eq!(together(4096, 64), 8);
        assert_eq!(together(1_000_000, 256), 2);
        assert_eq!(together(0, 64), 8);
    }

    #[test]
    fn short_lists_come_late_where_there_are_some_and_they_are_little_of_the_work() {
        let late = |passing_bytes, lengths: &[u32]| {
            GridHeads {
                heads: 16,
                passing_bytes,
            }
            .late_blocks(lengths)
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
    fn heads_take_turns_with_long_blocks_first_and_short_blocks_of_all_heads_end_the_grid() {
        let mask = Mask::packed(vec![0, 64, 1024], vec![0, 64, 1024]).expect("a mask");
        let tiling = Tiling {
            side: Side::Queries,
            units_per_block: 1,
            columns: 64,
        };
        let tiles = MaskTiles::new(&mask, Sizes::new(1, 1024, 1024), tiling).expect("a mask that fits");
        let order = GridHeads {
            heads: 5,
            passing_bytes: 4 << 20,
        }
        .order(&tiles, 0);
        let heads: Vec<usize> = order.iter().map(|of| of.head).collect();
        assert_eq!(heads[..4], [0, 1, 0, 1]);
        assert_eq!(heads[60..75], [4; 15]);
        let short = |head| HeadBlock { head, block: 0 };
        assert_eq!(order[75..], [0, 1, 2, 3, 4].map(short));
    }

    proptest! {
        #[test]
        fn every_block_of_every_head_has_one_turn(
            heads in 1usize..20, rows in 1usize..900, cut in 0usize..900, passing_bytes in 0usize..20_000_000,
        ) {
            let cut = cut.min(rows);
            let mask = Mask::packed(vec![0, cut, rows], vec![0, cut, rows]).expect("a mask");
            let tiling = Tiling { side: Side::Queries, units_per_block: 1, columns: 64 };
            let tiles = MaskTiles::new(&mask, Sizes::new(2, rows, rows), tiling).expect("a mask that fits");
            for sample in 0..tiles.mask_batches {
                let order = GridHeads { heads, passing_bytes }.order(&tiles, sample);
                let mut seen = vec![false; heads * tiles.row_blocks];
                for HeadBlock { head, block } in order {
                    let seen = &mut seen[head * tiles.row_blocks + block];
                    prop_assert!(!*seen);
                    *seen = true;
                }
                prop_assert!(seen.into_iter().all(|seen| seen));
            }
        }
    }
}
