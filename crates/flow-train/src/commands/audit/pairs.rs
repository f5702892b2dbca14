//! Few combinations in which every two values of different columns occur together (a covering array of strength two): most
//! faults of things that meet are faults of two that meet (Kuhn, Wallace and Gallo 2004, IEEE TSE 30(6)).

use std::collections::BTreeSet;

/// A column and a value of it, and another's.
type Pair = (usize, String, usize, String);

/// Those of `all`, in their order, that a greedy search takes: always the one with the most pairs that none taken has. What
/// cannot occur together is in no combination, and is not missed.
pub fn covering<T, const N: usize>(all: Vec<T>, values: impl Fn(&T) -> [String; N]) -> Vec<T> {
    let of_each: Vec<BTreeSet<Pair>> = all.iter().map(|one| pairs(&values(one))).collect();
    let mut missing: BTreeSet<Pair> = of_each.iter().flatten().cloned().collect();
    let mut taken = vec![false; all.len()];
    while !missing.is_empty() {
        let gain = |index: &usize| of_each[*index].intersection(&missing).count();
        // Of equals the first, so that the choice does not depend on how a maximum is found.
        let Some(best) = (0..all.len()).rev().max_by_key(gain) else {
            break;
        };
        taken[best] = true;
        for pair in &of_each[best] {
            missing.remove(pair);
        }
    }
    // A single combination has no pair if it has a single column.
    if let (false, Some(first)) = (taken.contains(&true), taken.first_mut()) {
        *first = true;
    }
    let kept = all.into_iter().zip(taken).filter(|(_, taken)| *taken);
    kept.map(|(one, _)| one).collect()
}

fn pairs(values: &[String]) -> BTreeSet<Pair> {
    let mut found = BTreeSet::new();
    for (a, value) in values.iter().enumerate() {
        for (b, other) in values.iter().enumerate().skip(a + 1) {
            found.insert((a, value.clone(), b, other.clone()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of 2, 3, 2 and 3 values of which two exclude one another.
    fn product() -> Vec<[String; 4]> {
        let mut all = Vec::new();
        for index in 0..2 * 3 * 2 * 3 {
            let (a, b, c, d) = (index % 2, index / 2 % 3, index / 6 % 2, index / 12);
            if !(b == 2 && c == 1) {
                all.push([a, b, c, d].map(|value| value.to_string()));
            }
        }
        all
    }

    #[test]
    fn every_two_values_that_can_meet_meet_in_far_fewer_combinations() {
        let all = product();
        let wanted: BTreeSet<Pair> = all.iter().flat_map(|one| pairs(one)).collect();
        let some = covering(all.clone(), Clone::clone);
        let found: BTreeSet<Pair> = some.iter().flat_map(|one| pairs(one)).collect();
        assert_eq!(found, wanted);
        // Nine at least: two columns have three values each.
        assert!((9..=13).contains(&some.len()), "{}", some.len());
        assert_eq!(some, covering(all, Clone::clone), "it is the same every time");
    }

    #[test]
    fn one_combination_and_none_stay_as_they_are() {
        let one = vec![["a".to_owned()]];
        assert_eq!(covering(one.clone(), Clone::clone), one);
        assert!(covering(Vec::<[String; 2]>::new(), Clone::clone).is_empty());
    }
}
