//! The curve of a run: its evaluations, with the images and the seconds until each.

use crate::bench::iterations;
use anyhow::{Context, Result, bail};
use flow_report::{Metrics, Series};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// An evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Images generated for training until then.
    pub images: f64,
    /// Seconds until then, earlier evaluations included.
    pub seconds: f64,
    /// Mean reward.
    pub reward: f64,
}

/// What a program came to.
#[derive(Debug, PartialEq)]
pub(super) struct Curve {
    label: String,
    points: Vec<Point>,
    /// Seconds of each iteration.
    iterations: Vec<f64>,
    images_per_iteration: f64,
}

impl Curve {
    /// What it is called.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The run in the folder `path`, or the lines in the file.
    pub fn read(label: &str, path: &Path, reward: &str) -> Result<Self> {
        if path.is_dir() {
            Self::of_run(label, path, reward)
        } else {
            Self::of_lines(label, path, reward)
        }
    }

    /// The run of ours in a folder.
    pub fn of_run(label: &str, folder: &Path, reward: &str) -> Result<Self> {
        let about: Value = serde_json::from_str(&fs::read_to_string(folder.join("run.json"))?)?;
        let sampling = &about["config"]["sampling"];
        let number = |key: &str| {
            let found = sampling[key].as_f64();
            found.with_context(|| format!("run.json has no `sampling.{key}`"))
        };
        let images_per_iteration = number("prompts_per_step")? * number("group_size")?;
        let timing = Metrics::read(&folder.join("timing.jsonl"))?;
        let evaluations: BTreeMap<u64, f64> = timing.series("timing", "evaluation_s").into_iter().collect();
        let by_step = iterations::seconds(&timing);
        let metrics = Metrics::read(&folder.join("metrics.jsonl"))?;
        let key = format!("reward/{reward}");
        let points = metrics.series("eval", &key).into_iter().map(|(step, reward)| {
            let trained: f64 = by_step.range(..=step).map(|(_, seconds)| seconds).sum();
            let evaluated: f64 = evaluations.range(..step).map(|(_, seconds)| seconds).sum();
            Point {
                images: step as f64 * images_per_iteration,
                seconds: trained + evaluated,
                reward,
            }
        });
        let points: Vec<Point> = points.collect();
        if points.is_empty() {
            bail!("{} has no evaluation reward `{reward}`", folder.display());
        }
        Ok(Self {
            label: label.into(),
            points,
            iterations: by_step.into_values().collect(),
            images_per_iteration,
        })
    }

    /// The lines of the peer.
    pub fn of_lines(label: &str, path: &Path, reward: &str) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (mut points, mut iterations, mut images_per_iteration) = (Vec::new(), Vec::new(), 0.0);
        // When the last line was written; an evaluation's says when it began, so the iteration after it holds it, too.
        let (mut before, mut is_clean) = (0.0, false);
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).with_context(|| format!("no JSON: `{line}`"))?;
            let number = |value: &Value| {
                value
                    .as_f64()
                    .with_context(|| format!("a number is missing in {line}"))
            };
            match line["kind"].as_str() {
                Some("eval") => {
                    let reward =
                        (line["reward"].get(reward)).with_context(|| format!("no `{reward}` in {line}"))?;
                    points.push(Point {
                        images: number(&line["images"])?,
                        seconds: number(&line["seconds"])?,
                        reward: number(reward)?,
                    });
                    is_clean = false;
                }
                Some("train") => {
                    let seconds = number(&line["seconds"])?;
                    if is_clean {
                        iterations.push(seconds - before);
                    }
                    images_per_iteration = number(&line["images"])? / number(&line["step"])?;
                    (before, is_clean) = (seconds, true);
                }
                _ => {}
            }
        }
        if points.is_empty() {
            bail!("{} has no evaluation", path.display());
        }
        Ok(Self {
            label: label.into(),
            points,
            iterations,
            images_per_iteration,
        })
    }

    /// Reward against `x`.
    pub fn series(&self, x: fn(&Point) -> f64) -> Series {
        let points = self.points.iter().map(|point| (x(point), point.reward));
        Series::new(&self.label, points.collect())
    }

    /// The first evaluation at which the reward was `goal`.
    fn reached(&self, goal: f64) -> Option<Point> {
        self.points.iter().copied().find(|point| point.reward >= goal)
    }

    /// The middle one of the iterations' seconds.
    fn median_s(&self) -> Option<f64> {
        let mut sorted = self.iterations.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

/// A row per curve, in Markdown.
pub(super) fn table(curves: &[Curve], goal: f64) -> String {
    let mut text = format!(
        "| run | reward, first → last | images and seconds until {goal} | images and seconds in all | median iteration | images/s |\n\
         |---|---|---|---|---|---|\n"
    );
    for curve in curves {
        let (first, last) = (curve.points[0], curve.points[curve.points.len() - 1]);
        let place = |point: Point| format!("{:.0}, {:.1} s", point.images, point.seconds);
        let reached = curve.reached(goal).map_or("–".into(), place);
        let median = curve.median_s();
        let of_median = |show: &dyn Fn(f64) -> String| median.map_or("–".into(), show);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.3} → {:.3} | {reached} | {} | {} | {} |",
            curve.label,
            first.reward,
            last.reward,
            place(last),
            of_median(&|seconds| format!("{seconds:.3} s")),
            of_median(&|seconds| format!("{:.0}", curve.images_per_iteration / seconds)),
        );
    }
    text
}
