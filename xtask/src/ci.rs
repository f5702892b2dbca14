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

/// What every build has, the program's as well, so that Burn's backend for the processor is compiled once: see `workspace-hack`.
pub const SHARED: &str = "workspace-hack/with-devices";

/// The features that turn on the tests of the portable kernels on Vulkan: `.ci/run` installs a driver for the processor. They
/// are on in all builds, so that CubeCL is compiled once. With a question mark, for without one Cargo gives these crates to all
/// members that may depend on them, `flow-kernels` and with it the trainer, which the program would then need compiled once more.
pub const LAVAPIPE: &str =
    "flow-attention-cube?/lavapipe,flow-kernels-cube?/lavapipe,flow-matmul-cube?/lavapipe";

/// Why a step is left out that a person left out.
const AS_ASKED: &str = "as asked";

/// Every test but those of the documentation. No examples: clippy compiles them.
const TESTS: [&str; 4] = ["test", "--release", "--workspace", "--tests"];

/// The examples in the documentation.
const DOC_TESTS: [&str; 4] = ["test", "--release", "--workspace", "--doc"];

/// The crates that compute on devices of CubeCL's runtimes, and the program. Whatever is built of them for a device is built with
/// the same features, NVIDIA's and Vulkan's, so that what of Burn knows of devices is compiled twice in all: without them, and with both.
const ON_DEVICES: [&str; 14] = [
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
    "--package",
    "workspace-hack",
    "--features",
];

/// The features of a build for NVIDIA GPUs, as the README's command has them, and CubeCL's options.
const CUDA: &str = "flow-train/cuda,flow-runtime/cubecl";

/// The features that turn on the tests behind Burn on Vulkan, and CubeCL's options.
const LAVAPIPE_THROUGH_BURN: &str =
    "flow-kernels/lavapipe,flow-checkpoint/lavapipe,flow-trainer/lavapipe,flow-runtime/cubecl";

/// The kernels behind Burn, whole models with them, what backward keeps of these, and the training loop, on Vulkan.
const THROUGH_BURN: [&str; 8] = [
    "--test", "cube", "--test", "capture", "--test", "proof", "--test", "lavapipe",
];

/// Those of the kernels' tests that are within `flow-kernels`, alone: the trainer's are the same with devices and without, and
/// compiling them takes longer than all others.
const WITHIN_KERNELS: [&str; 8] = [
    "test",
    "--release",
    "--lib",
    "--package",
    "flow-kernels",
    "--package",
    "workspace-hack",
    "--features",
];

/// With these, all that [`WITHIN_KERNELS`] rests on is as [`ON_DEVICES`] has it.
const KERNELS_ON_VULKAN: &str = "flow-kernels/lavapipe,flow-checkpoint/lavapipe";
const KERNELS_ON_NVIDIA: &str = "flow-kernels/cuda,flow-attention/cuda";

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

/// What is compiled for clippy alone, the fuzz targets; and what makes all dependencies serve for rustdoc as well.
const CHECKED: &str = "flow-train-fuzz/libfuzzer,workspace-hack/with-tests";

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

/// The features of the whole workspace, where it is tested.
fn features(options: &Options) -> String {
    match options.without_lavapipe {
        true => SHARED.to_owned(),
        false => format!("{LAVAPIPE},{SHARED}"),
    }
}

/// Everything that runs tests.
fn tests(workspace: &Workspace, options: &Options, steps: &mut Steps) -> Result<()> {
    let features = features(options);
    let features = ["--features", &features];
    steps.tests("tests", workspace, &[&TESTS, &features])?;
    steps.tests(
        "examples in the documentation",
        workspace,
        &[&DOC_TESTS, &features],
    )?;
    steps.step_if_possible("files of diffusers and peft", || {
        interop::run(workspace, &interop::Options::default(), &features)
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
        (false, SHARED),
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
        false => {
            steps.tests(
                burn,
                workspace,
                &[&["test"], &built, &THROUGH_BURN, &RUNTIME_OPTIONS],
            )?;
            let mut features = format!("{SHARED},{KERNELS_ON_VULKAN}");
            if !options.without_cuda {
                features = format!("{features},{KERNELS_ON_NVIDIA}");
            }
            let within = "kernels on Vulkan through Burn, from within";
            steps.tests(within, workspace, &[&WITHIN_KERNELS, &[features.as_str()]])?;
        }
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
        true => format!("{LAVAPIPE},{CHECKED}"),
        false => format!("{LAVAPIPE},{CHECKED},{LINTED}"),
    };
    let features = ["--release", "--workspace", "--features", &features];
    steps.step("clippy, of the fuzz targets as well", |_| {
        let clippy = [
            &["clippy"],
            &features[..],
            &["--all-targets", "--", "-D", "warnings"],
        ];
        let mut clippy = cargo(workspace, &clippy.concat());
        // libFuzzer itself, which is C++, is for a link that a check does not do.
        run_command(clippy.env("CUSTOM_LIBFUZZER_PATH", "./not-linked"))
    })?;
    // With clippy's features, or all dependencies would be checked once more with fewer.
    steps.step("documentation of the crates", |_| {
        let mut rustdoc = cargo(workspace, &[&["doc", "--no-deps"][..], &features].concat());
        run_command(rustdoc.env("RUSTDOCFLAGS", "-D warnings"))
    })
}
