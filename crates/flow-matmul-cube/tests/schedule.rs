//! Schedules: every summand of every element, once, in order.

use flow_matmul_cube::schedule::{Cut, STEP, Schedule};
use proptest::prelude::*;

fn cuts() -> impl Strategy<Value = Cut> {
    (
        prop::sample::select(vec![128usize, 256]),
        prop::sample::select(vec![64usize, 128, 192, 256]),
        1usize..20,
        1usize..140,
        1usize..12,
        any::<bool>(),
    )
        .prop_map(|(rows, columns, group, blocks, parts, balanced)| Cut {
            rows,
            columns,
            group,
            blocks,
            parts,
            balanced,
        })
}

proptest! {
    #[test]
    fn items_cover_every_step_of_every_tile_once_and_sums_are_in_order(
        m in 1usize..2000, n in 1usize..2000, k in 1usize..3000, cut in cuts(),
    ) {
        let steps = k.div_ceil(STEP);
        let across = n.div_ceil(cut.columns);
        let mut seen = vec![vec![0usize; steps]; m.div_ceil(cut.rows) * across];
        for schedule in Schedule::all([m, n], steps, cut) {
            // What each tile of sums holds: its tile, and its range of steps.
            let mut slots = vec![None; schedule.slots()];
            for item in schedule.blocks.iter().flatten() {
                prop_assert!(item.row % cut.rows == 0 && item.row < m);
                prop_assert!(item.column % cut.columns == 0 && item.column < n);
                prop_assert!(item.begin < item.end && item.end <= steps);
                let tile = item.row / cut.rows * across + item.column / cut.columns;
                seen[tile][item.begin..item.end].iter_mut().for_each(|count| *count += 1);
                if schedule.in_parts() {
                    let before = slots[item.slot].replace((item.row, item.column, item.begin, item.end));
                    prop_assert_eq!(before, None, "tile of sums {} twice", item.slot);
                } else {
                    prop_assert_eq!((item.begin, item.end), (0, steps));
                }
            }
            for sums in &schedule.sums {
                let mut at = 0;
                for slot in &slots[sums.first..sums.first + sums.count] {
                    let (row, column, begin, end) = slot.expect("each tile of sums is written");
                    prop_assert_eq!((row, column, begin), (sums.row, sums.column, at));
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
        let cut = Cut { rows: 128, columns: 192, group: 16, blocks, parts: 1, balanced: true };
        let tiles = m.div_ceil(128) * n.div_ceil(192);
        let schedules = Schedule::all([m, n], steps, cut);
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
        m in 1usize..4000, n in 1usize..4000, blocks in 1usize..140, parts in 1usize..4,
    ) {
        let cut = Cut { rows: 128, columns: 192, group: 16, blocks, parts, balanced: false };
        let schedule = Schedule::all([m, n], 100, cut).remove(0);
        let lengths: Vec<usize> = schedule.blocks.iter().map(Vec::len).collect();
        let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
        prop_assert!(*least > 0 && most - least <= 1);
        prop_assert_eq!(schedule.starts().last().copied(), Some((schedule.words().len() / 8) as u32));
    }
}
