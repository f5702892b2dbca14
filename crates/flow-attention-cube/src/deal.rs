//! Work dealt to blocks that stay, one for each multiprocessor: for each a list of items, which are blocks of queries of a head with the tiles of
//! keys that they see.
//!
//! What is dealt to whom changes no bit: an item is computed by itself.

use crate::call::Call;
use crate::order::{Grid, GridBlock};
use crate::tensors::uploaded_words;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::MaskTiles;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Items of a block, at most; a multiple of its threads.
pub(crate) const MOST_ITEMS: usize = 256;

/// In a record's row: it is of the second part of the keys.
pub(crate) const SECOND_PART: u32 = 1 << 31;

/// Records behind the last that kernels read without need.
const BEHIND: usize = 2;

/// What a tile takes, by cycles of an H100 at 128 channels (2,420).
const TILE: u64 = 8;

/// What a tile takes besides if a unit of rows does not see all of it.
const IN_PART: u64 = 1;

/// What an item takes besides its tiles (2,200 cycles).
const BESIDES: u64 = 8;

/// Lists in words, four to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dealt {
    /// Blocks.
    pub blocks: usize,
    /// For each block its first item and how many there are, its first record and how many there are; then the items: first query,
    /// head and sample (in the upper half), records, 0. Items count from the beginning of the words.
    pub shares: Vec<u32>,
    /// For each tile of an item its first row within its part of the keys ([`SECOND_PART`]), head of the keys and sample (in the upper half), and
    /// for each 64 queries what they see of it (`MaskTiles::entries`).
    pub records: Vec<u32>,
}

impl Dealt {
    /// Deals the tiles that `tiles` lists for `call`, of at most two units of queries a block, to blocks for as many multiprocessors.
    ///
    /// In the order in which blocks start that do not stay ([`Grid`]), each to the block that has least, as a device would do it if a tile took as
    /// long as another; and a block goes through its items in that order. So blocks that run beside one another read the same keys. Then blocks swap
    /// items until they have the same, as far as that goes: the last one to end is what the others wait for. An item that was swapped takes the other's
    /// place. (In the grid's order, packed sequences read 265 MB instead of 288, and take 0.4 % longer.)
    pub fn new(tiles: &MaskTiles, call: &Call, grid: Grid, multiprocessors: usize) -> Self {
        let units = tiles.tiling.units_per_block;
        assert!(units <= 2, "records have room for two units");
        let items = grid.order(tiles);
        let blocks = items
            .len()
            .min(multiprocessors.max(items.len().div_ceil(MOST_ITEMS / 2)));
        let entries = |of: &GridBlock| entries(tiles, of, units);
        let cost = |of: &GridBlock| {
            let in_part = |entry: &&[u32]| entry[1..].iter().any(|pattern| *pattern >= 2);
            let seen_in_part = entries(of).filter(in_part).count();
            TILE * tiles.list(of.sample, of.block).len() as u64 + IN_PART * seen_in_part as u64 + BESIDES
        };
        let costs: Vec<u64> = items.iter().map(cost).collect();
        let mut hands = in_order(&costs, blocks);
        even_out(&mut hands, &costs);
        let (mut shares, mut of_items, mut records) = (Vec::new(), Vec::new(), Vec::new());
        let group = call.heads / call.kv_heads;
        let columns = tiles.tiling.columns;
        let first_tiles = call.keys[0].div_ceil(columns);
        for hand in &hands {
            let [item_at, record_at] = [blocks + of_items.len() / 4, records.len() / 4];
            for item in hand.iter().map(|item| &items[*item]) {
                let [q_head, k_head] = [item.head, item.head / group].map(|head| head | item.sample << 16);
                for entry in entries(item) {
                    let tile = entry[0] as usize;
                    let row = match tile.checked_sub(first_tiles) {
                        None => (tile * columns) as u32,
                        Some(of_second) => (of_second * columns) as u32 | SECOND_PART,
                    };
                    records.extend([row, k_head as u32, entry[1], entry[units]]);
                }
                let query = item.block * 64 * units;
                let numbers = [query, q_head, tiles.list(item.sample, item.block).len(), 0];
                of_items.extend(numbers.map(|number| number as u32));
            }
            let own = [item_at, hand.len(), record_at, records.len() / 4 - record_at];
            shares.extend(own.map(|number| number as u32));
        }
        shares.extend(of_items);
        records.extend([0; 4 * BEHIND]);
        Self {
            blocks,
            shares,
            records,
        }
    }
}

/// Items in order, each to the block that has least.
fn in_order(costs: &[u64], blocks: usize) -> Vec<Vec<usize>> {
    let mut hands = vec![Vec::new(); blocks];
    let mut least: BinaryHeap<Reverse<(u64, usize)>> = (0..blocks).map(|block| Reverse((0, block))).collect();
    for (item, cost) in costs.iter().enumerate() {
        let Some(Reverse((load, block))) = least.pop() else {
            unreachable!("blocks have room for twice as many items");
        };
        hands[block].push(item);
        if hands[block].len() < MOST_ITEMS {
            least.push(Reverse((load + cost, block)));
        }
    }
    hands
}

/// Has the block with most and that with least swap two items, which bring them closest to one another, and of such items those at the nearest places; as
/// long as that helps.
fn even_out(hands: &mut [Vec<usize>], costs: &[u64]) {
    let mut loads: Vec<u64> = (hands.iter())
        .map(|hand| hand.iter().map(|item| costs[*item]).sum())
        .collect();
    // Each swap brings two closer; so many are enough, and bound what the host does.
    for _ in 0..4 * hands.len() {
        let most = (0..hands.len()).max_by_key(|block| loads[*block]);
        let least = (0..hands.len()).min_by_key(|block| loads[*block]);
        let Some((most, least)) = most.zip(least) else {
            return;
        };
        let gap = loads[most] - loads[least];
        let mut best: Option<((u64, usize), usize, usize, u64)> = None;
        for (at, item) in hands[most].iter().enumerate() {
            for (other_at, other) in hands[least].iter().enumerate() {
                let moved = costs[*item].saturating_sub(costs[*other]);
                let rank = (gap.abs_diff(2 * moved), at.abs_diff(other_at));
                if 0 < moved && moved < gap && best.is_none_or(|(found, ..)| rank < found) {
                    best = Some((rank, at, other_at, moved));
                }
            }
        }
        let Some((_, at, other_at, moved)) = best else {
            return;
        };
        let item = hands[most][at];
        hands[most][at] = std::mem::replace(&mut hands[least][other_at], item);
        loads[most] -= moved;
        loads[least] += moved;
    }
}

/// The entries of a block of rows.
fn entries<'a>(tiles: &'a MaskTiles, of: &GridBlock, units: usize) -> std::slice::Chunks<'a, u32> {
    let Range { start, end } = tiles.list(of.sample, of.block);
    tiles.entries[start * (1 + units)..end * (1 + units)].chunks(1 + units)
}

/// Such lists on the device, with the patterns of their mask.
#[derive(Clone, Debug)]
pub struct DealtList {
    blocks: usize,
    shares: (Handle, usize),
    records: (Handle, usize),
    patterns: (Handle, usize),
}

impl DealtList {
    /// Deals what a mask was compiled to.
    pub(crate) fn new(client: &Client, tiles: &MaskTiles, call: &Call, grid: Grid) -> Self {
        let multiprocessors = client.properties().hardware.num_streaming_multiprocessors;
        let dealt = Dealt::new(tiles, call, grid, multiprocessors.unwrap_or(1) as usize);
        let words = [&dealt.shares, &dealt.records, &tiles.patterns];
        let [shares, records, patterns] = words.map(|words| uploaded_words(client, words));
        Self {
            blocks: dealt.blocks,
            shares,
            records,
            patterns,
        }
    }

    /// Blocks that it is dealt to.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks as u32
    }

    /// Shares, records, the records once more word by word, and patterns.
    pub(crate) fn arguments(&self) -> [BufferArg; 4] {
        // SAFETY: each buffer is as long as it was uploaded, in words.
        let of = |(handle, length): &(Handle, usize), width| unsafe {
            BufferArg::from_raw_parts(handle.clone(), length / width)
        };
        [
            of(&self.shares, 4),
            of(&self.records, 4),
            of(&self.records, 1),
            of(&self.patterns, 1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_attention_mask::{Mask, Side, Tiling};
    use flow_cube::wgmma::Factor;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn dealt(mask: &Mask, call: &Call, multiprocessors: usize) -> (MaskTiles, Dealt) {
        let tiling = Tiling {
            side: Side::Queries,
            units_per_block: 2,
            columns: 128,
        };
        let tiles = MaskTiles::new(mask, call.sizes(), tiling)
            .expect("a mask that fits")
            .whole_first();
        let grid = Grid {
            samples: call.batch,
            heads: call.heads,
            passing_bytes: 4 << 20,
        };
        let dealt = Dealt::new(&tiles, call, grid, multiprocessors);
        (tiles, dealt)
    }

    fn call(batch: usize, heads: usize, rows: usize) -> Call {
        Call {
            batch,
            heads,
            kv_heads: heads / 2,
            queries: rows,
            keys: [rows, 0],
            head_dim: 128,
            factor: Factor::Bf16,
        }
    }

    #[test]
    fn blocks_of_a_causal_mask_have_work_that_differs_by_a_tile_or_two() {
        let call = call(2, 16, 8192);
        let (_, dealt) = dealt(&Mask::Causal, &call, 132);
        assert_eq!(dealt.blocks, 132);
        let loads: Vec<u32> = (dealt.shares.chunks(4).take(132))
            .map(|share| share[3] + share[1])
            .collect();
        let [least, most] = [loads.iter().min(), loads.iter().max()].map(|load| *load.expect("132"));
        assert!(most - least <= 2, "{least} to {most} tiles");
    }

    #[test]
    fn keys_of_the_second_part_are_counted_from_its_beginning() {
        let call = Call {
            keys: [200, 300],
            ..call(1, 2, 100)
        };
        let (_, dealt) = dealt(&Mask::key_padding(vec![500]).expect("a mask"), &call, 132);
        let mut rows: Vec<u32> = (dealt.records.chunks(4).take(5))
            .map(|record| record[0])
            .collect();
        rows.sort_unstable();
        assert_eq!(rows, [0, 128, SECOND_PART, SECOND_PART | 128, SECOND_PART | 256]);
    }

    proptest! {
        #[test]
        fn every_item_is_dealt_once_with_its_tiles_and_no_block_has_too_many(
            batch in 1usize..3, heads in 1usize..5, rows in 1usize..3000, multiprocessors in 1usize..40, causal: bool,
        ) {
            let mask = if causal { Mask::Causal } else { Mask::Window { before: 200, after: 90 } };
            let call = call(batch, 2 * heads, rows);
            let (tiles, dealt) = dealt(&mask, &call, multiprocessors);
            let row = |at: u32| &dealt.shares[4 * at as usize..4 * at as usize + 4];
            let mut seen = HashMap::new();
            for block in 0..dealt.blocks as u32 {
                let [first, items, mut record, records] = row(block)[..] else { unreachable!() };
                prop_assert!(items as usize <= MOST_ITEMS && items > 0);
                let end = record + records;
                for item in first..first + items {
                    let [query, head, count, _] = row(item)[..] else { unreachable!() };
                    let list = tiles.list((head >> 16) as usize, query as usize / 128);
                    prop_assert_eq!(list.len(), count as usize);
                    for entry in tiles.entries[3 * list.start..3 * list.end].chunks(3) {
                        let of = &dealt.records[4 * record as usize..4 * record as usize + 4];
                        let k_head = ((head & 0xFFFF) / 2) | (head & 0xFFFF_0000);
                        prop_assert_eq!(of, [entry[0] * 128, k_head, entry[1], entry[2]]);
                        record += 1;
                    }
                    prop_assert!(seen.insert((query, head), ()).is_none());
                }
                prop_assert_eq!(record, end);
            }
            prop_assert_eq!(seen.len(), call.batch * call.heads * call.queries.div_ceil(128));
        }
    }
}
