//! The planner's search against all choices there are.

use flow_checkpoint::planner::Cost;
use flow_checkpoint::planner::search::{BlockChoices, Choice, best, evaluate, smallest_budget};
use proptest::prelude::*;
use std::time::Duration;

fn cost() -> impl Strategy<Value = Cost> {
    (0u64..40, 0u64..40, 0u64..30).prop_map(|(held_bytes, above, time)| Cost {
        held_bytes,
        peak_bytes: held_bytes + above,
        time: Duration::from_nanos(time),
    })
}

fn blocks() -> impl Strategy<Value = Vec<BlockChoices>> {
    let block =
        (prop::collection::vec(cost(), 1..5), 0u64..10).prop_map(|(costs, gradient_bytes)| BlockChoices {
            costs,
            gradient_bytes,
        });
    prop::collection::vec(block, 1..6)
}

/// Every choice there is.
fn all(blocks: &[BlockChoices]) -> Vec<Choice> {
    let mut options: Vec<Vec<usize>> = vec![Vec::new()];
    for block in blocks {
        options = options
            .iter()
            .flat_map(|before| (0..block.costs.len()).map(move |option| [&before[..], &[option]].concat()))
            .collect();
    }
    options.iter().map(|options| evaluate(blocks, options)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_plan_takes_the_least_time_of_all_choices_that_fit(blocks in blocks(), budget in 0u64..250) {
        let fitting = all(&blocks).into_iter().filter(|choice| choice.peak_bytes <= budget);
        let least = fitting.map(|choice| choice.time).min();
        let found = best(&blocks, budget);
        prop_assert_eq!(found.as_ref().map(|choice| choice.time), least);
        if let Some(found) = found {
            prop_assert!(found.peak_bytes <= budget);
            prop_assert_eq!(&evaluate(&blocks, &found.options), &found);
        }
    }

    #[test]
    fn the_smallest_budget_is_the_smallest_peak_of_all_choices(blocks in blocks()) {
        let least = all(&blocks).iter().map(|choice| choice.peak_bytes).min();
        let smallest = smallest_budget(&blocks);
        prop_assert_eq!(Some(smallest), least);
        prop_assert!(best(&blocks, smallest).is_some());
        prop_assert!(smallest == 0 || best(&blocks, smallest - 1).is_none());
    }

    #[test]
    fn a_larger_budget_never_takes_more_time_nor_less_memory(blocks in blocks(), budget in 0u64..250, more in 0u64..100) {
        if let Some(tight) = best(&blocks, budget) {
            let loose = best(&blocks, budget + more).expect("what fits the smaller budget fits the larger");
            prop_assert!(loose.time <= tight.time);
            prop_assert!(loose.peak_bytes >= tight.peak_bytes);
        }
    }
}

/// Twenty-four blocks with thirty ways each: what a real model asks for, where no one could try all choices.
#[test]
fn many_blocks_with_many_options_are_planned_within_every_budget() {
    let costs: Vec<Cost> = (0..30)
        .map(|option| Cost {
            held_bytes: 1_000_003 * (option + 1) + 17 * (option % 7),
            peak_bytes: 60_000_000 + 1_000_003 * (option + 1),
            time: Duration::from_nanos((1_000_000.0 / (option + 1) as f64) as u64 + 13 * (option % 5)),
        })
        .collect();
    let blocks = vec![
        BlockChoices {
            costs,
            gradient_bytes: 500_000,
        };
        24
    ];
    let smallest = smallest_budget(&blocks);
    let mut before = None;
    for step in 0..12 {
        let choice = best(&blocks, smallest + step * 60_000_000).expect("it fits");
        assert!(before.is_none_or(|before| choice.time <= before));
        before = Some(choice.time);
    }
    assert!(best(&blocks, smallest - 1).is_none());
}
