//! From a config's `[device]`, `[checkpointing]` and `[runtime]` to device, plan and threads.

use crate::Registries;
use burn::tensor::FloatDType;
use flow_checkpoint::MemoryProbe;
use flow_config::{Config, DType, DeviceKind, GradientStorage};
use flow_core::{Backends, CoreError, device::ComputeDevice};
use flow_exchange::Alone;
use flow_trainer::setup::{Environment, PipelineFolders};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a config asks of this build that it does not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The device.
    #[error(transparent)]
    Device(#[from] CoreError),
    /// A device, precision or policy that the build or the machine does not have.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Unavailable(Vec<flow_validate::Diagnostic>),
    /// The precision.
    #[error(transparent)]
    DType(#[from] flow_kernels::NoBf16),
    /// Options of Burn or CubeCL that nothing in this build reads, or that do not exist.
    #[error("`[runtime.options]` cannot be used:\n{0}")]
    RuntimeOptions(#[from] flow_runtime::OptionsError),
    /// Options of Burn or CubeCL that could not be made effective.
    #[error("`[runtime.options]` cannot be applied: {0}")]
    Apply(#[from] flow_runtime::ApplyError),
    /// Kernels or attention for the device.
    #[error(transparent)]
    NotFound(#[from] flow_registry::NotFound),
    /// Kernels that store gradients in f32 alone.
    #[error("the kernels `{0}` store gradients in f32 alone. Set `optimizer.gradients = \"f32\"`")]
    Gradients(String),
    /// Threads.
    #[error("cannot start {threads} worker threads: {problem}. Lower `device.threads`")]
    Threads {
        /// How many.
        threads: usize,
        /// Why not.
        problem: String,
    },
}

/// Opens the config's device and makes the plan on which accelerators build. On a GPU the [`memory_probe`](Environment::memory_probe) is
/// its pool of memory; on the processor the caller sets it, if the program counts what it allocates. Relative paths of the config start from
/// `base`. Options of the runtimes are checked; [`apply_runtime_options`](crate::apply_runtime_options), which comes
/// before, makes them effective.
///
/// # Errors
/// Whatever the config asks for and this build has not. Nothing that is asked for is passed over.
pub fn environment<'a>(
    config: &Config,
    base: &'a Path,
    registries: &'a Registries,
) -> Result<Environment<'a>, EnvironmentError> {
    let found = flow_validate::unavailable(config, &crate::machine(config.device.kind, None));
    if flow_validate::errors(&found) {
        return Err(EnvironmentError::Unavailable(found));
    }
    let device = ComputeDevice::open(config.device.kind.name(), config.device.index)?;
    let device = match (config.device.kind, config.device.dtype) {
        (DeviceKind::Cuda, DType::Bf16) => device.computing_in(FloatDType::BF16),
        // The processor's kernels round operands themselves.
        _ => device,
    };
    crate::runtime_options(config, base)?;
    let plan = Arc::new(base_plan(config, registries)?);
    Ok(Environment {
        plan,
        accelerators: &registries.accelerators,
        plugins: &registries.plugins,
        base,
        memory_probe: gpu_memory_probe(config, &device),
        folders: PipelineFolders::default(),
        device,
        exchange: Arc::new(Alone),
    })
}

/// The pool of a GPU's memory, which is asked after every operation.
#[cfg(feature = "cuda")]
fn gpu_memory_probe(config: &Config, device: &ComputeDevice) -> Option<Arc<dyn MemoryProbe>> {
    let device = device.clone();
    let in_use = move || device.bytes_in_use();
    match config.device.kind {
        DeviceKind::Cuda => Some(Arc::new(flow_checkpoint::Sampled::new(Arc::new(in_use)))),
        DeviceKind::Cpu => None,
    }
}

/// This build opens no GPU.
#[cfg(not(feature = "cuda"))]
fn gpu_memory_probe(_: &Config, _: &ComputeDevice) -> Option<Arc<dyn MemoryProbe>> {
    None
}

/// The plan on which accelerators build: the device's own attention and kernels.
///
/// # Errors
/// If the device or its precision is not there.
pub fn base_plan(config: &Config, registries: &Registries) -> Result<Backends, EnvironmentError> {
    let kind = config.device.kind.name();
    let kernels = match (config.device.kind, config.device.dtype) {
        (_, DType::F32) => registries.kernels.get(kind)?,
        (DeviceKind::Cpu, DType::Bf16) => Arc::new(flow_kernels::CpuKernels::bf16()?),
        (DeviceKind::Cuda, DType::Bf16) => registries.kernels.get("cuda-bf16")?,
    };
    let kernels = match config.optimizer.gradients {
        GradientStorage::F32 => kernels,
        GradientStorage::Bf16 => {
            let narrow = kernels.with_matrix_gradients(FloatDType::BF16);
            narrow.ok_or_else(|| EnvironmentError::Gradients(kernels.name().to_owned()))?
        }
    };
    Ok(Backends::new(registries.attention.get(kind)?, kernels))
}

/// Threads for the CPU backend: `device.threads`, or one per core. Run a session inside its `install`.
///
/// # Errors
/// If the operating system refuses.
pub fn worker_pool(config: &Config) -> Result<rayon::ThreadPool, EnvironmentError> {
    worker_pool_beside(config, 1)
}

/// As [`worker_pool`], of a process that has `local_ranks - 1` others of its run beside it on this machine: its share of the threads.
///
/// # Errors
/// If the operating system refuses.
pub fn worker_pool_beside(
    config: &Config,
    local_ranks: usize,
) -> Result<rayon::ThreadPool, EnvironmentError> {
    // Rayon would otherwise ask an environment variable.
    let threads = match config.device.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let threads = (threads / local_ranks).max(1);
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("worker-{index}"))
        // A backward pass over a deep model recurses further than the 2 MiB of a spawned thread.
        .stack_size(16 << 20)
        .build()
        .map_err(|error| EnvironmentError::Threads {
            threads,
            problem: error.to_string(),
        })
}

/// Version of Burn that the workspace pins; a test compares it with the workspace's manifest.
const BURN_VERSION: &str = "0.22.1";

/// Version of CubeCL that the workspace pins; likewise.
const CUBECL_VERSION: &str = "0.11.3";

/// Versions for the run manifest and `doctor`. CubeCL is in GPU builds only.
pub fn versions() -> BTreeMap<String, String> {
    let cubecl = match cfg!(feature = "cuda") {
        true => CUBECL_VERSION,
        false => "not in this build",
    };
    let pairs = [
        ("flow-train", env!("CARGO_PKG_VERSION")),
        ("burn", BURN_VERSION),
        ("cubecl", cubecl),
    ];
    pairs
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .into()
}
