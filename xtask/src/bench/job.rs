//! A config that a benchmark runs, and `flow-train` built for its device.

use super::built::Built;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use clap::Args;
use flow_config::{Config, DeviceKind};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What is asked for beside the config.
#[derive(Debug, Args)]
pub(super) struct Asked {
    /// A value of the config, as `SECTION.KEY=VALUE`; may be given several times.
    #[arg(long)]
    pub set: Vec<String>,
    /// `flow-train`, if it is built already.
    #[arg(long)]
    program: Option<PathBuf>,
}

/// A config and who runs it.
#[derive(Debug)]
pub(super) struct Job<'a> {
    program: PathBuf,
    /// Where the config is.
    pub path: PathBuf,
    /// What it says, with what was asked for beside it.
    pub config: Config,
    set: &'a [String],
}

impl<'a> Job<'a> {
    /// The config at `config` in the workspace, or at an absolute path. Builds the program unless one was given.
    pub fn new(workspace: &Workspace, config: &str, asked: &'a Asked) -> Result<Self> {
        let path = workspace.path(config);
        let config = match flow_config::load(&flow_config::Catalog::open(), &path, &asked.set) {
            Ok(resolved) => resolved.config,
            Err(report) => bail!("{report}"),
        };
        let program = Built::program("flow-train")
            .with_cuda(config.device.kind == DeviceKind::Cuda)
            .or_given(workspace, &asked.program)?;
        Ok(Self {
            program,
            path,
            config,
            set: &asked.set,
        })
    }

    /// With the program's whole path, whatever folder is the current one; an error if there is none.
    pub fn found(self) -> Result<Self> {
        let program = fs::canonicalize(&self.program)
            .with_context(|| format!("there is no {}", self.program.display()))?;
        Ok(Self { program, ..self })
    }

    /// `flow-train COMMAND CONFIG` with what was asked for, and `more` values of the config.
    pub fn command(&self, command: &str, more: &[String]) -> Command {
        let mut asked = Command::new(&self.program);
        asked.args(["--quiet", command]).arg(&self.path);
        for value in self.set.iter().chain(more) {
            asked.args(["--set", value]);
        }
        asked
    }
}
