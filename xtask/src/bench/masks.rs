//! What a mask takes of the time of the full case of its shape, for `cargo xtask bench attention`.
//!
//! The two are measured in turns, and each time of the mask is divided by that of the full case just before and just after it. A GPU at its limit
//! of power changes its clock by a tenth within minutes, and by as much with what it did before: medians that were taken apart differed by 17 %
//! for the same kernel on the same card, and their ratio with them.

use super::attention::PARTS;
use super::server::{Samples, Server, figure};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Times of a mask, each between two of the full case.
const TURNS: usize = 7;

/// Measurements of each.
const REPEATS: usize = 3;

/// The case that masks are compared with: the last one without a mask.
#[derive(Default)]
pub(super) struct Full(Option<(u64, Value)>);

impl Full {
    /// Looks at a case, and remembers it if it has no mask and its keys are in one part.
    pub(super) fn see(&mut self, index: u64, case: &Value) {
        if case["masked"] == json!(false) && case["parts"] == json!(1) {
            self.0 = Some((index, shape(case)));
        }
    }

    /// The number of the full case that `case` is compared with: of its shape, and not itself.
    fn of(&self, case: &Value) -> Option<u64> {
        let (index, full) = self.0.as_ref()?;
        (case["masked"] == json!(true) && shape(case) == *full).then_some(*index)
    }

    /// For each part what the mask's case `index` takes of the time of its full case; nothing if it has none.
    ///
    /// # Errors
    /// If `ours` cannot measure one of them.
    pub(super) fn shares(&self, ours: &mut Server, index: u64, case: &Value) -> Result<Option<Vec<Samples>>> {
        let Some(full) = self.of(case) else {
            return Ok(None);
        };
        let mut medians = |index: u64| -> Result<Vec<f64>> {
            let answer = ours.ask(&format!("time {index} {REPEATS}"))?;
            let median = |(part, _): &(&str, f64)| {
                let mut samples = Samples::default();
                samples.add(&answer[*part])?;
                Ok(samples.at(0.5))
            };
            PARTS.iter().map(median).collect()
        };
        let mut shares: Vec<Samples> = PARTS.iter().map(|_| Samples::default()).collect();
        let mut before = medians(full)?;
        for _ in 0..TURNS {
            let own = medians(index)?;
            let after = medians(full)?;
            for (part, shares) in shares.iter_mut().enumerate() {
                shares.add(&json!([2.0 * own[part] / (before[part] + after[part])]))?;
            }
            before = after;
        }
        Ok(Some(shares))
    }
}

/// What two cases have in common of which one is the full case of the other.
fn shape(case: &Value) -> Value {
    json!(["batch", "heads", "queries", "keys", "head_dim"].map(|of| &case[of]))
}

/// Shares of the full case's time as a row keeps them.
pub(super) fn in_row(shares: &Samples) -> Value {
    json!({"median": shares.at(0.5), "p10": shares.at(0.1), "p90": shares.at(0.9), "turns": shares.0.len()})
}

/// Times of masks against the work that they leave, of the rows that have both.
pub(super) fn table(rows: &[Value]) -> String {
    let mut text = String::from(
        "\n## Masks: time against work\n\n`pairs` and `tiles` are the shares of a full mask that are left. `time` is the share of the full case's time: both are \
         measured in turns, each time between two of the full case, and this is the median of the ratios. `over tiles` is that over the tiles' share, with the \
         10th and 90th percentile.\n\n| case | part | pairs | tiles | time | over tiles |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let (Some(tiles), true) = (row["tiles"].as_f64(), row["of_full"].is_object()) else {
            continue;
        };
        let over = |of: &str| figure(&json!(row["of_full"][of].as_f64().map(|share| share / tiles)), 2);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} ({}–{}) |",
            row["case"].as_str().unwrap_or_default(),
            row["what"].as_str().unwrap_or_default(),
            figure(&row["pairs"], 3),
            figure(&row["tiles"], 3),
            figure(&row["of_full"]["median"], 3),
            over("median"),
            over("p10"),
            over("p90"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Full, in_row, table};
    use crate::bench::server::Samples;
    use serde_json::{Value, json};

    fn case(keys: u64, masked: bool, parts: u64) -> Value {
        json!({"batch": 2, "heads": 16, "queries": keys, "keys": keys, "head_dim": 64, "masked": masked, "parts": parts})
    }

    #[test]
    fn masks_are_compared_with_the_last_full_case_if_it_has_their_shape() {
        let mut full = Full::default();
        assert_eq!(full.of(&case(8192, true, 1)), None);
        full.see(3, &case(4096, false, 1));
        full.see(4, &case(8192, false, 1));
        full.see(5, &case(8192, true, 1));
        full.see(6, &case(8192, false, 2));
        assert_eq!(full.of(&case(8192, true, 1)), Some(4));
        assert_eq!(full.of(&case(8192, false, 1)), None);
        assert_eq!(full.of(&case(4096, true, 1)), None);
    }

    #[test]
    fn the_table_has_ratios_of_times_over_what_is_left_of_the_tiles() {
        let row = |what: &str, of_full: Value| json!({"case": "B2 H16 S8192 D64 causal", "what": what, "pairs": 0.5, "tiles": 0.5, "of_full": of_full});
        let shares = Samples(vec![0.5, 0.55, 0.625]);
        let text = table(&[row("forward", in_row(&shares)), row("backward", Value::Null)]);
        assert!(
            text.contains("| B2 H16 S8192 D64 causal | forward | 0.500 | 0.500 | 0.550 | 1.10 (1.00–1.25) |"),
            "{text}"
        );
        assert!(!text.contains("backward"), "it was not compared: {text}");
    }
}
