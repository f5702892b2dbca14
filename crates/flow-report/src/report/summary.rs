//! The summary at the top of the report: rewards with their intervals, time, memory, audit.

use std::fmt::Write as _;

use serde_json::Value;

use super::words;
use crate::escape::escape;
use crate::manifest::Manifest;
use crate::probe::human_duration;
use crate::statistics::Interval;
use crate::summary::{Audit, RewardChange, RunStatus, RunSummary, TrainedReward};

pub(super) fn write_summary(
    out: &mut String,
    summary: Option<&RunSummary>,
    manifest: &Manifest,
) -> std::fmt::Result {
    writeln!(out, "<section id=\"summary\">\n<h2>Summary</h2>")?;
    let Some(summary) = summary else {
        return writeln!(
            out,
            "<p class=\"faint\">The run has written no summary yet.</p>\n</section>"
        );
    };
    write_status(out, summary, manifest)?;
    for reward in &summary.rewards {
        write_reward(out, reward)?;
    }
    if let Some(trained) = &summary.trained {
        write_trained(out, trained)?;
    }
    writeln!(out, "<div class=\"cards\">")?;
    write_card(
        out,
        "Steps",
        &summary.steps.to_string(),
        &match summary.images_per_s {
            Some(rate) => format!("{} images sampled, {rate:.1} per second", summary.images),
            None => format!("{} images sampled", summary.images),
        },
    )?;
    write_card(
        out,
        "Wall clock",
        &human_duration(summary.wall_s),
        &wall_parts(summary),
    )?;
    if let Some(rewards) = &summary.reward_s {
        let detail = format!("{} beside the generation", human_duration(rewards.hidden));
        write_card(out, "Rewards ran", &human_duration(rewards.ran), &detail)?;
    }
    for (place, gib) in &summary.peak_memory_gib {
        write_card(out, "Peak memory", &format!("{gib:.2} GiB"), place)?;
    }
    write_audit(out, &summary.audit)?;
    writeln!(out, "</div>")?;
    for note in &summary.notes {
        writeln!(out, "<p class=\"note\">{}</p>", escape(note))?;
    }
    writeln!(out, "</section>")
}

fn write_status(out: &mut String, summary: &RunSummary, manifest: &Manifest) -> std::fmt::Result {
    let steps = summary.steps;
    let planned = manifest.config.pointer("/run/steps").and_then(Value::as_u64);
    let of = planned.map_or(String::new(), |planned| format!(" of {planned}"));
    let (class, mut text) = match &summary.status {
        RunStatus::Finished => (
            "ok",
            format!("Finished after {}.", words::counted(steps as usize, "step")),
        ),
        RunStatus::Unfinished => (
            "warn",
            format!("Step {steps}{of} when this page was written: the run goes on, or was killed."),
        ),
        RunStatus::Interrupted { step } => (
            "warn",
            format!("Stopped by the user after step {step}{of}; --resume latest goes on from there."),
        ),
        RunStatus::Failed { cause } => ("bad", format!("Failed after step {steps}{of}: {cause}")),
    };
    if !manifest.resumes.is_empty() {
        let after: Vec<String> = manifest
            .resumes
            .iter()
            .map(|resume| resume.from_step.to_string())
            .collect();
        text += &format!(
            " Resumed {}, after step {}.",
            words::times(manifest.resumes.len()),
            after.join(", ")
        );
    }
    writeln!(out, "<p class=\"{class}\">{}</p>", escape(&text))
}

fn wall_parts(summary: &RunSummary) -> String {
    let parts = summary
        .wall_parts
        .iter()
        .map(|(name, wall_s)| format!("{name} {}", human_duration(*wall_s)));
    let processes = (summary.processes > 1).then(|| format!("{} processes", summary.processes));
    processes.into_iter().chain(parts).collect::<Vec<_>>().join(" · ")
}

fn write_card(out: &mut String, title: &str, value: &str, detail: &str) -> std::fmt::Result {
    let [title, value, detail] = [title, value, detail].map(escape);
    writeln!(
        out,
        "<div class=\"card\"><span class=\"kicker\">{title}</span><strong>{value}</strong><span class=\"faint\">{detail}</span></div>"
    )
}

fn write_audit(out: &mut String, audit: &Audit) -> std::fmt::Result {
    let (class, value, detail) = match audit {
        Audit::NotRun { why } => ("", "not run".to_owned(), why.clone()),
        Audit::Pending => ("", "no result yet".to_owned(), String::new()),
        Audit::Exact { rollouts, elements } => (
            "ok",
            "max|ratio − 1| = 0".to_owned(),
            format!("exact on {elements} elements of {rollouts} rollouts"),
        ),
        Audit::Deviated {
            rollouts,
            elements,
            largest,
            place,
            allowed,
        } => {
            let class = if *allowed { "warn" } else { "bad" };
            let allowed = if *allowed {
                "; allowed by the configuration"
            } else {
                ""
            };
            let detail = format!("at {place}; {elements} elements of {rollouts} rollouts{allowed}");
            (class, format!("max|ratio − 1| = {largest:.3e}"), detail)
        }
    };
    let [value, detail] = [value, detail].map(|text| escape(&text).into_owned());
    writeln!(
        out,
        "<div class=\"card {class}\"><span class=\"kicker\">On-policy audit</span><strong>{value}</strong><span class=\"faint\">{detail}</span></div>"
    )
}

fn write_reward(out: &mut String, reward: &RewardChange) -> std::fmt::Result {
    let RewardChange {
        name,
        measured_on,
        before,
        after,
        difference,
    } = reward;
    let digits = decimals(&[before, after, &difference.interval]);
    let change = &difference.interval;
    let sign = if change.mean > 0.0 { "+" } else { "" };
    let verdict = if difference.excludes_zero() {
        if change.mean > 0.0 {
            ("ok", "rose")
        } else {
            ("bad", "fell")
        }
    } else {
        ("warn", "no clear change: the interval includes 0")
    };
    writeln!(
        out,
        "<div class=\"reward\">\n<div class=\"reward-text\"><span class=\"kicker\">{} · {}</span>",
        escape(name),
        escape(measured_on)
    )?;
    writeln!(
        out,
        "<div class=\"big\"><span>{:.digits$}</span><span class=\"arrow\">→</span><span>{:.digits$}</span></div>",
        before.mean, after.mean
    )?;
    let interval = match (change.low, change.high) {
        (Some(low), Some(high)) => format!(" (95 % interval {low:.digits$} to {high:.digits$})"),
        _ => " (one value, no interval)".into(),
    };
    writeln!(
        out,
        "<p class=\"{}\">{sign}{:.digits$}{interval}, {}</p>",
        verdict.0, change.mean, verdict.1
    )?;
    writeln!(
        out,
        "<p class=\"faint\">{} up, {} down, {} unchanged</p></div>",
        difference.improved, difference.worsened, difference.unchanged
    )?;
    write_intervals(out, before, after, digits)?;
    writeln!(out, "</div>")
}

/// What the run was trained on, in its rollouts. One value against another is no test, so nothing is said of rise or fall.
fn write_trained(out: &mut String, trained: &TrainedReward) -> std::fmt::Result {
    let TrainedReward {
        first, last, best, ..
    } = trained;
    writeln!(
        out,
        "<div class=\"reward\">\n<div class=\"reward-text\"><span class=\"kicker\">{} · trained on, mean of the rollouts</span>",
        escape(&trained.name())
    )?;
    writeln!(
        out,
        "<div class=\"big\"><span>{:.4}</span><span class=\"arrow\">→</span><span>{:.4}</span></div>",
        first.mean, last.mean
    )?;
    let change = last.mean - first.mean;
    let sign = if change > 0.0 { "+" } else { "" };
    writeln!(
        out,
        "<p class=\"faint\">{sign}{change:.4} from iteration {} to iteration {}; highest {:.4} in iteration {}</p></div>\n</div>",
        first.step, last.step, best.mean, best.step
    )
}

/// Both intervals on one scale, as dots with whiskers.
fn write_intervals(out: &mut String, before: &Interval, after: &Interval, digits: usize) -> std::fmt::Result {
    let ends = [before, after].map(|i| (i.low.unwrap_or(i.mean), i.high.unwrap_or(i.mean)));
    let low = ends[0].0.min(ends[1].0);
    let high = ends[0].1.max(ends[1].1);
    let span = if high > low { high - low } else { 1.0 };
    let x = |value: f64| 62.0 + (value - low) / span * 200.0;
    let label = format!(
        "before {}, after {}, with 95 % intervals",
        before.text(digits),
        after.text(digits)
    );
    writeln!(
        out,
        "<svg class=\"intervals\" viewBox=\"0 0 290 92\" role=\"img\" aria-label=\"{label}\">"
    )?;
    for (index, (name, interval)) in [("before", before), ("after", after)].into_iter().enumerate() {
        let y = 26 + 44 * index;
        let (from, to, mean) = (x(ends[index].0), x(ends[index].1), x(interval.mean));
        writeln!(out, "<text x=\"0\" y=\"{}\">{name}</text>", y + 4)?;
        writeln!(
            out,
            "<path class=\"i{index}\" d=\"M{from:.1} {y}H{to:.1}M{from:.1} {0}v10M{to:.1} {0}v10\"/>",
            y - 5
        )?;
        writeln!(
            out,
            "<circle class=\"i{index}\" cx=\"{mean:.1}\" cy=\"{y}\" r=\"5\"/>"
        )?;
        writeln!(
            out,
            "<text class=\"value\" x=\"{mean:.1}\" y=\"{}\">{:.digits$}</text>",
            y - 11,
            interval.mean
        )?;
    }
    writeln!(out, "</svg>")
}

/// Decimals that show the intervals' widths with two digits, between 1 and 6.
fn decimals(intervals: &[&Interval]) -> usize {
    let widths = intervals
        .iter()
        .filter_map(|i| Some(i.high? - i.low?))
        .filter(|width| *width > 0.0);
    let narrowest = widths.fold(f64::INFINITY, f64::min);
    if narrowest.is_finite() {
        (1.0 - narrowest.log10().floor()).clamp(1.0, 6.0) as usize
    } else {
        3
    }
}
