//! The steps of CI: named, timed, and what they leave out counted.

use crate::process::{cargo, run as run_command, run_tests};
use crate::skips::Skips;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Instant;

/// The steps as they are done: how long each took, and what was left out.
#[derive(Debug, Default)]
pub(super) struct Steps {
    seconds: Vec<(&'static str, f64)>,
    /// What was left out.
    pub skips: Skips,
    /// Variables of the environment that tests get.
    pub variables: Vec<(&'static str, PathBuf)>,
}

impl Steps {
    /// Does a step, naming it and its wall time.
    pub fn step(&mut self, name: &'static str, work: impl FnOnce(&mut Skips) -> Result<()>) -> Result<()> {
        say!("\n=== {name}");
        let start = Instant::now();
        let result = work(&mut self.skips);
        let wall_s = start.elapsed().as_secs_f64();
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        say!("=== {name}: {outcome}, {wall_s:.1} s");
        self.seconds.push((name, wall_s));
        result.with_context(|| format!("step `{name}`"))
    }

    /// A step that gives the reason where what it needs cannot be had: it is then left out, and no failure.
    pub fn step_if_possible(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<Option<String>>,
    ) -> Result<()> {
        let mut missing = None;
        self.step(name, |_| {
            missing = work()?;
            Ok(())
        })?;
        if let Some(reason) = missing {
            self.skips.step(name, &reason);
        }
        Ok(())
    }

    /// A step that runs cargo.
    pub fn cargo(&mut self, name: &'static str, workspace: &Workspace, arguments: &[&[&str]]) -> Result<()> {
        self.step(name, |_| run_command(&mut cargo(workspace, &arguments.concat())))
    }

    /// A step that has cargo build and run tests. Clippy does not see all of what they are built with, so the compiler must not
    /// warn of it either.
    pub fn tests(&mut self, name: &'static str, workspace: &Workspace, arguments: &[&[&str]]) -> Result<()> {
        let mut tests = cargo(workspace, &arguments.concat());
        tests.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        self.step(name, |skips| {
            let warnings = run_tests(&mut tests, skips)?;
            match warnings.is_empty() {
                true => Ok(()),
                false => bail!("the compiler warned:\n  {}", warnings.join("\n  ")),
            }
        })
    }

    /// How long each step took, what was left out, and that all holds.
    pub fn print(&self) {
        say!("");
        for (name, wall_s) in &self.seconds {
            say!("{wall_s:8.1} s  {name}");
        }
        self.skips.print();
        let all: f64 = self.seconds.iter().map(|(_, wall_s)| wall_s).sum();
        let but = match self.skips.count() {
            0 => String::new(),
            count => format!(" but what was left out ({count})"),
        };
        say!("\neverything holds{but}, {all:.0} s");
    }
}
