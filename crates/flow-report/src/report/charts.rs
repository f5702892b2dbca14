//! Which charts a run has: every number that `metrics.jsonl` and `timing.jsonl` hold, in groups, those that one looks at first first.

use std::collections::{BTreeMap, BTreeSet};

use crate::curve::{LineChart, Series};
use crate::metrics::Metrics;
use crate::statistics::ValueRange;
use crate::summary::RunSummary;

/// What `step` counts.
const STEP: &str = "step";

/// One chart of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunChart {
    /// Name of its file in `curves/`, for those that are written there.
    pub file: Option<&'static str>,
    /// The chart.
    pub chart: LineChart,
    /// What a reader should know of it.
    pub note: Option<&'static str>,
}

/// Charts that are shown together.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartGroup {
    /// What they show.
    pub title: &'static str,
    /// Whether they are shown without being asked for.
    pub open: bool,
    /// The charts.
    pub charts: Vec<RunChart>,
}

/// The charts of a run. Each number that its files hold is a line of one of them, but for the ends of intervals, which are a band. Times
/// that a process wrote for a step which a later one did again count no more. `summary` has the range of each reward.
pub fn run_charts(metrics: &Metrics, timing: &Metrics, summary: Option<&RunSummary>) -> Vec<ChartGroup> {
    let mut catalogue = Catalogue::new(metrics, timing, summary);
    let groups = [
        ("Rewards", true, catalogue.rewards()),
        ("Learning", true, catalogue.learning()),
        ("Signs of an exploited reward", true, catalogue.watch()),
        ("Exploration", true, catalogue.exploration()),
        ("Drift and accelerators", false, catalogue.accelerators()),
        ("Time and memory", false, catalogue.times()),
        ("Everything else", false, catalogue.rest()),
    ];
    groups
        .into_iter()
        .map(|(title, open, charts)| ChartGroup { title, open, charts })
        .filter(|group| !group.charts.is_empty())
        .collect()
}

/// A file of records: what the run does, or what the clock says of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum File {
    Metrics,
    Timing,
}

/// The numbers that are in no chart yet.
struct Catalogue<'a> {
    metrics: &'a Metrics,
    timing: &'a Metrics,
    ranges: BTreeMap<&'a str, ValueRange>,
    /// File, kind and key in order of first appearance.
    left: Vec<(File, String, String)>,
}

impl<'a> Catalogue<'a> {
    fn new(metrics: &'a Metrics, timing: &'a Metrics, summary: Option<&'a RunSummary>) -> Self {
        let mut left = Vec::new();
        for (file, records) in [(File::Metrics, metrics), (File::Timing, timing)] {
            for kind in records.kinds() {
                let keys = records.keys(kind);
                let known: BTreeSet<&str> = keys.iter().copied().collect();
                let is_end = |key: &str| {
                    let of = key.strip_suffix("/low").or_else(|| key.strip_suffix("/high"));
                    of.is_some_and(|of| known.contains(of))
                };
                let keys = keys.iter().filter(|key| !is_end(key));
                left.extend(keys.map(|key| (file, kind.to_owned(), (*key).to_owned())));
            }
        }
        let rewards = summary.map_or(&[][..], |summary| &summary.rewards);
        let ranges = rewards
            .iter()
            .map(|reward| (reward.name.as_str(), reward.before.range))
            .collect();
        Self {
            metrics,
            timing,
            ranges,
            left,
        }
    }

    fn has(&self, kind: &str, key: &str) -> bool {
        self.left
            .iter()
            .any(|(_, of, found)| (of.as_str(), found.as_str()) == (kind, key))
    }

    /// The numbers left for which `wanted(kind, key)` holds.
    fn find(&self, wanted: impl Fn(&str, &str) -> bool) -> Vec<(File, String, String)> {
        let left = self.left.iter();
        left.filter(|(_, kind, key)| wanted(kind, key)).cloned().collect()
    }

    /// The line of a number, which is then no more left.
    fn take(&mut self, number: &(File, String, String), name: &str) -> Series {
        self.left.retain(|each| each != number);
        let (file, kind, key) = number;
        match file {
            File::Metrics => {
                let ends = (format!("{key}/low"), format!("{key}/high"));
                Series::from_metrics(self.metrics, name, kind, key, Some((&ends.0, &ends.1)))
            }
            File::Timing => {
                // A step done twice, by a process that was killed after it: what the last one took.
                let values: BTreeMap<u64, f64> = self.timing.series(kind, key).into_iter().collect();
                let points = values.into_iter().map(|(step, value)| (step as f64, value));
                Series::new(name, points.collect())
            }
        }
    }

    fn take_key(&mut self, kind: &str, key: &str, name: &str) -> Option<Series> {
        let found = self.find(|of, found| (of, found) == (kind, key));
        found.first().map(|each| self.take(each, name))
    }

    /// A chart of one number, if it is there.
    fn single(&mut self, kind: &str, key: &str, title: &str, unit: &str) -> Option<LineChart> {
        let series = self.take_key(kind, key, "")?;
        Some(LineChart::new(title, STEP, unit).with(series))
    }

    fn range_of(&self, reward: &str) -> ValueRange {
        self.ranges.get(reward).copied().unwrap_or_default()
    }

    fn rewards(&mut self) -> Vec<RunChart> {
        let mut charts = Vec::new();
        let held_out = self.find(|kind, key| kind == "eval" && key.starts_with("reward/"));
        let names = |each: &(File, String, String)| each.2.trim_start_matches("reward/").to_owned();
        let ranges: Vec<ValueRange> = held_out.iter().map(|each| self.range_of(&names(each))).collect();
        let lines: Vec<(String, Series)> = held_out
            .iter()
            .map(|each| (names(each), self.take(each, &names(each))))
            .collect();
        let is_one = lines.len() < 2 || (ranges.windows(2).all(|pair| pair[0] == pair[1]) && alike(&lines));
        if is_one && !lines.is_empty() {
            let range = ranges.first().copied().unwrap_or_default();
            let chart = LineChart::new("Reward on held-out prompts", STEP, "reward, 95 % interval");
            let chart = lines.into_iter().fold(chart, |chart, (_, line)| chart.with(line));
            charts.push(RunChart::kept("1-reward-held-out", chart.y_within(range)));
        } else {
            for ((name, line), range) in lines.into_iter().zip(ranges) {
                let title = format!("{name} on held-out prompts");
                let chart = LineChart::new(&title, STEP, "reward, 95 % interval").with(line);
                charts.push(RunChart::of(chart.y_within(range)));
            }
        }
        if let Some(chart) = self.single(
            "train",
            "reward",
            "Reward of the rollouts",
            "weighted sum of rewards",
        ) {
            charts.push(RunChart::kept("2-reward-rollout", chart));
        }
        let each = self.find(|kind, key| kind == "train" && is_reward(key));
        // One reward of weight 1 is the sum.
        if each.len() > 1 {
            for number in each {
                let title = format!("Reward of the rollouts: {}", names(&number));
                let line = self.take(&number, "");
                charts.push(RunChart::of(LineChart::new(&title, STEP, "reward").with(line)));
            }
        }
        charts
    }

    fn learning(&mut self) -> Vec<RunChart> {
        let mut charts = Vec::new();
        if let Some(series) = self.take_key("train", "loss", "") {
            let finite = || series.points.iter().filter(|(_, loss)| loss.is_finite());
            let is_rounding = finite().next().is_some() && finite().all(|(_, loss)| loss.abs() < 1e-5);
            let chart = LineChart::new("Loss", STEP, "loss").with(series);
            let mut chart = RunChart::kept("3-loss", chart);
            chart.note = is_rounding.then_some(
                "0 but for rounding, as a policy-gradient loss is with normalized advantages while the ratio is 1. Its gradient is not 0.",
            );
            charts.push(chart);
        }
        let single = [
            (
                Some("4-gradient-norm"),
                "gradient_norm",
                "Gradient norm",
                "norm before clipping",
            ),
            (Some("5-kl"), "kl", "Distance from the reference", "kl"),
            (None, "clip_fraction", "Clipped", "share of ratios"),
            (None, "learning_rate", "Learning rate", "learning rate"),
        ];
        for (file, key, title, unit) in single {
            let Some(chart) = self.single("train", key, title, unit) else {
                continue;
            };
            charts.push(RunChart {
                file,
                chart,
                note: None,
            });
        }
        charts
    }

    fn watch(&mut self) -> Vec<RunChart> {
        let single = [
            (
                "diversity",
                "Diversity: distance of images within a group",
                "distance, 0 to 1",
            ),
            ("entropy_bits", "Entropy of the brightness", "bits"),
            (
                "edge_energy",
                "Edge energy of the brightness",
                "squared difference",
            ),
            ("saturation", "Saturation of colours", "saturation, 0 to 1"),
            ("clipped", "Clipped values", "share of values"),
        ];
        let charts = single.iter().filter_map(|(key, title, unit)| {
            let chart = self.single("train", &format!("watch/{key}"), title, unit)?;
            Some(RunChart::of(chart))
        });
        charts.collect()
    }

    fn exploration(&mut self) -> Vec<RunChart> {
        let mut charts = Vec::new();
        let lines = [
            ("exploration/reward_candidates", "all candidates"),
            ("exploration/reward_kept", "those kept"),
        ];
        let lines: Vec<Series> = lines
            .iter()
            .filter_map(|(key, name)| self.take_key("train", key, name))
            .collect();
        if !lines.is_empty() {
            let title = "Reward of candidates, as they were explored";
            let chart = LineChart::new(title, STEP, "weighted sum of rewards");
            charts.push(RunChart::of(lines.into_iter().fold(chart, LineChart::with)));
        }
        let single = [
            (
                "rank_correlation",
                "Rank correlation of explored and exact rewards within groups",
                "Spearman's, -1 to 1",
            ),
            (
                "reward_difference",
                "Difference of explored and exact rewards",
                "mean absolute difference",
            ),
        ];
        for (key, title, unit) in single {
            let chart = self.single("train", &format!("exploration/{key}"), title, unit);
            charts.extend(chart.map(RunChart::of));
        }
        for number in self.find(|kind, key| kind == "train" && key.starts_with("exploration/")) {
            charts.push(self.plain(&number));
        }
        charts
    }

    fn accelerators(&mut self) -> Vec<RunChart> {
        let mut charts = Vec::new();
        let counts = self.find(|kind, key| {
            let is_count = key.starts_with("acceleration/") && key.matches('/').count() == 2;
            kind == "train"
                && is_count
                && !key.ends_with("kept_mib_peak")
                && !key.ends_with("kernels_replaced")
        });
        if !counts.is_empty() {
            let chart = LineChart::new("What accelerators left out, per step", STEP, "count");
            let chart = counts.iter().fold(chart, |chart, number| {
                let label = number.2.trim_start_matches("acceleration/").replace('/', ": ");
                chart.with(self.take(number, &label.replace('_', " ")))
            });
            charts.push(RunChart::kept("6-accelerators", chart));
        }
        if self.has("train", "drift/velocity_l1") {
            let title =
                "Drift: relative L1 distance from the same samples without the accelerators of the rollout";
            let lines = [
                ("drift/velocity_l1", "velocity"),
                ("drift/latent_l1", "final latent"),
                ("drift/latent_l1/predicted", "final latent, predicted"),
            ];
            let chart = lines
                .iter()
                .filter_map(|(key, name)| self.take_key("train", key, name))
                .fold(LineChart::new(title, STEP, "relative L1"), LineChart::with);
            charts.push(RunChart::kept("7-drift", chart));
        }
        if let Some(chart) = self.single(
            "train",
            "drift/reward",
            "Drift of the reward",
            "with less without",
        ) {
            charts.push(RunChart::kept("8-drift-reward", chart));
        }
        for number in self.find(|_, key| key.starts_with("acceleration/") || key.starts_with("drift/")) {
            charts.push(self.plain(&number));
        }
        charts
    }

    fn times(&mut self) -> Vec<RunChart> {
        let mut charts = Vec::new();
        if let Some(chart) = self.single("throughput", "images_per_s", "Images per second", "images/s") {
            charts.push(RunChart::of(chart));
        }
        let parts = ["exploration_s", "rollout_s", "rewards_s", "update_s"];
        let lines: Vec<Series> = parts
            .iter()
            .filter_map(|key| self.take_key("timing", key, key.trim_end_matches("_s")))
            .collect();
        if !lines.is_empty() {
            let chart = LineChart::new("Time of a step", STEP, "seconds");
            charts.push(RunChart::of(lines.into_iter().fold(chart, LineChart::with)));
        }
        let lines: Vec<Series> = [("ran_s", "in all"), ("hidden_s", "beside the generation")]
            .iter()
            .filter_map(|(key, name)| self.take_key("reward_time", key, name))
            .collect();
        if !lines.is_empty() {
            let chart = LineChart::new("Time of rewards", STEP, "seconds");
            charts.push(RunChart::of(lines.into_iter().fold(chart, LineChart::with)));
        }
        let memory = self.find(|kind, key| kind.ends_with("memory") && key.ends_with("_gib"));
        if !memory.is_empty() {
            let chart = LineChart::new("Memory", STEP, "GiB");
            let chart = memory.iter().fold(chart, |chart, number| {
                let place = number.1.trim_end_matches("memory").trim_end_matches('_');
                let name = format!("{place}, {}", number.2.trim_end_matches("_gib"));
                chart.with(self.take(number, &name))
            });
            charts.push(RunChart::of(chart));
        }
        let timing = self.left.iter().filter(|(file, ..)| *file == File::Timing);
        for number in timing.cloned().collect::<Vec<_>>() {
            charts.push(self.plain(&number));
        }
        for chart in &mut charts {
            // Neither time nor memory is below 0; an interval of nothing but zeros would show it so.
            chart.chart = chart.chart.clone().y_within(ValueRange::new(0.0, f64::INFINITY));
        }
        charts
    }

    fn rest(&mut self) -> Vec<RunChart> {
        let left = self.left.clone();
        left.iter().map(|number| self.plain(number)).collect()
    }

    /// A chart of a number by its own name.
    fn plain(&mut self, number: &(File, String, String)) -> RunChart {
        let (_, kind, key) = number;
        let words = key.replace('/', ": ").replace('_', " ");
        let title = match kind.as_str() {
            "train" | "timing" => words,
            kind => format!("{}: {words}", kind.replace('_', " ")),
        };
        let mut letters = title.chars();
        let title: String = letters
            .next()
            .into_iter()
            .flat_map(char::to_uppercase)
            .chain(letters)
            .collect();
        let unit = match key.rsplit_once('_') {
            Some((_, "s")) => "seconds",
            Some((_, "gib")) => "GiB",
            Some((_, "db")) => "dB",
            _ => "value",
        };
        RunChart::of(LineChart::new(&title, STEP, unit).with(self.take(number, "")))
    }
}

impl RunChart {
    fn of(chart: LineChart) -> Self {
        Self {
            file: None,
            chart,
            note: None,
        }
    }

    fn kept(file: &'static str, chart: LineChart) -> Self {
        Self {
            file: Some(file),
            ..Self::of(chart)
        }
    }
}

/// `reward/NAME` and not `reward/NAME/std`, nor the statistics of the sum.
fn is_reward(key: &str) -> bool {
    let name = key.strip_prefix("reward/");
    name.is_some_and(|name| !name.contains('/') && !["std", "group_std", "zero_std_groups"].contains(&name))
}

/// Whether lines can be read on one axis: the smallest of them is not lost beside the largest.
fn alike(lines: &[(String, Series)]) -> bool {
    let sizes = lines.iter().map(|(_, line)| {
        let finite = line.points.iter().map(|(_, y)| y.abs()).filter(|y| y.is_finite());
        finite.fold(0.0, f64::max)
    });
    let (least, most) = sizes.fold((f64::INFINITY, 0.0_f64), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    most <= 10.0 * least || most == 0.0
}
