//! What a block costs, measured in place: an engine that runs each block as the model calls it, and measures its regions
//! one by one on graphs of their own.
//!
//! Blocks that are alike, by the shapes of what enters them and by what they compute, are measured once.

use crate::block_policy::ROUTER;
use crate::memory_probe::MemoryProbe;
use crate::profiler::Clock;
use flow_core::autograd::backward_from;
use flow_core::exec::Body;
use flow_core::ops::Stash;
use flow_core::tensors::{buffer, is_float, leaf, plain, shape, zeros_like};
use flow_core::{Exec, ParamView, RawTensor, RegionEngine, RegionKind};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The result of an operation that may be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Its name in the store.
    pub name: &'static str,
    /// Its order among those of the name in the block.
    pub ordinal: usize,
    /// The kind of the innermost region that computes it.
    pub kind: RegionKind,
    /// Its size.
    pub bytes: u64,
    /// Of these, what is an output of its region as well and does not leave the block.
    pub output_bytes: u64,
    /// The time to compute it.
    pub time: Duration,
}

impl Slot {
    /// Whether every policy keeps it.
    pub fn is_mandatory(&self) -> bool {
        self.name == ROUTER
    }
}

/// A region of a block, alone. Bytes are above what is in use when its inputs are there.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionProfile {
    /// Its kind.
    pub kind: RegionKind,
    /// Of its outputs, but for those that it hands on as they came.
    pub output_bytes: u64,
    /// Of these outputs, those that are the block's, which the next block holds as its inputs.
    pub leaving_bytes: u64,
    /// Of those that leave the block, what is held for the block's replay if it runs again.
    pub ending_bytes: u64,
    /// What its operations keep for backward, and its outputs.
    pub kept_bytes: u64,
    /// Of these, what its [deferrable](flow_core::Exec::deferrable) parts keep beside what they give.
    pub deferred_bytes: u64,
    /// The most in use during its forward with a graph.
    pub forward_peak_bytes: u64,
    /// The most in use during its backward.
    pub backward_peak_bytes: u64,
    /// Gradients of the trained weights that it reads.
    pub gradient_bytes: u64,
    /// The time of its forward, without a graph.
    pub forward: Duration,
    /// The time of its backward.
    pub backward: Duration,
    /// The results in it that may be kept, in order.
    pub slots: Vec<Slot>,
}

/// A block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockProfile {
    /// Of its inputs, but for those that other blocks have as well.
    pub input_bytes: u64,
    /// Its regions in order.
    pub regions: Vec<RegionProfile>,
}

/// The blocks of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The different blocks.
    pub kinds: Vec<BlockProfile>,
    /// Stack, index and position in `kinds` of every block, in the order of a call.
    pub blocks: Vec<(String, usize, usize)>,
    /// Of what enters several blocks, each buffer once.
    pub shared_bytes: u64,
}

/// Measures blocks as a model calls them. Its results are plain: one forward pass suffices, and no graph of it is made.
#[derive(Debug)]
pub struct Profiler {
    memory_probe: Arc<dyn MemoryProbe>,
    clock: ClockHolder,
    repeats: usize,
    found: Mutex<Found>,
    /// While a region is measured on a graph of its own: what its deferrable parts keep.
    deferred_bytes: Mutex<Option<u64>>,
}

struct ClockHolder(Clock);

impl std::fmt::Debug for ClockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

#[derive(Debug, Default)]
struct Found {
    profile: Profile,
    signatures: BTreeMap<String, usize>,
    /// What enters each block, held so that no other buffer takes its place in memory.
    inputs: Vec<Vec<RawTensor>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the lock")
}

/// What one run of a block went through.
#[derive(Debug, Default)]
struct Log {
    regions: Vec<RegionProfile>,
    /// The region that runs.
    current: Option<usize>,
    ordinals: BTreeMap<&'static str, usize>,
    /// Whether regions are measured on graphs of their own.
    measures: bool,
    /// Whether regions run without a look at the clock in between, for which a device has to be waited for.
    unbroken: bool,
    /// What each region made, held so that it can be told what leaves the block. Not held where memory is measured.
    outputs: Vec<Vec<RawTensor>>,
    /// The results in each region that may be kept, likewise.
    results: Vec<Vec<Vec<RawTensor>>>,
    /// What operations made in each region that it may end with, likewise.
    endings: Vec<Vec<RawTensor>>,
}

/// The store of a run that is measured: everything is computed, timed and noted.
#[derive(Clone, Debug)]
struct Trace {
    log: Arc<Mutex<Log>>,
    clock: Arc<ClockHolder>,
    kind: RegionKind,
}

impl Stash for Trace {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        if lock(&self.log).unbroken {
            return compute();
        }
        let start = (self.clock.0)();
        let result = compute();
        let time = (self.clock.0)().saturating_sub(start);
        let mut log = lock(&self.log);
        let next = log.ordinals.entry(name).or_default();
        let ordinal = *next;
        *next += 1;
        let slot = Slot {
            name,
            ordinal,
            kind: self.kind,
            bytes: result.iter().map(|tensor| buffer(tensor).bytes).sum(),
            output_bytes: 0,
            time,
        };
        let current = log.current;
        if let Some(region) = current {
            log.regions[region].slots.push(slot);
            if !log.measures {
                log.results[region].push(result.clone());
            }
        }
        result
    }

    fn note_ending(&self, result: &RawTensor) {
        let mut log = lock(&self.log);
        if let (Some(region), false) = (log.current, log.measures) {
            log.endings[region].push(result.clone());
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl Profiler {
    /// A profiler that takes the least time of `repeats` runs.
    pub fn new(memory_probe: Arc<dyn MemoryProbe>, clock: Clock, repeats: usize) -> Self {
        Self {
            memory_probe,
            clock: ClockHolder(clock),
            repeats: repeats.max(1),
            found: Mutex::default(),
            deferred_bytes: Mutex::default(),
        }
    }

    /// What was found so far.
    pub fn profile(&self) -> Profile {
        let found = lock(&self.found);
        let mut holders: HashMap<usize, usize> = HashMap::new();
        let mut profile = found.profile.clone();
        for tensor in found.inputs.iter().flatten() {
            let of = buffer(tensor);
            let count = holders.entry(of.identity).or_default();
            *count += 1;
            if *count == 2 {
                profile.shared_bytes += of.bytes;
            }
        }
        for (inputs, (_, _, kind)) in found.inputs.iter().zip(&found.profile.blocks) {
            let own = inputs.iter().map(buffer).filter(|of| holders[&of.identity] == 1);
            profile.kinds[*kind].input_bytes = own.map(|of| of.bytes).sum();
        }
        profile
    }

    fn trace(&self, exec: &Exec<'_>, inputs: &[RawTensor], body: &Body, log: Log) -> (Vec<RawTensor>, Log) {
        let log = Arc::new(Mutex::new(log));
        let trace = Trace {
            log: log.clone(),
            clock: Arc::new(ClockHolder(self.clock.0.clone())),
            kind: RegionKind::Block,
        };
        let exec = exec.replay(exec.params().untracked(), Arc::new(trace));
        let outputs = body(&exec, inputs.to_vec());
        drop(exec);
        let log = std::mem::take(&mut *lock(&log));
        (outputs, log)
    }

    fn block(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: &Body) -> Vec<RawTensor> {
        let site = exec.site().expect("a block has a site");
        let inputs: Vec<RawTensor> = inputs.iter().map(plain).collect();
        let (outputs, log) = self.trace(exec, &inputs, body, Log::default());
        let leaving = leaving_bytes(&outputs, &log.outputs);
        let endings = leaving_bytes(&outputs, &log.endings);
        let shared = output_bytes(&outputs, &log);
        let shapes: Vec<Vec<usize>> = inputs.iter().map(shape).collect();
        let parts = log.regions.iter().map(|region| {
            let slots = region.slots.iter().map(|slot| (slot.name, slot.bytes));
            (region.kind, region.gradient_bytes, slots.collect::<Vec<_>>())
        });
        let signature = format!("{shapes:?} {:?}", parts.collect::<Vec<_>>());
        let known = lock(&self.found).signatures.get(&signature).copied();
        let kind = known.unwrap_or_else(|| {
            let measuring = Log {
                measures: true,
                ..Log::default()
            };
            let (outputs, Log { mut regions, .. }) = self.trace(exec, &inputs, body, measuring);
            drop(outputs);
            let found = regions.iter_mut().zip(leaving).zip(endings).zip(shared);
            for (((region, leaving), ending), shared) in found {
                region.leaving_bytes = leaving;
                region.ending_bytes = ending;
                for (slot, shared) in region.slots.iter_mut().zip(shared) {
                    slot.output_bytes = shared;
                }
            }
            self.time(exec, &inputs, body, &mut regions);
            let mut found = lock(&self.found);
            let kind = found.profile.kinds.len();
            found.profile.kinds.push(BlockProfile {
                input_bytes: 0,
                regions,
            });
            found.signatures.insert(signature, kind);
            kind
        });
        let mut found = lock(&self.found);
        let place = (site.stack.to_string(), site.block, kind);
        found.profile.blocks.push(place);
        found.inputs.push(inputs);
        outputs
    }

    /// The least times of several runs: of regions in runs without a look at the clock within, of results that may be kept in
    /// others, in proportion to their region, since each look adds a wait for the device.
    fn time(&self, exec: &Exec<'_>, inputs: &[RawTensor], body: &Body, regions: &mut [RegionProfile]) {
        let mut broken = vec![Duration::MAX; regions.len()];
        for region in regions.iter_mut() {
            region.forward = Duration::MAX;
        }
        for _ in 0..self.repeats {
            let (_, log) = self.trace(exec, inputs, body, Log::default());
            for ((region, broken), again) in regions.iter_mut().zip(&mut broken).zip(log.regions) {
                *broken = again.forward.min(*broken);
                for (slot, again) in region.slots.iter_mut().zip(again.slots) {
                    slot.time = slot.time.min(again.time);
                }
            }
            let unbroken = Log {
                unbroken: true,
                ..Log::default()
            };
            let (_, log) = self.trace(exec, inputs, body, unbroken);
            for (region, again) in regions.iter_mut().zip(log.regions) {
                region.forward = region.forward.min(again.forward);
            }
        }
        for (region, broken) in regions.iter_mut().zip(broken) {
            if broken > region.forward {
                let share = region.forward.as_secs_f64() / broken.as_secs_f64();
                region
                    .slots
                    .iter_mut()
                    .for_each(|slot| slot.time = slot.time.mul_f64(share));
            }
        }
    }

    fn region(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: &Body, trace: &Trace) -> Vec<RawTensor> {
        let kind = exec.site().expect("a region has a site").kind;
        let inner = Trace {
            kind,
            ..trace.clone()
        };
        let within = lock(&trace.log).current.is_some();
        if within {
            let exec = exec.replay(exec.params().clone(), Arc::new(inner));
            return body(&exec, inputs);
        }
        let measures = lock(&trace.log).measures;
        let measured = measures.then(|| self.measure(exec, &inputs, body));
        let index = {
            let mut log = lock(&trace.log);
            let index = log.regions.len();
            log.regions.push(measured.unwrap_or_else(|| empty(kind)));
            log.results.push(Vec::new());
            log.endings.push(Vec::new());
            log.current = Some(index);
            index
        };
        let params = exec.params().untracked();
        // What a region hands on as it came is nothing of its own.
        let entered: Vec<usize> = inputs.iter().map(|tensor| buffer(tensor).identity).collect();
        let start = (self.clock.0)();
        let outputs = body(&exec.replay(params.clone(), Arc::new(inner)), inputs.clone());
        let forward = (self.clock.0)().saturating_sub(start);
        let weights = exec.params().leaves_of(&params.read());
        let mut log = lock(&trace.log);
        log.current = None;
        let region = &mut log.regions[index];
        region.forward = forward;
        let is_own = |output: &&RawTensor| !entered.contains(&buffer(output).identity);
        let own: Vec<RawTensor> = outputs.iter().filter(is_own).cloned().collect();
        region.output_bytes = own.iter().map(|tensor| buffer(tensor).bytes).sum();
        if !log.measures {
            log.outputs.push(own);
        }
        drop(inputs);
        // Gradients of weights are f32, whatever a device computes with.
        let values = |tensor: &RawTensor| shape(tensor).iter().product::<usize>();
        log.regions[index].gradient_bytes = weights.iter().map(|tensor| 4 * values(tensor) as u64).sum();
        outputs
    }

    /// The memory of a region with a graph, and the time of its backward.
    fn measure(&self, exec: &Exec<'_>, inputs: &[RawTensor], body: &Body) -> RegionProfile {
        let kind = exec.site().expect("a region has a site").kind;
        let plainly = exec.replay(exec.params().untracked(), Arc::new(flow_core::ops::Compute));
        let seeds: Vec<Option<RawTensor>> = body(&plainly, inputs.to_vec())
            .iter()
            .map(|output| is_float(output).then(|| zeros_like(output)))
            .collect();
        let mut profile = empty(kind);
        for _ in 0..self.repeats {
            let params: ParamView = exec.params().fresh_leaves();
            let lift = |value: &RawTensor| {
                if is_float(value) {
                    leaf(value)
                } else {
                    value.clone()
                }
            };
            let again = exec.replay(params, Arc::new(flow_core::ops::Compute));
            let base = self.memory_probe.in_use_bytes();
            let above = |bytes: u64| bytes.saturating_sub(base);
            self.memory_probe.reset_peak();
            let leaves: Vec<RawTensor> = inputs.iter().map(lift).collect();
            *lock(&self.deferred_bytes) = Some(0);
            let outputs = body(&again, leaves.clone());
            profile.deferred_bytes = lock(&self.deferred_bytes).take().unwrap_or(0);
            profile.forward_peak_bytes = above(self.memory_probe.peak_bytes());
            profile.kept_bytes = above(self.memory_probe.in_use_bytes());
            self.memory_probe.reset_peak();
            let start = (self.clock.0)();
            let gradients = backward_from(outputs, seeds.clone());
            let backward = (self.clock.0)().saturating_sub(start);
            profile.backward_peak_bytes = above(self.memory_probe.peak_bytes());
            drop(gradients);
            profile.backward = match profile.backward {
                Duration::ZERO => backward,
                known => known.min(backward),
            };
        }
        profile
    }
}

/// Bytes of what each region made that is among `outputs`, the block's.
fn leaving_bytes(outputs: &[RawTensor], of_regions: &[Vec<RawTensor>]) -> Vec<u64> {
    let leaving: Vec<usize> = outputs.iter().map(|tensor| buffer(tensor).identity).collect();
    let of_region = |made: &Vec<RawTensor>| {
        let buffers = made.iter().map(buffer);
        let leaving = buffers.filter(|of| leaving.contains(&of.identity));
        leaving.map(|of| of.bytes).sum()
    };
    of_regions.iter().map(of_region).collect()
}

/// Of each result in each region, the bytes of those that are outputs of the region and not among `outputs`, the block's.
fn output_bytes(outputs: &[RawTensor], log: &Log) -> Vec<Vec<u64>> {
    let identities = |tensors: &[RawTensor]| -> Vec<usize> {
        let buffers = tensors.iter().map(buffer);
        buffers.map(|of| of.identity).collect()
    };
    let leaving = identities(outputs);
    let of_region = |(made, results): (&Vec<RawTensor>, &Vec<Vec<RawTensor>>)| {
        let mut staying = identities(made);
        staying.retain(|identity| !leaving.contains(identity));
        let of_result = |result: &Vec<RawTensor>| {
            let buffers = result.iter().map(buffer);
            let shared = buffers.filter(|of| staying.contains(&of.identity));
            shared.map(|of| of.bytes).sum()
        };
        results.iter().map(of_result).collect()
    };
    log.outputs.iter().zip(&log.results).map(of_region).collect()
}

fn empty(kind: RegionKind) -> RegionProfile {
    RegionProfile {
        kind,
        output_bytes: 0,
        leaving_bytes: 0,
        ending_bytes: 0,
        kept_bytes: 0,
        deferred_bytes: 0,
        forward_peak_bytes: 0,
        backward_peak_bytes: 0,
        gradient_bytes: 0,
        forward: Duration::ZERO,
        backward: Duration::ZERO,
        slots: Vec::new(),
    }
}

impl RegionEngine for Profiler {
    fn name(&self) -> &str {
        "profiler"
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: Body) -> Vec<RawTensor> {
        let stash = exec.stash().clone();
        match stash.as_any().and_then(|store| store.downcast_ref::<Trace>()) {
            Some(trace) => self.region(exec, inputs, &body, trace),
            None if exec.site().is_some_and(|site| site.kind == RegionKind::Block) => {
                self.block(exec, inputs, &body)
            }
            // Within a region that is measured on a graph of its own.
            None => flow_core::NoCheckpointing.run(exec, inputs, body),
        }
    }

    fn run_deferrable(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: Body) -> Vec<RawTensor> {
        if lock(&self.deferred_bytes).is_none() {
            return body(exec, inputs);
        }
        let before = self.memory_probe.in_use_bytes();
        let outputs = body(exec, inputs);
        let given: u64 = outputs.iter().map(|output| buffer(&plain(output)).bytes).sum();
        let kept = self.memory_probe.in_use_bytes().saturating_sub(before + given);
        if let Some(bytes) = lock(&self.deferred_bytes).as_mut() {
            *bytes += kept;
        }
        outputs
    }
}
