//! The order of sums: the same bits for every number of ranks that divides the lanes, and those of the tree as it is defined.

use flow_exchange::{Exchange, HostValues, Lanes, Partials, Values, in_process};
use proptest::prelude::*;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Value `index` of unit `unit`: of very different sizes, so that the order of a sum decides its bits.
fn value(seed: u32, unit: usize, index: usize) -> f32 {
    let mixed = seed
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(unit as u32 * 0x85EB_CA6B)
        .wrapping_add(index as u32 * 0xC2B2_AE35);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2C1B_3C6D);
    let fraction = (mixed >> 8) as f32 / (1 << 24) as f32 - 0.5;
    fraction * 2f32.powi((mixed % 23) as i32 - 11)
}

/// The sum over `units` units of `count` values as a rank gets it: all of it, and the part of it that is for this rank, where parts differ in
/// length and some are empty.
fn rank_sum(
    exchange: &dyn Exchange,
    lanes: Lanes,
    (units, count): (usize, usize),
    seed: u32,
) -> [Vec<f32>; 2] {
    let world = exchange.world();
    let mut partials = Partials::new(lanes);
    for lane in lanes.of_rank(world.rank, world.ranks) {
        let mut sum: Option<Vec<f32>> = None;
        for unit in lanes.parts_of(lane, units) {
            let values = (0..count).map(|index| value(seed, unit, index));
            match &mut sum {
                None => sum = Some(values.collect()),
                Some(sum) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            }
        }
        let sum = sum.expect("every lane has units");
        partials.push(lane..lane + 1, sum, |sum, more| {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        });
    }
    let mut parts: Vec<HostValues> = partials
        .into_sums()
        .into_iter()
        .map(|(_, sum)| HostValues(sum))
        .collect();
    let end = |rank: usize| rank * rank * count / (world.ranks * world.ranks);
    let counts: Vec<usize> = (0..world.ranks).map(|rank| end(rank + 1) - end(rank)).collect();
    let mut own = HostValues(vec![0.0; counts[world.rank]]);
    let mut parts: Vec<&mut dyn Values> = parts.iter_mut().map(|part| part as &mut dyn Values).collect();
    (exchange.reduce_scatter(&lanes, &mut parts, &counts, &mut own)).expect("everyone is there");
    exchange.sum(&lanes, &mut parts).expect("everyone is there");
    [parts[0].read(), own.0]
}

/// The tree as the README defines it, by recursion.
fn defined(lanes: &[f32]) -> f32 {
    match lanes {
        [one] => *one,
        _ => {
            let mut left = 1;
            while 2 * left < lanes.len() {
                left *= 2;
            }
            defined(&lanes[..left]) + defined(&lanes[left..])
        }
    }
}

fn on_ranks<T: Send + 'static>(
    ranks: usize,
    of: impl Fn(Arc<dyn Exchange>) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let threads: Vec<_> = in_process(ranks, TIMEOUT)
        .into_iter()
        .map(|exchange| {
            let of = of.clone();
            thread::spawn(move || of(exchange))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_number_of_ranks_that_divides_the_lanes_gives_the_bits_of_the_tree(
        lanes in 1usize..=12, each in 1usize..4, count in 0usize..9, seed: u32,
    ) {
        let units = lanes * each;
        let wanted: Vec<u32> = (0..count)
            .map(|index| {
                let lane = |lane: usize| (lane * each + 1..(lane + 1) * each)
                    .fold(value(seed, lane * each, index), |sum, unit| sum + value(seed, unit, index));
                defined(&(0..lanes).map(lane).collect::<Vec<f32>>()).to_bits()
            })
            .collect();
        for ranks in (1..=lanes).filter(|ranks| lanes % ranks == 0) {
            let of = move |exchange: Arc<dyn Exchange>| {
                rank_sum(&*exchange, Lanes::new(lanes), (units, count), seed)
            };
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            let mut of_parts = Vec::new();
            for [sum, part] in on_ranks(ranks, of) {
                prop_assert_eq!(&bits(&sum), &wanted, "{} ranks", ranks);
                of_parts.extend(bits(&part));
            }
            prop_assert_eq!(&of_parts, &wanted, "parts of {} ranks", ranks);
        }
    }

    #[test]
    fn a_cover_has_every_lane_once_and_in_order(lanes in 1usize..40, ranks in 1usize..9) {
        let tree = Lanes::new(lanes);
        let all: Vec<usize> = (0..ranks).flat_map(|rank| tree.cover(tree.of_rank(rank, ranks))).flatten().collect();
        prop_assert_eq!(all, (0..lanes).collect::<Vec<_>>());
        prop_assert_eq!(tree.cover(0..lanes), vec![0..lanes]);
    }
}

#[test]
fn a_rank_of_a_power_of_two_holds_one_sum_for_each_level_at_most() {
    let lanes = Lanes::new(8);
    let mut partials = Partials::new(lanes);
    let held: Vec<usize> = (0..8)
        .map(|lane| {
            partials.push(lane..lane + 1, 1u32, |sum, more| *sum += more);
            partials.clone().into_sums().len()
        })
        .collect();
    assert_eq!(held, [1, 1, 2, 1, 2, 2, 3, 1]);
    assert_eq!(partials.into_sums(), [(0..8, 8)]);
}
