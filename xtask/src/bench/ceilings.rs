//! `cargo xtask bench ceilings`: what this GPU gives at most, through PyTorch: products of large matrices, and copies.

use super::server::Server;
use crate::peer;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to measure ceilings.
#[derive(Debug, Args)]
pub struct Options {
    /// The Python with PyTorch; without it one is made in the user's cache folder.
    #[arg(long, alias = "peer")]
    python: Option<PathBuf>,
}

/// What a GPU gives at most, on the day and card of the run: cards differ by several percent.
#[derive(Debug)]
pub(super) struct Ceilings {
    device: String,
    /// Operations a second of 8192³ in bf16, cuBLAS, from a captured graph.
    pub(super) matmul: f64,
    /// Bytes a second that a copy of 2 GiB reads and writes.
    copy: f64,
    /// Seconds from one small kernel of a captured graph to the next.
    launch: f64,
}

impl fmt::Display for Ceilings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: bf16 products of 8192³ {:.0} TFLOP/s; copies {:.2} TB/s read and written; a kernel in a graph {:.2} µs",
            self.device,
            self.matmul / 1e12,
            self.copy / 1e12,
            self.launch * 1e6,
        )
    }
}

/// Measures with the PyTorch of `python`.
pub(super) fn measure(workspace: &Workspace, python: &Path) -> Result<Ceilings> {
    let mut command = Command::new(python);
    command.arg(workspace.path("bench/matmul_peer.py"));
    let mut peer = Server::start(command)?;
    let about = peer.ask(r#"{"do":"about"}"#)?;
    let found = peer.ask(r#"{"do":"ceilings"}"#)?;
    let number = |key: &str| -> Result<f64> {
        let value = found.get(key).and_then(Value::as_f64);
        value.with_context(|| format!("PyTorch's answer has no `{key}`: {found}"))
    };
    Ok(Ceilings {
        device: about["device"].as_str().unwrap_or("this GPU").into(),
        matmul: number("matmul_flops")?,
        copy: number("copy_bytes")?,
        launch: number("launch_seconds")?,
    })
}

/// Measures and prints.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let python = options.python.clone().map_or_else(peer::python, Ok)?;
    say!("{}", measure(workspace, &python)?);
    Ok(())
}
