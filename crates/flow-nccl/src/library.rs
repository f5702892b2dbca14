//! The functions of NCCL that are called, by their names in the library.
//!
//! Types and values are those of nccl.h (NCCL 2.18 to 2.30). Results are plain integers: a newer library may return codes that an
//! enumeration lacks.

use crate::error::NcclError;
use crate::find;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `ncclComm_t`.
pub(crate) type RawCommunicator = *mut c_void;

/// `cudaStream_t`, the driver's `CUstream`.
pub(crate) type RawStream = *mut c_void;

/// `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `ncclInProgress`: of a communicator that does not block.
pub(crate) const IN_PROGRESS: c_int = 7;
/// `ncclUint8`: what is moved and not added up is bytes.
pub(crate) const UINT8: c_int = 1;
/// `ncclFloat32`.
pub(crate) const FLOAT32: c_int = 7;

/// `ncclSum`.
pub(crate) const SUM: c_int = 0;

/// `NCCL_CONFIG_UNDEF_INT`: whatever NCCL takes by itself.
const UNDEFINED: c_int = c_int::MIN;

/// What the ranks of a communicator find each other by: made by one of them, given to all.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

/// `ncclConfig_t` with the fields that NCCL 2.14 had. NCCL reads `size` and takes its own values for fields that lie beyond.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_blocks: c_int,
    max_blocks: c_int,
    network: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Of a communicator that does not block.
    pub(crate) fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_blocks: UNDEFINED,
            max_blocks: UNDEFINED,
            network: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// Declares the table and how it is filled.
macro_rules! table {
    ($($field:ident = $name:literal : fn($($argument:ty),*) -> $result:ty;)*) => {
        /// Addresses of functions. They are good as long as the library beside them.
        pub(crate) struct Table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Table {
            /// Looks every function up.
            fn of(library: &Library, path: &Path) -> Result<Self, NcclError> {
                Ok(Self {
                    $($field: {
                        type Function = unsafe extern "C" fn($($argument),*) -> $result;
                        // SAFETY: the type is the one that nccl.h gives the function of this name.
                        let found = unsafe { library.get::<Function>($name.as_bytes()) };
                        *found.map_err(|_| NcclError::TooOld {
                            path: path.display().to_string(),
                            function: $name,
                        })?
                    },)*
                })
            }
        }
    };
}

table! {
    version = "ncclGetVersion": fn(*mut c_int) -> c_int;
    unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    init = "ncclCommInitRankConfig": fn(*mut RawCommunicator, c_int, UniqueId, c_int, *mut Config) -> c_int;
    abort = "ncclCommAbort": fn(RawCommunicator) -> c_int;
    async_error = "ncclCommGetAsyncError": fn(RawCommunicator, *mut c_int) -> c_int;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
    receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawCommunicator, RawStream) -> c_int;
    group_start = "ncclGroupStart": fn() -> c_int;
    group_end = "ncclGroupEnd": fn() -> c_int;
    error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
    last_error = "ncclGetLastError": fn(RawCommunicator) -> *const c_char;
}

/// NCCL. Clones are the same library.
#[derive(Clone)]
pub struct Nccl {
    pub(crate) table: Arc<Table>,
    path: PathBuf,
    version: i32,
    /// Dropped last. NCCL has threads of its own, so it is in fact never unloaded: see [`Nccl::open`].
    _library: Arc<Library>,
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Nccl {
    /// Loads the library: `path`, or the first one that is found.
    ///
    /// # Errors
    /// [`NcclError::NotFound`] with all that was tried, [`NcclError::TooOld`].
    pub fn open(path: Option<&Path>) -> Result<Self, NcclError> {
        let mut tried = Vec::new();
        for candidate in find::candidates(path) {
            // SAFETY: NCCL's initialisers only prepare its own state, and those of a file that the user names are the user's word.
            match unsafe { Library::new(&candidate) } {
                Ok(library) => return Self::of(library, candidate),
                Err(error) => tried.push(format!("{}: {error}", candidate.display())),
            }
        }
        if path.is_none() {
            tried.push("the wheel `nvidia-nccl-cu13` of `python3`".into());
        }
        Err(NcclError::NotFound {
            tried: tried.join("; "),
        })
    }

    fn of(library: Library, path: PathBuf) -> Result<Self, NcclError> {
        let table = Table::of(&library, &path)?;
        let library = Arc::new(library);
        // One more owner that is never dropped: threads of NCCL may outlive every communicator.
        std::mem::forget(library.clone());
        let mut nccl = Self {
            table: Arc::new(table),
            path,
            version: 0,
            _library: library,
        };
        let mut version = 0;
        // SAFETY: the function writes one integer.
        let code = unsafe { (nccl.table.version)(&mut version) };
        nccl.check("ncclGetVersion", code)?;
        nccl.version = version;
        Ok(nccl)
    }

    /// The file, or the name by which the loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version: 22809 is 2.28.9.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Makes what the ranks of a communicator find each other by, and listens for them.
    ///
    /// # Errors
    /// [`NcclError::Failed`].
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the function writes the 128 bytes.
        let code = unsafe { (self.table.unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code)?;
        Ok(id)
    }

    /// Success, or a call that goes on.
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both give null or a string with an end: a static one, and one that lasts until this thread's next error.
        let [what, last] = unsafe {
            [
                (self.table.error_string)(code),
                (self.table.last_error)(std::ptr::null_mut()),
            ]
            .map(|text| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            })
        };
        Err(NcclError::Failed {
            call,
            code,
            what,
            last,
        })
    }
}
