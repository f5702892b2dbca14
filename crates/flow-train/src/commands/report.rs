//! `report`: the report of a run made again from its files, or a page that compares the runs of a folder.

use super::nearest;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_report::{ComparedRun, RunStatus};
use std::path::Path;

/// Writes `report.html` of a run, or `comparison.html` of the runs in a folder, and prints its path.
pub fn run(folder: &Path) -> Result<(), Failure> {
    if folder.join("run.json").is_file() {
        let report = flow_report::write_report(folder).or_bad_input()?;
        return terminal::line(&report.display().to_string());
    }
    let place = folder.display();
    if !folder.is_dir() {
        let hint = nearest::path_in_words(folder, Path::is_dir);
        return Err(Failure::Input(format!(
            "there is no folder `{place}`{hint}\n  help: pass the folder of a run, or one that holds runs"
        )));
    }
    if folder.join("checkpoints").is_dir() {
        return Err(Failure::Input(format!(
            "`{place}` has lost its run.json, of which a report is made\n  help: `flow-train train CONFIG --resume latest` makes it \
             again from the newest checkpoint, and the report with it"
        )));
    }
    if flow_report::runs_in(folder).or_bad_input()?.is_empty() {
        return Err(Failure::Input(format!(
            "`{place}` is not the folder of a run (it has no run.json), nor does it hold one\n  help: pass the folder of a run, or \
             one that holds runs"
        )));
    }
    let comparison = flow_report::write_comparison(folder).or_bad_input()?;
    for (name, error) in &comparison.unreadable {
        terminal::note(&format!("note: `{name}` is left out: {error}"));
    }
    let mut text: String = comparison.runs.iter().map(outcome).collect();
    text.push_str(&format!("{}\n", comparison.path.display()));
    terminal::print(&text)
}

/// One run in lines: how it stands, and its rewards.
fn outcome(run: &ComparedRun) -> String {
    let Some(summary) = &run.summary else {
        return format!("{}: no summary yet\n", run.name);
    };
    let state = match &summary.status {
        RunStatus::Finished => "finished",
        RunStatus::Unfinished => "under way or killed",
        RunStatus::Interrupted { .. } => "stopped",
        RunStatus::Failed { .. } => "failed",
    };
    let mut text = format!("{}: {state} after {} iterations\n", run.name, summary.steps);
    for reward in &summary.rewards {
        text.push_str(&format!(
            "  {}: {} -> {}\n",
            reward.name,
            reward.before.text(4),
            reward.after.text(4)
        ));
    }
    if let Some(trained) = &summary.trained {
        let name = trained.name();
        let (first, last) = (trained.first.mean, trained.last.mean);
        text.push_str(&format!("  trained on {name}: {first:.4} -> {last:.4}\n"));
    }
    text
}
