//! Independent pieces of work beside one another: the micro-batches of a rollout, the losses of an update.
//!
//! An operation of a small model is over before a second thread has woken up for it; a whole micro-batch is not. So a
//! processor's threads first share the pieces, and only what is left of them shares the operations of a piece. No bit
//! depends on it: pieces share no result, and operations give the same bits for every number of threads.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of stack of a thread, enough for a deep graph.
const STACK_BYTES: usize = 16 << 20;

/// Number of pools and threads of each.
type Size = (usize, usize);

/// Pools that have been started.
#[derive(Clone, Debug, Default)]
pub(super) struct Crews(Arc<Mutex<BTreeMap<Size, Arc<[ThreadPool]>>>>);

impl Crews {
    fn of(&self, pools: usize, threads: usize) -> Arc<[ThreadPool]> {
        let mut crews = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || {
            let builder = || {
                ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .stack_size(STACK_BYTES)
            };
            (0..pools)
                .map(|_| builder().build().expect("the system starts a thread"))
                .collect()
        };
        crews.entry((pools, threads)).or_insert_with(start).clone()
    }

    /// `task(0)`, `task(1)`, … up to `count`, in order, on `threads` threads in all.
    ///
    /// # Panics
    /// If a task does, or if no thread can be started.
    pub(super) fn run<T: Send>(
        &self,
        threads: usize,
        count: usize,
        task: impl Fn(usize) -> T + Sync,
    ) -> Vec<T> {
        let pools = threads.min(count);
        if pools <= 1 {
            return (0..count).map(task).collect();
        }
        let (crew, task) = (self.of(pools, threads / pools), &task);
        let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
        std::thread::scope(|scope| {
            let mut lanes = Vec::with_capacity(pools);
            for (first, pool) in crew.iter().enumerate() {
                let run = move || {
                    let indices = (first..count).step_by(pools);
                    indices.map(|index| (index, task(index))).collect::<Vec<_>>()
                };
                lanes.push(scope.spawn(move || pool.install(run)));
            }
            for lane in lanes {
                match lane.join() {
                    Ok(done) => done
                        .into_iter()
                        .for_each(|(index, result)| results[index] = Some(result)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        results.into_iter().flatten().collect()
    }
}
