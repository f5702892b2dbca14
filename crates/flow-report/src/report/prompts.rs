//! Held-out prompts one by one: the first and the last value of each reward, and its curve.

use std::fmt::Write as _;

use super::words::counted;
use crate::curve::LineChart;
use crate::escape::escape;
use crate::metrics::Metrics;

/// Prompts shown; a table of more is not read.
const SHOWN_PROMPTS: usize = 200;

/// The values of one reward: a step and one value per prompt for each evaluation.
struct ByPrompt {
    reward: String,
    evaluations: Vec<(u64, Vec<f64>)>,
}

/// A folded table, if evaluations have written values by prompt. `prompts` are their texts, as far as they are known.
pub(super) fn write_prompts(out: &mut String, metrics: &Metrics, prompts: &[String]) -> std::fmt::Result {
    let rewards = by_prompt(metrics);
    let count = rewards
        .iter()
        .map(|reward| reward.evaluations[0].1.len())
        .max()
        .unwrap_or(0);
    if count == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "<section id=\"prompts\">\n<h2>Prompts</h2>\n<details><summary>{}, one by one</summary>",
        counted(count, "held-out prompt")
    )?;
    if count > SHOWN_PROMPTS {
        writeln!(
            out,
            "<p class=\"faint\">The first {SHOWN_PROMPTS} of {count}; <code>metrics.jsonl</code> has them all.</p>"
        )?;
    }
    write!(
        out,
        "<div class=\"scroll\"><table class=\"prompts\"><thead><tr><th>Prompt</th>"
    )?;
    for reward in &rewards {
        let name = escape(&reward.reward);
        write!(
            out,
            "<th>{name}, first</th><th>last</th><th>change</th><th>curve</th>"
        )?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for index in 0..count.min(SHOWN_PROMPTS) {
        let text = match prompts.get(index).filter(|_| prompts.len() == count) {
            Some(text) => escape(text).into_owned(),
            None => format!("prompt {}", index + 1),
        };
        write!(out, "<tr><td>{text}</td>")?;
        for reward in &rewards {
            reward.write(out, index)?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></div></details>\n</section>")
}

impl ByPrompt {
    fn write(&self, out: &mut String, index: usize) -> std::fmt::Result {
        let points: Vec<(f64, f64)> = (self.evaluations.iter())
            .filter_map(|(step, values)| Some((*step as f64, *values.get(index)?)))
            .collect();
        let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) else {
            return write!(out, "<td></td><td></td><td></td><td></td>");
        };
        let change = last - first;
        let (class, sign) = match change {
            change if change > 0.0 => ("rose", "+"),
            change if change < 0.0 => ("fell", ""),
            _ => ("faint", ""),
        };
        write!(
            out,
            "<td>{first:.3}</td><td>{last:.3}</td><td class=\"{class}\">{sign}{change:.3}</td><td>{}</td>",
            LineChart::spark(&points)
        )
    }
}

/// Rewards whose evaluations have a list `prompts/REWARD`. Evaluations of another number of prompts than the last one's (a resumed run may
/// have another) do not count.
fn by_prompt(metrics: &Metrics) -> Vec<ByPrompt> {
    let mut rewards: Vec<ByPrompt> = Vec::new();
    for record in metrics.of_kind("eval") {
        for key in record.values.keys() {
            let Some((name, values)) = key.strip_prefix("prompts/").zip(record.numbers(key)) else {
                continue;
            };
            let evaluation = (record.step, values);
            match rewards.iter_mut().find(|reward| reward.reward == name) {
                Some(reward) => reward.evaluations.push(evaluation),
                None => rewards.push(ByPrompt {
                    reward: name.to_owned(),
                    evaluations: vec![evaluation],
                }),
            }
        }
    }
    for reward in &mut rewards {
        let count = reward.evaluations.last().map_or(0, |(_, values)| values.len());
        reward.evaluations.retain(|(_, values)| values.len() == count);
    }
    rewards
}
