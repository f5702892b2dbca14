//! The threads and their queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::task::Task;
use crate::error::RewardError;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    /// No code of a reward runs under the lock, so a poisoned queue is as whole as any other.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task, or `None` when the queue is closed and empty.
    fn next(&self) -> Option<Task> {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                return Some(task);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn start(threads: usize) -> Result<Self, RewardError> {
        let mut pool = Self {
            shared: Arc::default(),
            threads: Vec::with_capacity(threads),
        };
        for index in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let body = move || {
                while let Some(task) = shared.next() {
                    task.run();
                }
            };
            // On an error the pool is dropped, which ends and joins the threads that did start.
            let thread = Builder::new()
                .name(format!("reward-{index}"))
                .spawn(body)
                .map_err(|error| RewardError::Workers {
                    problem: format!("thread {index} of {threads} cannot be started: {error}"),
                })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn push(&self, tasks: Vec<Task>) {
        self.shared.lock().tasks.extend(tasks);
        self.shared.changed.notify_all();
    }
}

impl Drop for Pool {
    /// Lets the threads finish what was submitted, so that every ticket still gets its answer.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread cannot panic: tasks catch the panics of rewards.
            let _ = thread.join();
        }
    }
}
