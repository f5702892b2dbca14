//! Which steps are stochastic at which iteration.

use std::collections::BTreeSet;

use flow_trainer::scheduler::{Hold, SchedulerError, SdeWindow, WindowEnd};
use proptest::prelude::*;

fn sliding(size: usize, stride: usize, hold_iterations: u64, end: WindowEnd) -> SdeWindow {
    SdeWindow::Sliding {
        size,
        stride,
        hold: Hold::Constant(hold_iterations),
        end,
    }
}

#[test]
fn all_means_every_step_but_the_last() {
    let plan = SdeWindow::All.plan(5, 0).unwrap();
    assert_eq!(plan.steps_for(0), [0, 1, 2, 3]);
    assert_eq!(plan.steps_for(999), [0, 1, 2, 3]);
    assert_eq!(plan.size(), 4);
}

#[test]
fn a_list_is_kept_in_step_order_and_may_name_the_last_step() {
    let plan = SdeWindow::List(vec![4, 1]).plan(5, 0).unwrap();
    assert_eq!(plan.steps_for(7), [1, 4]);
}

#[test]
fn a_sliding_window_moves_after_its_hold_and_wraps() {
    let plan = sliding(2, 2, 3, WindowEnd::Wrap).plan(7, 0).unwrap();
    let starts: Vec<Vec<usize>> = (0..12).map(|iteration| plan.steps_for(iteration)).collect();
    let expected: Vec<Vec<usize>> = [[0, 1], [2, 3], [4, 5], [0, 1]]
        .iter()
        .flat_map(|window| vec![window.to_vec(); 3])
        .collect();
    assert_eq!(starts, expected);
}

#[test]
fn a_sliding_window_that_stops_stays_at_the_last_candidate() {
    // Candidates 0 to 5; a stride of 3 would leave step 5 out, so the last position is moved back to end there.
    let plan = sliding(2, 3, 1, WindowEnd::Stop).plan(7, 0).unwrap();
    assert_eq!(plan.steps_for(0), [0, 1]);
    assert_eq!(plan.steps_for(1), [3, 4]);
    assert_eq!(plan.steps_for(2), [4, 5]);
    assert_eq!(plan.steps_for(u64::MAX), [4, 5]);
}

/// Iterations at each start of a window of one of the 24 steps that a path of 25 can train.
fn holds(hold: Hold) -> Vec<(usize, usize)> {
    let window = SdeWindow::Sliding {
        size: 1,
        stride: 1,
        hold,
        end: WindowEnd::Stop,
    };
    let plan = window.plan(25, 0).unwrap();
    let mut starts: Vec<(usize, usize)> = Vec::new();
    for iteration in 0..600 {
        let start = plan.steps_for(iteration)[0];
        match starts.last_mut() {
            Some((last, times)) if *last == start => *times += 1,
            _ => starts.push((start, 1)),
        }
    }
    starts
}

#[test]
fn the_stay_of_a_sliding_window_falls_in_a_straight_line_or_exponentially() {
    let linear = holds(Hold::Linear { first: 25, last: 6 });
    for (start, times) in [(0, 25), (5, 20), (11, 15), (22, 6)] {
        assert_eq!(linear[start], (start, times));
    }
    let exponential = holds(Hold::Exponential {
        first: 25,
        from: 13,
        rate: 0.1,
    });
    for (start, times) in [(0, 25), (13, 25), (14, 23), (20, 13), (22, 11)] {
        assert_eq!(exponential[start], (start, times));
    }
}

#[test]
fn mixgrpos_window_of_four_moves_by_one_every_twenty_five_iterations() {
    let plan = sliding(4, 1, 25, WindowEnd::Wrap).plan(25, 0).unwrap();
    for (iteration, start) in [(0, 0), (24, 0), (25, 1), (475, 19), (500, 20), (525, 0)] {
        assert_eq!(
            plan.steps_for(iteration),
            [start, start + 1, start + 2, start + 3]
        );
    }
}

#[test]
fn a_window_as_large_as_its_candidates_does_not_move() {
    let plan = sliding(4, 1, 1, WindowEnd::Wrap).plan(5, 0).unwrap();
    assert_eq!(plan.steps_for(3), [0, 1, 2, 3]);
}

#[test]
fn random_draws_depend_on_seed_and_iteration_and_on_nothing_else() {
    let window = SdeWindow::Random {
        candidates: Some(vec![1, 2, 3, 4, 5]),
        count: 2,
    };
    let sequence = |seed: u64, steps: usize| -> Vec<Vec<usize>> {
        let plan = window.plan(steps, seed).unwrap();
        (0..40).map(|iteration| plan.steps_for(iteration)).collect()
    };
    assert_eq!(sequence(7, 10), sequence(7, 10));
    assert_eq!(sequence(7, 10), sequence(7, 30));
    assert_ne!(sequence(7, 10), sequence(8, 10));
    let different: BTreeSet<Vec<usize>> = sequence(7, 10).into_iter().collect();
    assert!(
        different.len() > 5,
        "40 draws gave {} different pairs of 10",
        different.len()
    );
}

#[test]
fn random_draws_take_every_candidate_equally_often() {
    let plan = SdeWindow::Random {
        candidates: None,
        count: 2,
    }
    .plan(9, 3)
    .unwrap();
    let mut times = [0_u32; 8];
    let draws = 4000;
    for iteration in 0..draws {
        for step in plan.steps_for(iteration) {
            times[step] += 1;
        }
    }
    // Each is drawn with probability 1/4: 1000 times, with a standard deviation of 27.
    assert!(
        times.iter().all(|&times| (880..=1120).contains(&times)),
        "{times:?}"
    );
}

#[test]
fn a_contiguous_window_lies_in_its_range_and_begins_at_every_place_of_it_equally_often() {
    let window = SdeWindow::Contiguous {
        range: Some([2, 8]),
        size: 3,
    };
    let plan = window.plan(10, 3).unwrap();
    let mut times = [0_u32; 10];
    for iteration in 0..4000 {
        let steps = plan.steps_for(iteration);
        assert_eq!(steps, (steps[0]..steps[0] + 3).collect::<Vec<usize>>());
        times[steps[0]] += 1;
    }
    // Four places, 1000 times each, with a standard deviation of 27.
    for (start, times) in times.into_iter().enumerate() {
        let expected = if (2..=5).contains(&start) {
            880..=1120
        } else {
            0..=0
        };
        assert!(expected.contains(&times), "{start}: {times}");
    }
    let starts = |seed: u64| -> Vec<usize> {
        let plan = window.plan(10, seed).unwrap();
        (0..40).map(|iteration| plan.steps_for(iteration)[0]).collect()
    };
    assert_eq!(starts(3), starts(3));
    assert_ne!(starts(3), starts(4));
    // The first half, unless it is said.
    let first_half = SdeWindow::Contiguous { range: None, size: 5 };
    assert_eq!(first_half.plan(10, 0).unwrap().steps_for(7), [0, 1, 2, 3, 4]);
}

#[test]
fn impossible_windows_are_refused_with_a_way_out() {
    let message = |window: SdeWindow, steps: usize| window.plan(steps, 0).unwrap_err().to_string();
    assert!(message(SdeWindow::All, 1).contains("use at least 2"));
    assert!(message(SdeWindow::List(vec![]), 5).contains("list at least one"));
    assert!(message(SdeWindow::List(vec![5]), 5).contains("numbered 0 to 4"));
    assert!(message(SdeWindow::List(vec![3, 1, 3]), 5).contains("step 3 is listed twice"));
    assert!(
        message(
            SdeWindow::Random {
                candidates: None,
                count: 0
            },
            5
        )
        .contains("count is 0")
    );
    let greedy = SdeWindow::Random {
        candidates: Some(vec![1, 2]),
        count: 3,
    };
    assert_eq!(
        greedy.plan(5, 0),
        Err(SchedulerError::WindowTooLarge {
            wanted: 3,
            available: 2
        })
    );
    assert!(message(sliding(0, 1, 1, WindowEnd::Stop), 5).contains("size is 0"));
    assert!(message(sliding(2, 0, 1, WindowEnd::Stop), 5).contains("stride is 0"));
    assert!(message(sliding(2, 1, 0, WindowEnd::Stop), 5).contains("0 iterations"));
    assert!(message(sliding(5, 1, 1, WindowEnd::Stop), 5).contains("at most 4"));
    let contiguous = |range, size| SdeWindow::Contiguous { range, size };
    assert!(message(contiguous(Some([2, 6]), 2), 5).contains("numbered 0 to 4"));
    assert!(message(contiguous(Some([3, 3]), 1), 5).contains("[3, 3] has no step"));
    assert!(message(contiguous(Some([1, 3]), 3), 5).contains("at most 2"));
    assert!(message(contiguous(None, 0), 5).contains("size is 0"));
}

fn any_window() -> impl Strategy<Value = SdeWindow> {
    let list = prop::collection::vec(0_usize..12, 0..6);
    let end = prop_oneof![Just(WindowEnd::Wrap), Just(WindowEnd::Stop)];
    prop_oneof![
        Just(SdeWindow::All),
        list.clone().prop_map(SdeWindow::List),
        (prop::option::of(list), 0_usize..6)
            .prop_map(|(candidates, count)| SdeWindow::Random { candidates, count }),
        (
            0_usize..6,
            prop_oneof![0_usize..5, Just(usize::MAX)],
            0_u64..4,
            end
        )
            .prop_map(|(size, stride, hold, end)| sliding(size, stride, hold, end)),
        (prop::option::of([0_usize..14, 0_usize..14]), 0_usize..6)
            .prop_map(|(range, size)| SdeWindow::Contiguous { range, size }),
    ]
}

proptest! {
    #[test]
    fn a_planned_window_selects_its_size_of_ascending_candidates_at_every_iteration(
        window in any_window(), steps in 0_usize..14, seed in any::<u64>(), iteration in any::<u64>(),
    ) {
        if let Ok(plan) = window.plan(steps, seed) {
            let selected = plan.steps_for(iteration);
            prop_assert!(!selected.is_empty());
            prop_assert_eq!(selected.len(), plan.size());
            prop_assert!(selected.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(selected.iter().all(|step| plan.candidates().contains(step) && *step < steps));
        }
    }

    #[test]
    fn a_wrapping_window_trains_every_candidate_in_one_round(
        steps in 2_usize..20, size in 1_usize..8, stride_share in 1_usize..8,
    ) {
        let size = size.min(steps - 1);
        // Strides beyond the size would jump over steps.
        let stride = stride_share.min(size);
        let plan = sliding(size, stride, 1, WindowEnd::Wrap).plan(steps, 0).unwrap();
        let seen: BTreeSet<usize> = (0..steps as u64).flat_map(|iteration| plan.steps_for(iteration)).collect();
        prop_assert_eq!(seen, (0..steps - 1).collect());
    }
}
