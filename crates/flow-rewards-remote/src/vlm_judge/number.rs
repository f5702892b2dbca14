//! The number in a judge's answer.
//!
//! The rule: thoughts up to the last `</think>` are passed over. Behind the last occurrence of the mark, the next word must be a
//! number; without a mark, exactly one word of the whole answer may have a digit in it, and that word must be a number. Words end at
//! white space, `<` and `>`. Quotes, brackets, `*`, `_` and punctuation around a word do not count. A number is digits with at most
//! one decimal point and at most one sign: `8`, `-0.5`, `7.25`; behind it there may be `/` and the upper end of the range: `8/10`.
//! Anything else is no number: `8,5`, `7-8`, `80%`, `1e3`.

use crate::score::excerpt;

/// The end of a model's thoughts, as Qwen, DeepSeek and others write them where the server leaves them in.
const THOUGHTS_END: &str = "</think>";
const THOUGHTS_BEGIN: &str = "<think>";

/// The number of an answer as its place in `range`: 0 at the lower end, 1 at the upper one.
///
/// # Errors
/// Why there is none, with an excerpt of the answer.
pub(super) fn parse(text: &str, range: [f64; 2], mark: Option<&str>) -> Result<f64, String> {
    let failed = |why: String| format!("{why} in {}", excerpt(text));
    let answer = match text.rsplit_once(THOUGHTS_END) {
        Some((_, behind)) => behind,
        None if text.contains(THOUGHTS_BEGIN) => {
            return Err(failed("there are thoughts without an end".to_owned()));
        }
        None => text,
    };
    let word = match mark {
        Some(mark) => {
            let (_, behind) =
                (answer.rsplit_once(mark)).ok_or_else(|| failed(format!("there is no `{mark}`")))?;
            // Emphasis may stand between: `**Score:** 8`.
            let mut words = words(behind).map(bare).filter(|word| !word.is_empty());
            (words.next()).ok_or_else(|| failed(format!("there is nothing behind `{mark}`")))?
        }
        None => {
            let mut numbers = words(answer).filter(|word| word.contains(|c: char| c.is_numeric()));
            let first = numbers
                .next()
                .ok_or_else(|| failed("there is no number".to_owned()))?;
            if numbers.next().is_some() {
                return Err(failed(
                    "there is more than one number, and no `number_after` that says which one counts,"
                        .to_owned(),
                ));
            }
            bare(first)
        }
    };
    let number = number(word, range[1]).ok_or_else(|| failed(format!("{} is no number", excerpt(word))))?;
    let [low, high] = range;
    if !(low..=high).contains(&number) {
        return Err(failed(format!(
            "{number} is not from {low} to {high}, the `range`,"
        )));
    }
    Ok((number - low) / (high - low))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || c == '<' || c == '>')
}

/// A word without what may stand around it.
fn bare(word: &str) -> &str {
    let quotes = |c: char| "*_`\"'“”‘’«»()[]{}:;,!?=".contains(c);
    // A point in front belongs to the number, one behind it to the sentence.
    word.trim_start_matches(quotes)
        .trim_end_matches(|c: char| quotes(c) || c == '.')
}

fn number(word: &str, high: f64) -> Option<f64> {
    match word.split_once('/') {
        None => decimal(word),
        Some((number, of)) if decimal(of) == Some(high) => decimal(number),
        Some(_) => None,
    }
}

fn decimal(word: &str) -> Option<f64> {
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    let is_decimal = digits.contains(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
        && digits.matches('.').count() <= 1;
    word.parse()
        .ok()
        .filter(|number: &f64| is_decimal && number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_found_and_placed_in_its_range() {
        for (text, number) in [
            ("8", 8.0),
            (" 7.25\n", 7.25),
            ("I rate it **6**.", 6.0),
            ("8/10", 8.0),
            ("(9.5/10).", 9.5),
            ("<score>3</score>", 3.0),
            ("{\"score\": .5}", 0.5),
            ("<think>First 3, then 4 of 5.</think>\n10", 10.0),
            ("+2", 2.0),
        ] {
            assert_eq!(parse(text, [0.0, 10.0], None), Ok(number / 10.0), "{text}");
        }
        assert_eq!(parse("-1", [-3.0, 5.0], None), Ok(0.25));
    }

    #[test]
    fn behind_a_mark_other_numbers_do_not_count() {
        for (text, mark, number) in [
            ("2 dogs of 3. Score: 4", "Score:", 4.0),
            ("Final Score: 3\nFinal Score: 4.5 of 5", "Final Score:", 4.5),
            ("**Final Score:** 2", "Final Score:", 2.0),
            ("<Score>5</Score> 7", "<Score>", 5.0),
            ("{\"why\": \"1 of 2\", \"score\": 4, \"x\": 1}", "\"score\":", 4.0),
            ("Score: 4/5", "Score:", 4.0),
        ] {
            assert_eq!(parse(text, [0.0, 5.0], Some(mark)), Ok(number / 5.0), "{text}");
        }
    }

    #[test]
    fn what_could_be_another_number_is_none() {
        for (text, words) in [
            ("", "there is no number"),
            ("I cannot judge that.", "there is no number"),
            ("on a scale of 1 to 10: 7", "more than one number"),
            ("7-8", "is no number"),
            ("8,5", "is no number"),
            ("80%", "is no number"),
            ("1e0", "is no number"),
            ("8/5", "is no number"),
            ("1.2.3", "is no number"),
            ("٣", "is no number"),
            ("--3", "is no number"),
            ("11", "is not from 0 to 10"),
            ("-1", "is not from 0 to 10"),
            ("<think>maybe 7", "without an end"),
        ] {
            let problem = parse(text, [0.0, 10.0], None).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
        for (text, words) in [
            ("8", "there is no `Score:`"),
            ("Score:", "nothing behind `Score:`"),
            ("Score: good, 8", "`good` is no number"),
            ("Score: 8,5", "is no number"),
        ] {
            let problem = parse(text, [0.0, 10.0], Some("Score:")).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
    }
}
