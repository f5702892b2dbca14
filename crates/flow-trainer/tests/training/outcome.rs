//! What a run shows while it goes on, and where its intervals end.

use super::support::*;
use flow_report::{RunDirectory, RunStatus, RunSummary};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::{IterationSummary, Observer};
use flow_trainer::trainer::Parts;
use std::path::{Path, PathBuf};

/// A run, and what lies in its folder after each iteration.
struct Watched<'a>(RunTo<'a>);

struct Watcher {
    folder: PathBuf,
    seen: Vec<(RunSummary, String)>,
}

fn summary(folder: &Path) -> RunSummary {
    let text =
        std::fs::read_to_string(folder.join("summary.json")).expect("there from the first evaluation on");
    serde_json::from_str(&text).expect("whole")
}

impl Observer for Watcher {
    fn iteration(&mut self, _: &IterationSummary) {
        let page = std::fs::read_to_string(self.folder.join("report.html"))
            .expect("there from the first evaluation on");
        self.seen.push((summary(&self.folder), page));
    }
}

impl Visit for Watched<'_> {
    type Output = Watcher;

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) -> Watcher {
        let mut watcher = Watcher {
            folder: self.0.root.join("run"),
            seen: Vec::new(),
        };
        self.0
            .observed(parts, &mut watcher)
            .unwrap_or_else(|error| panic!("{error}"));
        watcher
    }
}

#[test]
fn a_run_shows_how_far_it_came_before_its_end() {
    let registries = registries();
    let environment = environment(&registries);
    let config = config(&["logging.html_report=true"]);
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 4,
    };
    let watcher = with_parts(&config, &environment, Watched(run));
    // Evaluations before the first iteration and after each second one.
    let steps: Vec<u64> = watcher.seen.iter().map(|(summary, _)| summary.steps).collect();
    assert_eq!(steps, [0, 0, 2, 2]);
    for (summary, page) in &watcher.seen {
        assert_eq!(summary.status, RunStatus::Unfinished);
        assert_eq!(summary.prompts.len(), 2);
        assert!(page.contains("the run goes on, or was killed") && page.contains("</html>"));
    }
    let page = &watcher.seen[3].1;
    for curve in [
        "Images per second",
        "Time of a step",
        "Memory",
        "Gradient norm",
        "Reward of the rollouts",
    ] {
        assert!(page.contains(curve), "{curve}");
    }
    let last = summary(&watcher.folder);
    assert_eq!((&last.status, last.steps), (&RunStatus::Finished, 4));
    // Before the first iteration nothing was trained on; then it is what the rollouts had.
    assert_eq!(watcher.seen[0].0.trained, None);
    let trained = last.trained.expect("four iterations");
    let terms = [("digit-classifier", 1.0), ("jpeg-compressibility", 0.1)];
    let terms: Vec<(String, f64)> = terms.map(|(name, weight)| (name.to_owned(), weight)).into();
    assert_eq!(trained.terms, terms);
    let directory = RunDirectory::resume(root.path(), "run").expect("the run is there");
    let sums = directory
        .read_metrics()
        .expect("readable")
        .series("train", "reward");
    assert_eq!(sums.len(), 4);
    let best = sums.iter().map(|(_, sum)| *sum).fold(f64::MIN, f64::max);
    for (found, (step, sum)) in [(trained.first, sums[0]), (trained.last, sums[3])] {
        assert!(
            found.step == step && (found.mean - sum).abs() < 1e-5,
            "{found:?} {sum}"
        );
    }
    assert!(
        (trained.best.mean - best).abs() < 1e-5,
        "{:?} {best}",
        trained.best
    );
    assert!(watcher.seen[3].1.contains("trained on, mean of the rollouts"));
}

#[test]
fn intervals_of_a_bounded_reward_stay_inside_its_bounds_wherever_they_are_written() {
    let registries = registries();
    let environment = environment(&registries);
    // Two prompts: Student's interval of two values is 25 times as wide as their spread.
    let config = config(&[]);
    let root = tempfile::tempdir().expect("a temporary directory");
    let run = RunTo {
        root: root.path(),
        resume: false,
        until: 2,
    };
    with_parts(&config, &environment, run).unwrap_or_else(|error| panic!("{error}"));
    let directory = RunDirectory::resume(root.path(), "run").expect("the run is there");
    let metrics = directory.read_metrics().expect("readable");
    let band = metrics.band(
        "eval",
        "reward/digit-classifier/low",
        "reward/digit-classifier/high",
    );
    assert!(
        band.len() == 2 && band.iter().all(|(_, low, high)| 0.0 <= *low && *high <= 1.0),
        "{band:?}"
    );
    assert!(
        band.iter().any(|(_, low, high)| *low == 0.0 || *high == 1.0),
        "the case is one: {band:?}"
    );
    let summary = directory.read_summary().expect("readable").expect("written");
    for reward in &summary.rewards {
        let (least, most) = match reward.name.as_str() {
            "digit-classifier" => (0.0, 1.0),
            _ => (f64::NEG_INFINITY, 0.0),
        };
        for interval in [&reward.before, &reward.after] {
            let (low, high) = interval.low.zip(interval.high).expect("two prompts");
            assert!(least <= low && high <= most, "{}: {interval:?}", reward.name);
        }
    }
    let change = &summary.rewards[0].difference.interval;
    assert!(change.low >= Some(-1.0) && change.high <= Some(1.0), "{change:?}");
}
