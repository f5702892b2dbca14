//! The tile scheduler of the persistent forward kernel: it assigns work items to blocks on the host.
//!
//! A work item is a block of queries of a head, with the tiles of keys that its mask leaves. One persistent block runs on
//! each multiprocessor and goes through its list of work items. An item is computed by itself, so the assignment changes no
//! bit of the result.

use crate::launch_order::{Grid, GridBlock};
use crate::problem::Problem;
use crate::tensors::uploaded_words;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::MaskTiles;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Most work items of a block; a multiple of its threads.
pub(crate) const MAX_WORK_ITEMS: usize = 256;

/// Flag in a record's row: the tile is in the second segment of keys.
pub(crate) const SECOND_SEGMENT: u32 = 1 << 31;

/// Records behind the last one that kernels read ahead and do not use.
const READ_AHEAD: usize = 2;

/// Cost of a tile, in proportion to the cycles of an H100 at 128 channels (2,420).
const TILE_COST: u64 = 8;

/// Additional cost of a tile of which a row group does not see all.
const PARTIAL_TILE_COST: u64 = 1;

/// Cost of a work item besides its tiles (2,200 cycles): prologue and epilogue.
const ITEM_COST: u64 = 8;

/// Which block computes which work items, as words for the kernel, four to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkAssignment {
    /// Persistent blocks.
    pub blocks: usize,
    /// A row for each block: first work item, number of items, first record, number of records. Then a row for each item: first
    /// query, head and sample (in the upper half), number of records, 0. Items are numbered from the beginning of the words.
    pub assignments: Vec<u32>,
    /// A row for each tile of an item: first row within its segment of keys ([`SECOND_SEGMENT`]), head of the keys and sample (in
    /// the upper half), and for each 64 queries the partial mask (`MaskTiles::entries`).
    pub records: Vec<u32>,
}

impl WorkAssignment {
    /// Assigns the tiles that `tiles` lists for `problem`, with at most two row groups a block, to blocks for as many multiprocessors.
    ///
    /// Longest processing time first: items come in launch order ([`Grid`]), long ones before short ones, and each goes to the
    /// block with the least work so far. A block runs its items in that order, so blocks that run at the same time read the same
    /// keys from the L2 cache. Then blocks swap items until their work is as equal as it can be, because the kernel ends with
    /// its last block. A swapped item takes the other's position. (In launch order, packed sequences read 265 MB instead of 288,
    /// and take 0.4 % longer.)
    pub fn new(tiles: &MaskTiles, problem: &Problem, grid: Grid, multiprocessors: usize) -> Self {
        let row_groups = tiles.tiling.row_groups_per_block;
        assert!(row_groups <= 2, "records have room for two row groups");
        let items = grid.order(tiles);
        let blocks = items
            .len()
            .min(multiprocessors.max(items.len().div_ceil(MAX_WORK_ITEMS / 2)));
        let entries = |item: &GridBlock| entries(tiles, item, row_groups);
        let cost = |item: &GridBlock| {
            let is_partial = |entry: &&[u32]| entry[1..].iter().any(|partial_mask| *partial_mask >= 2);
            let partial_tiles = entries(item).filter(is_partial).count() as u64;
            let all_tiles = tiles.list(item.sample, item.block).len() as u64;
            TILE_COST * all_tiles + PARTIAL_TILE_COST * partial_tiles + ITEM_COST
        };
        let costs: Vec<u64> = items.iter().map(cost).collect();
        let mut items_of_blocks = assign_to_least_loaded(&costs, blocks);
        balance_by_swaps(&mut items_of_blocks, &costs);
        let (mut assignments, mut item_rows, mut records) = (Vec::new(), Vec::new(), Vec::new());
        let group = problem.heads / problem.kv_heads;
        let columns = tiles.tiling.columns;
        let first_segment_tiles = problem.keys[0].div_ceil(columns);
        for items_of_block in &items_of_blocks {
            let [first_item, first_record] = [blocks + item_rows.len() / 4, records.len() / 4];
            for item in items_of_block.iter().map(|item| &items[*item]) {
                let [q_head, k_head] = [item.head, item.head / group].map(|head| head | item.sample << 16);
                for entry in entries(item) {
                    let tile = entry[0] as usize;
                    let row = match tile.checked_sub(first_segment_tiles) {
                        None => (tile * columns) as u32,
                        Some(tile_in_second) => (tile_in_second * columns) as u32 | SECOND_SEGMENT,
                    };
                    records.extend([row, k_head as u32, entry[1], entry[row_groups]]);
                }
                let query = item.block * 64 * row_groups;
                let row = [query, q_head, tiles.list(item.sample, item.block).len(), 0];
                item_rows.extend(row.map(|number| number as u32));
            }
            let record_count = records.len() / 4 - first_record;
            let row = [first_item, items_of_block.len(), first_record, record_count];
            assignments.extend(row.map(|number| number as u32));
        }
        assignments.extend(item_rows);
        records.extend([0; 4 * READ_AHEAD]);
        Self {
            blocks,
            assignments,
            records,
        }
    }
}

/// Items in order, each to the block with the least work so far.
fn assign_to_least_loaded(costs: &[u64], blocks: usize) -> Vec<Vec<usize>> {
    let mut items_of_blocks = vec![Vec::new(); blocks];
    let mut least_loaded: BinaryHeap<Reverse<(u64, usize)>> =
        (0..blocks).map(|block| Reverse((0, block))).collect();
    for (item, cost) in costs.iter().enumerate() {
        let Some(Reverse((load, block))) = least_loaded.pop() else {
            unreachable!("blocks have room for twice as many items");
        };
        items_of_blocks[block].push(item);
        if items_of_blocks[block].len() < MAX_WORK_ITEMS {
            least_loaded.push(Reverse((load + cost, block)));
        }
    }
    items_of_blocks
}

/// Swaps one item of the most loaded block with one of the least loaded, as long as that helps: the pair that brings the two
/// loads closest, and among such pairs the one at the nearest positions.
fn balance_by_swaps(items_of_blocks: &mut [Vec<usize>], costs: &[u64]) {
    let mut loads: Vec<u64> = (items_of_blocks.iter())
        .map(|items| items.iter().map(|item| costs[*item]).sum())
        .collect();
    // Each swap brings two blocks closer; this many are enough, and bound the work of the host.
    for _ in 0..4 * items_of_blocks.len() {
        let most = (0..items_of_blocks.len()).max_by_key(|block| loads[*block]);
        let least = (0..items_of_blocks.len()).min_by_key(|block| loads[*block]);
        let Some((most, least)) = most.zip(least) else {
            return;
        };
        let gap = loads[most] - loads[least];
        let mut best: Option<((u64, usize), usize, usize, u64)> = None;
        for (at, item) in items_of_blocks[most].iter().enumerate() {
            for (other_at, other) in items_of_blocks[least].iter().enumerate() {
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
        let item = items_of_blocks[most][at];
        items_of_blocks[most][at] = std::mem::replace(&mut items_of_blocks[least][other_at], item);
        loads[most] -= moved;
        loads[least] += moved;
    }
}

/// The entries of a block of rows.
fn entries<'a>(tiles: &'a MaskTiles, of: &GridBlock, row_groups: usize) -> std::slice::Chunks<'a, u32> {
    let Range { start, end } = tiles.list(of.sample, of.block);
    tiles.entries[start * (1 + row_groups)..end * (1 + row_groups)].chunks(1 + row_groups)
}

/// A mask on the device for persistent blocks: their work assignment, and the partial masks.
#[derive(Clone, Debug)]
pub struct ScheduledMask {
    blocks: usize,
    assignments: (Handle, usize),
    records: (Handle, usize),
    partial_masks: (Handle, usize),
}

impl ScheduledMask {
    /// Assigns the tiles of a compiled mask to blocks.
    pub(crate) fn new(client: &Client, tiles: &MaskTiles, problem: &Problem, grid: Grid) -> Self {
        let multiprocessors = client.properties().hardware.num_streaming_multiprocessors;
        let assigned = WorkAssignment::new(tiles, problem, grid, multiprocessors.unwrap_or(1) as usize);
        let words = [&assigned.assignments, &assigned.records, &tiles.partial_masks];
        let [assignments, records, partial_masks] = words.map(|words| uploaded_words(client, words));
        Self {
            blocks: assigned.blocks,
            assignments,
            records,
            partial_masks,
        }
    }

    /// Persistent blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks as u32
    }

    /// Assignments, records, the records once more word by word, and partial masks.
    pub(crate) fn arguments(&self) -> [BufferArg; 4] {
        // SAFETY: each buffer is as long as it was uploaded, in words.
        let of = |(handle, length): &(Handle, usize), width| unsafe {
            BufferArg::from_raw_parts(handle.clone(), length / width)
        };
        [
            of(&self.assignments, 4),
            of(&self.records, 4),
            of(&self.records, 1),
            of(&self.partial_masks, 1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_attention_mask::{Mask, Side, Tiling};
    use flow_cube::wgmma::OperandType;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn assigned(mask: &Mask, problem: &Problem, multiprocessors: usize) -> (MaskTiles, WorkAssignment) {
        let tiling = Tiling {
            side: Side::Queries,
            row_groups_per_block: 2,
            columns: 128,
        };
        let tiles = MaskTiles::new(mask, problem.sizes(), tiling)
            .expect("a mask that fits")
            .whole_first();
        let grid = Grid {
            samples: problem.batch,
            heads: problem.heads,
            streamed_bytes: 4 << 20,
        };
        let assigned = WorkAssignment::new(&tiles, problem, grid, multiprocessors);
        (tiles, assigned)
    }

    fn problem(batch: usize, heads: usize, rows: usize) -> Problem {
        Problem {
            batch,
            heads,
            kv_heads: heads / 2,
            queries: rows,
            keys: [rows, 0],
            head_dim: 128,
            operand_type: OperandType::Bf16,
        }
    }

    #[test]
    fn blocks_of_a_causal_mask_have_work_that_differs_by_a_tile_or_two() {
        let problem = problem(2, 16, 8192);
        let (_, assigned) = assigned(&Mask::Causal, &problem, 132);
        assert_eq!(assigned.blocks, 132);
        let loads: Vec<u32> = (assigned.assignments.chunks(4).take(132))
            .map(|share| share[3] + share[1])
            .collect();
        let [least, most] = [loads.iter().min(), loads.iter().max()].map(|load| *load.expect("132"));
        assert!(most - least <= 2, "{least} to {most} tiles");
    }

    #[test]
    fn keys_of_the_second_part_are_counted_from_its_beginning() {
        let problem = Problem {
            keys: [200, 300],
            ..problem(1, 2, 100)
        };
        let (_, assigned) = assigned(&Mask::key_padding(vec![500]).expect("a mask"), &problem, 132);
        let mut rows: Vec<u32> = (assigned.records.chunks(4).take(5))
            .map(|record| record[0])
            .collect();
        rows.sort_unstable();
        assert_eq!(
            rows,
            [0, 128, SECOND_SEGMENT, SECOND_SEGMENT | 128, SECOND_SEGMENT | 256]
        );
    }

    proptest! {
        #[test]
        fn every_item_is_assigned_once_with_its_tiles_and_no_block_has_too_many(
            batch in 1usize..3, heads in 1usize..5, rows in 1usize..3000, multiprocessors in 1usize..40, causal: bool,
        ) {
            let mask = if causal { Mask::Causal } else { Mask::Window { before: 200, after: 90 } };
            let problem = problem(batch, 2 * heads, rows);
            let (tiles, assigned) = assigned(&mask, &problem, multiprocessors);
            let row = |at: u32| &assigned.assignments[4 * at as usize..4 * at as usize + 4];
            let mut seen = HashMap::new();
            for block in 0..assigned.blocks as u32 {
                let [first, items, mut record, records] = row(block)[..] else { unreachable!() };
                prop_assert!(items as usize <= MAX_WORK_ITEMS && items > 0);
                let end = record + records;
                for item in first..first + items {
                    let [query, head, count, _] = row(item)[..] else { unreachable!() };
                    let list = tiles.list((head >> 16) as usize, query as usize / 128);
                    prop_assert_eq!(list.len(), count as usize);
                    for entry in tiles.entries[3 * list.start..3 * list.end].chunks(3) {
                        let of = &assigned.records[4 * record as usize..4 * record as usize + 4];
                        let k_head = ((head & 0xFFFF) / 2) | (head & 0xFFFF_0000);
                        prop_assert_eq!(of, [entry[0] * 128, k_head, entry[1], entry[2]]);
                        record += 1;
                    }
                    prop_assert!(seen.insert((query, head), ()).is_none());
                }
                prop_assert_eq!(record, end);
            }
            prop_assert_eq!(seen.len(), problem.batch * problem.heads * problem.queries.div_ceil(128));
        }
    }
}
