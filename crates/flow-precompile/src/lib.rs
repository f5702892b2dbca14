//! CUDA kernels of CubeCL, compiled before they are launched, several at a time.
//!
//! CubeCL compiles a kernel where it is first launched, one after the other on the thread that owns the device; a step of a
//! transformer has a hundred, of which thirty take most of the time. But launches are queued: the host names some thirty
//! more while the device's thread compiles one, and may know of others, such as those of a backward pass. So whoever is
//! about to launch one hands it to [`Precompiler::compile`] as well. There NVRTC compiles it on a thread of its own, and what comes
//! out goes where CubeCL looks before it compiles: into its store on the disk ([`store`]). A kernel that the device's thread
//! reaches first is compiled twice.
//!
//! Nothing here changes what is computed: sources, compiler and options are CubeCL's. What is stored is the machine code that
//! NVRTC's assembler made of its PTX, where CubeCL's own way leaves that to the driver's assembler. Where the store is off (the
//! option `cubecl.compilation.cache`), or the device is not NVIDIA's, nothing happens. What fails here is logged, and left to
//! CubeCL, which says why.

mod nvrtc;
pub mod store;

use cubecl::prelude::Client;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Cuda;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::{CubeKernel, define_kernel};
use cubecl_server::kernel::CompiledKernel;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use store::{Entry, KernelStore};

/// Threads that compile, at most: a model has some thirty kernels that take long.
const MOST_THREADS: usize = 16;

/// Compiles kernels that are about to be launched. Keep one for as long as kernels are launched.
#[derive(Default)]
pub struct Precompiler {
    known: Mutex<HashSet<KernelId>>,
    at_work: OnceLock<Option<Workers>>,
}

impl std::fmt::Debug for Precompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Precompiler").finish_non_exhaustive()
    }
}

/// What compiles, for one architecture.
struct Workers {
    threads: ThreadPool,
    shared: Arc<Shared>,
}

struct Shared {
    /// Compute capability, 90 for 9.0.
    architecture: u32,
    /// Options of the compiler.
    headers: Vec<String>,
    store: KernelStore,
}

impl Precompiler {
    /// Begins to compile those of `kernels` that are new here and not on the disk, and returns at once. They are asked for
    /// only where something can be done.
    pub fn compile<K>(&self, client: &Client, kernels: impl FnOnce() -> K)
    where
        K: IntoIterator<Item = Box<dyn CubeKernel>>,
    {
        let Some(workers) = self.at_work.get_or_init(|| Workers::new(client)) else {
            return;
        };
        // Of GPUs of several architectures, the first is served.
        if architecture(client) != Some(workers.shared.architecture) {
            return;
        }
        for kernel in kernels() {
            // A panic while the lock was held left the set whole: what is inserted is inserted at once.
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.insert(kernel.id()) {
                let shared = workers.shared.clone();
                workers.threads.spawn_fifo(move || shared.compile(&*kernel));
            }
        }
    }
}

/// Compute capability of an NVIDIA device, 90 for 9.0.
fn architecture(client: &Client) -> Option<u32> {
    let fingerprint = &client.properties().identity.fingerprint;
    fingerprint.strip_prefix("ptx_sm")?.parse().ok()
}

impl Workers {
    /// `None` if nothing can be done for `client`'s device.
    fn new(client: &Client) -> Option<Self> {
        let architecture = architecture(client)?;
        let store = KernelStore::open(architecture)?;
        let headers = nvrtc::headers()?;
        // One processor is the device's thread's.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = ThreadPoolBuilder::new()
            .num_threads(processors.saturating_sub(1).clamp(1, MOST_THREADS))
            .thread_name(|thread| format!("compile-{thread}"))
            // Such as that there is no NVRTC. CubeCL meets the same at the launch, and there it is an error.
            .panic_handler(|_| tracing::warn!("a kernel is not compiled ahead: its thread panicked"))
            .build();
        match threads {
            Ok(threads) => Some(Self {
                threads,
                shared: Arc::new(Shared {
                    architecture,
                    headers,
                    store,
                }),
            }),
            Err(error) => {
                tracing::warn!(%error, "kernels are not compiled ahead: no threads");
                None
            }
        }
    }
}

impl Shared {
    fn compile(&self, kernel: &dyn CubeKernel) {
        let (id, name) = (kernel.id(), kernel.name());
        if self.store.has(&id) {
            return;
        }
        let begun = Instant::now();
        match self.entry(kernel) {
            Ok(entry) => {
                let seconds = begun.elapsed().as_secs_f64();
                match self.store.put(&id, entry) {
                    Ok(stored) => tracing::debug!(name, seconds, stored, "compiled ahead"),
                    Err(error) => tracing::warn!(name, %error, "compiled ahead, and not kept"),
                }
            }
            // CubeCL meets the same at the launch, and there it is an error.
            Err(error) => tracing::warn!(name, %error, "not compiled ahead"),
        }
    }

    fn entry(&self, kernel: &dyn CubeKernel) -> Result<Entry, NotCompiled> {
        let options = options(self.architecture);
        let definition = define_kernel(kernel).map_err(|error| NotCompiled(error.to_string()))?;
        let compiled =
            CompiledKernel::compile(kernel, definition, &mut CppCompiler::<Cuda>::default(), &options)
                .map_err(|error| NotCompiled(error.to_string()))?;
        Ok(Entry {
            entrypoint_name: compiled.entrypoint_name,
            shared_mem_bytes: compiled.repr.map_or(0, |repr| repr.shared_memory_size),
            ptx: nvrtc::machine_code(&compiled.source, self.architecture, &self.headers)?,
            io: compiled.io,
        })
    }
}

/// What CubeCL's CUDA runtime compiles with on a device of this compute capability (`cubecl-cuda` 0.11.3, `src/runtime.rs`).
fn options(architecture: u32) -> CompilationOptions {
    CompilationOptions {
        warp_size: 32,
        supports_features: CppSupportedFeatures {
            fast_math: true,
            dp4a: architecture >= 61,
            grid_constants: architecture >= 70,
            fast_tanh: architecture >= 75 && cudarc::driver::sys::CUDA_VERSION >= 12080,
            clusters: architecture >= 90,
            elect_sync: architecture >= 90,
        },
        ..Default::default()
    }
}

/// A kernel that could not be compiled here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotCompiled(String);
