//! Work dealt to blocks that stay, one for each multiprocessor: for each a list of items, 128 queries of a head and the tiles of keys that
//! they see.
//!
//! What is dealt to whom changes no bit: an item is computed by itself.

use crate::call::Call;
use flow_attention_mask::MaskTiles;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Items of a block, at most; a multiple of its threads.
pub(crate) const MOST_ITEMS: usize = 1024;

/// In a record's row: it is of the second part of the keys.
pub(crate) const SECOND_PART: u32 = 1 << 31;

/// What an item takes besides its tiles, in tiles. Measured on an H100: 2 to 3 microseconds, where a tile takes 1.5.
const BESIDES: u64 = 2;

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
/// The longest first, each to the block that has least; a block then takes its items head by head, so that blocks that run
/// beside one another read the same keys.
pub(crate) fn deal(tiles: &MaskTiles, call: &Call, multiprocessors: usize) -> Dealt {
    let units = tiles.tiling.units_per_block;
    assert_eq!(units, 2, "records have room for two units");
    let words = 1 + units;
    let mut items = Vec::with_capacity(call.batch * call.heads * tiles.row_blocks);
    for sample in 0..call.batch {
        for head in 0..call.heads {
            for block in 0..tiles.row_blocks {
                let at = sample * tiles.mask_batch_stride as usize + block;
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
    }
    // Half as many as a block may have, so that none is full before all are dealt.
    let blocks = multiprocessors
        .max(items.len().div_ceil(MOST_ITEMS / 2))
        .min(items.len());
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| Reverse(items[*i].end - items[*i].begin));
    let mut least: BinaryHeap<Reverse<(u64, usize)>> = (0..blocks).map(|block| Reverse((0, block))).collect();
    let mut dealt = vec![Vec::new(); blocks];
    for i in order {
        let Some(Reverse((load, block))) = least.pop() else {
            unreachable!("blocks have room for twice as many items");
        };
        dealt[block].push(i);
        if dealt[block].len() < MOST_ITEMS {
            let cost = (items[i].end - items[i].begin) as u64 + BESIDES;
            least.push(Reverse((load + cost, block)));
        }
    }
    let (mut shares, mut of_items, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let group = call.heads / call.kv_heads;
    let columns = tiles.tiling.columns;
    let first_tiles = call.keys[0].div_ceil(columns);
    for own in &mut dealt {
        own.sort_unstable();
        let item_at = blocks + of_items.len() / 4;
        let record_at = records.len() / 4;
        for i in &*own {
            let item = &items[*i];
            for entry in tiles.entries[item.begin * words..item.end * words].chunks(words) {
                let tile = entry[0] as usize;
                let row = match tile.checked_sub(first_tiles) {
                    None => (tile * columns) as u32,
                    Some(of_second) => (of_second * columns) as u32 | SECOND_PART,
                };
                let heads = (item.head / group | item.sample << 16) as u32;
                records.extend([row, heads, entry[1], entry[2]]);
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
