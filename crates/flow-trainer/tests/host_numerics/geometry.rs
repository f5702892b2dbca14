//! Batch geometry and the order of prompts.

use std::collections::BTreeSet;

use flow_trainer::geometry::{BatchGeometry, GeometryRequest, PromptDraw, PromptSampler};
use flow_trainer::geometry_history::GeometryHistory;
use proptest::prelude::*;

fn request(prompts: usize, group_size: usize, micro_batch: usize, accumulated: usize) -> GeometryRequest {
    GeometryRequest {
        prompts_per_step: prompts,
        group_size,
        micro_batch,
        gradient_accumulation: accumulated,
    }
}

#[test]
fn a_geometry_that_divides_is_taken_as_it_is() {
    let geometry = BatchGeometry::new(request(6, 4, 8, 1)).unwrap();
    assert_eq!(
        (
            geometry.samples(),
            geometry.micro_batches(),
            geometry.micro_batches_per_update()
        ),
        (24, 3, 1)
    );
    assert_eq!(geometry.updates(), 3);
    let whole = BatchGeometry::new(request(6, 4, 8, 0)).unwrap();
    assert_eq!((whole.updates(), whole.micro_batches_per_update()), (1, 3));
    assert!(whole.update_micro_batches().eq(std::iter::once(0..3)));
    assert_eq!(
        geometry.micro_batch_samples().collect::<Vec<_>>(),
        [0..8, 8..16, 16..24]
    );
    assert_eq!(
        geometry.update_micro_batches().collect::<Vec<_>>(),
        [0..1, 1..2, 2..3]
    );
    assert_eq!(
        (geometry.slot(0), geometry.slot(5), geometry.slot(23)),
        ((0, 0), (1, 1), (5, 3))
    );
}

#[test]
fn samples_that_do_not_fill_micro_batches_name_the_nearest_numbers_that_do() {
    let error = BatchGeometry::new(request(5, 6, 8, 1)).unwrap_err();
    assert_eq!(error.problems.len(), 1);
    // 4 * 6 = 24 and 8 * 6 = 48 fill eights; 5 * 8 = 40 does; 30 has the divisors 6 and 10 around 8.
    let expected = [
        ("prompts_per_step", 4),
        ("prompts_per_step", 8),
        ("group_size", 8),
        ("micro_batch", 6),
        ("micro_batch", 10),
    ];
    assert_eq!(error.problems[0].nearest, expected);
    let message = error.to_string();
    assert!(
        message.contains(
            "prompts_per_step(5) * group_size(6) = 30 samples must be a multiple of micro_batch(8)"
        ),
        "{message}"
    );
    assert!(
        message.contains("nearest: prompts_per_step = 4 or prompts_per_step = 8"),
        "{message}"
    );
}

#[test]
fn an_accumulation_that_does_not_divide_the_micro_batches_names_the_nearest_that_does() {
    let error = BatchGeometry::new(request(6, 4, 4, 4)).unwrap_err();
    assert_eq!(
        error.problems[0].nearest,
        [
            ("gradient_accumulation", 3),
            ("gradient_accumulation", 6),
            ("prompts_per_step", 4),
            ("prompts_per_step", 8)
        ]
    );
    assert!(
        error
            .to_string()
            .contains("= 6 micro-batches must be a multiple of gradient_accumulation(4)"),
        "{error}"
    );
}

#[test]
fn zeros_are_all_reported_at_once() {
    let error = BatchGeometry::new(request(0, 4, 0, 0)).unwrap_err();
    let message = error.to_string();
    assert_eq!(error.problems.len(), 2);
    assert!(
        message.contains("1. prompts_per_step(0)") && message.contains("2. micro_batch(0)"),
        "{message}"
    );
}

#[test]
fn absurdly_large_numbers_are_an_error_and_not_an_overflow() {
    assert!(BatchGeometry::new(request(usize::MAX, usize::MAX, 1, 1)).is_err());
    assert!(BatchGeometry::new(request(4, 4, usize::MAX, usize::MAX)).is_err());
}

proptest! {
    #[test]
    fn every_suggested_number_mends_the_rule_it_stands_under(
        prompts in 1_usize..40, group_size in 1_usize..20, micro_batch in 1_usize..40, accumulated in 0_usize..10,
    ) {
        let asked = request(prompts, group_size, micro_batch, accumulated);
        match BatchGeometry::new(asked) {
            Ok(geometry) => {
                prop_assert_eq!(geometry.samples(), prompts * group_size);
                let per_update = geometry.micro_batches_per_update();
                prop_assert!(accumulated == 0 || per_update == accumulated);
                prop_assert_eq!(per_update * geometry.updates() * micro_batch, prompts * group_size);
            }
            Err(error) => {
                for problem in &error.problems {
                    prop_assert!(!problem.nearest.is_empty());
                    for &(field, value) in &problem.nearest {
                        let mut mended = asked;
                        match field {
                            "prompts_per_step" => mended.prompts_per_step = value,
                            "group_size" => mended.group_size = value,
                            "micro_batch" => mended.micro_batch = value,
                            _ => mended.gradient_accumulation = value,
                        }
                        let rules = BatchGeometry::new(mended).err().map(|error| error.problems).unwrap_or_default();
                        let same = |rule: &str| rule.contains("micro-batches") == problem.rule.contains("micro-batches");
                        prop_assert!(!rules.iter().any(|left| same(&left.rule)), "{field} = {value}: {rules:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_sample_has_one_slot_one_micro_batch_and_one_id(
        prompts in 1_usize..9, group_size in 1_usize..9, micro_batches in 1_usize..5, iteration in 0_u64..1000,
    ) {
        let samples = prompts * group_size * micro_batches;
        let geometry = BatchGeometry::new(request(prompts * micro_batches, group_size, prompts * group_size, 1)).unwrap();
        let seen: Vec<usize> = geometry.micro_batch_samples().flatten().collect();
        prop_assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        let slots: BTreeSet<_> = (0..samples).map(|sample| geometry.slot(sample)).collect();
        prop_assert_eq!(slots.len(), samples);
        let ids: BTreeSet<u64> = (0..2)
            .flat_map(|later| (0..samples).map(move |sample| (iteration + later, sample)))
            .map(|(iteration, sample)| GeometryHistory::new(&geometry).sample_id(iteration, sample))
            .collect();
        prop_assert_eq!(ids.len(), 2 * samples);
    }

    #[test]
    fn every_epoch_deals_each_prompt_once_and_no_iteration_holds_a_prompt_twice(
        prompts in 1_usize..30, share in 0.0..=1.0_f64, seed in any::<u64>(),
    ) {
        let per_iteration = ((prompts as f64 * share) as usize).max(1);
        let sampler = PromptSampler::new(prompts, per_iteration, seed).unwrap();
        let iterations = (5 * prompts).div_ceil(per_iteration) as u64;
        let dealt: Vec<Vec<PromptDraw>> = (0..iterations).map(|iteration| sampler.draw(iteration)).collect();
        for iteration in &dealt {
            prop_assert_eq!(iteration.len(), per_iteration);
            let different: BTreeSet<usize> = iteration.iter().map(|draw| draw.prompt).collect();
            prop_assert_eq!(different.len(), per_iteration);
        }
        let stream: Vec<PromptDraw> = dealt.into_iter().flatten().collect();
        for (position, draw) in stream.iter().enumerate() {
            prop_assert_eq!((draw.group, draw.epoch), (position as u64, (position / prompts) as u64));
        }
        for epoch in stream.chunks_exact(prompts) {
            let different: BTreeSet<usize> = epoch.iter().map(|draw| draw.prompt).collect();
            prop_assert_eq!(different.len(), prompts);
        }
    }

    #[test]
    fn with_repeats_every_epoch_still_deals_each_prompt_once(
        prompts in 1_usize..8, per_iteration in 1_usize..40, seed in any::<u64>(),
    ) {
        let sampler = PromptSampler::with_repeats(prompts, per_iteration, seed).unwrap();
        let stream: Vec<PromptDraw> = (0..8).flat_map(|iteration| sampler.draw(iteration)).collect();
        for epoch in stream.chunks_exact(prompts) {
            let different: BTreeSet<usize> = epoch.iter().map(|draw| draw.prompt).collect();
            prop_assert_eq!(different.len(), prompts);
        }
        let groups: BTreeSet<u64> = stream.iter().map(|draw| draw.group).collect();
        prop_assert_eq!(groups.len(), stream.len());
    }
}

proptest! {
    #[test]
    fn changed_geometries_repeat_no_sample_and_deal_each_prompt_once_in_an_epoch(
        prompts in 1_usize..30,
        changes in prop::collection::vec((1_u64..9, 0.0..=1.0_f64, 1_usize..5), 1..5),
        seed in any::<u64>(),
    ) {
        let geometry = |share: f64, group_size: usize| {
            let per_iteration = ((prompts as f64 * share) as usize).max(1);
            BatchGeometry::new(request(per_iteration, group_size, 1, 0)).unwrap()
        };
        let (_, share, group_size) = changes[0];
        let mut sampler = PromptSampler::new(prompts, 1, seed).unwrap();
        let mut history = GeometryHistory::new(&geometry(share, group_size));
        let (mut iteration, mut groups, mut samples) = (0, Vec::new(), Vec::new());
        for (iterations, share, group_size) in changes {
            let geometry = geometry(share, group_size);
            history.change(iteration, &geometry);
            sampler = sampler.following(history.clone());
            for _ in 0..iterations {
                let drawn = sampler.draw(iteration);
                let different: BTreeSet<usize> = drawn.iter().map(|draw| draw.prompt).collect();
                prop_assert_eq!(different.len(), geometry.prompts(), "an iteration holds a prompt twice");
                groups.extend(drawn);
                samples.extend((0..geometry.samples()).map(|sample| history.sample_id(iteration, sample)));
                iteration += 1;
            }
            // What was drawn under an earlier geometry stays what it was.
            let again: Vec<PromptDraw> = (0..iteration).flat_map(|iteration| sampler.draw(iteration)).collect();
            prop_assert_eq!(&again, &groups);
        }
        prop_assert_eq!(samples, (0..history.first_sample(iteration)).collect::<Vec<_>>());
        for (position, draw) in groups.iter().enumerate() {
            prop_assert_eq!((draw.group, draw.epoch), (position as u64, (position / prompts) as u64));
        }
        for epoch in groups.chunks_exact(prompts) {
            let different: BTreeSet<usize> = epoch.iter().map(|draw| draw.prompt).collect();
            prop_assert_eq!(different.len(), prompts);
        }
    }
}

#[test]
fn going_back_before_a_change_of_geometry_forgets_it() {
    let of = |prompts, group_size| BatchGeometry::new(request(prompts, group_size, 1, 0)).unwrap();
    let mut history = GeometryHistory::new(&of(10, 4));
    history.change(2, &of(5, 4));
    assert_eq!((history.first_group(4), history.sample_id(4, 3)), (30, 123));
    let mut back = history.clone();
    back.change(1, &of(10, 4));
    assert_eq!(back, GeometryHistory::new(&of(10, 4)), "it was never changed");
    history.change(2, &of(10, 4));
    assert_eq!(history, back);
}

#[test]
fn candidates_have_addresses_of_their_own_which_a_change_of_their_number_does_not_repeat() {
    let plain = BatchGeometry::new(request(3, 4, 6, 0)).unwrap();
    assert_eq!((plain.candidates(), plain.first_candidate(5)), (4, 5));
    let explored = plain.with_candidates(10).unwrap();
    assert_eq!((explored.samples(), explored.candidate_micro_batches()), (12, 5));
    assert_eq!(
        [0, 3, 4, 11].map(|sample| explored.first_candidate(sample)),
        [0, 3, 10, 23]
    );
    let mut history = GeometryHistory::new(&plain);
    history.change(2, &explored);
    history.change(5, &plain);
    let firsts: Vec<u64> = (0..7).map(|iteration| history.first_sample(iteration)).collect();
    assert_eq!(firsts, [0, 12, 24, 54, 84, 114, 126]);
    assert_eq!((history.first_group(5), history.sample_id(3, 23)), (15, 77));
}

#[test]
fn impossible_candidates_are_errors_with_the_nearest_possible_ones() {
    let geometry = BatchGeometry::new(request(3, 4, 6, 0)).unwrap();
    let few = geometry.with_candidates(4).unwrap_err();
    assert!(few.to_string().contains("more than group_size(4)"), "{few}");
    let odd = geometry.with_candidates(9).unwrap_err();
    assert_eq!(odd.problems[0].nearest, [("candidates", 8), ("candidates", 10)]);
    let none_below = geometry.with_candidates(5).unwrap_err();
    assert_eq!(none_below.problems[0].nearest, [("candidates", 6)]);
    assert!(geometry.with_candidates(1 << 40).is_err());
}

#[test]
fn the_order_depends_on_the_seed_and_changes_with_every_epoch() {
    let order = |seed: u64, iteration: u64| -> Vec<usize> {
        PromptSampler::new(50, 50, seed)
            .unwrap()
            .draw(iteration)
            .iter()
            .map(|draw| draw.prompt)
            .collect()
    };
    assert_eq!(order(1, 0), order(1, 0));
    assert_ne!(order(1, 0), order(1, 1));
    assert_ne!(order(1, 0), order(2, 0));
    assert_ne!(order(1, 0), (0..50).collect::<Vec<_>>());
}

#[test]
fn too_few_prompts_are_an_error_that_names_how_many_there_are() {
    let error = PromptSampler::new(10, 16, 0).unwrap_err();
    assert_eq!(error.problems[0].nearest, [("prompts_per_step", 10)]);
    assert!(
        error.to_string().contains("number of training prompts, 10"),
        "{error}"
    );
    assert!(PromptSampler::new(0, 4, 0).is_err());
    assert!(PromptSampler::with_repeats(4, 0, 0).is_err());
}
