//! `cargo xtask ci`: everything that must hold on a clean checkout.

use crate::process::{cargo, run as run_command, step};
use crate::terminal::say;
use crate::workspace::Workspace;
use crate::{docs, ptx, schema, test, tidy};
use anyhow::{Result, bail};
use clap::Args;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// The job that the last step runs for a few iterations.
const JOB: &str = "configs/digits-grpo.toml";

/// The features that turn on the tests on Vulkan.
pub const LAVAPIPE: [&str; 3] = [
    "flow-attention-cube/lavapipe",
    "flow-kernels-cube/lavapipe",
    "flow-matmul-cube/lavapipe",
];

/// What the README calls the command that builds for NVIDIA GPUs.
const CUDA: [&str; 4] = ["--package", "flow-train", "--features", "cuda"];

/// What is linted for NVIDIA GPUs: the program, and with it tests that nothing else compiles.
const CUDA_LINT: [&str; 9] = [
    "--package",
    "flow-train",
    "--package",
    "flow-kernels",
    "--package",
    "flow-checkpoint",
    "--features",
    "flow-train/cuda,flow-kernels/cuda,flow-checkpoint/cuda",
    "--all-targets",
];

/// The kernels behind Burn, whole models with them, and what backward keeps of these, on Vulkan. A build of their own, so that
/// no other test needs Burn's `wgpu` backend.
const THROUGH_BURN: [&str; 15] = [
    "test",
    "--release",
    "--package",
    "flow-kernels",
    "--package",
    "flow-checkpoint",
    "--features",
    "flow-kernels/lavapipe,flow-checkpoint/lavapipe",
    "--lib",
    "--test",
    "cube",
    "--test",
    "capture",
    "--test",
    "proof",
];

/// Which steps to leave out.
#[derive(Debug, Args)]
pub struct Options {
    /// Leave out clippy, which compiles every dependency's metadata once more.
    #[arg(long)]
    no_clippy: bool,
    /// Leave out the tests on Mesa's lavapipe, where no Vulkan driver can be installed.
    #[arg(long)]
    without_lavapipe: bool,
    /// Leave out the compile gate of the CUDA kernels, where its compilers cannot be fetched.
    #[arg(long)]
    without_compile_gate: bool,
    /// Leave out building and linting the program for NVIDIA GPUs.
    #[arg(long)]
    without_cuda: bool,
    /// Iterations of the main job.
    #[arg(long, default_value_t = 2)]
    iterations: usize,
}

/// Runs every step; the first that fails ends it.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let start = Instant::now();
    step("tidy", || tidy::run(workspace))?;
    step("links of the documentation", || docs::check(workspace))?;
    step("schema of the config", || schema::check(workspace))?;
    step("format", || {
        run_command(&mut cargo(workspace, &["fmt", "--all", "--", "--check"]))
    })?;
    // With the portable kernels on Vulkan: `.ci/run` installs a driver for the processor. In the same build as
    // all other tests, so that CubeCL is compiled once.
    let features = LAVAPIPE.join(",");
    let vulkan: &[&str] = if options.without_lavapipe {
        &[]
    } else {
        &["--features", &features]
    };
    step("tests", || test::run_with(workspace, vulkan))?;
    if !options.without_compile_gate {
        step("compile gate of the CUDA kernels", || {
            ptx::run(workspace, &ptx::Options::default())
        })?;
    }
    step("runtime options with CubeCL", || {
        run_command(&mut cargo(
            workspace,
            &[
                "test",
                "--release",
                "--package",
                "flow-runtime",
                "--features",
                "cubecl",
            ],
        ))
    })?;
    if !options.without_lavapipe {
        step("kernels on Vulkan through Burn", || {
            run_command(&mut cargo(workspace, &THROUGH_BURN))
        })?;
    }
    step("main job", || main_job(workspace, options.iterations))?;
    if options.no_clippy {
        say!("\n=== clippy: left out, as asked");
    } else {
        let lint = ["clippy", "--release", "--workspace", "--all-targets"];
        let arguments = [&lint[..], vulkan, &["--", "-D", "warnings"]].concat();
        step("clippy", || run_command(&mut cargo(workspace, &arguments)))?;
    }
    if !options.without_cuda {
        step("the program for NVIDIA GPUs", || {
            let build = [&["build", "--release"], &CUDA[..]].concat();
            run_command(&mut cargo(workspace, &build))?;
            if options.no_clippy {
                return Ok(());
            }
            let lint = [
                &["clippy", "--release"],
                &CUDA_LINT[..],
                &["--", "-D", "warnings"],
            ]
            .concat();
            run_command(&mut cargo(workspace, &lint))
        })?;
    }
    let left_out: Vec<&str> = [
        (options.without_lavapipe, "the tests on lavapipe"),
        (options.without_compile_gate, "the compile gate"),
        (options.without_cuda, "the program for NVIDIA GPUs"),
        (options.no_clippy, "clippy"),
    ]
    .into_iter()
    .filter_map(|(left_out, what)| left_out.then_some(what))
    .collect();
    let but = match left_out.is_empty() {
        true => String::new(),
        false => format!(" but what was left out: {}", left_out.join(", ")),
    };
    say!("\neverything holds{but}, {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The README's first command, cut short, and what it must leave behind.
fn main_job(workspace: &Workspace, iterations: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let steps = format!("run.steps={iterations}");
    let place = format!(
        "run.dir={}",
        toml::Value::from(folder.path().to_string_lossy().into_owned())
    );
    let arguments = [
        "run",
        "--release",
        "--",
        "train",
        JOB,
        "--set",
        &steps,
        "--set",
        &place,
    ];
    run_command(&mut cargo(workspace, &arguments))?;
    let run = folder.path().join("digits-grpo");
    for file in ["run.json", "metrics.jsonl", "summary.json", "report.html"] {
        expect_content(&run.join(file))?;
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl"))?;
    say!("the run left {} records and a report", metrics.lines().count());
    Ok(())
}

fn expect_content(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.len() > 0 => Ok(()),
        Ok(_) => bail!("the main job left `{}` empty", path.display()),
        Err(error) => bail!("the main job did not write `{}`: {error}", path.display()),
    }
}
