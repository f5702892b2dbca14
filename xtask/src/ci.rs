//! `cargo xtask ci`: everything that must hold on a clean checkout.

use crate::process::{cargo, run as run_command, run_tests};
use crate::skips::Skips;
use crate::terminal::say;
use crate::workspace::Workspace;
use crate::{docs, ptx, schema, tidy};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// The job that the last step runs for a few iterations.
const JOB: &str = "configs/digits-grpo.toml";

/// The features that turn on the tests of the portable kernels on Vulkan: `.ci/run` installs a driver for the processor. They
/// are on in all builds but those for a device, so that CubeCL is compiled once.
pub const LAVAPIPE: &str =
    "flow-attention-cube/lavapipe,flow-kernels-cube/lavapipe,flow-matmul-cube/lavapipe";

/// Why tests on Vulkan are left out.
const NO_DRIVER: &str = "no Vulkan driver can be installed";

/// Every test but those of the documentation. No examples: clippy compiles them.
const TESTS: [&str; 4] = ["test", "--release", "--workspace", "--tests"];

/// The examples in the documentation.
const DOC_TESTS: [&str; 4] = ["test", "--release", "--workspace", "--doc"];

/// The runtime's options where CubeCL has some.
const RUNTIME_OPTIONS: [&str; 6] = [
    "test",
    "--release",
    "--package",
    "flow-runtime",
    "--features",
    "cubecl",
];

/// The kernels behind Burn, whole models with them, what backward keeps of these, and the training loop, on Vulkan. A build
/// of their own, so that no other test needs Burn's `wgpu` backend.
const THROUGH_BURN: [&str; 19] = [
    "test",
    "--release",
    "--package",
    "flow-kernels",
    "--package",
    "flow-checkpoint",
    "--package",
    "flow-trainer",
    "--features",
    "flow-kernels/lavapipe,flow-checkpoint/lavapipe,flow-trainer/lavapipe",
    "--lib",
    "--test",
    "cube",
    "--test",
    "capture",
    "--test",
    "proof",
    "--test",
    "lavapipe",
];

/// What the README calls the command that builds for NVIDIA GPUs.
const CUDA: [&str; 4] = ["--package", "flow-train", "--features", "cuda"];

/// What is linted for NVIDIA GPUs: the program with all its features, the programs that measure, and tests that nothing else
/// compiles.
const CUDA_LINT: [&str; 11] = [
    "--package",
    "flow-train",
    "--package",
    "flow-kernels",
    "--package",
    "flow-checkpoint",
    "--package",
    "flow-trainer",
    "--features",
    "flow-train/kernel-cache,flow-train/tui,flow-kernels/cuda,flow-checkpoint/cuda,flow-trainer/cuda",
    "--all-targets",
];

/// The fuzz targets, which are a workspace of their own.
const FUZZ: [&str; 4] = ["check", "--release", "--manifest-path", "fuzz/Cargo.toml"];

/// The documentation of every crate.
const RUSTDOC: [&str; 4] = ["doc", "--release", "--workspace", "--no-deps"];

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

/// The steps as they are done: how long each took, and what was left out.
#[derive(Debug, Default)]
struct Steps {
    seconds: Vec<(&'static str, f64)>,
    skips: Skips,
}

impl Steps {
    /// Does a step, naming it and its wall time.
    fn step(&mut self, name: &'static str, work: impl FnOnce(&mut Skips) -> Result<()>) -> Result<()> {
        say!("\n=== {name}");
        let start = Instant::now();
        let result = work(&mut self.skips);
        let wall_s = start.elapsed().as_secs_f64();
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        say!("=== {name}: {outcome}, {wall_s:.1} s");
        self.seconds.push((name, wall_s));
        result.with_context(|| format!("step `{name}`"))
    }

    /// A step that runs cargo.
    fn cargo(&mut self, name: &'static str, workspace: &Workspace, arguments: &[&[&str]]) -> Result<()> {
        self.step(name, |_| run_command(&mut cargo(workspace, &arguments.concat())))
    }

    /// A step that has cargo build and run tests. Clippy does not see all of what they are built with, so the compiler must not
    /// warn of it either.
    fn tests(&mut self, name: &'static str, workspace: &Workspace, arguments: &[&[&str]]) -> Result<()> {
        self.step(name, |skips| {
            let warnings = run_tests(&mut cargo(workspace, &arguments.concat()), skips)?;
            match warnings.is_empty() {
                true => Ok(()),
                false => bail!("the compiler warned:\n  {}", warnings.join("\n  ")),
            }
        })
    }

    /// How long each step took, what was left out, and that all holds.
    fn print(&self) {
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

/// Runs every step; the first that fails ends it.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let mut steps = Steps::default();
    steps.step("tidy", |_| tidy::run(workspace))?;
    steps.step("links of the documentation", |_| docs::check(workspace))?;
    steps.step("schema of the config", |_| schema::check(workspace))?;
    steps.cargo("format", workspace, &[&["fmt", "--all", "--", "--check"]])?;
    tests(workspace, options, &mut steps)?;
    steps.step("main job", |_| main_job(workspace, options.iterations))?;
    lints(workspace, options, &mut steps)?;
    steps.print();
    Ok(())
}

/// What cargo is told of Vulkan.
fn vulkan(options: &Options) -> &'static [&'static str] {
    match options.without_lavapipe {
        true => &[],
        false => &["--features", LAVAPIPE],
    }
}

/// Everything that runs tests.
fn tests(workspace: &Workspace, options: &Options, steps: &mut Steps) -> Result<()> {
    let vulkan = vulkan(options);
    steps.tests("tests", workspace, &[&TESTS, vulkan])?;
    steps.tests("examples in the documentation", workspace, &[&DOC_TESTS, vulkan])?;
    let gate = "compile gate of the CUDA kernels";
    match options.without_compile_gate {
        true => steps.skips.step(gate, "its compilers cannot be fetched"),
        false => steps.step(gate, |_| ptx::run(workspace, &ptx::Options::default()))?,
    }
    steps.tests("runtime options with CubeCL", workspace, &[&RUNTIME_OPTIONS])?;
    let burn = "kernels and training on Vulkan through Burn";
    match options.without_lavapipe {
        true => {
            steps.skips.step("portable kernels on Vulkan", NO_DRIVER);
            steps.skips.step(burn, NO_DRIVER);
        }
        false => steps.tests(burn, workspace, &[&THROUGH_BURN])?,
    }
    Ok(())
}

/// Everything that is compiled to see whether it can be, and linted.
fn lints(workspace: &Workspace, options: &Options, steps: &mut Steps) -> Result<()> {
    const DENY: [&str; 3] = ["--", "-D", "warnings"];
    const CLIPPY: [&str; 2] = ["clippy", "--release"];
    const ASKED: &str = "as asked";
    let vulkan = vulkan(options);
    let everything = ["--workspace", "--all-targets"];
    match options.no_clippy {
        true => steps.skips.step("clippy and documentation", ASKED),
        false => {
            steps.cargo("clippy", workspace, &[&CLIPPY, &everything, vulkan, &DENY])?;
            steps.step("documentation of the crates", |_| {
                let mut rustdoc = cargo(workspace, &[&RUSTDOC[..], vulkan].concat());
                run_command(rustdoc.env("RUSTDOCFLAGS", "-D warnings"))
            })?;
            steps.step("fuzz targets", |_| {
                // libFuzzer itself, which is C++, is for a link that a check does not do.
                run_command(cargo(workspace, &FUZZ).env("CUSTOM_LIBFUZZER_PATH", "not-linked"))
            })?;
        }
    }
    match options.without_cuda {
        true => steps.skips.step("the program for NVIDIA GPUs", ASKED),
        false => {
            let name = "the program for NVIDIA GPUs";
            steps.cargo(name, workspace, &[&["build", "--release"], &CUDA])?;
            if !options.no_clippy {
                let name = "clippy for NVIDIA GPUs";
                steps.cargo(name, workspace, &[&CLIPPY, &CUDA_LINT, &DENY])?;
            }
        }
    }
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
