//! Which candidates are kept, against the rules as sentences, and what is said of the choice.

use flow_trainer::exploration::{ExplorationSummary, KeepRule, rank_correlation, scores};
use proptest::prelude::*;

/// The place of each candidate in the order from the best, equal ones by number: how many come before it.
fn places(scores: &[f64]) -> Vec<usize> {
    let before =
        |at: usize, other: usize| scores[other] > scores[at] || scores[other] == scores[at] && other < at;
    let count = |at: usize| (0..scores.len()).filter(|other| before(at, *other)).count();
    (0..scores.len()).map(count).collect()
}

/// The candidates whose places `wanted` holds for.
fn at_places(scores: &[f64], wanted: impl Fn(usize) -> bool) -> Vec<usize> {
    let places = places(scores);
    (0..scores.len()).filter(|at| wanted(places[*at])).collect()
}

#[test]
fn equal_candidates_are_taken_by_their_numbers() {
    let scores = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
    assert_eq!(KeepRule::Best.kept(&scores, 3), [0, 1, 2]);
    assert_eq!(KeepRule::Extremes.kept(&scores, 3), [0, 1, 5]);
    assert_eq!(KeepRule::Spread.kept(&scores, 3), [0, 3, 5]);
}

#[test]
fn each_rule_keeps_what_its_sentence_says() {
    let scores = [0.3, -1.0, 2.0, 0.3, 7.0, -0.5, 0.0];
    // In order: 4, 2, 0, 3, 6, 5, 1.
    assert_eq!(KeepRule::Best.kept(&scores, 3), [0, 2, 4]);
    assert_eq!(KeepRule::Extremes.kept(&scores, 4), [1, 2, 4, 5]);
    assert_eq!(KeepRule::Extremes.kept(&scores, 5), [0, 1, 2, 4, 5]);
    assert_eq!(KeepRule::Spread.kept(&scores, 4), [0, 1, 4, 6]);
    let two = [scores, scores].concat();
    assert_eq!(KeepRule::Best.kept_of_groups(&two, 7, 2), [2, 4, 9, 11]);
}

proptest! {
    #[test]
    fn choices_are_those_of_the_host_rule(
        // Few values, so that many are equal.
        raw in prop::collection::vec(-3_i8..4, 2..20),
        share in 0.0_f64..1.0,
    ) {
        let scores: Vec<f64> = raw.iter().map(|value| f64::from(*value) * 0.1).collect();
        let candidates = scores.len();
        let count = 1 + (share * (candidates - 1) as f64) as usize;
        let best = at_places(&scores, |place| place < count);
        prop_assert_eq!(KeepRule::Best.kept(&scores, count), best);
        let (top, bottom) = (count - count / 2, count / 2);
        let extremes = at_places(&scores, |place| place < top || place >= candidates - bottom);
        prop_assert_eq!(KeepRule::Extremes.kept(&scores, count), extremes);
        let spaced: Vec<usize> = (0..count)
            .map(|index| match count {
                1 => 0,
                _ => (index as f64 * (candidates - 1) as f64 / (count - 1) as f64 + 0.5 + 1e-9).floor() as usize,
            })
            .collect();
        let spread = at_places(&scores, |place| spaced.contains(&place));
        prop_assert_eq!(spread.len(), count, "places are different ones");
        prop_assert_eq!(KeepRule::Spread.kept(&scores, count), spread);
    }
}

#[test]
fn a_score_is_the_weighted_sum_of_rewards() {
    let columns = [vec![1.0_f32, -2.0, 0.5], vec![4.0, 0.25, -1.0]];
    assert_eq!(scores(&[2.0, -0.5], &columns), [0.0, -4.125, 1.5]);
}

#[test]
fn a_rank_correlation_is_spearmans() {
    let near = |found: Option<f64>, wanted: f64| {
        let found = found.expect("values differ");
        assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
    };
    near(rank_correlation(&[1.0, 2.0, 30.0], &[-3.0, 0.0, 0.1]), 1.0);
    near(rank_correlation(&[1.0, 2.0, 30.0], &[3.0, 0.0, -0.1]), -1.0);
    // Without equal values 1 - 6 Σ d² / (n (n² - 1)).
    near(
        rank_correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 4.0, 3.0, 5.0]),
        1.0 - 6.0 * 4.0 / 120.0,
    );
    // Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / √(4.5 · 5).
    near(
        rank_correlation(&[1.0, 2.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 4.0]),
        4.5 / (4.5_f64 * 5.0).sqrt(),
    );
    assert_eq!(rank_correlation(&[1.0, 1.0], &[0.0, 2.0]), None);
}

#[test]
fn a_summary_tells_candidates_from_those_kept_and_cheap_from_exact() {
    // Two groups of three candidates, of which the best and the worst are kept.
    let cheap = [0.0, 1.0, 5.0, 2.0, 2.0, 2.0];
    let kept = KeepRule::Extremes.kept_of_groups(&cheap, 3, 2);
    assert_eq!(kept, [0, 2, 3, 5]);
    let summary = ExplorationSummary::new((&cheap[..], 3), &kept, &[0.5, 4.0, 2.0, 3.0]);
    let expected = ExplorationSummary {
        candidates: 3,
        reward_of_candidates: 2.0,
        reward_of_kept: 2.25,
        reward_difference: 2.5 / 4.0,
        // Of the second group there is none: all cheap rewards are equal.
        rank_correlation: Some(1.0),
    };
    assert_eq!(summary, expected);
}
