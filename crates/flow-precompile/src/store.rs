//! The store of compiled kernels that CubeCL's CUDA runtime reads before it compiles.
//!
//! Its place and its keys are public; what it holds is not, so [`Entry`] has the fields of `PtxCacheEntry` in `cubecl-cuda`
//! 0.11.3, `src/compute/context.rs`. Should a later version have others, its runtime finds nothing and compiles as if nobody had;
//! a test of this crate asks for another look when the version changes.

use cubecl_environment::persistence::{Store, StoreError};
use cubecl_runtime::id::KernelId;
use cubecl_runtime::kernel::BufferIOAttr;
use cubecl_server::compiler::{KernelCacheKey, build_id_hash, compilation_store};
use serde::{Deserialize, Serialize};
use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The version of CubeCL whose store this is.
pub const CUBECL: &str = "0.11.3";

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the function.
    pub entrypoint_name: String,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_mem_bytes: usize,
    /// What the driver loads as a module: PTX that ends in 0, or machine code.
    pub ptx: Vec<c_char>,
    /// What the kernel does with each buffer, by position.
    #[serde(default)]
    pub io: Option<Vec<BufferIOAttr>>,
}

/// The store of one architecture.
pub struct KernelStore(Mutex<Store<KernelCacheKey, Entry>>);

impl KernelStore {
    /// The store for a compute capability (90 for 9.0) in the environment that is active; `None` if compiled kernels are not kept.
    pub fn open(architecture: u32) -> Option<Self> {
        compilation_store("cuda", format!("ptx_sm{architecture}-cpp"))
            .map(Mutex::new)
            .map(Self)
    }

    /// Whether a kernel is there.
    pub fn has(&self, id: &KernelId) -> bool {
        self.lock().remove(&key(id)).is_some()
    }

    /// Puts a kernel there, and says whether it is taken: another thread or process may have been first.
    ///
    /// # Errors
    /// Why the disk refused it. CubeCL, which meets the same, warns of it.
    pub fn put(&self, id: &KernelId, entry: Entry) -> Result<bool, String> {
        match self.lock().insert(key(id), entry) {
            Ok(()) => Ok(true),
            Err(StoreError::Backend { error, .. }) => Err(error),
            Err(StoreError::DuplicatedKey { .. } | StoreError::KeyOutOfSync { .. }) => Ok(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store<KernelCacheKey, Entry>> {
        // What is in memory here is what was read: never more than the disk has.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(id: &KernelId) -> KernelCacheKey {
    KernelCacheKey::new(id, build_id_hash())
}
