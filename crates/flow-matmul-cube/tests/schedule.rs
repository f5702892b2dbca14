//! Schedules: every summand of every element, once, in order.

use flow_matmul_cube::schedule::{Cut, STEP, Schedule};
use proptest::prelude::*;

proptest! {
    #[test]
    fn items_cover_every_step_of_every_tile_once(
        m in 1usize..2000,
        n in 1usize..2000,
        k in 1usize..3000,
        rows in prop::sample::select(vec![128usize, 256]),
        columns in prop::sample::select(vec![64usize, 128, 192, 256]),
        group in 1usize..20,
        blocks in 1usize..140,
        parts in 1usize..12,
    ) {
        let steps = k.div_ceil(STEP);
        let schedule = Schedule::new([m, n], steps, Cut { rows, columns, group, blocks, parts });
        let [down, across] = schedule.tiles;
        let mut seen = vec![vec![0usize; steps]; down * across];
        let mut slots = vec![false; schedule.slots()];
        for item in schedule.blocks.iter().flatten() {
            prop_assert!(item.row % rows == 0 && item.row < m && item.column % columns == 0 && item.column < n);
            prop_assert!(item.begin < item.end && item.end <= steps);
            let tile = item.row / rows * across + item.column / columns;
            for step in item.begin..item.end {
                seen[tile][step] += 1;
            }
            if schedule.in_parts() {
                prop_assert!(!std::mem::replace(&mut slots[item.slot], true), "slot {} twice", item.slot);
                prop_assert_eq!(item.slot / schedule.cut.parts, tile);
                // Sums are added up in the order of slots: that must be the order of summands.
                prop_assert_eq!(item.begin, item.slot % schedule.cut.parts * steps / schedule.cut.parts);
            }
        }
        prop_assert!(seen.iter().flatten().all(|count| *count == 1));
        prop_assert!(slots.iter().all(|taken| *taken));
    }

    #[test]
    fn no_block_has_two_items_more_than_another(
        m in 1usize..4000, n in 1usize..4000, blocks in 1usize..140, parts in 1usize..4,
    ) {
        let cut = Cut { rows: 128, columns: 192, group: 16, blocks, parts };
        let schedule = Schedule::new([m, n], 100, cut);
        let lengths: Vec<usize> = schedule.blocks.iter().map(Vec::len).collect();
        let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
        prop_assert!(*least > 0 && most - least <= 1);
        prop_assert_eq!(schedule.starts().last().copied(), Some((schedule.words().len() / 8) as u32));
    }
}
