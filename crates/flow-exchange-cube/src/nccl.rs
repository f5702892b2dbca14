//! Sums of NVIDIA GPUs over the ranks of a run, by NCCL.

mod all_reduce;
mod lanes;

use crate::flat_tensor::FlatTensor;
use crate::stream::{Gpu, IN_FLIGHT, MARKS, Stream};
use flow_core::RawTensor;
use flow_core::device::ComputeDevice;
use flow_exchange::{Exchange, Lanes, Lost, ValueType, Values, World, parts_of_ranks};
use flow_nccl::{Communicator, Nccl, NcclError, UniqueId};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the other ranks are looked after while NCCL works.
const LOOK: Duration = Duration::from_millis(20);

/// What portions of a sum begin at a multiple of, so that no two ranks write one line of memory.
const ALIGNMENT: usize = 128;

/// In which order values of different ranks are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumOrder {
    /// In that of the lanes, whatever the number of ranks.
    Lanes,
    /// In one that NCCL chooses: it depends on the number of ranks and on how their GPUs are connected.
    Nccl,
}

/// How NCCL is started.
#[derive(Clone, Copy, Debug)]
pub struct NcclSettings<'a> {
    /// The GPU of this rank, among those that the process sees.
    pub gpu: usize,
    /// Its library; none for the one that is found.
    pub library: Option<&'a Path>,
    /// The longest wait for the others.
    pub timeout: Duration,
    /// Of sums.
    pub order: SumOrder,
}

/// An exchange whose sums of [`FlatTensor`]s on NVIDIA GPUs never leave them: NCCL moves portions between the ranks, the additions are
/// made in the order of [`Lanes`] on the device; or NCCL adds, in its own order ([`SumOrder::Nccl`]). All else goes over `control`, which
/// also knows who is lost.
#[derive(Debug)]
pub struct NcclExchange<E> {
    control: E,
    communicator: Communicator,
    gpu: Gpu,
    in_flight: Mutex<InFlight>,
    timeout: Duration,
    order: SumOrder,
}

/// The sums and shared rows that the device may not be past.
#[derive(Debug, Default)]
struct InFlight {
    /// What they send, by mark.
    sent: [Vec<RawTensor>; IN_FLIGHT],
    /// The mark of the next one.
    next: usize,
    /// The row beside CubeCL's stream, until that comes behind it.
    ahead: Option<Ahead>,
    /// How many rows there have been, which says the mark of the next one.
    rows_ahead: usize,
}

/// A row that is on its way beside CubeCL's stream.
#[derive(Debug)]
struct Ahead {
    /// Its end.
    mark: usize,
    /// The stream on which CubeCL has its memory.
    stream: Stream,
    /// What is sent and what is received. CubeCL, which knows nothing of the other stream, would give their memory away.
    rows: [RawTensor; 2],
}

impl<E: Exchange> NcclExchange<E> {
    /// Loads NCCL and meets the other ranks, all of which call this.
    ///
    /// # Errors
    /// [`Lost`]: without library or GPU on one rank, all end with its words.
    pub fn start(control: E, settings: NcclSettings<'_>) -> Result<Self, Lost> {
        let world = control.world();
        let opened = Self::open(&settings, world.is_first());
        // Everyone learns of a rank that cannot, before anyone waits for it within NCCL.
        let words = match &opened {
            Ok((.., id)) => Ok(id.map(|UniqueId(id)| id)),
            Err(problem) => Err(problem.clone()),
        };
        let ids = control.gather(&to_message(&words))?;
        let (nccl, gpu, _) = opened.map_err(|problem| Lost::Device {
            rank: world.rank,
            problem,
        })?;
        let mut id = None;
        for (rank, message) in ids.iter().enumerate() {
            match from_message(message) {
                Ok(found) => id = id.or(found),
                Err(problem) => return Err(Lost::Device { rank, problem }),
            }
        }
        let lost = |problem: String| Lost::Device {
            rank: world.rank,
            problem,
        };
        let id = id.ok_or_else(|| lost("rank 0 gave no id of NCCL".into()))?;
        let communicator = Communicator::begin(&nccl, id, world.rank, world.ranks);
        let exchange = Self {
            communicator: communicator.map_err(|error| lost(error.to_string()))?,
            control,
            gpu,
            in_flight: Mutex::default(),
            timeout: settings.timeout,
            order: settings.order,
        };
        exchange.until(|exchange| exchange.is_ready())?;
        Ok(exchange)
    }

    fn open(settings: &NcclSettings<'_>, first: bool) -> Result<(Nccl, Gpu, Option<UniqueId>), String> {
        let nccl = Nccl::open(settings.library).map_err(|error| error.to_string())?;
        let gpu = Gpu::open(settings.gpu)?;
        let id = first.then(|| nccl.unique_id()).transpose();
        Ok((nccl, gpu, id.map_err(|error| error.to_string())?))
    }

    /// This rank's own trouble.
    fn lost(&self, problem: impl ToString) -> Lost {
        Lost::Device {
            rank: self.control.world().rank,
            problem: problem.to_string(),
        }
    }

    fn is_ready(&self) -> Result<bool, Lost> {
        self.communicator.is_ready().map_err(|error| self.lost(error))
    }

    /// Waits until `done`, and looks after the others meanwhile. Whoever waits in vain takes the communicator down: what is on the
    /// device would wait for ever.
    fn until(&self, mut done: impl FnMut(&Self) -> Result<bool, Lost>) -> Result<(), Lost> {
        let begun = Instant::now();
        let mut looked = begun;
        let outcome = loop {
            match done(self) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(lost) => break lost,
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if let Err(lost) = self.control.check() {
                    break lost;
                }
                if begun.elapsed() >= self.timeout {
                    break self.lost(format!(
                        "the GPUs did not exchange their values within {} s. If another rank is only slow, raise \
                         `distributed.timeout_s`",
                        self.timeout.as_secs()
                    ));
                }
            }
            std::thread::sleep(Duration::from_micros(20));
        };
        self.communicator.abort();
        Err(outcome)
    }

    fn address(&self, tensor: &RawTensor) -> Result<u64, Lost> {
        self.gpu.address(tensor).map_err(|problem| self.lost(problem))
    }

    /// Waits until the device is past a mark.
    fn until_past(&self, mark: usize) -> Result<(), Lost> {
        self.until(|exchange| {
            let is_past = exchange.gpu.is_past(mark);
            is_past.map_err(|problem| exchange.lost(problem))
        })
    }

    /// Launches a group of sends and receives on the stream of the calling thread, once all that was launched before is in it.
    fn launch(&self, stream: Stream, transfers: &[Transfer]) -> Result<(), Lost> {
        let communicator = &self.communicator;
        let launched = self.gpu.on_launching_thread(move || {
            let mut group = communicator.group(stream.raw())?;
            for transfer in transfers {
                let Transfer {
                    address, bytes, rank, ..
                } = *transfer;
                // SAFETY: the addresses are those of tensors. What is sent is read alone, and kept until the device is past the group;
                // what is received was made for it on this thread. If its stream is this one, CubeCL gives that memory to no other
                // stream, and to this one only behind the group. If this stream is beside it, both tensors are kept until
                // the thread's comes behind the group.
                unsafe {
                    match transfer.sends {
                        true => group.send(address, bytes, rank)?,
                        false => group.receive(address, bytes, rank)?,
                    }
                }
            }
            group.end()
        });
        let launched: Result<(), NcclError> = launched.map_err(|problem| self.lost(problem))?;
        launched.map_err(|error| self.lost(error))?;
        self.until(|exchange| exchange.is_ready())
    }

    /// That all ranks exchange as many values of one type.
    fn agree(&self, count: usize, of: ValueType) -> Result<(), Lost> {
        let own = self.control.world().rank;
        let said = [count as u64, of.bytes() as u64].map(u64::to_le_bytes).concat();
        for (rank, theirs) in self.control.gather(&said)?.iter().enumerate() {
            if *theirs != said {
                let problem = "it exchanges another number of values, or values of another type".into();
                return Err(Lost::OutOfStep { rank, own, problem });
            }
        }
        Ok(())
    }

    /// Waits for the exchange before the last one; says the mark of the next, which comes behind a row that is ahead: so the device does what
    /// it exchanges in one order, whichever stream it is launched on.
    fn next_mark(&self) -> Result<usize, Lost> {
        self.join_ahead()?;
        let mark = self.in_flight().next;
        self.until_past(mark)?;
        self.in_flight().sent[mark].clear();
        Ok(mark)
    }

    /// Marks the end of a sum in the stream; keeps what it sends until the device is past the mark.
    fn end_at(&self, mark: usize, stream: Stream, sent: Vec<RawTensor>) -> Result<(), Lost> {
        self.gpu
            .mark(stream, mark)
            .map_err(|problem| self.lost(problem))?;
        let mut in_flight = self.in_flight();
        in_flight.sent[mark] = sent;
        in_flight.next = (mark + 1) % IN_FLIGHT;
        Ok(())
    }

    fn in_flight(&self) -> std::sync::MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Exchange::share`] and, if `is_ahead`, [`Exchange::share_ahead`], of a row with the parts of all ranks, if it is on a GPU:
    /// whether it is. The row is on the device's way until the end of the next [`settle`](Exchange::settle).
    ///
    /// Which of the two it is concerns this rank alone: the others see the same transfers.
    fn share_on_gpu(&self, values: &mut dyn Values, counts: &[usize], is_ahead: bool) -> Result<bool, Lost> {
        let World { rank: own, ranks, .. } = self.control.world();
        let flat = values.as_any().downcast_mut::<FlatTensor>();
        let Some(flat) = flat.filter(|flat| !flat.device().is_processor()) else {
            return Ok(false);
        };
        let (count, of) = (flat.count(), flat.value_type());
        let parts = parts_of_ranks(counts, ranks, count);
        if count == 0 {
            return Ok(true);
        }
        let mark = match is_ahead {
            true => self.next_mark_ahead()?,
            false => self.next_mark()?,
        };
        self.agree(count, of)?;
        self.gpu.bind().map_err(|problem| self.lost(problem))?;
        let row = flat.values().clone();
        let all = flat.empty_like();
        let (from, to) = (self.address(&row)?, self.address(&all)?);
        let mut transfers = Vec::new();
        for (rank, part) in parts.iter().enumerate() {
            transfers.push(Transfer::send(from, &parts[own], rank, of.bytes()));
            transfers.push(Transfer::receive(to, part, rank, of.bytes()));
        }
        transfers.retain(|transfer| transfer.bytes > 0);
        let stream = self.gpu.stream().map_err(|problem| self.lost(problem))?;
        if is_ahead {
            let beside = self.gpu.fork(stream).map_err(|problem| self.lost(problem))?;
            // Before the launch, so that whatever fails does not give the memory away under it.
            self.in_flight().ahead = Some(Ahead {
                mark,
                stream,
                rows: [row, all.clone()],
            });
            self.launch(beside, &transfers)?;
            let marked = self.gpu.mark(beside, mark);
            marked.map_err(|problem| self.lost(problem))?;
        } else {
            self.launch(stream, &transfers)?;
            self.end_at(mark, stream, vec![row])?;
        }
        flat.replace(all);
        Ok(true)
    }

    /// Ends what is ahead, and waits for the row before that; says the mark of the next row ahead.
    fn next_mark_ahead(&self) -> Result<usize, Lost> {
        self.join_ahead()?;
        let mark = IN_FLIGHT + self.in_flight().rows_ahead % IN_FLIGHT;
        self.until_past(mark)?;
        self.in_flight().rows_ahead += 1;
        Ok(mark)
    }

    /// As [`Exchange::await_ahead`].
    fn join_ahead(&self) -> Result<(), Lost> {
        let Some(ahead) = self.in_flight().ahead.take() else {
            return Ok(());
        };
        self.gpu.bind().map_err(|problem| self.lost(problem))?;
        // The stream of its memory, and the one in which it is read: the same one, if one thread does both. A thread without a stream
        // reads nothing.
        let current = self.gpu.stream().ok();
        for stream in [Some(ahead.stream), current].into_iter().flatten() {
            let joined = self.gpu.join(stream, ahead.mark);
            joined.map_err(|problem| self.lost(problem))?;
        }
        // Not before: whoever gets their memory next comes behind the row.
        drop(ahead.rows);
        Ok(())
    }
}

/// Bytes of an f32, which is what sums are of.
const WIDTH: usize = 4;

/// A row of values that goes to a rank, or comes from one.
#[derive(Clone, Copy)]
struct Transfer {
    address: u64,
    bytes: usize,
    rank: usize,
    sends: bool,
}

impl Transfer {
    /// Of the values in `range` of those at `address`, of `width` bytes each.
    fn send(address: u64, range: &Range<usize>, rank: usize, width: usize) -> Self {
        Self {
            address: address + (width * range.start) as u64,
            bytes: width * range.len(),
            rank,
            sends: true,
        }
    }

    /// To where the values in `range` are of those at `address`.
    fn receive(address: u64, range: &Range<usize>, rank: usize, width: usize) -> Self {
        Self {
            sends: false,
            ..Self::send(address, range, rank, width)
        }
    }
}

/// Rows of values on GPUs, and the device of the last; none if there is none, or one is elsewhere.
fn rows_on_gpu(parts: &mut [&mut dyn Values]) -> Option<(Vec<RawTensor>, ComputeDevice)> {
    let (mut rows, mut device) = (Vec::new(), None);
    for part in parts {
        let flat = part.as_any().downcast_mut::<FlatTensor>();
        let flat = flat.filter(|flat| !flat.device().is_processor())?;
        device = Some(flat.device().clone());
        rows.push(flat.values().clone());
    }
    Some((rows, device?))
}

/// Puts a row in the place of values that are one.
fn replace(values: &mut dyn Values, row: RawTensor) {
    if let Some(flat) = values.as_any().downcast_mut::<FlatTensor>() {
        flat.replace(row);
    }
}

/// A rank's id, if it has one, or its problem.
fn to_message(words: &Result<Option<[u8; 128]>, String>) -> Vec<u8> {
    match words {
        Ok(None) => vec![0],
        Ok(Some(id)) => [&[1], &id[..]].concat(),
        Err(problem) => [&[2], problem.as_bytes()].concat(),
    }
}

fn from_message(message: &[u8]) -> Result<Option<UniqueId>, String> {
    match message.split_first() {
        Some((1, id)) => match id.try_into() {
            Ok(id) => Ok(Some(UniqueId(id))),
            Err(_) => Err("it gave an id of NCCL of another length".into()),
        },
        Some((2, problem)) => Err(String::from_utf8_lossy(problem).into_owned()),
        _ => Ok(None),
    }
}

impl<E: Exchange> Exchange for NcclExchange<E> {
    fn world(&self) -> World {
        self.control.world()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.control.gather(mine)
    }

    fn sum(&self, lanes: &Lanes, parts: &mut [&mut dyn Values]) -> Result<(), Lost> {
        let Some((rows, device)) = rows_on_gpu(parts) else {
            return self.control.sum(lanes, parts);
        };
        let count = parts[0].count();
        if count == 0 {
            return Ok(());
        }
        let total = match self.order {
            SumOrder::Lanes => self.sum_on_gpu(lanes, rows, (count, &device))?,
            SumOrder::Nccl => self.all_reduce(rows, (count, &device))?,
        };
        replace(parts[0], total);
        Ok(())
    }

    fn reduce_scatter(
        &self,
        lanes: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost> {
        let is_row = own.as_any().is::<FlatTensor>();
        let Some((rows, device)) = rows_on_gpu(parts).filter(|_| is_row) else {
            return self.control.reduce_scatter(lanes, parts, counts, own);
        };
        let World { rank, ranks, .. } = self.world();
        let ranges = parts_of_ranks(counts, ranks, parts[0].count());
        if parts[0].count() == 0 {
            return Ok(());
        }
        // In the order of the lanes in any case: to let NCCL add would save nothing.
        let total = self.reduce_scatter_on_gpu(lanes, rows, (&ranges, &device))?;
        if !ranges[rank].is_empty() {
            replace(own, total);
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Lost> {
        for mark in 0..MARKS {
            self.until_past(mark)?;
        }
        let mut in_flight = self.in_flight();
        in_flight.sent.iter_mut().for_each(Vec::clear);
        in_flight.ahead = None;
        Ok(())
    }

    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost> {
        self.control.broadcast(values, from)
    }

    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        match self.share_on_gpu(values, counts, false)? {
            true => Ok(()),
            false => self.control.share(values, counts),
        }
    }

    fn share_ahead(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        match self.share_on_gpu(values, counts, true)? {
            true => Ok(()),
            false => self.control.share_ahead(values, counts),
        }
    }

    fn await_ahead(&self) -> Result<(), Lost> {
        self.join_ahead()
    }

    fn transfer(&self, values: &mut dyn Values, from: usize, to: usize) -> Result<(), Lost> {
        self.control.transfer(values, from, to)
    }

    fn check(&self) -> Result<(), Lost> {
        self.control.check()
    }

    fn abort(&self, words: &str) {
        self.control.abort(words);
        self.communicator.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_tells_an_id_from_a_problem() {
        let id = [7; 128];
        assert_eq!(from_message(&to_message(&Ok(Some(id)))), Ok(Some(UniqueId(id))));
        assert_eq!(from_message(&to_message(&Ok(None))), Ok(None));
        let problem = "no driver".to_owned();
        assert_eq!(from_message(&to_message(&Err(problem.clone()))), Err(problem));
        assert!(from_message(&[1, 2, 3]).is_err());
    }
}
