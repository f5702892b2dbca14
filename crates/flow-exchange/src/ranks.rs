//! Exchanges between ranks over links that carry frames; what the transports have in common.

use crate::exchange::Exchange;
use crate::frame::{Frame, Kind, to_bytes, to_values};
use crate::lanes::{Lanes, Partials};
use crate::lost::Lost;
use crate::portion::{parts_of_ranks, portion};
use crate::values::{ValueType, Values};
use flow_rendezvous::{Membership, Watch, World};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at whether the run is over, while waiting for a rank.
const LOOK: Duration = Duration::from_millis(200);

/// How long a rank that is gone may be explained by the words of another one.
const WORDS: Duration = Duration::from_millis(500);

/// Carries frames to one rank.
pub(crate) trait Link: Debug + Send + Sync {
    fn send(&self, frame: &Frame) -> io::Result<()>;
    /// No more frames follow.
    fn close(&self) {}
}

/// What comes from a rank.
#[derive(Debug)]
pub(crate) enum Event {
    Frame(Frame),
    /// The link broke, and why.
    Broken(String),
}

/// Ranks that reach each other.
#[derive(Debug)]
pub struct Ranks {
    world: World,
    timeout: Duration,
    /// By rank; none to itself.
    links: Vec<Option<Box<dyn Link>>>,
    state: Mutex<State>,
    watch: Option<Watch>,
    /// The store, which lives as long as somebody may look at it.
    membership: Option<Mutex<Membership>>,
}

#[derive(Debug)]
struct State {
    inbox: Receiver<(usize, Event)>,
    /// Frames that came and were not asked for yet, by rank.
    waiting: Vec<VecDeque<Frame>>,
    /// Ranks that took their leave.
    ended: Vec<bool>,
    /// Exchanges so far.
    number: u64,
    lost: Option<Lost>,
}

impl Ranks {
    pub(crate) fn new(
        world: World,
        timeout: Duration,
        links: Vec<Option<Box<dyn Link>>>,
        inbox: Receiver<(usize, Event)>,
    ) -> Self {
        let ranks = world.ranks;
        Self {
            world,
            timeout,
            links,
            state: Mutex::new(State {
                inbox,
                waiting: (0..ranks).map(|_| VecDeque::new()).collect(),
                ended: vec![false; ranks],
                number: 0,
                lost: None,
            }),
            watch: None,
            membership: None,
        }
    }

    pub(crate) fn within(mut self, membership: Membership, watch: Watch) -> Self {
        self.membership = Some(Mutex::new(membership));
        self.watch = Some(watch);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.world.rank;
        (0..self.world.ranks).filter(move |rank| *rank != own)
    }

    fn send(&self, to: usize, frame: &Frame) {
        if let Some(link) = &self.links[to] {
            // A link that is broken is seen by who receives; the words of the rank behind it may still come.
            let _ = link.send(frame);
        }
    }

    /// Takes in what came.
    fn take(&self, state: &mut State, (rank, event): (usize, Event)) {
        let ranks = self.world.ranks;
        match event {
            Event::Frame(frame) => match frame.kind {
                Kind::Stop => {
                    let (by, words) = frame.bytes.split_at(frame.bytes.len().min(8));
                    let by = <[u8; 8]>::try_from(by).map_or(rank, |by| u64::from_le_bytes(by) as usize);
                    let words = String::from_utf8_lossy(words).into_owned();
                    // Words explain more than a broken link.
                    if !matches!(state.lost, Some(Lost::Stopped { .. })) {
                        state.lost = Some(Lost::Stopped { rank: by, words });
                    }
                }
                Kind::Farewell => state.ended[rank] = true,
                _ => state.waiting[rank].push_back(frame),
            },
            Event::Broken(problem) if !state.ended[rank] && state.lost.is_none() => {
                state.lost = Some(Lost::Gone { rank, ranks, problem });
            }
            Event::Broken(_) => {}
        }
    }

    /// Takes in what is there already, and says whether everyone is.
    fn look(&self, state: &mut State) -> Result<(), Lost> {
        while let Ok(came) = state.inbox.try_recv() {
            self.take(state, came);
        }
        if let (None, Some(watch)) = (&state.lost, &self.watch) {
            state.lost = watch.aborted().map(Lost::Aborted);
        }
        let Some(lost) = &state.lost else {
            return Ok(());
        };
        if !matches!(lost, Lost::Stopped { .. }) {
            let until = Instant::now() + WORDS;
            while let Some(left) = until.checked_duration_since(Instant::now())
                && let Ok(came) = state.inbox.recv_timeout(left)
            {
                self.take(state, came);
            }
        }
        Err(state.lost.clone().expect("it was there before"))
    }

    /// The next frame of a rank, which is of this exchange.
    fn receive(&self, state: &mut State, from: usize, kind: Kind) -> Result<Vec<u8>, Lost> {
        let until = Instant::now() + self.timeout;
        let (own, ranks, what) = (self.world.rank, self.world.ranks, kind.words());
        loop {
            self.look(state)?;
            if let Some(frame) = state.waiting[from].pop_front() {
                if (frame.kind, frame.number) == (kind, state.number) {
                    return Ok(frame.bytes);
                }
                let problem = format!(
                    "its exchange {} is to {}, where this one's exchange {} is to {what}",
                    frame.number,
                    frame.kind.words(),
                    state.number
                );
                return Err(Lost::OutOfStep {
                    rank: from,
                    own,
                    problem,
                });
            }
            if state.ended[from] {
                return Err(Lost::Ended {
                    rank: from,
                    ranks,
                    own,
                    what,
                });
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return Err(Lost::Silent {
                    rank: from,
                    ranks,
                    own,
                    what,
                    seconds: self.timeout.as_secs(),
                });
            };
            match state.inbox.recv_timeout(left.min(LOOK)) {
                Ok(came) => self.take(state, came),
                Err(RecvTimeoutError::Timeout) => {}
                // Every link is closed, and what they said is taken in.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left.min(LOOK)),
            }
        }
    }

    /// As [`receive`](Self::receive), as many values as announced.
    fn receive_values(
        &self,
        state: &mut State,
        from: usize,
        kind: Kind,
        (count, of): (usize, ValueType),
    ) -> Result<Vec<f32>, Lost> {
        let bytes = self.receive(state, from, kind)?;
        if bytes.len() == of.bytes() * count {
            return Ok(to_values(&bytes, of));
        }
        Err(Lost::OutOfStep {
            rank: from,
            own: self.world.rank,
            problem: format!(
                "it sends {} values where {count} are due",
                bytes.len() / of.bytes()
            ),
        })
    }

    /// Sends every rank what it adds up of `rows`, the sums of this rank's nodes, and adds up what comes for this one. `ranges` are the values
    /// of each rank.
    fn own_total(
        &self,
        state: &mut State,
        lanes: &Lanes,
        rows: &[Vec<f32>],
        ranges: &[Range<usize>],
    ) -> Result<Vec<f32>, Lost> {
        let World { rank: own, ranks, .. } = self.world;
        let of_range = |range: &Range<usize>| -> Vec<f32> {
            let values = rows.iter().flat_map(|row| &row[range.clone()]);
            values.copied().collect()
        };
        for to in self.others() {
            let frame = Frame {
                kind: Kind::Portion,
                number: state.number,
                bytes: to_bytes(&of_range(&ranges[to]), ValueType::F32),
            };
            self.send(to, &frame);
        }
        let count = ranges[own].len();
        let mut sums: Partials<Vec<f32>> = Partials::new(*lanes);
        for from in 0..ranks {
            let nodes = lanes.cover(lanes.of_rank(from, ranks));
            let values = match from == own {
                true => of_range(&ranges[own]),
                false => {
                    let due = (nodes.len() * count, ValueType::F32);
                    self.receive_values(state, from, Kind::Portion, due)?
                }
            };
            for (index, node) in nodes.into_iter().enumerate() {
                let values = values[index * count..(index + 1) * count].to_vec();
                sums.push(node, values, |sum, more| {
                    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                });
            }
        }
        let (_, total) = sums.into_sums().swap_remove(0);
        Ok(total)
    }

    /// Begins an exchange.
    fn begin(&self) -> Result<MutexGuard<'_, State>, Lost> {
        let mut state = self.state();
        self.look(&mut state)?;
        state.number += 1;
        Ok(state)
    }
}

impl Exchange for Ranks {
    fn world(&self) -> World {
        self.world
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        let mut state = self.begin()?;
        let frame = Frame {
            kind: Kind::Gather,
            number: state.number,
            bytes: mine.to_vec(),
        };
        self.others().for_each(|to| self.send(to, &frame));
        (0..self.world.ranks)
            .map(|from| match from == self.world.rank {
                true => Ok(mine.to_vec()),
                false => self.receive(&mut state, from, Kind::Gather),
            })
            .collect()
    }

    fn sum(&self, lanes: &Lanes, parts: &mut [&mut dyn Values]) -> Result<(), Lost> {
        let mut state = self.begin()?;
        let World { rank: own, ranks, .. } = self.world;
        let rows: Vec<Vec<f32>> = parts.iter().map(|part| part.read()).collect();
        let count = rows.first().map_or(0, Vec::len);
        let ranges: Vec<Range<usize>> = (0..ranks).map(|rank| portion(count, rank, ranks, 1)).collect();
        let total = self.own_total(&mut state, lanes, &rows, &ranges)?;
        let frame = Frame {
            kind: Kind::Total,
            number: state.number,
            bytes: to_bytes(&total, ValueType::F32),
        };
        self.others().for_each(|to| self.send(to, &frame));
        let mut all = Vec::with_capacity(count);
        for (from, range) in ranges.iter().enumerate() {
            let values = match from == own {
                true => total.clone(),
                false => {
                    let due = (range.len(), ValueType::F32);
                    self.receive_values(&mut state, from, Kind::Total, due)?
                }
            };
            all.extend(values);
        }
        if let Some(first) = parts.first_mut() {
            first.write(all);
        }
        Ok(())
    }

    fn reduce_scatter(
        &self,
        lanes: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost> {
        let rows: Vec<Vec<f32>> = parts.iter().map(|part| part.read()).collect();
        let ranges = parts_of_ranks(counts, self.world.ranks, rows.first().map_or(0, Vec::len));
        let mut state = self.begin()?;
        let total = self.own_total(&mut state, lanes, &rows, &ranges)?;
        if !total.is_empty() {
            own.write(total);
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Lost> {
        // `sum` ends when the sums are there.
        Ok(())
    }

    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost> {
        let mut state = self.begin()?;
        if from == self.world.rank {
            let frame = Frame {
                kind: Kind::Broadcast,
                number: state.number,
                bytes: to_bytes(&values.read(), values.value_type()),
            };
            self.others().for_each(|to| self.send(to, &frame));
            return Ok(());
        }
        let due = (values.count(), values.value_type());
        let received = self.receive_values(&mut state, from, Kind::Broadcast, due)?;
        values.write(received);
        Ok(())
    }

    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        let parts = parts_of_ranks(counts, self.world.ranks, values.count());
        let mut state = self.begin()?;
        let (mut row, of) = (values.read(), values.value_type());
        let frame = Frame {
            kind: Kind::Share,
            number: state.number,
            bytes: to_bytes(&row[parts[self.world.rank].clone()], of),
        };
        self.others().for_each(|to| self.send(to, &frame));
        for from in self.others() {
            let theirs = self.receive_values(&mut state, from, Kind::Share, (counts[from], of))?;
            row[parts[from].clone()].copy_from_slice(&theirs);
        }
        values.write(row);
        Ok(())
    }

    fn transfer(&self, values: &mut dyn Values, from: usize, to: usize) -> Result<(), Lost> {
        let mut state = self.begin()?;
        let own = self.world.rank;
        if from == to {
            return Ok(());
        }
        if own == from {
            let frame = Frame {
                kind: Kind::Transfer,
                number: state.number,
                bytes: to_bytes(&values.read(), values.value_type()),
            };
            self.send(to, &frame);
        } else if own == to {
            let due = (values.count(), values.value_type());
            let received = self.receive_values(&mut state, from, Kind::Transfer, due)?;
            values.write(received);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Lost> {
        self.look(&mut self.state())
    }

    fn abort(&self, words: &str) {
        let mut state = self.state();
        // Whoever stops because of another passes on that one's words.
        let (by, words) = match self.look(&mut state) {
            Err(Lost::Stopped { rank, words }) => (rank, words),
            _ => (self.world.rank, words.to_owned()),
        };
        let bytes = [&(by as u64).to_le_bytes()[..], words.as_bytes()].concat();
        let frame = Frame {
            kind: Kind::Stop,
            number: state.number,
            bytes,
        };
        self.others().for_each(|to| self.send(to, &frame));
        if let Some(membership) = &self.membership {
            let mut membership = membership.lock().unwrap_or_else(PoisonError::into_inner);
            // If the store is gone, the others see that.
            let _ = membership.abort(&format!("rank {by} stopped: {words}"));
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        let frame = Frame {
            kind: Kind::Farewell,
            number: 0,
            bytes: Vec::new(),
        };
        self.others().for_each(|to| self.send(to, &frame));
        self.links.iter().flatten().for_each(|link| link.close());
    }
}
