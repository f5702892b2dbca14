//! How much memory is in use: what a planner measures with.

use crate::profiler::OpProfiler;
use flow_core::Backends;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of the device that computes.
pub trait MemoryProbe: Debug + Send + Sync {
    /// Bytes in use, all that was asked of the device being done.
    fn in_use_bytes(&self) -> u64;
    /// The most bytes that were in use since [`reset_peak`](Self::reset_peak).
    fn peak_bytes(&self) -> u64;
    /// Forgets the peak.
    fn reset_peak(&self);

    /// `plan` in a form under which the peak can be told: itself, unless the device only says what is in use now.
    fn observed(&self, plan: &Backends) -> Backends {
        plan.clone()
    }
}

/// The probe of a device that only says what is in use now, for instance a pool of GPU memory: it is asked whenever an
/// operation has run, and the peak is the most it said. What an operation has in use by itself is not seen.
#[derive(Clone)]
pub struct Sampled {
    in_use: Arc<dyn Fn() -> u64 + Send + Sync>,
    peak: Arc<AtomicU64>,
}

impl Sampled {
    /// Asks `in_use`, which waits until all that was asked of the device is done.
    pub fn new(in_use: Arc<dyn Fn() -> u64 + Send + Sync>) -> Self {
        Self {
            in_use,
            peak: Arc::default(),
        }
    }
}

impl Debug for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampled")
            .field("peak", &self.peak)
            .finish_non_exhaustive()
    }
}

impl MemoryProbe for Sampled {
    fn in_use_bytes(&self) -> u64 {
        (self.in_use)()
    }

    fn peak_bytes(&self) -> u64 {
        let now = self.in_use_bytes();
        self.peak.fetch_max(now, Ordering::Relaxed).max(now)
    }

    fn reset_peak(&self) {
        self.peak.store(self.in_use_bytes(), Ordering::Relaxed);
    }

    fn observed(&self, plan: &Backends) -> Backends {
        let memory_probe = self.clone();
        let sample = Arc::new(move || {
            memory_probe.peak_bytes();
        });
        OpProfiler::calling(sample).plan(plan)
    }
}

/// The system's allocator, with a count of what is in use: the probe of a processor's memory. A program makes it its
/// global allocator; there, the tensors of the CPU backend are counted with everything else.
///
/// ```
/// use flow_checkpoint::{CountingAllocator, MemoryProbe};
///
/// #[global_allocator]
/// static MEMORY: CountingAllocator = CountingAllocator::new();
///
/// fn main() {
///     let before = MEMORY.in_use_bytes();
///     let values = vec![0u8; 1 << 20];
///     assert!(MEMORY.in_use_bytes() >= before + (1 << 20));
///     drop(values);
/// }
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    in_use: AtomicU64,
    peak: AtomicU64,
}

impl CountingAllocator {
    /// Nothing is in use yet.
    pub const fn new() -> Self {
        Self {
            in_use: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    fn add(&self, bytes: usize) {
        let before = self.in_use.fetch_add(bytes as u64, Ordering::Relaxed);
        self.peak.fetch_max(before + bytes as u64, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.in_use.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

impl MemoryProbe for CountingAllocator {
    fn in_use_bytes(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn reset_peak(&self) {
        self.peak.store(self.in_use_bytes(), Ordering::Relaxed);
    }
}

impl MemoryProbe for &CountingAllocator {
    fn in_use_bytes(&self) -> u64 {
        (**self).in_use_bytes()
    }

    fn peak_bytes(&self) -> u64 {
        (**self).peak_bytes()
    }

    fn reset_peak(&self) {
        (**self).reset_peak();
    }
}

// SAFETY: every call is the system allocator's, unchanged; the counts beside it touch no memory of its.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            self.add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from one of the functions here, so from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) };
        self.subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        if !moved.is_null() {
            self.add(size);
            self.subtract(layout.size());
        }
        moved
    }
}
