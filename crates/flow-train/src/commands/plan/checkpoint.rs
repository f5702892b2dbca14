//! The plan of a budget of activation checkpointing: in words, as a drawing, as a file.

use super::described::bytes;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_train::checkpoint::planner::{KindRecord, PlanRecord};
use flow_train::report::{LineChart, Series, atomic_write};
use std::collections::BTreeMap;
use std::path::Path;

const MIB: f64 = (1u64 << 20) as f64;

/// How often each way to treat a block was chosen.
fn chosen(record: &PlanRecord) -> BTreeMap<(usize, usize), usize> {
    let mut counts = BTreeMap::new();
    for block in &record.blocks {
        *counts.entry((block.kind, block.option)).or_default() += 1;
    }
    counts
}

/// What a plan came to, and what it does with which blocks.
pub fn text(record: &PlanRecord) -> String {
    let step = |name: &str, step: &flow_train::checkpoint::planner::StepRecord| {
        vec![
            name.to_owned(),
            bytes(step.peak_bytes as f64),
            bytes(step.held_bytes as f64),
            format!("{:.1} ms", step.wall_ms),
        ]
    };
    let mut rows = vec![["step", "peak", "held", "time"].map(str::to_owned).to_vec()];
    rows.push(step("predicted", &record.predicted));
    rows.push(step("measured", &record.measured));
    rows.push(step("all computed again", &record.full));
    let mut text = format!(
        "\nactivation checkpointing within {} (the smallest budget is {}), plan {}, {} passes beside one another\n{}",
        bytes(record.budget_bytes as f64),
        bytes(record.smallest_budget_bytes as f64),
        record.digest,
        record.passes,
        terminal::table(&rows, 0)
    );
    let mut rows = vec![
        ["blocks", "kind", "held per block", "again per block", "keeps"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for ((kind, option), count) in chosen(record) {
        let way = &record.kinds[kind].options[option];
        rows.push(vec![
            count.to_string(),
            kind.to_string(),
            bytes(way.held_bytes as f64),
            format!("{:.3} ms", way.again_ms),
            way.keeps.clone(),
        ]);
    }
    text.push_str(&format!("\n{}", terminal::table(&rows, 0)));
    text
}

/// Memory against time of the ways to treat a block, and which of them were chosen.
pub fn chart(record: &PlanRecord) -> LineChart {
    let point = |kind: &KindRecord, option: usize| {
        let way = &kind.options[option];
        (way.held_bytes as f64 / MIB, way.again_ms)
    };
    let mut chosen_points: Vec<(f64, f64)> = chosen(record)
        .keys()
        .map(|(kind, option)| point(&record.kinds[*kind], *option))
        .collect();
    chosen_points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut chart = LineChart::new(
        "What a block may keep",
        "held per block, MiB",
        "computed again per block, ms",
    )
    .with(Series::new("chosen", chosen_points));
    for (index, kind) in record.kinds.iter().enumerate() {
        let mut points: Vec<(f64, f64)> = (0..kind.options.len())
            .map(|option| point(kind, option))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        // Ways that differ in their peak alone are not told apart here.
        let mut least = f64::INFINITY;
        points.retain(|(_, time)| {
            let better = *time < least;
            least = least.min(*time);
            better
        });
        let name = match record.kinds.len() {
            1 => "no way keeps less and is as fast".to_owned(),
            _ => format!("kind {index}"),
        };
        chart = chart.with(Series::new(name, points));
    }
    chart
}

/// Writes `plan.json` and `plan.svg` into `folder`.
pub fn write(record: &PlanRecord, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).or_failed()?;
    let json = serde_json::to_string_pretty(record).or_failed()? + "\n";
    let write = |name: &str, text: &str| {
        atomic_write(&folder.join(name), "plan", |out| out.write_all(text.as_bytes())).or_failed()
    };
    write("plan.json", &json)?;
    write("plan.svg", &chart(record).svg())
}
