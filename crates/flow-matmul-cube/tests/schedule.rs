//! Schedules: every summand of every element, once, in order.

use flow_matmul_cube::schedule::{STEP, Schedule, Tiling};
use proptest::prelude::*;

fn cuts() -> impl Strategy<Value = Tiling> {
    (
        prop::sample::select(vec![128usize, 256]),
        prop::sample::select(vec![64usize, 128, 192, 256]),
        1usize..20,
        1usize..140,
        1usize..12,
        any::<bool>(),
    )
        .prop_map(|(rows, columns, group, blocks, split_k, stream_k)| Tiling {
            rows,
            columns,
            group,
            blocks,
            split_k,
            stream_k,
        })
}

proptest! {
    #[test]
    fn items_cover_every_step_of_every_tile_once_and_sums_are_in_order(
        m in 1usize..2000, n in 1usize..2000, k in 1usize..3000, tiling in cuts(),
    ) {
        let steps = k.div_ceil(STEP);
        let across = n.div_ceil(tiling.columns);
        let mut seen = vec![vec![0usize; steps]; m.div_ceil(tiling.rows) * across];
        for schedule in Schedule::all([m, n], steps, tiling) {
            // What each partial tile holds: its tile, and its range of steps.
            let mut workspace_tiles = vec![None; schedule.workspace_tiles()];
            for item in schedule.blocks.iter().flatten() {
                prop_assert!(item.row % tiling.rows == 0 && item.row < m);
                prop_assert!(item.column % tiling.columns == 0 && item.column < n);
                prop_assert!(item.begin < item.end && item.end <= steps);
                let tile = item.row / tiling.rows * across + item.column / tiling.columns;
                seen[tile][item.begin..item.end].iter_mut().for_each(|count| *count += 1);
                if schedule.splits_k() {
                    let before = workspace_tiles[item.workspace_tile].replace((item.row, item.column, item.begin, item.end));
                    prop_assert_eq!(before, None, "partial tile {} twice", item.workspace_tile);
                } else {
                    prop_assert_eq!((item.begin, item.end), (0, steps));
                }
            }
            for partial_tiles in &schedule.partial_tiles {
                let mut at = 0;
                for workspace_tile in &workspace_tiles[partial_tiles.first..partial_tiles.first + partial_tiles.count] {
                    let (row, column, begin, end) = workspace_tile.expect("each partial tile is written");
                    prop_assert_eq!((row, column, begin), (partial_tiles.row, partial_tiles.column, at));
                    at = end;
                }
                prop_assert_eq!(at, steps);
            }
        }
        prop_assert!(seen.iter().flatten().all(|count| *count == 1));
    }

    #[test]
    fn balanced_blocks_have_the_same_to_do(
        m in 1usize..6000, n in 1usize..6000, blocks in 1usize..140, steps in 64usize..512,
    ) {
        let tiling = Tiling { rows: 128, columns: 192, group: 16, blocks, split_k: 1, stream_k: true };
        let tiles = m.div_ceil(128) * n.div_ceil(192);
        let schedules = Schedule::all([m, n], steps, tiling);
        let longest: usize = schedules
            .iter()
            .map(|schedule| {
                let work = |items: &Vec<_>| items.iter().map(|item: &flow_matmul_cube::schedule::Item| item.end - item.begin).sum::<usize>();
                schedule.blocks.iter().map(work).max().unwrap_or(0)
            })
            .sum();
        let least = (tiles * steps).div_ceil(blocks);
        prop_assert!(longest <= least + 2, "{longest} steps, {least} would do");
    }

    #[test]
    fn no_block_has_two_items_more_than_another(
        m in 1usize..4000, n in 1usize..4000, blocks in 1usize..140, split_k in 1usize..4,
    ) {
        let tiling = Tiling { rows: 128, columns: 192, group: 16, blocks, split_k, stream_k: false };
        let schedule = Schedule::all([m, n], 100, tiling).remove(0);
        let lengths: Vec<usize> = schedule.blocks.iter().map(Vec::len).collect();
        let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
        prop_assert!(*least > 0 && most - least <= 1);
        prop_assert_eq!(schedule.starts().last().copied(), Some((schedule.words().len() / 8) as u32));
    }
}
