//! After a run: its weights, and its outcome in words.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_accel::Acceleration;
use flow_config::Config;
use flow_models::Architecture;
use flow_report::{Audit, RunSummary, TrainedReward, human_duration};
use flow_trainer::Trainer;
use flow_trainer::algorithm::Algorithm;

/// Exports the weights and prints the outcome.
pub fn run<A: Algorithm>(
    trainer: &Trainer<A, Acceleration>,
    model: &dyn Architecture,
    config: &Config,
) -> Result<(), Failure> {
    let directory = trainer.directory();
    let state = &trainer.state;
    let metadata = flow_train::weights_metadata(config, &directory.name(), state.iteration);
    // Weights of a process before this one are not written over.
    let before = directory.supersede_weights().or_failed()?;
    let exported = trainer.export(model, config, &directory.weights(), &metadata);
    let files = exported.or_failed()?;
    directory.drop_same(&before).or_failed()?;
    let summary = directory.read_summary().or_failed()?.unwrap_or_default();
    let mut text = outcome(&summary);
    for file in files {
        text.push_str(&format!("weights    {}\n", file.display()));
    }
    let report = directory.path().join("report.html");
    if report.is_file() {
        text.push_str(&format!("report     {}\n", report.display()));
    }
    terminal::print(&text)
}

fn outcome(summary: &RunSummary) -> String {
    let mut text = format!(
        "finished   {} iterations, {} images\n",
        summary.steps, summary.images
    );
    for reward in &summary.rewards {
        let difference = &reward.difference;
        text.push_str(&format!(
            "reward     {}: {} before, {} after, difference {} on {}\n",
            reward.name,
            reward.before.text(4),
            reward.after.text(4),
            difference.interval.text(4),
            reward.measured_on
        ));
    }
    if let Some(trained) = &summary.trained {
        let TrainedReward {
            first, last, best, ..
        } = trained;
        text.push_str(&format!(
            "trained    {}: {:.4} in iteration {}, {:.4} in iteration {}, best {:.4} in iteration {}, in rollouts\n",
            trained.name(),
            first.mean,
            first.step,
            last.mean,
            last.step,
            best.mean,
            best.step
        ));
    }
    let audit = match &summary.audit {
        Audit::NotRun { why } => format!("not run: {why}"),
        Audit::Pending => "no result yet".into(),
        Audit::Exact { rollouts, elements } => {
            format!("max |ratio - 1| = 0 on all {elements} ratios of {rollouts} rollouts")
        }
        Audit::Deviated {
            largest,
            place,
            rollouts,
            ..
        } => {
            format!("max |ratio - 1| = {largest:.3e} at {place}, in {rollouts} rollouts")
        }
    };
    text.push_str(&format!("audit      {audit}\n"));
    text.push_str(&format!("time       {}\n", time(summary)));
    if let Some(rewards) = &summary.reward_s {
        text.push_str(&format!("           {}\n", rewards.in_words()));
    }
    for (place, gib) in &summary.peak_memory_gib {
        text.push_str(&format!("memory     {gib:.3} GiB at most ({place})\n"));
    }
    for note in &summary.notes {
        text.push_str(&format!("note       {note}\n"));
    }
    text
}

/// How long the run took, over all processes: `27.9 s (rollout 12.1 s, update 15.8 s), 18.2 images/s`.
fn time(summary: &RunSummary) -> String {
    let mut text = human_duration(summary.wall_s);
    let parts: Vec<String> = summary
        .wall_parts
        .iter()
        .map(|(name, wall_s)| format!("{name} {}", human_duration(*wall_s)))
        .collect();
    if !parts.is_empty() {
        text.push_str(&format!(" ({})", parts.join(", ")));
    }
    if let Some(images_per_s) = summary.images_per_s {
        text.push_str(&format!(", {images_per_s:.1} images/s"));
    }
    if summary.processes > 1 {
        text.push_str(&format!(", in {} processes", summary.processes));
    }
    text
}
