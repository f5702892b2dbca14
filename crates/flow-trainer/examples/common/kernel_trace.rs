//! What a GPU ran and for how long, kernel by kernel, in place and at the clocks that the work has: by NVIDIA's CUPTI, which is
//! looked for when a trace is asked for.
//!
//! Kernels of recorded and replayed calls count one by one. A trace costs the host time, so what is traced is not timed.

use libloading::{Library, Symbol};
use serde_json::{Value, json};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

/// `CUPTI_ACTIVITY_KIND_MEMCPY`, `_MEMSET` and `_CONCURRENT_KERNEL` of `cupti_activity.h`.
const COPY: u32 = 1;
const FILL: u32 = 2;
const KERNEL: u32 = 10;
/// Of a record of a kernel (`CUpti_ActivityKernel9` to `11`, which differ behind these): bytes to the times of its start and end in
/// nanoseconds and to its name; copies and fills have the times in the same places.
const START: usize = 16;
const END: usize = 24;
const NAME: usize = 104;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: buffers that are not full, too.
const FORCED: u32 = 1;
/// Where CUPTI may be: where libraries are looked for, in the toolkit, as its extra, and as older PyTorch's.
const LIBRARIES: [&str; 4] = [
    "libcupti.so.13",
    "/usr/local/cuda/lib64/libcupti.so.13",
    "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
    "libcupti.so.12",
];

/// A buffer for records; CUPTI wants it aligned to 8.
fn buffer_layout() -> Layout {
    Layout::from_size_align(8 << 20, 8).expect("a power of two")
}

/// Calls and nanoseconds by name. CUPTI calls functions, which have no state of their own, so this is the process's; CUPTI itself is.
static FOUND: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::new(BTreeMap::new());
static NEXT_RECORD: Mutex<Option<NextRecord>> = Mutex::new(None);

type NextRecord = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> u32;
type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most_records: *mut usize) {
    // SAFETY: CUPTI gives places for three results.
    unsafe {
        *buffer = alloc(buffer_layout());
        *size = if (*buffer).is_null() {
            0
        } else {
            buffer_layout().size()
        };
        *most_records = 0;
    }
}

unsafe extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let next = *NEXT_RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let mut record = std::ptr::null_mut();
    // SAFETY: the buffer is one of `requested`, and CUPTI says how far it is filled with records that lie as above.
    unsafe {
        while next.is_some_and(|next| next(buffer, valid, &mut record) == 0) {
            let at = |offset: usize| record.add(offset).cast::<u64>().read_unaligned();
            let name = match record.cast::<u32>().read() {
                COPY => "copy of memory".into(),
                FILL => "fill of memory".into(),
                KERNEL => {
                    let name = record.add(NAME).cast::<*const c_char>().read_unaligned();
                    CStr::from_ptr(name).to_string_lossy().into_owned()
                }
                _ => continue,
            };
            let entry = found.entry(name).or_default();
            *entry = (entry.0 + 1, entry.1 + at(END).saturating_sub(at(START)));
        }
        if !buffer.is_null() {
            dealloc(buffer, buffer_layout());
        }
    }
}

/// The library, recording. It stays loaded: the driver calls it until the process ends.
pub struct KernelTrace(&'static Library);

impl KernelTrace {
    /// Begins to record; before the first call of the device, so that recorded calls are known, too.
    ///
    /// # Errors
    /// There is no CUPTI, or it refuses: another tool uses it.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        // SAFETY: the library is NVIDIA's, whose initialisation has no conditions.
        let mut opened = LIBRARIES.iter().map(|name| unsafe { Library::new(*name) });
        let library = opened.find_map(Result::ok).ok_or_else(|| {
            format!(
                "--trace needs NVIDIA's CUPTI, and none of {} can be loaded; name its folder in LD_LIBRARY_PATH",
                LIBRARIES.join(", ")
            )
        })?;
        let trace = Self(Box::leak(Box::new(library)));
        // SAFETY: the types are those of `cupti_activity.h`.
        unsafe {
            *NEXT_RECORD.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(*trace.0.get::<NextRecord>(b"cuptiActivityGetNextRecord\0")?);
            let register: Symbol<'_, unsafe extern "C" fn(Requested, Completed) -> u32> =
                trace.0.get(b"cuptiActivityRegisterCallbacks\0")?;
            agreed("cuptiActivityRegisterCallbacks", register(requested, completed))?;
            let enable: Symbol<'_, unsafe extern "C" fn(u32) -> u32> =
                trace.0.get(b"cuptiActivityEnable\0")?;
            for kind in [KERNEL, COPY, FILL] {
                agreed("cuptiActivityEnable", enable(kind))?;
            }
        }
        Ok(trace)
    }

    /// What ran since the last time, by time: `[{"name", "calls", "us"}]`. What the device has not done is not in it.
    ///
    /// # Errors
    /// CUPTI refuses.
    pub fn take(&self) -> Result<Vec<Value>, Box<dyn Error>> {
        // SAFETY: as in `start`.
        unsafe {
            let flush: Symbol<'_, unsafe extern "C" fn(u32) -> u32> =
                self.0.get(b"cuptiActivityFlushAll\0")?;
            agreed("cuptiActivityFlushAll", flush(FORCED))?;
        }
        let found = std::mem::take(&mut *FOUND.lock().unwrap_or_else(PoisonError::into_inner));
        let mut found: Vec<(String, (u64, u64))> = found.into_iter().collect();
        found.sort_by_key(|(_, (_, ns))| std::cmp::Reverse(*ns));
        let rows = found
            .into_iter()
            .map(|(name, (calls, ns))| json!({ "name": name, "calls": calls, "us": ns as f64 / 1e3 }));
        Ok(rows.collect())
    }
}

fn agreed(call: &str, result: u32) -> Result<(), Box<dyn Error>> {
    match result {
        0 => Ok(()),
        code => Err(format!("{call} of CUPTI failed with error {code} (`cupti_result.h`)").into()),
    }
}
