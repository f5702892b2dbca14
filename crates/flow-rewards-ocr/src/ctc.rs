//! Connectionist temporal classification (Graves et al. 2006): from probabilities along a line to its text, and to the probability
//! of a given text.

/// The smallest probability of a step: f32 softmax gives 0 long before a letter is impossible, and a score must be finite.
const MIN_PROBABILITY: f64 = 1e-10;

/// `ln(1e-10)`: no score is below.
pub const MIN_LOG_PROBABILITY: f64 = -23.025_850_929_940_457;

/// The classes along a line with repetitions and blanks (class 0) left out, and their mean probability, as PaddleOCR's
/// `CTCLabelDecode`: 0 for an empty line. `probabilities`: `[steps, classes]`.
pub(crate) fn greedy(probabilities: &[f32], classes: usize) -> (Vec<usize>, f32) {
    let mut text = Vec::new();
    let mut sum = 0.0_f64;
    let mut last = 0;
    for step in probabilities.chunks_exact(classes) {
        // The first of equal ones, as NumPy's argmax.
        let (class, probability) =
            step.iter()
                .enumerate()
                .fold((0, f32::NEG_INFINITY), |best, (class, &value)| {
                    if value > best.1 { (class, value) } else { best }
                });
        if class != 0 && class != last {
            text.push(class);
            sum += f64::from(probability);
        }
        last = class;
    }
    let confidence = if text.is_empty() {
        0.0
    } else {
        sum / text.len() as f64
    };
    (text, confidence as f32)
}

/// The logarithm of the probability that the steps spell `target`, divided by its length; from `MIN_LOG_PROBABILITY` to 0.
///
/// `probabilities`: `[steps, columns]`, column 0 the blank; `target`: a column of each letter, not empty. The forward algorithm of
/// the paper's equations (6) to (8), in f64 logarithms. Steps that are too few for the target give `MIN_LOG_PROBABILITY`.
pub fn log_probability_per_letter(probabilities: &[f32], columns: usize, target: &[usize]) -> f64 {
    // Blank, first letter, blank, second letter, …, blank.
    let states = 2 * target.len() + 1;
    let column = |state: usize| {
        if state.is_multiple_of(2) {
            0
        } else {
            target[state / 2]
        }
    };
    let mut forward = vec![f64::NEG_INFINITY; states];
    for (index, step) in probabilities.chunks_exact(columns).enumerate() {
        let before = forward.clone();
        for state in 0..states {
            let reached = if index == 0 {
                if state < 2 { 0.0 } else { f64::NEG_INFINITY }
            } else {
                let mut reached = before[state];
                if state >= 1 {
                    reached = log_add(reached, before[state - 1]);
                }
                // Over a blank, unless it separates two equal letters.
                if state >= 3 && state % 2 == 1 && column(state) != column(state - 2) {
                    reached = log_add(reached, before[state - 2]);
                }
                reached
            };
            let probability = f64::from(step[column(state)]).clamp(MIN_PROBABILITY, 1.0);
            forward[state] = reached + libm::log(probability);
        }
    }
    let log_probability = log_add(forward[states - 1], forward[states - 2]);
    (log_probability / target.len() as f64).clamp(MIN_LOG_PROBABILITY, 0.0)
}

fn log_add(a: f64, b: f64) -> f64 {
    let (larger, smaller) = if a >= b { (a, b) } else { (b, a) };
    if smaller == f64::NEG_INFINITY {
        return larger;
    }
    larger + libm::log1p(libm::exp(smaller - larger))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by its definition: the sum over all paths that spell the target.
    fn by_all_paths(probabilities: &[f32], columns: usize, target: &[usize]) -> f64 {
        let steps = probabilities.len() / columns;
        let mut sum = 0.0;
        for path in 0..columns.pow(steps as u32) {
            let mut rest = path;
            let (mut spelt, mut last, mut product) = (Vec::new(), 0, 1.0);
            for step in 0..steps {
                let column = rest % columns;
                rest /= columns;
                product *= f64::from(probabilities[step * columns + column]);
                if column != 0 && column != last {
                    spelt.push(column);
                }
                last = column;
            }
            if spelt == target {
                sum += product;
            }
        }
        sum.ln() / target.len() as f64
    }

    /// Rows that sum to 1, from a small linear congruential generator.
    fn rows(steps: usize, columns: usize) -> Vec<f32> {
        let mut state = 12_345_u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 + 0.01
        };
        let mut rows: Vec<f32> = (0..steps * columns).map(|_| draw()).collect();
        for row in rows.chunks_exact_mut(columns) {
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|value| *value /= sum);
        }
        rows
    }

    #[test]
    fn the_forward_algorithm_is_the_sum_over_all_paths() {
        for (steps, target) in [
            (1, vec![1]),
            (5, vec![2]),
            (5, vec![1, 1]),
            (6, vec![1, 2, 2]),
            (6, vec![3, 1, 3, 2]),
            (3, vec![1, 2, 3]),
        ] {
            let probabilities = rows(steps, 4);
            let found = log_probability_per_letter(&probabilities, 4, &target);
            let wanted = by_all_paths(&probabilities, 4, &target);
            assert!(
                (found - wanted).abs() < 1e-9,
                "{steps} steps, {target:?}: {found}, not {wanted}"
            );
        }
    }

    #[test]
    fn what_cannot_be_spelt_has_the_smallest_score() {
        // Two equal letters need a blank between them.
        assert_eq!(
            log_probability_per_letter(&rows(2, 4), 4, &[1, 1]),
            MIN_LOG_PROBABILITY
        );
        assert_eq!(log_probability_per_letter(&[], 4, &[1]), MIN_LOG_PROBABILITY);
        let impossible = log_probability_per_letter(&[1.0, 0.0], 2, &[1]);
        assert!((impossible - MIN_LOG_PROBABILITY).abs() < 1e-9, "{impossible}");
        assert_eq!(log_probability_per_letter(&[0.0, 1.0], 2, &[1]), 0.0);
    }

    #[test]
    fn repetitions_and_blanks_are_no_letters() {
        let likeliest = |classes: &[usize]| -> Vec<f32> {
            let row = |&class: &usize| (0..3).map(move |of| if of == class { 0.5 } else { 0.25 });
            classes.iter().flat_map(row).collect()
        };
        let (text, confidence) = greedy(&likeliest(&[0, 1, 1, 0, 1, 2, 2, 0]), 3);
        assert_eq!((text, confidence), (vec![1, 1, 2], 0.5));
        assert_eq!(greedy(&likeliest(&[0, 0]), 3), (vec![], 0.0));
        assert_eq!(greedy(&[0.25, 0.25, 0.25], 3), (vec![], 0.0));
    }
}
