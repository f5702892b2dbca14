//! What an engine holds, in bytes, and how often it runs regions again.
//!
//! A buffer that several regions hold, for instance the conditioning that all blocks read, is counted once.

use flow_core::RawTensor;
use flow_core::tensors::buffer;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// Counts of an engine since it was made. Bytes are those of whole buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes held for backward passes to come.
    pub held_bytes: u64,
    /// The most that was ever held at one time.
    pub most_held_bytes: u64,
    /// Regions whose forward pass kept what a policy says and nothing else.
    pub recorded: u64,
    /// Regions that ran again in backward.
    pub replayed: u64,
    /// Results that a replay was given instead of computing them.
    pub restored: u64,
}

/// [`Counts`], shared by an engine and everything that it holds.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    counts: Counts,
    /// Holders of each buffer, and its bytes.
    buffers: HashMap<usize, (usize, u64)>,
}

impl Counters {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("nothing panics while it holds the lock")
    }

    pub fn counts(&self) -> Counts {
        self.books().counts
    }

    pub fn recorded(&self) {
        self.books().counts.recorded += 1;
    }

    pub fn replayed(&self) {
        self.books().counts.replayed += 1;
    }

    pub fn restored(&self) {
        self.books().counts.restored += 1;
    }

    /// The size of the buffers that take most of what is held.
    pub fn usual_bytes(&self) -> Option<u64> {
        let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, bytes) in self.books().buffers.values() {
            *totals.entry(*bytes).or_default() += *bytes;
        }
        let largest = totals.into_iter().max_by_key(|(_, total)| *total);
        largest.map(|(bytes, _)| bytes)
    }

    /// Holds `tensor` until the returned value is dropped or taken.
    pub fn hold(self: &Arc<Self>, tensor: RawTensor) -> Held {
        let of = buffer(&tensor);
        let mut books = self.books();
        let (holders, _) = books.buffers.entry(of.identity).or_insert((0, of.bytes));
        *holders += 1;
        if *holders == 1 {
            books.counts.held_bytes += of.bytes;
            books.counts.most_held_bytes = books.counts.most_held_bytes.max(books.counts.held_bytes);
        }
        drop(books);
        Held {
            counted: Some((of.identity, self.clone())),
            tensor: Some(tensor),
        }
    }

    pub fn hold_all(self: &Arc<Self>, tensors: Vec<RawTensor>) -> Vec<Held> {
        tensors.into_iter().map(|tensor| self.hold(tensor)).collect()
    }
}

/// A tensor that is held for backward.
#[derive(Debug)]
pub(crate) struct Held {
    /// The buffer and who counts it.
    counted: Option<(usize, Arc<Counters>)>,
    tensor: Option<RawTensor>,
}

impl Held {
    /// A tensor that a replay made, which counts as its working memory.
    pub fn uncounted(tensor: RawTensor) -> Self {
        Self {
            counted: None,
            tensor: Some(tensor),
        }
    }

    /// The tensor, held no more.
    pub fn take(mut self) -> RawTensor {
        self.tensor.take().expect("taken once")
    }
}

/// The tensors, held no more.
pub(crate) fn take_all(held: Vec<Held>) -> Vec<RawTensor> {
    held.into_iter().map(Held::take).collect()
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((identity, counters)) = &self.counted else {
            return;
        };
        let mut books = counters.books();
        let Some((holders, bytes)) = books.buffers.get_mut(identity) else {
            return;
        };
        *holders -= 1;
        if *holders == 0 {
            let bytes = *bytes;
            books.buffers.remove(identity);
            books.counts.held_bytes -= bytes;
        }
    }
}
