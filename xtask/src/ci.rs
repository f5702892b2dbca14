//! `cargo xtask ci`: everything that must hold on a clean checkout.

mod main_job;
mod python;
mod steps;

use crate::process::{cargo, run as run_command};
use crate::workspace::Workspace;
use crate::{deny, docs, interop, ptx, tidy};
use anyhow::Result;
use clap::Args;
use steps::Steps;

/// The features that turn on the tests of the portable kernels on Vulkan: `.ci/run` installs a driver for the processor. They
/// are on in all builds but those for a device, so that CubeCL is compiled once.
pub const LAVAPIPE: &str =
    "flow-attention-cube/lavapipe,flow-kernels-cube/lavapipe,flow-matmul-cube/lavapipe";

/// Why a step is left out that a person left out.
const AS_ASKED: &str = "as asked";

/// Every test but those of the documentation. No examples: clippy compiles them.
const TESTS: [&str; 4] = ["test", "--release", "--workspace", "--tests"];

/// The examples in the documentation.
const DOC_TESTS: [&str; 4] = ["test", "--release", "--workspace", "--doc"];

/// The crates that compute on devices of CubeCL's runtimes, and the program. Whatever is built of them for a device is built with
/// the same features, NVIDIA's and Vulkan's, so that Burn is compiled twice in all: without devices, and with both.
const ON_DEVICES: [&str; 12] = [
    "--release",
    "--package",
    "flow-kernels",
    "--package",
    "flow-checkpoint",
    "--package",
    "flow-trainer",
    "--package",
    "flow-runtime",
    "--package",
    "flow-train",
    "--features",
];

/// The features of a build for NVIDIA GPUs, as the README's command has them, and CubeCL's options.
const CUDA: &str = "flow-train/cuda,flow-runtime/cubecl";

/// The features that turn on the tests behind Burn on Vulkan, and CubeCL's options.
const LAVAPIPE_THROUGH_BURN: &str =
    "flow-kernels/lavapipe,flow-checkpoint/lavapipe,flow-trainer/lavapipe,flow-runtime/cubecl";

/// The kernels behind Burn, whole models with them, what backward keeps of these, and the training loop, on Vulkan.
const THROUGH_BURN: [&str; 9] = [
    "--lib", "--test", "cube", "--test", "capture", "--test", "proof", "--test", "lavapipe",
];

/// CubeCL's options.
const RUNTIME_OPTIONS: [&str; 10] = [
    "--test",
    "exhaustive",
    "--test",
    "generated",
    "--test",
    "parse",
    "--test",
    "process",
    "--test",
    "sentinels",
];

/// What is linted: everything, with all features of the program and of its benchmarks for NVIDIA GPUs. What is compiled only
/// without them is compiled for the tests, which take no warnings either.
const LINTED: &str = "flow-train/kernel-cache,flow-train/tui,flow-kernels/cuda,flow-checkpoint/cuda,flow-trainer/cuda,flow-autoencoder/cuda,flow-text-encoder/cuda";

/// The fuzz targets, which are a workspace of their own.
const FUZZ: [&str; 4] = ["check", "--release", "--manifest-path", "fuzz/Cargo.toml"];

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
    steps.step_if_possible("files of diffusers and peft", || {
        interop::run(workspace, &interop::Options::default(), vulkan)
    })?;
    let compile_check = "compile check of the CUDA kernels";
    match options.without_compile_check {
        true => steps.skips.step(compile_check, "its compilers cannot be fetched"),
        false => steps.step(compile_check, |_| ptx::run(workspace, &ptx::Options::default()))?,
    }
    on_devices(workspace, options, steps)
}

/// What is built for devices, and run where the processor can stand in for one.
fn on_devices(workspace: &Workspace, options: &Options, steps: &mut Steps) -> Result<()> {
    const NO_DRIVER: &str = "no Vulkan driver can be installed";
    let chosen = [
        (options.without_cuda, CUDA),
        (options.without_lavapipe, LAVAPIPE_THROUGH_BURN),
        (false, "flow-runtime/cubecl"),
    ];
    let features: Vec<&str> = chosen
        .iter()
        .filter(|(left_out, _)| !left_out)
        .map(|(_, features)| *features)
        .collect();
    let features = features.join(",");
    let built = [&ON_DEVICES[..], &[&features]].concat();
    let cuda = "the program for NVIDIA GPUs";
    match options.without_cuda {
        true => steps.skips.step(cuda, AS_ASKED),
        // With a test beside it, for else its dependencies are built without what tests ask of them, which is all once more.
        false => {
            let program = ["--bin", "flow-train", "--test", "sentinels"];
            steps.cargo(cuda, workspace, &[&["build"], &built, &program])?;
        }
    }
    let burn = "kernels and training on Vulkan through Burn, and CubeCL's options";
    match options.without_lavapipe {
        true => {
            steps.skips.step("portable kernels on Vulkan", NO_DRIVER);
            steps
                .skips
                .step("kernels and training on Vulkan through Burn", NO_DRIVER);
            steps.tests(
                "CubeCL's options",
                workspace,
                &[&["test"], &built, &RUNTIME_OPTIONS],
            )?;
        }
        false => steps.tests(
            burn,
            workspace,
            &[&["test"], &built, &THROUGH_BURN, &RUNTIME_OPTIONS],
        )?,
    }
    let examples = "examples in the documentation of what is for devices";
    steps.tests(examples, workspace, &[&["test"], &built, &["--doc"]])
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
        true => LAVAPIPE.to_owned(),
        false => format!("{LAVAPIPE},{LINTED}"),
    };
    let features = ["--release", "--workspace", "--features", &features];
    let clippy = [
        &["clippy"],
        &features[..],
        &["--all-targets", "--", "-D", "warnings"],
    ];
    steps.cargo("clippy", workspace, &clippy)?;
    steps.step("documentation of the crates", |_| {
        let mut rustdoc = cargo(workspace, &["doc", "--no-deps", "--release", "--workspace"]);
        run_command(rustdoc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    steps.step("fuzz targets", |_| {
        // libFuzzer itself, which is C++, is for a link that a check does not do.
        run_command(cargo(workspace, &FUZZ).env("CUSTOM_LIBFUZZER_PATH", "./not-linked"))
    })
}
