//! Programs that are measured in turns: they stay alive and answer a line for a line, so that kernels are compiled once and
//! none meets a colder GPU than the others.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that answers lines. What a profiler that it runs in says between them, lines that begin with `==`, is passed over.
pub(super) struct Server {
    child: Child,
    /// Until it is to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let input = Some(child.stdin.take().context("no standard input")?);
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, input, output })
    }

    pub(super) fn ask(&mut self, question: &str) -> Result<Value> {
        let input = self.input.as_mut().context("the program is to end")?;
        writeln!(input, "{question}")?;
        input.flush()?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line)? == 0 {
                bail!("the program ended at `{question}` ({})", self.child.wait()?);
            }
            if !line.starts_with("==") {
                break;
            }
        }
        let answer: Value =
            serde_json::from_str(&line).with_context(|| format!("`{question}` gave `{line}`"))?;
        match answer.get("error") {
            Some(error) => bail!("`{question}`: {error}"),
            None => Ok(answer),
        }
    }

    /// Lets it end, and waits.
    ///
    /// # Errors
    /// If it ends by an error.
    pub(super) fn finish(mut self) -> Result<()> {
        drop(self.input.take());
        // What it says in the end would fill the pipe otherwise.
        std::io::copy(&mut self.output, &mut std::io::sink())?;
        match self.child.wait()? {
            status if status.success() => Ok(()),
            status => bail!("the program ended by {status}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Seconds of one contender in one row, over all rounds.
#[derive(Default)]
pub(super) struct Samples(pub(super) Vec<f64>);

impl Samples {
    pub(super) fn add(&mut self, answer: &Value) -> Result<()> {
        let seconds = answer.as_array().context("no list of seconds")?;
        self.0.extend(seconds.iter().filter_map(Value::as_f64));
        self.0.sort_by(f64::total_cmp);
        Ok(())
    }

    /// The value below which `share` of them are.
    pub(super) fn at(&self, share: f64) -> f64 {
        match self.0.len() {
            0 => f64::NAN,
            n => self.0[((n - 1) as f64 * share).round() as usize],
        }
    }

    pub(super) fn json(&self, flops: f64) -> Value {
        json!({
            "median_ms": self.at(0.5) * 1e3, "p10_ms": self.at(0.1) * 1e3, "p90_ms": self.at(0.9) * 1e3,
            "tflops": flops / self.at(0.5) / 1e12, "samples": self.0.len(),
        })
    }
}

/// A figure, or a dash.
pub(super) fn figure(value: &Value, decimals: usize) -> String {
    value
        .as_f64()
        .map_or("–".into(), |value| format!("{value:.decimals$}"))
}
