//! The table and the curve of the feature cache: what is saved against what changes.

use anyhow::{Context, Result, ensure};
use flow_report::{LineChart, Series};
use serde_json::{Value, json};
use std::fmt::Write;

/// Least speed-up of a rollout by processor time that some row must reach at a reward difference whose interval holds 0.
const GOAL: f64 = 1.23;

/// One policy with one value of its swept parameter, and what `flow-train drift` said.
#[derive(Debug)]
pub struct Row {
    pub policy: String,
    pub value: String,
    pub found: Value,
}

/// The rows of a model.
#[derive(Debug)]
pub struct Job {
    pub name: String,
    pub config: String,
    pub rows: Vec<Row>,
}

impl Row {
    fn number(&self, pointer: &str) -> Result<f64> {
        let value = self.found.pointer(pointer).and_then(Value::as_f64);
        value.with_context(|| format!("no number at {pointer} in {}", self.found))
    }

    fn ratio(&self, of: &str) -> Result<f64> {
        Ok(self.number(&format!("/{of}/without"))? / self.number(&format!("/{of}/with"))?.max(1e-9))
    }

    /// Peak signal-to-noise ratio; `None` where no bit differs.
    fn psnr_db(&self) -> Option<f64> {
        self.found["psnr_db"].as_f64()
    }

    fn reward(&self) -> Result<[f64; 3]> {
        Ok([
            self.number("/reward/difference")?,
            self.number("/reward/low")?,
            self.number("/reward/high")?,
        ])
    }

    /// Whether the interval of the reward difference holds 0.
    fn holds_zero(&self) -> Result<bool> {
        let [_, low, high] = self.reward()?;
        Ok(low <= 0.0 && 0.0 <= high)
    }

    /// Whether the change is too small to matter: the interval lies within a twentieth of the standard deviation within
    /// groups, and fewer than one advantage in fifty changes sign.
    fn is_negligible(&self) -> Result<bool> {
        let [_, low, high] = self.reward()?;
        let bound = 0.05 * self.number("/reward/group_std")?;
        Ok(-bound <= low && high <= bound && self.number("/advantage_sign_changes")? < 0.02)
    }

    /// Share of attention layers that were left out, of all those that blocks without a cache compute.
    fn attention_left_out(&self) -> Result<f64> {
        Ok(self.number("/attention_layers_skipped")? / self.number("/block_evaluations/without")?)
    }

    /// What was not computed, counted.
    fn counted(&self) -> Result<String> {
        let blocks = format!("1 in {:.2}", self.ratio("block_evaluations")?);
        let attention = self.attention_left_out()?;
        Ok(if attention > 0.0 {
            format!("{blocks}, without {:.0} % of attention", 100.0 * attention)
        } else {
            blocks
        })
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> Result<String> {
        let [mean, low, high] = self.reward()?;
        Ok(format!(
            "{} {}: blocks {}, processor time 1 in {:.2}, PSNR {}, reward {mean:+.4} [{low:+.4}, {high:+.4}]",
            self.policy,
            self.value,
            self.counted()?,
            self.ratio("cpu_s")?,
            self.psnr_db()
                .map_or("same bits".into(), |psnr_db| format!("{psnr_db:.1} dB")),
        ))
    }
}

impl Job {
    /// All numbers.
    pub fn json(&self) -> Value {
        let rows = self
            .rows
            .iter()
            .map(|row| json!({ "policy": row.policy, "value": row.value, "found": row.found }));
        json!({ "name": self.name, "config": self.config, "rows": rows.collect::<Vec<_>>() })
    }

    /// The inverse of [`json`](Self::json).
    pub fn read(job: &Value) -> Result<Self> {
        let text = |value: &Value, key: &str| {
            let text = value[key].as_str().map(str::to_owned);
            text.with_context(|| format!("no `{key}` in a result"))
        };
        let row = |row: &Value| {
            Ok(Row {
                policy: text(row, "policy")?,
                value: text(row, "value")?,
                found: row["found"].clone(),
            })
        };
        let rows = job["rows"].as_array().context("a result has rows")?;
        Ok(Self {
            name: text(job, "name")?,
            config: text(job, "config")?,
            rows: rows.iter().map(row).collect::<Result<_>>()?,
        })
    }
}

/// Fails unless every model has a row that reaches the goal.
pub fn goal(jobs: &[Job]) -> Result<()> {
    for job in jobs {
        let reached = job
            .rows
            .iter()
            .map(|row| Ok(row.ratio("cpu_s")? >= GOAL && row.holds_zero()?));
        let reached = reached.collect::<Result<Vec<bool>>>()?;
        ensure!(
            reached.contains(&true),
            "{}: no policy is {GOAL} times as fast at a reward difference whose interval holds 0",
            job.name
        );
    }
    Ok(())
}

/// The pictures of a model, each with as many policies as can be told apart: those that leave blocks out, and the others.
/// `taylorseer, velocity` is left to the table: on a uniform grid its line is that of `newton, velocity`.
const PICTURES: [(&str, &[&str]); 2] = [
    (
        "blocks",
        &["first_block", "db_cache", "step_mask", "magcache", "teacache"],
    ),
    (
        "velocities",
        &[
            "auto",
            "newton, velocity",
            "newton of order 2, velocity",
            "easycache",
            "taylorseer, attention",
            "pyramid",
        ],
    ),
];

/// Name and text of each picture: PSNR against the speed-up by processor time, a line per policy, which joins its values in
/// the order of the table: times of single rows are not exact enough to tell which of two is faster.
pub fn pictures(job: &Job) -> Result<Vec<(String, String)>> {
    let picture = |(name, policies): &(&str, &[&str])| Ok(((*name).to_owned(), svg(job, policies)?));
    PICTURES.iter().map(picture).collect()
}

fn svg(job: &Job, policies: &[&str]) -> Result<String> {
    let title = format!("{}: what a rollout's speed costs", job.name);
    let mut chart = LineChart::new(&title, "speed-up of the rollout, processor time", "PSNR (dB)").round_x();
    for policy in policies {
        let of_policy = job.rows.iter().filter(|row| row.policy == *policy);
        let points = of_policy
            .filter_map(|row| row.psnr_db().map(|psnr_db| Ok((row.ratio("cpu_s")?, psnr_db))))
            .collect::<Result<Vec<_>>>()?;
        chart = chart.with(Series::new(*policy, points));
    }
    Ok(chart.svg())
}

/// The page.
/// `stem` is what the names of the pictures begin with.
pub fn report(about: &Value, jobs: &[Job], stem: &str, document: &Value) -> Result<String> {
    let say = |key: &str| {
        about[key]
            .as_str()
            .map_or_else(|| about[key].to_string(), str::to_owned)
    };
    let mut text = format!(
        "# The feature cache on trained toys, {}\n\n{}; {}. Written by `cargo xtask bench cache`.\n\n\
         DiffusionNFT, 28 deterministic steps, no guidance. Each rollout was sampled with the cache and once more without it, \
         from the same noise. Block evaluations count what was computed and do not depend on the machine; processor time is \
         that of the whole process, to 10 ms; wall time is summed over micro-batches and was measured while others used the \
         machine, so it says least. PSNR is that of the images against those without the cache; in the pictures a line joins the values of a policy in the \
         order of the table. The reward difference is with \
         the cache less without, its 95 % interval over groups; `negligible` means that the interval lies within a twentieth of the standard deviation \
         within groups and that fewer than 2 % of advantages change sign. The last column is the share of samples whose advantage changes \
         sign. `magcache` and `teacache` use what `flow-train calibrate` measured on the model. `faster` is not in the table: its \
         gain is the unconditional branch, and there is no guidance here.\n",
        say("date"),
        say("processor"),
        say("rustc"),
    );
    for job in jobs {
        let pictures = PICTURES
            .map(|(name, _)| format!("![PSNR against speed-up: {name}]({stem}-{}-{name}.svg)", job.name));
        let pictures = pictures.join("\n\n");
        let rollouts = match super::rollouts_of(&job.name, about["rollouts"].as_u64().unwrap_or(1)) {
            1 => "of one rollout, whose times are the least exact".to_owned(),
            several => format!("of {several} rollouts"),
        };
        let first = job.rows.first().context("a job has rows")?;
        let samples = first.number("/samples")?;
        let groups = first.number("/reward/groups")?;
        let without = first.number("/reward/without")?;
        let spread = first.number("/reward/group_std")?;
        writeln!(
            text,
            "\n## {}\n\n`{}`; {samples} images in {groups} groups {rollouts}; reward without a cache {without:.4}, standard deviation \
             within groups {spread:.4}.\n\n{pictures}\n\n| policy | value | block evaluations | \
             processor time | wall time | PSNR (dB) | latent, relative L1 | reward difference | holds 0 | negligible | signs |\n\
             |---|---|---|---|---|---|---|---|---|---|---|",
            job.name, job.config
        )?;
        for row in &job.rows {
            let [mean, low, high] = row.reward()?;
            writeln!(
                text,
                "| {} | {} | {} | 1 in {:.2} | 1 in {:.2} | {} | {:.4} | {mean:+.4} [{low:+.4}, {high:+.4}] | {} | {} | \
                 {:.1} % |",
                row.policy,
                row.value,
                row.counted()?,
                row.ratio("cpu_s")?,
                row.ratio("wall_s")?,
                row.psnr_db()
                    .map_or("same bits".into(), |psnr_db| format!("{psnr_db:.1}")),
                row.number("/latent_l1")?,
                if row.holds_zero()? { "yes" } else { "no" },
                if row.is_negligible()? { "yes" } else { "no" },
                100.0 * row.number("/advantage_sign_changes")?,
            )?;
        }
    }
    let coupled = &document["coupled"];
    let of = |pointer: &str| {
        coupled
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    };
    writeln!(
        text,
        "\n## 8 steps\n\nWith 8 steps and the defaults of `first_block` nothing was reused, and every bit was that without the \
         cache.\n\n## Coupled GRPO\n\n`configs/digits-grpo.toml` with 28 steps, of which 4, 5 and 6 are random and trained, \
         `{}`: 1 block evaluation in {:.2}, processor time 1 in {:.2}. The audit of {} rollouts of a run read {}.",
        coupled["params"].as_str().unwrap_or_default(),
        of("/found/block_evaluations/without") / of("/found/block_evaluations/with"),
        of("/found/cpu_s/without") / of("/found/cpu_s/with"),
        coupled["audited_rollouts"],
        of("/max_ratio_deviation"),
    )?;
    Ok(text)
}
