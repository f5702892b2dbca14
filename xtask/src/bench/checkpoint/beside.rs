//! PyTorch beside us: the same step from the same weights and inputs, under the policies that it has, too.

#[cfg(test)]
mod tests;

use super::super::server::Server;
use super::super::workloads::LOSS_TOLERANCE;
use super::{MIB, mib, name, time};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The policies that both have, as they are called here and there.
const POLICIES: [(&str, &str); 3] = [("none", "none"), ("full", "full"), ("attn-only", "attn_only")];

/// How far losses and norms of gradients of f32 programs may lie apart, relative to them: sums in another order.
const F32_TOLERANCE: f64 = 1e-5;

/// What the peer computes in.
fn dtype(problem: &Value) -> Result<&'static str> {
    let device = problem["device"].as_str().unwrap_or("cpu");
    let kernels = problem["kernels"].as_str().unwrap_or(device);
    match (device, kernels) {
        ("cpu", "cpu") => Ok("f32"),
        ("cuda", "cuda-bf16") => Ok("bf16"),
        _ => bail!(
            "PyTorch is measured in f32 on a processor (`kernels` of the problem \"cpu\") and in bf16 on a GPU (\"cuda-bf16\"), \
             where cuDNN's attention computes; the problem has \"{kernels}\" on {device}"
        ),
    }
}

/// The peer on what was exported to `folder`.
pub(super) fn start(python: &Path, script: &Path, folder: &Path, problem: &Value) -> Result<Server> {
    let mut command = Command::new(python);
    command.arg(script).arg("serve").arg(folder);
    command.args(["--dtype", dtype(problem)?]);
    command.args(["--device", problem["device"].as_str().unwrap_or("cpu")]);
    command.args(["--threads", &problem["threads"].to_string()]);
    Server::start(command)
}

/// One way in which the peer takes the step.
#[derive(Debug)]
pub(super) struct Contender {
    mode: &'static str,
    /// As it is called here.
    policy: &'static str,
    question: Value,
    wall_ms: Vec<f64>,
    peak_bytes: Option<f64>,
    /// Parameters of which it gives gradients that are not finite: it is timed, and that is said.
    not_finite: Vec<String>,
}

/// PyTorch, with everything that it was measured at.
pub(super) struct Peer {
    server: Server,
    about: Value,
    contenders: Vec<Contender>,
    /// Modes and policies that did not fit the device's memory.
    too_large: Vec<String>,
}

/// The parameters of which `theirs` has gradients that are not finite.
fn not_finite(theirs: &Value) -> Vec<String> {
    let names = theirs["not_finite"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Fails if what `theirs` computed is not what our row did. Where its gradients are not finite, the loss alone tells.
fn agree(row: &Value, theirs: &Value, tolerance: f64) -> Result<()> {
    let comparable = if not_finite(theirs).is_empty() {
        &["loss", "gradient_norm"][..]
    } else {
        &["loss"]
    };
    for what in comparable {
        let of = |values: &Value| {
            values[*what]
                .as_f64()
                .with_context(|| format!("no {what} in {values}"))
        };
        let (ours, theirs) = (of(row)?, of(theirs)?);
        // Written so that NaN lies apart from everything.
        let lies_near = (ours - theirs).abs() <= tolerance * ours.abs();
        if !lies_near {
            bail!(
                "{}: the {what} is {ours} here and {theirs} in PyTorch: they do not compute the same",
                name(row)
            );
        }
    }
    Ok(())
}

impl Peer {
    /// Compares the peer's steps with those of `rows`, before anything is timed.
    pub(super) fn new(mut server: Server, problem: &Value, rows: &[Value]) -> Result<Self> {
        let tolerance = match dtype(problem)? {
            "f32" => F32_TOLERANCE,
            _ => LOSS_TOLERANCE,
        };
        let modes = match problem["device"].as_str() {
            Some("cuda") => ["cudnn", "compile"],
            _ => ["eager", "compile"],
        };
        let about = server.ask(&json!({ "do": "about" }).to_string())?;
        let (mut contenders, mut too_large) = (Vec::new(), Vec::new());
        for (policy, theirs) in POLICIES {
            let Some(row) = rows.iter().find(|row| name(row) == policy) else {
                continue;
            };
            for mode in modes {
                let question = json!({ "mode": mode, "checkpoint": theirs });
                let found = server.ask(&with(&question, "check", None).to_string())?;
                if found["out_of_memory"] == true {
                    too_large.push(format!("{policy} ({mode})"));
                    continue;
                }
                agree(row, &found, tolerance)?;
                let not_finite = not_finite(&found);
                match &not_finite[..] {
                    [] => eprintln!("PyTorch, {policy} ({mode}): loss and gradients agree"),
                    [first, ..] => eprintln!(
                        "PyTorch, {policy} ({mode}): the loss agrees; gradients of {} parameters are not finite, of `{first}` first",
                        not_finite.len()
                    ),
                }
                contenders.push(Contender {
                    mode,
                    policy,
                    question,
                    wall_ms: Vec::new(),
                    peak_bytes: None,
                    not_finite,
                });
            }
        }
        Ok(Self {
            server,
            about,
            contenders,
            too_large,
        })
    }

    /// How many contenders there are.
    pub(super) fn len(&self) -> usize {
        self.contenders.len()
    }

    /// Takes a step of the contender at `index`.
    pub(super) fn step(&mut self, index: usize) -> Result<()> {
        let contender = &mut self.contenders[index];
        let question = with(&contender.question, "time", Some(1)).to_string();
        let found = self.server.ask(&question)?;
        let seconds = found["seconds"]
            .as_array()
            .with_context(|| format!("`{question}` gave {found}, which has no seconds"))?;
        let seconds = seconds.iter().filter_map(Value::as_f64);
        contender.wall_ms.extend(seconds.map(|seconds| 1e3 * seconds));
        let peak = found["peak_bytes"].as_f64();
        contender.peak_bytes = peak.into_iter().chain(contender.peak_bytes).reduce(f64::max);
        Ok(())
    }

    /// What was measured of each contender, and what ours is in proportion.
    pub(super) fn json(&self, rows: &[Value]) -> Value {
        let contenders = self.contenders.iter().map(|one| one.json(rows));
        json!({
            "about": self.about,
            "rows": contenders.collect::<Vec<Value>>(),
            "out_of_memory": self.too_large,
        })
    }

    /// A section of the page.
    pub(super) fn report(&self, rows: &[Value]) -> String {
        let mut text = format!(
            "\n## Beside PyTorch {}\n\nThe same step, without an optimizer, from the same weights and inputs, in the same rounds; \
             loss and norm of the gradients agreed before anything was timed. `cudnn` is eager with cuDNN's attention, `compile` \
             is `torch.compile` of each block, and on a GPU cuDNN's attention; checkpoints are `torch.utils.checkpoint`, for \
             attn-only with a policy that keeps the results of attention. A time ratio below 1 means that flow-train is faster, a \
             peak ratio below 1 that it needs less.\n\n\
             | policy | PyTorch | time, ms | p10 to p90 | peak, MiB | time of flow-train, ratio | peak of flow-train, ratio |\n\
             |---|---|---|---|---|---|---|\n",
            self.about["torch"].as_str().unwrap_or_default()
        );
        for one in &self.contenders {
            let found = one.json(rows);
            let peak = one
                .peak_bytes
                .map_or("–".into(), |bytes| format!("{:.2}", bytes / MIB));
            let peak_ratio = found["peak_ratio"].as_f64();
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {:.1} to {:.1} | {peak} | {:.3} | {} |",
                one.policy,
                one.mode,
                time(&found, 0.5),
                time(&found, 0.1),
                time(&found, 0.9),
                found["time_ratio"].as_f64().unwrap_or(f64::NAN),
                peak_ratio.map_or("–".into(), |ratio| format!("{ratio:.3}")),
            );
        }
        for one in self.contenders.iter().filter(|one| !one.not_finite.is_empty()) {
            let _ = writeln!(
                text,
                "\nPyTorch's `{}` under {} gave gradients that are not finite for {} parameters, `{}` among them: its time is that \
                 of a step that cannot train.",
                one.mode,
                one.policy,
                one.not_finite.len(),
                one.not_finite[0]
            );
        }
        if !self.too_large.is_empty() {
            let _ = writeln!(
                text,
                "\nToo large for the device in PyTorch: {}.",
                self.too_large.join(", ")
            );
        }
        text
    }
}

impl Contender {
    fn json(&self, rows: &[Value]) -> Value {
        let mut found = json!({
            "policy": self.policy, "mode": self.mode, "wall_ms": self.wall_ms, "peak_bytes": self.peak_bytes,
            "not_finite": self.not_finite,
        });
        if let Some(row) = rows.iter().find(|row| name(row) == self.policy) {
            found["time_ratio"] = json!(time(row, 0.5) / time(&found, 0.5));
            let peak = self.peak_bytes.map(|bytes| bytes / MIB);
            found["peak_ratio"] = json!(peak.map(|peak| mib(row, "measured", "peak_bytes") / peak));
        }
        found
    }
}

/// `question` with what is to be done.
fn with(question: &Value, what: &str, repeats: Option<u64>) -> Value {
    let mut question = question.clone();
    question["do"] = what.into();
    if let Some(repeats) = repeats {
        question["repeats"] = repeats.into();
    }
    question
}
