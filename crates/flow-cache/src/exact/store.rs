//! Values by what they were computed from, each computed by one thread only.

use burn::backend::TensorMetadata;
use flow_core::exec::RowKey;
use flow_core::{RawTensor, WeightsVersion};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A part of a model with certain weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub version: WeightsVersion,
    /// Stack and block; `None` outside of a stack.
    pub block: Option<(Arc<str>, usize)>,
    pub name: &'static str,
}

/// What a value was computed from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub place: Place,
    pub read: RowKey,
}

/// Within which values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub iteration: u64,
    /// An evaluation has the number of the iteration that follows it.
    pub is_evaluation: bool,
}

#[derive(Debug)]
enum Value {
    Underway,
    Kept(Vec<RawTensor>),
}

#[derive(Debug, Default)]
struct Kept {
    values: HashMap<Key, Value>,
    versions: Vec<WeightsVersion>,
    period: Option<Period>,
    bytes: u64,
}

/// See [`ExactReuse`](super::ExactReuse).
#[derive(Debug)]
pub(super) struct Store {
    kept: Mutex<Kept>,
    settled: Condvar,
    limit_bytes: u64,
}

/// What became of a request.
pub(super) enum Take<'a> {
    Kept(Vec<RawTensor>),
    /// Whoever asked is to compute it.
    Mine(Promise<'a>),
    /// Another thread computes it.
    Underway,
}

/// That a value will be computed. If it is dropped without one, for instance in a panic, the next who asks computes it.
pub(super) struct Promise<'a> {
    store: &'a Store,
    key: Option<Key>,
}

fn bytes_of(value: &[RawTensor]) -> u64 {
    value
        .iter()
        .map(|tensor| 4 * tensor.shape().num_elements() as u64)
        .sum()
}

impl Store {
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            kept: Mutex::default(),
            settled: Condvar::new(),
            limit_bytes,
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn kept_bytes(&self) -> u64 {
        self.kept().bytes
    }

    /// Lets go what no call can ask for again, values of weights that are no more; and everything in a new `period`, so that what
    /// is found there does not depend on what the process did before it: a resumed run counts as one that was not stopped.
    pub fn enter(&self, version: &WeightsVersion, period: Period) {
        let mut kept = self.kept();
        let is_new = kept.period != Some(period);
        if !is_new && kept.versions.contains(version) {
            return;
        }
        kept.period = Some(period);
        kept.versions.retain(WeightsVersion::is_alive);
        if !kept.versions.contains(version) {
            kept.versions.push(version.clone());
        }
        let mut bytes = 0;
        kept.values.retain(|key, value| {
            let stays = !is_new && key.place.version.is_alive();
            if let (true, Value::Kept(value)) = (stays, value) {
                bytes += bytes_of(value);
            }
            stays
        });
        kept.bytes = bytes;
    }

    /// The value of `key`, if it is there. If another thread is at it, this waits for it only if `waits`.
    pub fn take(&self, key: &Key, waits: bool) -> Take<'_> {
        let mut kept = self.kept();
        loop {
            match kept.values.get(key) {
                Some(Value::Kept(value)) => return Take::Kept(value.clone()),
                Some(Value::Underway) if waits => {
                    kept = self.settled.wait(kept).unwrap_or_else(PoisonError::into_inner);
                }
                Some(Value::Underway) => return Take::Underway,
                None => {
                    kept.values.insert(key.clone(), Value::Underway);
                    let key = Some(key.clone());
                    return Take::Mine(Promise { store: self, key });
                }
            }
        }
    }
}

impl Promise<'_> {
    /// Keeps the value, unless that would be too much.
    pub fn keep(mut self, value: Vec<RawTensor>) {
        let Some(key) = self.key.take() else { return };
        let bytes = bytes_of(&value);
        let mut kept = self.store.kept();
        if kept.bytes + bytes > self.store.limit_bytes {
            kept.values.remove(&key);
        } else {
            kept.bytes += bytes;
            kept.values.insert(key, Value::Kept(value));
        }
        drop(kept);
        self.store.settled.notify_all();
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.store.kept().values.remove(&key);
            self.store.settled.notify_all();
        }
    }
}
