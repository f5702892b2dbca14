//! The stores of a region that runs again: one that keeps results in forward, and one that gives them back in backward.
//!
//! A result is found by its name and its order among those of that name in the same run of the same region; what
//! several operations of one kind keep can never be taken for one another's. A store belongs to one run of one region.

use super::counters::{Counters, Held, take_all};
use super::kept::Kept;
use crate::block_policy::Saves;
use flow_core::ops::Stash;
use flow_core::tensors::{buffer, plain};
use flow_core::{RawTensor, RegionKind, Site};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that a replay asks for instead of computing it.
#[derive(Debug)]
pub(super) enum Entry {
    /// The results of an operation.
    Result {
        name: &'static str,
        /// Among those of the name in this run of this region.
        ordinal: usize,
        values: Vec<Held>,
    },
    /// A region that the replay does not run: it runs again by itself.
    Separate(Separate),
    /// A region that runs once.
    Kept(Kept),
}

impl Entry {
    fn describe(&self) -> String {
        match self {
            Self::Result { name, ordinal, .. } => format!("result {ordinal} of operation `{name}`"),
            Self::Separate(apart) => format!("the outputs of region `{}`", apart.kind),
            Self::Kept(kept) => format!("region `{}`, which runs once", kept.kind),
        }
    }
}

/// A region's outputs, and what its own replay needs.
#[derive(Debug)]
pub(super) struct Separate {
    pub kind: RegionKind,
    pub outputs: Vec<Held>,
    /// Positions of the trained weights it read.
    pub weights: Vec<usize>,
    pub memory: Memory,
}

/// What one forward run of a region leaves to its replay.
#[derive(Debug)]
pub(super) struct Memory {
    entries: VecDeque<Entry>,
    /// How often the run asked for results of each name, kept or not.
    requests: BTreeMap<&'static str, usize>,
    /// What each operation made that the region may end with, in order, if it left the region.
    endings: VecDeque<Option<Held>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts requests by name.
#[derive(Debug, Default)]
pub(super) struct Ordinals(Mutex<BTreeMap<&'static str, usize>>);

impl Ordinals {
    fn next(&self, name: &'static str) -> usize {
        let mut counts = lock(&self.0);
        let next = counts.entry(name).or_default();
        *next += 1;
        *next - 1
    }

    fn counts(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.0).clone()
    }
}

/// What one forward run of a region keeps.
#[derive(Debug)]
struct Recorded {
    entries: Mutex<VecDeque<Entry>>,
    ordinals: Ordinals,
    /// What each operation made that the region may end with. Which of them leave it is known when it has ended.
    endings: Mutex<Vec<RawTensor>>,
}

/// The store of a region's forward run: keeps what the policy says. Within a nested region it is the same store, told
/// of the region's kind.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    saves: Arc<Saves>,
    counters: Arc<Counters>,
    kind: RegionKind,
    /// Counts of the whole block, by which policies choose.
    block: Arc<Ordinals>,
    recorded: Arc<Recorded>,
    /// The store outside of this region.
    outer: Arc<dyn Stash>,
}

impl Recording {
    pub fn new(saves: Arc<Saves>, counters: Arc<Counters>, kind: RegionKind, outer: Arc<dyn Stash>) -> Self {
        Self {
            saves,
            counters,
            kind,
            block: Arc::default(),
            recorded: Recorded::empty(),
            outer,
        }
    }

    /// The same store for requests from a nested region.
    pub fn at(&self, kind: RegionKind) -> Self {
        Self { kind, ..self.clone() }
    }

    /// A store for a nested region that keeps for itself.
    pub fn apart(&self, kind: RegionKind) -> Self {
        Self {
            kind,
            recorded: Recorded::empty(),
            ..self.clone()
        }
    }

    /// The store outside of this region.
    pub fn outer(&self) -> &Arc<dyn Stash> {
        &self.outer
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub fn push(&self, entry: Entry) {
        lock(&self.recorded.entries).push_back(entry);
    }

    /// What was kept. The run is over, and gave `outputs`.
    ///
    /// Of what operations made that may be the last, that is held which is among them: the next block has it as its input, so
    /// this takes memory behind the last block alone. It is found by its buffer, but is what the operation made, so that nothing
    /// else can be taken for it.
    pub fn finish(&self, outputs: &[RawTensor]) -> Memory {
        let leaving: Vec<usize> = outputs
            .iter()
            .map(|output| buffer(&plain(output)).identity)
            .collect();
        let held_if_leaving = |result: RawTensor| {
            let leaves = leaving.contains(&buffer(&result).identity);
            leaves.then(|| self.counters.hold(result))
        };
        let endings = std::mem::take(&mut *lock(&self.recorded.endings));
        Memory {
            entries: std::mem::take(&mut *lock(&self.recorded.entries)),
            requests: self.recorded.ordinals.counts(),
            endings: endings.into_iter().map(held_if_leaving).collect(),
        }
    }
}

impl Recorded {
    fn empty() -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            ordinals: Ordinals::default(),
            endings: Mutex::default(),
        })
    }
}

impl Stash for Recording {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        let result = self.outer.through(name, compute);
        let (in_block, ordinal) = (self.block.next(name), self.recorded.ordinals.next(name));
        if self.saves.takes(self.kind, name, in_block) {
            self.push(Entry::Result {
                name,
                ordinal,
                values: self.counters.hold_all(result.clone()),
            });
        }
        result
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.saves.mentions(name) || self.outer.keeps(name)
    }

    fn ending(&self) -> Option<RawTensor> {
        let ending = self.outer.ending()?;
        lock(&self.recorded.endings).push(ending.clone());
        Some(ending)
    }

    fn note_ending(&self, result: &RawTensor) {
        self.outer.note_ending(result);
        lock(&self.recorded.endings).push(result.clone());
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// The store of a region that runs again: gives back what was kept, each thing once and in the order of the first run.
#[derive(Debug)]
pub(super) struct Replaying {
    site: Site,
    saves: Arc<Saves>,
    counters: Arc<Counters>,
    entries: Mutex<VecDeque<Entry>>,
    requests: BTreeMap<&'static str, usize>,
    ordinals: Ordinals,
    endings: Mutex<VecDeque<Option<Held>>>,
}

impl Replaying {
    pub fn new(site: Site, saves: Arc<Saves>, counters: Arc<Counters>, memory: Memory) -> Self {
        Self {
            site,
            saves,
            counters,
            entries: Mutex::new(memory.entries),
            requests: memory.requests,
            ordinals: Ordinals::default(),
            endings: Mutex::new(memory.endings),
        }
    }

    /// What the replay must ask for next, being at a region of `kind` that its first run kept something of.
    pub fn next_region(&self, kind: RegionKind) -> Entry {
        let entry = lock(&self.entries).pop_front();
        match entry {
            Some(Entry::Separate(apart)) if apart.kind == kind => Entry::Separate(apart),
            Some(Entry::Kept(kept)) if kept.kind == kind => Entry::Kept(kept),
            other => panic!(
                "replay of region {}: it is at region `{kind}`, where the first run had {}",
                self.site,
                other.map_or("nothing more".into(), |entry| entry.describe())
            ),
        }
    }

    /// # Panics
    /// If the replay asked for other results than its first run.
    pub fn finish(&self) {
        let found = self.ordinals.counts();
        for name in self.requests.keys().chain(found.keys()) {
            let count = |of: &BTreeMap<_, usize>| of.get(name).copied().unwrap_or(0);
            // Of a name that nothing is kept of, an operation need not ask every time.
            assert!(
                count(&self.requests) == count(&found) || !self.saves.mentions(name),
                "replay of region {}: operation `{name}` asked for {} results in the first run and for {} now",
                self.site,
                count(&self.requests),
                count(&found)
            );
        }
        let unasked = lock(&self.endings).len();
        assert!(
            unasked == 0,
            "replay of region {}: {unasked} fewer operations that it may end with ran than in the first run",
            self.site
        );
        if let Some(left) = lock(&self.entries).front() {
            panic!(
                "replay of region {}: the first run kept {}, which the replay never asked for",
                self.site,
                left.describe()
            );
        }
    }
}

impl Stash for Replaying {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        let asked = self.ordinals.next(name);
        let mut entries = lock(&self.entries);
        match entries.pop_front() {
            Some(Entry::Result {
                name: kept,
                ordinal,
                values,
            }) if kept == name && ordinal == asked => {
                drop(entries);
                self.counters.restored();
                take_all(values)
            }
            other => {
                if let Some(entry) = other {
                    entries.push_front(entry);
                }
                drop(entries);
                compute()
            }
        }
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.saves.mentions(name)
    }

    /// # Panics
    /// If the first run had fewer operations that the region may end with.
    fn ending(&self) -> Option<RawTensor> {
        let Some(next) = lock(&self.endings).pop_front() else {
            panic!(
                "replay of region {}: more operations that it may end with run than in the first run",
                self.site
            )
        };
        let ending = next?.take();
        self.counters.restored();
        Some(ending)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
