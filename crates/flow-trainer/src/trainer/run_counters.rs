//! Sums over a whole run, however many processes worked on it.

use super::{AuditMode, TrainState};
use crate::audit::OnPolicyAudit;
use flow_accel::Paradigm;
use flow_report::{Audit, BYTES_PER_GIB, CHECKPOINT_RECORD, Record, RewardSeconds, Saved, peak_resident_gib};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Parts of an iteration, whose seconds images are counted by.
const ITERATION: [&str; 5] = ["exploration", "rollout", "rewards", "acquire", "update"];

/// Where the memory of the process is noted.
const PROCESS: &str = "process, resident";

/// Sums over the whole run; part of every checkpoint, so that a resumed run counts on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RunCounters {
    images: u64,
    audited_rollouts: u64,
    audited_ratios: u64,
    largest_deviation: f64,
    deviation_place: String,
    /// Processes that worked on the run.
    #[serde(default)]
    processes: u64,
    /// Evaluations of earlier iterations measured something else.
    #[serde(default)]
    comparable_from: u64,
    /// Seconds by what was done.
    #[serde(default)]
    wall_s: BTreeMap<String, f64>,
    /// Seconds while rewards ran, and those of them beside the generation.
    #[serde(default)]
    reward_s: Option<RewardSeconds>,
    /// The most GiB by place.
    #[serde(default)]
    peak_gib: BTreeMap<String, f64>,
    #[serde(skip)]
    notes: Vec<String>,
}

impl RunCounters {
    /// Of a run that begins.
    pub(super) fn begun() -> Self {
        Self {
            processes: 1,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, images: usize, audit: Option<&OnPolicyAudit>, state: &TrainState) {
        self.images += images as u64;
        let Some(audit) = audit else { return };
        self.audited_rollouts += 1;
        self.audited_ratios += audit.checked();
        // Other bits behind a ratio of 1 are a deviation, too.
        if let Some(worst) = audit.worst()
            && (self.deviation_place.is_empty() || f64::from(worst.size()) > self.largest_deviation)
        {
            self.largest_deviation = f64::from(worst.size());
            self.deviation_place = format!("iteration {}, {worst}", state.iteration);
        }
    }

    pub(super) fn images(&self) -> u64 {
        self.images
    }

    /// GiB of the device's memory that someone counted, the most of it noted by `what`; none where nobody counts.
    pub(super) fn device_memory(&mut self, what: &str, bytes: Option<u64>) -> Option<f64> {
        let gib = bytes? as f64 / BYTES_PER_GIB;
        self.peak(&device(what), gib);
        Some(gib)
    }

    /// Notes the most memory that this process has had.
    pub(super) fn process_memory(&mut self) {
        if let Some(gib) = peak_resident_gib() {
            self.peak(PROCESS, gib);
        }
    }

    fn peak(&mut self, place: &str, gib: f64) {
        let most = self.peak_gib.entry(place.into()).or_default();
        *most = most.max(gib);
    }

    pub(super) fn add_wall(&mut self, part: &str, wall_s: f64) {
        *self.wall_s.entry(part.into()).or_default() += wall_s;
    }

    /// Adds the seconds of an iteration's rewards.
    pub(super) fn add_reward_times(&mut self, ran_s: f64, hidden_s: f64) {
        let sums = self.reward_s.get_or_insert_default();
        sums.ran += ran_s;
        sums.hidden += hidden_s;
    }

    /// Seconds of rewards of the whole run, if something was scored.
    pub(super) fn reward_s(&self) -> Option<RewardSeconds> {
        self.reward_s
    }

    /// One more process goes on with the run, the `processes`-th as far as its manifest knows, from `iteration`. `after` is what
    /// earlier ones timed after the checkpoint. If `is_new`, the checkpoint knew of no time, and that is all there is.
    pub(super) fn resumed(&mut self, processes: u64, iteration: u64, after: &[Record], is_new: bool) {
        self.processes = (self.processes + 1).max(processes);
        for record in after {
            let kept = is_new || record.kind == CHECKPOINT_RECORD && record.step <= iteration;
            for key in record.values.keys() {
                let Some(value) = record.number(key).filter(|value| value.is_finite()) else {
                    continue;
                };
                match (&*record.kind, key.strip_suffix("_s")) {
                    (CHECKPOINT_RECORD, Some(_)) if kept => self.add_wall("checkpoints", value),
                    ("timing", Some(part)) if kept => self.add_wall(part, value),
                    (CHECKPOINT_RECORD | "timing", Some(_)) => self.add_wall("abandoned", value),
                    ("device_memory", None) => {
                        let what = match key.as_str() {
                            "rollout_gib" => "rollouts",
                            "update_gib" => "updates",
                            "driver_gib" => DRIVER,
                            _ => continue,
                        };
                        self.peak(&device(what), value);
                    }
                    _ => {}
                }
            }
        }
    }

    /// From `iteration` on evaluations measure something else.
    pub(super) fn evaluations_change(&mut self, iteration: u64) {
        self.comparable_from = iteration + 1;
    }

    /// The first iteration whose evaluation measured what the last one does.
    pub(super) fn comparable_from(&self) -> u64 {
        self.comparable_from
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn saved(&mut self, saved: &Saved) {
        for (path, why) in &saved.not_pruned {
            self.notes.push(format!(
                "old checkpoint {} could not be removed: {why}",
                path.display()
            ));
        }
    }

    /// What a reader of the summary should know.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        if self.comparable_from > 0 {
            notes.push(format!(
                "what evaluation measures changed before iteration {}; earlier evaluations are not compared with",
                self.comparable_from
            ));
        }
        notes
    }

    pub(super) fn processes(&self) -> u64 {
        self.processes
    }

    pub(super) fn wall_parts(&self) -> Vec<(String, f64)> {
        self.wall_s.clone().into_iter().collect()
    }

    /// Seconds in all. A sum of nothing is 0, not the -0.0 that `sum` begins with.
    pub(super) fn wall_s(&self) -> f64 {
        self.wall_s.values().fold(0.0, |sum, part| sum + part)
    }

    /// Images per second of rollouts, rewards and updates.
    pub(super) fn images_per_s(&self) -> Option<f64> {
        let parts = ITERATION.iter().filter_map(|part| self.wall_s.get(*part));
        let wall_s = parts.fold(0.0, |sum, part| sum + part);
        (wall_s > 0.0).then(|| self.images as f64 / wall_s)
    }

    pub(super) fn peak_memory_gib(&self) -> Vec<(String, f64)> {
        // The process first, then places of the device.
        let mut peaks: Vec<(String, f64)> = self.peak_gib.clone().into_iter().collect();
        peaks.sort_by_key(|(place, _)| place != PROCESS);
        peaks
    }

    pub(super) fn audit(&self, mode: AuditMode, paradigm: Paradigm, lossless: bool) -> Audit {
        if paradigm != Paradigm::Coupled {
            return Audit::NotRun {
                why: format!("a {paradigm} algorithm has no ratio"),
            };
        }
        if mode == AuditMode::Off {
            return Audit::NotRun {
                why: "`audit.on_policy = \"off\"`".into(),
            };
        }
        let (rollouts, elements) = (self.audited_rollouts, self.audited_ratios);
        if rollouts == 0 {
            return Audit::Pending;
        }
        if self.deviation_place.is_empty() {
            return Audit::Exact { rollouts, elements };
        }
        let (largest, place) = (self.largest_deviation, self.deviation_place.clone());
        Audit::Deviated {
            rollouts,
            elements,
            largest,
            place,
            allowed: !lossless,
        }
    }
}

/// What NVIDIA's driver counts.
pub(super) const DRIVER: &str = "all that the driver counts after an iteration";

fn device(what: &str) -> String {
    format!("device, with {what}")
}
