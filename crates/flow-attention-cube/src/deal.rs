//! Work dealt to blocks that stay, one for each multiprocessor: for each a list of items, 128 queries of a head and the tiles of keys that
//! they see.
//!
//! What is dealt to whom changes no bit: an item is computed by itself.

use crate::call::Call;
use crate::order::{GridHeads, HeadBlock};
use flow_attention_mask::MaskTiles;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Items of a block, at most; a multiple of its threads.
pub(crate) const MOST_ITEMS: usize = 256;

/// In a record's row: it is of the second part of the keys.
pub(crate) const SECOND_PART: u32 = 1 << 31;

const TILE: u64 = 8;
const IN_PART: u64 = 1;
const BESIDES: u64 = 20;

/// Records behind the last that kernels read without need.
const BEHIND: usize = 2;

/// Lists in words, four each, ready for upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dealt {
    /// Blocks.
    pub blocks: usize,
    /// For each block its first item and how many there are, its first record and how many there are; then the items: first query,
    /// head and sample (in the upper half), records, 0. Items count from the beginning of the words.
    pub shares: Vec<u32>,
    /// For each tile of an item its first row within its part of the keys, head of the keys and sample (in the upper half), and for each
    /// 64 queries what they see of it (`MaskTiles::entries`).
    pub records: Vec<u32>,
}

/// An item, before it is dealt.
struct Item {
    sample: usize,
    head: usize,
    block: usize,
    begin: usize,
    end: usize,
}

/// Deals the tiles of two units of queries a block that `tiles` lists for `call` to blocks for as many multiprocessors.
///
/// In the order in which blocks start that do not stay ([`GridHeads`]), each to the block that has least, as a device would do it if a tile took as
/// long as another; and a block goes through its items in that order. So blocks that run beside one another read the same keys, and short items
/// end the grid.
pub(crate) fn deal(tiles: &MaskTiles, call: &Call, heads: GridHeads, multiprocessors: usize) -> Dealt {
    let units = tiles.tiling.units_per_block;
    assert!(units <= 2, "records have room for two units");
    let words = 1 + units;
    let mut items = Vec::with_capacity(call.batch * call.heads * tiles.row_blocks);
    for sample in 0..call.batch {
        let of_mask = if tiles.mask_batch_stride > 0 { sample } else { 0 };
        for HeadBlock { head, block } in heads.order(tiles, of_mask) {
            let at = of_mask * tiles.row_blocks + block;
            let [begin, end] = [at, at + 1].map(|at| tiles.offsets[at] as usize);
            items.push(Item {
                sample,
                head,
                block,
                begin,
                end,
            });
        }
    }
    let cost = |item: &Item| {
        let seen_in_part = tiles.entries[item.begin * words..item.end * words]
            .chunks(words)
            .filter(|entry| entry[1..].iter().any(|pattern| *pattern >= 2))
            .count();
        TILE * (item.end - item.begin) as u64 + IN_PART * seen_in_part as u64 + BESIDES
    };
    let costs: Vec<u64> = items.iter().map(cost).collect();
    let all: u64 = costs.iter().sum();
    let mut dealt: Vec<Vec<usize>> = Vec::new();
    let (mut at, mut done) = (0, 0);
    let windows = std::env::var("FLOW_WINDOWS").unwrap_or_else(|_| "60,80,90".into());
    for until in windows.split(',').map(|x| x.parse::<u64>().expect("a number")) {
        let mut to = at;
        while to < items.len() && 100 * (done + costs[to]) <= until * all {
            done += costs[to];
            to += 1;
        }
        let blocks = multiprocessors
            .max((to - at).div_ceil(MOST_ITEMS / 2))
            .min(to - at);
        let mut least: BinaryHeap<Reverse<(u64, usize)>> =
            (0..blocks).map(|block| Reverse((0, block))).collect();
        let mut bins = vec![Vec::new(); blocks];
        for i in at..to {
            let Some(Reverse((load, block))) = least.pop() else {
                unreachable!("blocks have room for twice as many items");
            };
            bins[block].push(i);
            if bins[block].len() < MOST_ITEMS {
                least.push(Reverse((load + costs[i], block)));
            }
        }
        dealt.extend(bins);
        at = to;
    }
    dealt.extend((at..items.len()).map(|i| vec![i]));
    let blocks = dealt.len();
    let (mut shares, mut of_items, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let group = call.heads / call.kv_heads;
    let columns = tiles.tiling.columns;
    let first_tiles = call.keys[0].div_ceil(columns);
    for own in &dealt {
        let item_at = blocks + of_items.len() / 4;
        let record_at = records.len() / 4;
        for i in own {
            let item = &items[*i];
            for entry in tiles.entries[item.begin * words..item.end * words].chunks(words) {
                let tile = entry[0] as usize;
                let row = match tile.checked_sub(first_tiles) {
                    None => (tile * columns) as u32,
                    Some(of_second) => (of_second * columns) as u32 | SECOND_PART,
                };
                let heads = (item.head / group | item.sample << 16) as u32;
                records.extend([row, heads, entry[1], entry[units]]);
            }
            let query = (item.block * 64 * units) as u32;
            let heads = (item.head | item.sample << 16) as u32;
            of_items.extend([query, heads, (item.end - item.begin) as u32, 0]);
        }
        let count = records.len() / 4 - record_at;
        shares.extend([item_at, own.len(), record_at, count].map(|n| n as u32));
    }
    shares.extend(of_items);
    // And an item that kernels read without need.
    shares.extend([0; 4]);
    records.extend([0; 4 * BEHIND]);
    Dealt {
        blocks,
        shares,
        records,
    }
}
