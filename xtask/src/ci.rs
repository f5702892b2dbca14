//! `cargo xtask ci`: everything that must hold on a clean checkout.

mod main_job;
mod published;
mod python;
mod steps;

use crate::process::{cargo, output, run as run_command};
use crate::terminal::say;
use crate::workspace::Workspace;
use crate::{deny, docs, interop, launchers, ptx, test, tidy};
use anyhow::{Result, anyhow};
use clap::Args;
use std::path::Path;
use std::process::Command;
use steps::Steps;

/// How everything is compiled here: see the file.
const BUILD_CONFIG: &str = ".ci/cargo.toml";

/// Why a step is left out that a person left out.
const AS_ASKED: &str = "as asked";

/// The program for NVIDIA GPUs, as the README's command has it. The tests run it on a machine that has none.
const CUDA: &str = "flow-train/cuda";

/// What is there only in a build for some device, and needs none: CubeCL's options.
const CUBECL: &str = "flow-runtime/cubecl";

/// The tests on Vulkan: of the portable kernels, of these behind Burn, of whole models and of the training loop. `.ci/run` installs a
/// driver for the processor.
const LAVAPIPE: &str = "flow-kernels/lavapipe,flow-checkpoint/lavapipe,flow-trainer/lavapipe";

/// What is linted: everything, with all features of the program and of its benchmarks for NVIDIA GPUs.
const LINTED: &str = "flow-train/kernel-cache,flow-train/tui,flow-kernels/cuda,flow-checkpoint/cuda,flow-trainer/cuda,flow-autoencoder/cuda,flow-text-encoder/cuda,flow-rewards-models/cuda";

/// The portable kernels' own tests, linted; what rests on them is linted as it is for NVIDIA GPUs.
const LINTED_KERNELS: &str =
    "flow-attention-cube?/lavapipe,flow-kernels-cube?/lavapipe,flow-matmul-cube?/lavapipe";

/// What clippy is told of its lints.
const DENIED: [&str; 2] = ["-D", "warnings"];

/// What is compiled for clippy alone, the fuzz targets; and what makes all dependencies serve for rustdoc as well.
const CHECKED: &str = "flow-train-fuzz/libfuzzer,workspace-hack/with-tests";

/// What is other code in a build without devices, which is the README's: the program with all that it rests on, its tests, and those of
/// activation checkpointing.
const WITHOUT_DEVICES: [&str; 7] = [
    "check",
    "--release",
    "--tests",
    "--package",
    "flow-train",
    "--package",
    "flow-checkpoint",
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
    /// Leave out the compile check of the CUDA kernels, where its compilers cannot be fetched.
    #[arg(long)]
    without_compile_check: bool,
    /// Leave out building and linting the program for NVIDIA GPUs.
    #[arg(long)]
    without_cuda: bool,
    /// Iterations of the main job.
    #[arg(long, default_value_t = 2)]
    iterations: usize,
}

/// Runs every step; the first that fails ends it.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let workspace = &workspace.built_with(BUILD_CONFIG);
    let mut steps = Steps::default();
    steps.step("tidy", |_| tidy::run(workspace))?;
    steps.step("links of the documentation", |_| docs::check(workspace))?;
    steps.cargo("format", workspace, &[&["fmt", "--all", "--", "--check"]])?;
    steps.step("programs in Python", |skips| python::run(workspace, skips))?;
    steps.step_if_possible("licences, sources and duplicates of dependencies", || {
        deny::run(workspace, &deny::Options::default())
    })?;
    tests(workspace, options, &mut steps)?;
    steps.step("main job", |_| main_job::run(workspace, options.iterations))?;
    steps.step_if_possible("words job with its published models", || {
        published::words_job(workspace)
    })?;
    lints(workspace, options, &mut steps)?;
    steps.print();
    Ok(())
}

/// The features of all that is built to be run, one set, so that everything is compiled once.
fn features(options: &Options) -> String {
    let chosen = [
        (options.without_cuda, CUDA),
        (options.without_lavapipe, LAVAPIPE),
        (false, CUBECL),
    ];
    let features = chosen
        .iter()
        .filter(|(left_out, _)| !left_out)
        .map(|(_, features)| (*features).to_owned())
        .chain([ptx::features()]);
    features.collect::<Vec<_>>().join(",")
}

/// Everything that runs tests.
fn tests(workspace: &Workspace, options: &Options, steps: &mut Steps) -> Result<()> {
    let environment = interop::begin(workspace);
    // Without them, the tests that want them say so.
    match published::reader(workspace) {
        Ok(reader) => steps.variables.push(reader),
        Err(error) => say!("PP-OCR's files cannot be fetched: {error:#}"),
    }
    let features = features(options);
    let built = ["--features", &features];
    if options.without_cuda {
        steps.skips.step("the program for NVIDIA GPUs", AS_ASKED);
    }
    if options.without_lavapipe {
        let on_vulkan = "kernels, models and training on Vulkan";
        steps.skips.step(on_vulkan, "no Vulkan driver can be installed");
    }
    // The README's command, with devices. No examples: clippy compiles them.
    steps.tests("tests", workspace, &[&test::ARGUMENTS, &["--tests"], &built])?;
    let examples = "examples in the documentation";
    steps.tests(examples, workspace, &[&test::ARGUMENTS, &["--doc"], &built])?;
    let mut made = None;
    steps.step_if_possible("files of diffusers and peft", || {
        let python = environment.join();
        let python =
            python.unwrap_or_else(|_| Err(anyhow!("the thread that makes the environment panicked")));
        made = python.as_ref().ok().cloned();
        interop::exchange(workspace, python, &built)
    })?;
    // PyTorch is in that environment, and with it torchrun.
    steps.step_if_possible("torchrun and mpirun", || match &made {
        Some(python) => launchers::run(workspace, python),
        None => Ok(Some("no Python environment could be made".into())),
    })?;
    let compile_check = "compile check of the CUDA kernels";
    match options.without_compile_check {
        true => steps.skips.step(compile_check, "its compilers cannot be fetched"),
        false => steps.step(compile_check, |_| {
            ptx::run(workspace, &ptx::Options::default(), &features)
        })?,
    }
    // What the program and its tests are for a user who asks for no device.
    steps.tests("code without devices", workspace, &[&WITHOUT_DEVICES])
}

/// Everything that is compiled to see whether it can be, and linted.
fn lints(workspace: &Workspace, options: &Options, steps: &mut Steps) -> Result<()> {
    if options.no_clippy {
        steps
            .skips
            .step("clippy, documentation of the crates, fuzz targets", AS_ASKED);
        return Ok(());
    }
    let features = match options.without_cuda {
        true => format!("{LINTED_KERNELS},{CHECKED}"),
        false => format!("{LINTED_KERNELS},{CHECKED},{LINTED}"),
    };
    let features = ["--release", "--workspace", "--features", &features];
    steps.step("clippy, of the fuzz targets as well", |_| {
        let clippy = [&["clippy"][..], &features[..], &["--all-targets", "--"], &DENIED];
        let mut clippy = cargo(workspace, &clippy.concat());
        // libFuzzer itself, which is C++, is for a link that a check does not do.
        run_command(clippy.env("CUSTOM_LIBFUZZER_PATH", "./not-linked"))
    })?;
    // With clippy's features, or all dependencies would be checked once more with fewer.
    steps.step("documentation of the crates", |_| {
        let mut rustdoc = cargo(workspace, &[&["doc", "--no-deps"][..], &features].concat());
        as_clippy(workspace, &mut rustdoc)?;
        run_command(rustdoc.env("RUSTDOCFLAGS", "-D warnings"))
    })
}

/// Has Cargo take what clippy made of the members of the workspace, and of dependencies that rest on members: these are compiled by
/// clippy's compiler as long as Cargo is told the same of it. Where it is not the same, they are checked once more.
fn as_clippy(workspace: &Workspace, command: &mut Command) -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(workspace.root()).args(["--print", "sysroot"]);
    let clippy = Path::new(output(&mut rustc)?.trim_end()).join("bin/clippy-driver");
    if clippy.is_file() {
        // As `cargo clippy` hands on what stands behind its `--`.
        let arguments = DENIED.map(|argument| format!("{argument}__CLIPPY_HACKERY__"));
        command
            .env("RUSTC_WORKSPACE_WRAPPER", clippy)
            .env("CLIPPY_ARGS", arguments.concat());
    }
    Ok(())
}
