//! The processes of a program: at most so many, each for one sample at a time.

use std::sync::{Condvar, Mutex, PoisonError};

use super::process::{Fault, Process, Program};

/// Places for processes; a place is empty until somebody asks.
#[derive(Debug)]
pub(super) struct Pool {
    program: Program,
    free: Mutex<Vec<Option<Process>>>,
    changed: Condvar,
}

impl Pool {
    /// A pool of at most `processes` processes, none of which runs.
    pub(super) fn new(program: Program, processes: usize) -> Self {
        Self {
            program,
            free: Mutex::new((0..processes).map(|_| None).collect()),
            changed: Condvar::new(),
        }
    }

    /// Waits for a place, one with a running process if there is one.
    pub(super) fn take(&self) -> Lease<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Running ones are put back last.
            if let Some(process) = free.pop() {
                return Lease { pool: self, process };
            }
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A place of the pool, which goes back when this is dropped.
pub(super) struct Lease<'a> {
    pool: &'a Pool,
    process: Option<Process>,
}

impl Lease<'_> {
    /// The program's answer to a line; the process is started if there is none.
    pub(super) fn ask(&mut self, line: &[u8]) -> Result<Vec<u8>, Fault> {
        let process = match self.process.take() {
            Some(process) => process,
            None => self.pool.program.start()?,
        };
        self.process.insert(process).ask(line, &self.pool.program)
    }

    /// Ends the process and gives the last lines of its standard error, as the rest of a sentence.
    pub(super) fn end(&mut self) -> String {
        self.process.take().map(Process::end).unwrap_or_default()
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        match self.process.take() {
            Some(process) => free.push(Some(process)),
            None => free.insert(0, None),
        }
        self.pool.changed.notify_one();
    }
}
