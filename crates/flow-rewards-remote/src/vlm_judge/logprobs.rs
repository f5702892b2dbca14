//! The expected value over answers, from the probabilities of the first token.
//!
//! With the answers' values v and the probabilities p of their tokens, the score is the sum of p v over the sum of p, both over the
//! answers. For yes = 1 and no = 0 this is P(yes) / (P(yes) + P(no)), the logistic function of the difference of the two
//! logarithms. Tokens count for an answer if they are equal without white space around them and without upper case: `Yes`,
//! ` yes`, `YES`.

use std::collections::BTreeMap;

use crate::score::excerpt;

/// The share of the answers' probability that may be in answers that the list is too short for.
const MOST_UNKNOWN: f64 = 0.01;
/// What sums of rounded probabilities may be above 1.
const ROUNDING: f64 = 1e-3;
/// Tokens that an error shows.
const SHOWN: usize = 5;

/// A token with the natural logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Likely {
    pub token: String,
    pub logprob: f64,
}

/// How tokens and answers are compared.
pub(super) fn canonical(token: &str) -> String {
    token.trim().to_lowercase()
}

/// The expected value of `answers` by the probabilities of `likely`, which are the likeliest first tokens.
///
/// # Errors
/// If the answers have less than `min_probability` together, if the list says too little of those that are not in it, or if it has
/// no probabilities, with what the model would have said.
pub(super) fn expected_value(
    likely: &[Likely],
    answers: &BTreeMap<String, f64>,
    min_probability: f64,
) -> Result<f64, String> {
    let listed: f64 = likely.iter().map(|likely| likely.logprob.exp()).sum();
    if listed > 1.0 + ROUNDING {
        return Err(format!(
            "the listed probabilities of the first token are {listed:.3} together{}",
            shown(likely)
        ));
    }
    let least = likely
        .iter()
        .map(|likely| likely.logprob.exp())
        .fold(1.0, f64::min);
    let (mut probability, mut value, mut absent) = (0.0, 0.0, 0_u32);
    for (answer, of_answer) in answers {
        let answer = canonical(answer);
        let tokens = likely.iter().filter(|likely| canonical(&likely.token) == answer);
        let mut found: Option<f64> = None;
        for token in tokens {
            *found.get_or_insert(0.0) += token.logprob.exp();
        }
        match found {
            Some(found) => {
                probability += found;
                value += found * of_answer;
            }
            None => absent += 1,
        }
    }
    if probability < min_probability {
        return Err(format!(
            "the answers have a probability of {probability:.3} together, less than `min_probability` ({min_probability}){}",
            shown(likely)
        ));
    }
    let unknown = (f64::from(absent) * least).min((1.0 - listed).max(0.0));
    if unknown > MOST_UNKNOWN * (probability + unknown) {
        return Err(format!(
            "answers that are not among the {} likeliest tokens may have a probability of {unknown:.3}; raise `top_logprobs`{}",
            likely.len(),
            shown(likely)
        ));
    }
    Ok(value / probability)
}

/// The likeliest tokens, in words.
fn shown(likely: &[Likely]) -> String {
    let mut sorted: Vec<&Likely> = likely.iter().collect();
    sorted.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    let words: Vec<String> = sorted
        .iter()
        .take(SHOWN)
        .map(|likely| format!("{} {:.3}", excerpt(&likely.token), likely.logprob.exp()))
        .collect();
    format!("; likeliest are {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likely(tokens: &[(&str, f64)]) -> Vec<Likely> {
        let token = |(token, probability): &(&str, f64)| Likely {
            token: (*token).to_owned(),
            logprob: probability.ln(),
        };
        tokens.iter().map(token).collect()
    }

    fn yes_no() -> BTreeMap<String, f64> {
        BTreeMap::from([("Yes".to_owned(), 1.0), ("No".to_owned(), 0.0)])
    }

    #[test]
    fn the_probability_of_yes_is_the_logistic_function_of_the_difference() {
        let tokens = likely(&[("Yes", 0.6), ("No", 0.2), ("It", 0.1)]);
        let score = expected_value(&tokens, &yes_no(), 0.5).unwrap();
        let difference = tokens[0].logprob - tokens[1].logprob;
        assert!((score - 1.0 / (1.0 + (-difference).exp())).abs() < 1e-12);
        let spellings = likely(&[
            ("Yes", 0.4),
            (" yes", 0.1),
            ("YES\n", 0.1),
            ("no", 0.2),
            ("It", 0.1),
        ]);
        let score = expected_value(&spellings, &yes_no(), 0.5).unwrap();
        assert!((score - 0.75).abs() < 1e-12, "{score}");
    }

    #[test]
    fn several_levels_have_their_mean() {
        let levels = [("bad", 1.0), ("fair", 3.0), ("excellent", 5.0)];
        let answers = levels.map(|(name, value)| (name.to_owned(), value)).into();
        let tokens = likely(&[("bad", 0.1), ("fair", 0.3), ("excellent", 0.4), ("x", 0.2)]);
        let score = expected_value(&tokens, &answers, 0.5).unwrap();
        assert!((score - (0.1 + 0.9 + 2.0) / 0.8).abs() < 1e-12, "{score}");
    }

    #[test]
    fn an_answer_outside_the_list_counts_as_0_only_if_the_list_says_so() {
        // The least listed one has 1e-4, so the absent one has at most that.
        let tokens = likely(&[("Yes", 0.99), ("Sure", 0.005), ("It", 1e-4)]);
        assert_eq!(expected_value(&tokens, &yes_no(), 0.5), Ok(1.0));
        let short = likely(&[("Yes", 0.6), ("It", 0.2)]);
        let problem = expected_value(&short, &yes_no(), 0.5).unwrap_err();
        assert!(problem.contains("raise `top_logprobs`"), "{problem}");
    }

    #[test]
    fn other_answers_are_no_scores() {
        let other = likely(&[("The", 0.7), ("Yes", 0.2), ("No", 0.05)]);
        let problem = expected_value(&other, &yes_no(), 0.5).unwrap_err();
        assert!(
            problem.contains("0.250") && problem.contains("`The` 0.700"),
            "{problem}"
        );
        assert!(expected_value(&other, &yes_no(), 0.2).is_ok());
        let problem = expected_value(&likely(&[("Yes", 0.9), ("No", 0.9)]), &yes_no(), 0.5).unwrap_err();
        assert!(problem.contains("1.8"), "{problem}");
        assert!(expected_value(&[], &yes_no(), 0.5).is_err());
    }
}
