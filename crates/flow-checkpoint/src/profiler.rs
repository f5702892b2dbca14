//! Counts and times what kernels compute, forward and backward, without changing a bit of it.
//!
//! A planner learns from it what a block costs, a benchmark how often operations run, and tests that a policy computes
//! exactly what it says.

mod kernels;

use crate::block_policy::ATTENTION;
use burn::backend::DispatchTensor;
use flow_core::autograd::{self, Backward};
use flow_core::ops::Stash;
use flow_core::tensors::is_tracked;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Backends, Kernels, KeyValue, RawTensor,
    Refusal,
};
use kernels::ProfiledKernels;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What an operation of one name came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// How often its forward was computed, rather than taken from a store.
    pub forwards: u64,
    /// How often its backward was.
    pub backwards: u64,
    /// Floating-point operations of matrix products in its forward; 0 for operations that have none.
    pub forward_flops: u64,
    /// In its backward: those of the gradients that were wanted, and of what it computes again for them.
    pub backward_flops: u64,
    /// Time of its forwards.
    pub forward_time: Duration,
}

/// One forward that was computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// The operation.
    pub name: &'static str,
    /// Its time.
    pub time: Duration,
}

/// Time since some moment, all that was asked of the device being done.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What went through a metered plan.
pub struct OpProfiler {
    clock: Clock,
    after: Option<Arc<dyn Fn() + Send + Sync>>,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    usage: BTreeMap<&'static str, Usage>,
    events: Vec<Event>,
}

impl fmt::Debug for OpProfiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("usage", &self.usage()).finish()
    }
}

impl OpProfiler {
    /// A meter with a clock of its own, which waits for the device if that works by itself.
    pub fn with_clock(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            after: None,
            books: Mutex::default(),
        })
    }

    /// A meter that calls `after` whenever a forward was computed, its results being there, and before every backward.
    pub fn calling(after: Arc<dyn Fn() + Send + Sync>) -> Arc<Self> {
        let start = std::time::Instant::now();
        Arc::new(Self {
            clock: Arc::new(move || start.elapsed()),
            after: Some(after),
            books: Mutex::default(),
        })
    }

    /// A meter for the processor, where an operation is done when it returns.
    pub fn on_processor() -> Arc<Self> {
        let start = std::time::Instant::now();
        Self::with_clock(Arc::new(move || start.elapsed()))
    }

    /// `plan` with everything that it computes metered.
    pub fn plan(self: &Arc<Self>, plan: &Backends) -> Backends {
        let kernels = |inner: &Arc<dyn Kernels>| -> Arc<dyn Kernels> {
            Arc::new(ProfiledKernels {
                inner: inner.clone(),
                profiler: self.clone(),
            })
        };
        Backends {
            attention: Arc::new(ProfiledAttention {
                inner: plan.attention.clone(),
                profiler: self.clone(),
            }),
            kernels: kernels(&plan.kernels),
            block_kernels: plan.block_kernels.as_ref().map(kernels),
            ..plan.clone()
        }
    }

    /// Usage by operation.
    pub fn usage(&self) -> BTreeMap<&'static str, Usage> {
        self.books().usage.clone()
    }

    /// Operations computed, forward and backward: on a GPU, launches or multiples of them.
    pub fn operations(&self) -> u64 {
        let usage = self.usage();
        usage.values().map(|usage| usage.forwards + usage.backwards).sum()
    }

    /// The forwards in order, which are forgotten with that.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.books().events)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("nothing panics while it holds the lock")
    }

    fn forward<T>(&self, name: &'static str, flops: u64, compute: impl FnOnce() -> T) -> T {
        let start = (self.clock)();
        let result = compute();
        let time = (self.clock)().saturating_sub(start);
        if let Some(after) = &self.after {
            after();
        }
        let mut books = self.books();
        let usage = books.usage.entry(name).or_default();
        usage.forwards += 1;
        usage.forward_flops += flops;
        usage.forward_time += time;
        books.events.push(Event { name, time });
        result
    }

    /// An operation that is computed whenever it is asked for.
    fn whole(
        self: &Arc<Self>,
        name: &'static str,
        compute: impl FnOnce() -> DispatchTensor,
    ) -> DispatchTensor {
        let output = self.forward(name, 0, compute);
        self.counting_backward(name, 0, output)
    }

    /// As [`whole`](Self::whole), with several outputs: backward is counted when it passes the first of them, so that is where
    /// it must pass.
    fn all(
        self: &Arc<Self>,
        name: &'static str,
        compute: impl FnOnce() -> Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let mut outputs = self.forward(name, 0, compute);
        if let Some(first) = outputs.first_mut() {
            *first = self.counting_backward(name, 0, first.clone());
        }
        outputs
    }

    /// An operation whose main result passes through a store.
    fn stored(
        self: &Arc<Self>,
        name: &'static str,
        (forward, backward): (u64, u64),
        stash: &dyn Stash,
        compute: impl FnOnce(&dyn Stash) -> DispatchTensor,
    ) -> DispatchTensor {
        let stash = ProfiledStash {
            inner: stash,
            profiler: self,
            flops: forward,
        };
        let output = compute(&stash);
        self.counting_backward(name, backward, output)
    }

    /// `output` behind a node that counts when backward passes it.
    fn counting_backward(
        self: &Arc<Self>,
        name: &'static str,
        flops: u64,
        output: DispatchTensor,
    ) -> DispatchTensor {
        if !is_tracked(&output) {
            return output;
        }
        let profiler = self.clone();
        autograd::apply("metered", &[&output], move |values, _| {
            let backward: Backward = Arc::new(move |incoming| {
                let mut books = profiler.books();
                let usage = books.usage.entry(name).or_default();
                usage.backwards += 1;
                usage.backward_flops += flops;
                drop(books);
                // The operation's own backward comes next; what is there now is what it starts from.
                if let Some(after) = &profiler.after {
                    after();
                }
                vec![Some(incoming.gradient().clone())]
            });
            (values[0].clone(), backward)
        })
    }
}

/// Counts what a store lets be computed.
#[derive(Debug)]
struct ProfiledStash<'a> {
    inner: &'a dyn Stash,
    profiler: &'a OpProfiler,
    flops: u64,
}

impl Stash for ProfiledStash<'_> {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        self.inner.through(name, &mut || {
            self.profiler.forward(name, self.flops, &mut *compute)
        })
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.inner.keeps(name)
    }

    fn ending(&self) -> Option<RawTensor> {
        self.inner.ending()
    }

    fn note_ending(&self, result: &RawTensor) {
        self.inner.note_ending(result);
    }
}

#[derive(Debug)]
struct ProfiledAttention {
    inner: Arc<dyn AttentionBackend>,
    profiler: Arc<OpProfiler>,
}

impl AttentionBackend for ProfiledAttention {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capability(&self) -> AttentionCapability {
        self.inner.capability()
    }

    fn is_row_independent(&self) -> bool {
        self.inner.is_row_independent()
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        self.inner.kernel(call)
    }

    /// Forward: two products of `queries · keys · head_dim` per head. Backward: five, with the scores made again. Pairs that
    /// a mask forbids are counted, too.
    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        self.inner.kernel(call)?;
        let product = 2 * (call.batch * call.heads * call.queries * call.key_count() * call.head_dim) as u64;
        let mut lse = None;
        let output = self
            .profiler
            .stored(ATTENTION, (2 * product, 5 * product), stash, |stash| {
                let attended = self.inner.attend(stash, q, parts, call);
                let attended = attended.expect("a backend serves what it has a kernel for");
                lse = Some(attended.lse);
                attended.output
            });
        let lse = lse.expect("attention ran");
        Ok(Attended { output, lse })
    }
}
