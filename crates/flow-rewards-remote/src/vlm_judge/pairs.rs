//! Which images of a group are compared with which, and what they score.
//!
//! Source of the score: Pref-GRPO (Wang et al. 2025, arXiv 2508.20751), the share of comparisons within the group that an image wins. Here
//! a comparison counts with the probability of its answer, and each is asked in both orders, for models prefer a place.

/// Two images of a group, in the order in which they are shown.
pub(super) type Shown = [usize; 2];

/// The comparisons of a group of `count` images, each with at least `opponents` others, or with all of them if that is 0. The members are
/// a circle: each is compared with the nearest ones on both sides. A pair stands for two questions: as it is, and exchanged.
pub(super) fn pairs(count: usize, opponents: usize) -> Vec<Shown> {
    let farthest = match opponents {
        0 => count / 2,
        opponents => opponents.div_ceil(2).min(count / 2),
    };
    let mut pairs = Vec::new();
    for distance in 1..=farthest {
        // Opposite members meet once.
        let firsts = if 2 * distance == count { distance } else { count };
        pairs.extend((0..firsts).map(|first| [first, (first + distance) % count]));
    }
    pairs
}

/// The questions of these pairs: each in both orders, one after the other.
pub(super) fn questions(pairs: &[Shown]) -> Vec<Shown> {
    pairs
        .iter()
        .flat_map(|[first, second]| [[*first, *second], [*second, *first]])
        .collect()
}

/// The score of each of `count` images: its mean share of the questions in which it was shown. `preferences` has, for each question, how
/// much the image that was shown first is preferred, 0 to 1.
pub(super) fn shares(count: usize, questions: &[Shown], preferences: &[f64]) -> Vec<f32> {
    let (mut sums, mut asked) = (vec![0.0; count], vec![0_usize; count]);
    for ([first, second], preference) in questions.iter().zip(preferences) {
        sums[*first] += preference;
        sums[*second] += 1.0 - preference;
        asked[*first] += 1;
        asked[*second] += 1;
    }
    let share = |(sum, asked): (f64, usize)| (sum / asked as f64) as f32;
    sums.into_iter().zip(asked).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_image_meets_all_others_once_or_as_many_as_are_asked_for() {
        for count in 2..=9 {
            for opponents in 0..=count {
                let pairs = pairs(count, opponents);
                let unordered: BTreeSet<_> = pairs.iter().map(|[a, b]| (a.min(b), a.max(b))).collect();
                assert_eq!(
                    unordered.len(),
                    pairs.len(),
                    "{count} {opponents}: a pair stands twice"
                );
                assert!(pairs.iter().all(|[a, b]| a != b && *a < count && *b < count));
                let met = |image: usize| pairs.iter().filter(|pair| pair.contains(&image)).count();
                let least = if opponents == 0 {
                    count - 1
                } else {
                    opponents.min(count - 1)
                };
                for image in 0..count {
                    assert!(
                        (least..=least + 1).contains(&met(image)),
                        "{count} {opponents}: {image}"
                    );
                }
            }
        }
        assert_eq!(pairs(4, 2), [[0, 1], [1, 2], [2, 3], [3, 0]]);
        assert_eq!(questions(&[[0, 1], [2, 0]]), [[0, 1], [1, 0], [2, 0], [0, 2]]);
    }

    #[test]
    fn a_share_is_the_mean_over_both_orders_so_that_a_liking_for_a_place_is_no_advantage() {
        let questions = questions(&pairs(3, 0));
        // Whatever is shown first is preferred.
        let first = vec![1.0; questions.len()];
        assert_eq!(shares(3, &questions, &first), [0.5; 3]);
        // Image 2 is better than image 0, which is better than image 1.
        let strength = [2.0, 1.0, 3.0];
        let better = |[a, b]: &Shown| f64::from(u8::from(strength[*a] > strength[*b]));
        let preferences: Vec<f64> = questions.iter().map(better).collect();
        assert_eq!(shares(3, &questions, &preferences), [0.5, 0.0, 1.0]);
    }
}
