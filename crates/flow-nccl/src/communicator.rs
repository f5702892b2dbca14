//! A communicator of one GPU, whose calls never wait.

use crate::error::NcclError;
use crate::library::{Config, FLOAT32, IN_PROGRESS, Nccl, RawCommunicator, RawStream, SUM, UINT8, UniqueId};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One rank of a communicator. All calls return at once. What they began is under way until [`is_ready`](Self::is_ready) says so, and on
/// the device until its stream has come so far.
#[derive(Debug)]
pub struct Communicator {
    nccl: Nccl,
    rank: usize,
    ranks: usize,
    raw: Mutex<Raw>,
}

/// NCCL's handle; none once it was aborted.
#[derive(Debug)]
struct Raw(Option<RawCommunicator>);

// SAFETY: NCCL's functions may be called on a communicator from any thread, one at a time: the lock around it sees to that.
unsafe impl Send for Raw {}

impl Communicator {
    /// Begins to meet the other ranks of `id`; `rank` counts from 0. The context of the GPU is current on the calling thread.
    ///
    /// # Errors
    /// [`NcclError::Failed`]; what goes wrong later is told by [`is_ready`](Self::is_ready).
    pub fn begin(nccl: &Nccl, id: UniqueId, rank: usize, ranks: usize) -> Result<Self, NcclError> {
        let mut raw = std::ptr::null_mut();
        let mut config = Config::non_blocking();
        // SAFETY: NCCL writes its handle, and reads as many bytes of the config as it says it has.
        let code = unsafe { (nccl.table.init)(&mut raw, ranks as c_int, id, rank as c_int, &mut config) };
        nccl.check("ncclCommInitRankConfig", code)?;
        Ok(Self {
            nccl: nccl.clone(),
            rank,
            ranks,
            raw: Mutex::new(Raw(Some(raw))),
        })
    }

    /// Its rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    fn lock(&self) -> MutexGuard<'_, Raw> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `call` by its name in nccl.h.
    fn with(&self, name: &'static str, call: impl FnOnce(RawCommunicator) -> c_int) -> Result<(), NcclError> {
        let Raw(Some(raw)) = *self.lock() else {
            return Err(NcclError::Aborted { call: name });
        };
        self.nccl.check(name, call(raw))
    }

    /// Whether what was begun last is launched, so that a stream may be waited for and the next call made.
    ///
    /// # Errors
    /// What went wrong meanwhile. A rank that is gone is no error here: NCCL does not notice (seen with 2.28.9 within one machine).
    pub fn is_ready(&self) -> Result<bool, NcclError> {
        let mut state = IN_PROGRESS;
        self.with("ncclCommGetAsyncError", |raw| {
            // SAFETY: the handle is alive, and NCCL writes one integer.
            unsafe { (self.nccl.table.async_error)(raw, &mut state) }
        })?;
        self.nccl.check("ncclCommGetAsyncError", state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Transfers that are launched together on `stream`; [`Group::end`] launches them.
    ///
    /// # Errors
    /// [`NcclError`].
    pub fn group(&self, stream: *mut c_void) -> Result<Group<'_>, NcclError> {
        self.with("ncclGroupStart", |_| {
            // SAFETY: the function has no arguments.
            unsafe { (self.nccl.table.group_start)() }
        })?;
        Ok(Group {
            communicator: self,
            stream,
            ended: false,
        })
    }

    /// Ends all that is under way, here and on the device, from whichever thread; nothing else can be asked of it then. What
    /// buffers hold is not said.
    pub fn abort(&self) {
        if let Some(raw) = self.lock().0.take() {
            // SAFETY: the handle is alive, and taken out, so that nobody uses it again.
            // A communicator that cannot be aborted is of no use either: there is nothing left to do about the code.
            unsafe { (self.nccl.table.abort)(raw) };
        }
    }
}

impl Drop for Communicator {
    /// Without waiting for others: NCCL's `ncclCommDestroy` may.
    fn drop(&mut self) {
        self.abort();
    }
}

/// Transfers that are launched together, so that none waits for another. Between two ranks they match in their order.
#[derive(Debug)]
pub struct Group<'a> {
    communicator: &'a Communicator,
    stream: RawStream,
    ended: bool,
}

impl Group<'_> {
    /// Sends so many bytes to a rank, this one included.
    ///
    /// # Errors
    /// [`NcclError`].
    ///
    /// # Safety
    /// Until the stream has come past the group, so many bytes are at `from`, and nothing writes there.
    pub unsafe fn send(&mut self, from: u64, bytes: usize, to_rank: usize) -> Result<(), NcclError> {
        let (from, rank, stream) = (from as *const c_void, to_rank as c_int, self.stream);
        let table = &self.communicator.nccl.table;
        self.communicator.with("ncclSend", |raw| {
            // SAFETY: as the caller says.
            unsafe { (table.send)(from, bytes, UINT8, rank, raw, stream) }
        })
    }

    /// Receives so many bytes of a rank, this one included.
    ///
    /// # Errors
    /// [`NcclError`].
    ///
    /// # Safety
    /// Until the stream has come past the group, room for so many bytes is at `to`, and nothing else reads or writes there.
    pub unsafe fn receive(&mut self, to: u64, bytes: usize, from_rank: usize) -> Result<(), NcclError> {
        let (to, rank, stream) = (to as *mut c_void, from_rank as c_int, self.stream);
        let table = &self.communicator.nccl.table;
        self.communicator.with("ncclRecv", |raw| {
            // SAFETY: as the caller says.
            unsafe { (table.receive)(to, bytes, UINT8, rank, raw, stream) }
        })
    }

    /// Sums `count` f32 of every rank, in an order that NCCL chooses, and gives all ranks the sums. Every rank does this at once.
    ///
    /// # Errors
    /// [`NcclError`].
    ///
    /// # Safety
    /// Until the stream has come past the group, `count` values are at `from` that nothing writes, and room for as many is at `to`, which
    /// nothing else reads or writes.
    pub unsafe fn all_reduce(&mut self, from: u64, to: u64, count: usize) -> Result<(), NcclError> {
        let (from, to, stream) = (from as *const c_void, to as *mut c_void, self.stream);
        let table = &self.communicator.nccl.table;
        self.communicator.with("ncclAllReduce", |raw| {
            // SAFETY: as the caller says.
            unsafe { (table.all_reduce)(from, to, count, FLOAT32, SUM, raw, stream) }
        })
    }

    /// Launches them.
    ///
    /// # Errors
    /// [`NcclError`].
    pub fn end(mut self) -> Result<(), NcclError> {
        self.ended = true;
        self.communicator.with("ncclGroupEnd", |_| {
            // SAFETY: the function has no arguments, and a group was started.
            unsafe { (self.communicator.nccl.table.group_end)() }
        })
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: as in `end`. A group is a state of the thread: one that is left open would swallow the next one.
            unsafe { (self.communicator.nccl.table.group_end)() };
        }
    }
}
