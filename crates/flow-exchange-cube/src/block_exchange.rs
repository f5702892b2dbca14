//! An exchange that also gathers the sharded frozen weights of a block whenever a rank computes it.
//!
//! Ranks do not compute the same blocks at the same time: a feature cache skips some, evaluations differ in length, a processor computes
//! several micro-batches beside one another. So every exchange begins with rounds. In a round each rank says which blocks it wants, if any,
//! and all take part in giving every one that somebody wants. A rank that computes asks for one round at most for each block. A rank that
//! comes to another exchange takes part in rounds until nobody wants a block any more; then all are at that exchange.
//!
//! # The next block
//!
//! A thread that asks for a block also says which one it will most likely ask for next. That one travels ahead: on a GPU beside the stream on
//! which the first one computes, so that its way is hidden; over a transport of the host at once. A thread has at most one row ahead.
//! It is used if the thread asks for that block, and dropped if it asks for another one or the rank comes to another exchange.
//!
//! # Why nobody waits for a rank that waits for it
//!
//! The host of a rank does nothing ahead: no thread of its own, no round that it did not ask for itself. So this holds with rows ahead as
//! without:
//!
//! 1. Whoever takes part in a round holds the rank's turn, from what it says to the last row that is given. So the exchanges of a
//!    rank come one after another, and number `k` of them is the same on all ranks: a round, a row of a round, or another exchange.
//! 2. A rank says in a round that it wants nothing only if it is at another exchange, and it keeps its turn until that is over. So the round
//!    in which nobody wants anything is the one after which all are at that exchange, and it ends the rounds on all.
//! 3. A rank that is in no round computes, and needs no other rank for what it computes: on the device a row ahead waits for
//!    what was launched before it, and what was launched before it for earlier rows only. So it comes to a round or to another exchange.
//! 4. Every row of a round is one exchange on all ranks, whether some of them let it travel ahead and others wait for it: which of the two is
//!    a matter of a rank's own device. A row ahead that nobody reads was given by all when it was asked for, and nothing is owed for it.

use crate::block_parts::BlockParts;
use crate::flat_tensor::FlatTensor;
use flow_core::{BlockWeights, RawTensor, Stopped};
use flow_exchange::{Exchange, Lanes, Lost, Values, World};
use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The number that a rank sends when it wants no block.
const NONE: u64 = u64::MAX;

/// The rows that a rank wants in a round, by number.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// The one that it computes with at once.
    now: Option<usize>,
    /// The one after that.
    next: Option<usize>,
}

impl Wanted {
    /// What the rank says.
    fn to_bytes(self) -> Vec<u8> {
        let said = [self.now, self.next].map(|number| number.map_or(NONE, |number| number as u64));
        said.map(u64::to_le_bytes).concat()
    }

    /// What a rank said; `None` if it names a row that is not below `rows`, or says something else.
    fn from_bytes(said: &[u8], rows: usize) -> Option<Self> {
        let ([now, next], []) = said.as_chunks::<8>() else {
            return None;
        };
        let number = |word: &[u8; 8]| match u64::from_le_bytes(*word) {
            NONE => Some(None),
            number => usize::try_from(number)
                .ok()
                .filter(|number| *number < rows)
                .map(Some),
        };
        Some(Self {
            now: number(now)?,
            next: number(next)?,
        })
    }
}

/// An exchange of ranks that keep parts of the weights of blocks. Either all ranks of a run use one, or none does.
#[derive(Clone, Debug)]
pub struct BlockExchange(Arc<Rounds>);

#[derive(Debug)]
struct Rounds {
    exchange: Arc<dyn Exchange>,
    /// Whoever has the lock speaks for the rank.
    turn: Mutex<Turn>,
}

/// What the rank has.
#[derive(Debug, Default)]
struct Turn {
    /// Its parts, once there are some.
    parts: Option<Arc<BlockParts>>,
    /// The row that each thread will most likely ask for next, and its number. Nothing reads it before [`Exchange::await_ahead`].
    ahead: HashMap<ThreadId, (usize, FlatTensor)>,
}

impl BlockExchange {
    /// Wraps `exchange`, which nothing else may use from then on.
    pub fn new(exchange: Arc<dyn Exchange>) -> Self {
        Self(Arc::new(Rounds {
            exchange,
            turn: Mutex::default(),
        }))
    }

    /// Shares out the weights of blocks as `parts` say, in the place of earlier parts. All ranks call it before one of them computes a
    /// block.
    pub fn hold(&self, parts: BlockParts) -> Arc<dyn BlockWeights> {
        let parts = Arc::new(parts);
        *self.0.turn() = Turn {
            parts: Some(parts.clone()),
            ahead: HashMap::new(),
        };
        Arc::new(PartsOfRanks {
            rounds: self.0.clone(),
            parts,
        })
    }

    /// Runs a collective that is not about blocks, once no rank wants a block any more.
    fn at_rest<T>(&self, exchange: impl FnOnce(&dyn Exchange) -> Result<T, Lost>) -> Result<T, Lost> {
        let mut turn = self.0.turn();
        turn.ahead.clear();
        self.0.exchange.await_ahead()?;
        while self.0.round(turn.parts.as_deref(), Wanted::default())?.is_some() {}
        exchange(&*self.0.exchange)
    }
}

/// What came of a round in which somebody wanted a block: this rank's own rows, as far as it wanted some.
#[derive(Default)]
struct Given {
    now: Option<FlatTensor>,
    next: Option<FlatTensor>,
}

impl Rounds {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One round. `None` if nobody wants a row.
    fn round(&self, parts: Option<&BlockParts>, wanted: Wanted) -> Result<Option<Given>, Lost> {
        let own = self.exchange.world().rank;
        let rows = parts.map_or(0, BlockParts::rows);
        let (mut now, mut next) = (BTreeSet::new(), BTreeSet::new());
        for (rank, theirs) in self.exchange.gather(&wanted.to_bytes())?.iter().enumerate() {
            let Some(theirs) = Wanted::from_bytes(theirs, rows) else {
                let problem = "it wants a block of the model that is not shared out here".into();
                return Err(Lost::OutOfStep { rank, own, problem });
            };
            now.extend(theirs.now);
            next.extend(theirs.next);
        }
        // First what somebody waits for. The order is the same on all ranks.
        let numbers: Vec<usize> = now.iter().chain(next.difference(&now)).copied().collect();
        let (Some(parts), false) = (parts, numbers.is_empty()) else {
            return Ok(None);
        };
        let mut given = Given::default();
        for number in numbers {
            let (mut row, counts) = (parts.pack(number), parts.counts(number));
            if wanted.next == Some(number) {
                self.exchange.share_ahead(&mut row, &counts)?;
                given.next = Some(row);
                continue;
            }
            self.exchange.share(&mut row, &counts)?;
            if wanted.now == Some(number) {
                given.now = Some(row);
            }
        }
        Ok(Some(given))
    }

    /// The row with this number if the calling thread has it ahead, ready to be read. Another one that it has ahead is dropped.
    fn take_ahead(&self, number: usize) -> Result<Option<FlatTensor>, Lost> {
        let mut turn = self.turn();
        let ahead = turn.ahead.remove(&thread::current().id());
        let Some((_, row)) = ahead.filter(|(ahead, _)| *ahead == number) else {
            return Ok(None);
        };
        self.exchange.await_ahead()?;
        Ok(Some(row))
    }

    /// A round in which the calling thread wants something: what it wants now, if it does; what it wants next is ahead then.
    fn fetch(&self, parts: &BlockParts, wanted: Wanted) -> Result<Option<FlatTensor>, Lost> {
        let mut turn = self.turn();
        let given = self.round(Some(parts), wanted)?.unwrap_or_default();
        if let (Some(number), Some(row)) = (wanted.next, given.next) {
            turn.ahead.insert(thread::current().id(), (number, row));
        }
        Ok(given.now)
    }
}

/// The parts of all ranks, as the weights of one rank see them.
#[derive(Debug)]
struct PartsOfRanks {
    rounds: Arc<Rounds>,
    parts: Arc<BlockParts>,
}

impl PartsOfRanks {
    /// The weights of a row; the row `next` is ahead then.
    fn whole(&self, number: usize, next: Option<usize>) -> Result<Vec<(usize, RawTensor)>, Lost> {
        if let Some(row) = self.rounds.take_ahead(number)? {
            // Before the next row is made, so that two blocks and not three are whole.
            let weights = self.parts.unpack(number, row);
            if next.is_some() {
                self.rounds.fetch(&self.parts, Wanted { now: None, next })?;
            }
            return Ok(weights);
        }
        let now = Some(number);
        let row = self.rounds.fetch(&self.parts, Wanted { now, next })?;
        let row = row.expect("a round gives a rank what it wants");
        Ok(self.parts.unpack(number, row))
    }
}

impl BlockWeights for PartsOfRanks {
    fn own_part(&self, index: usize) -> Option<Range<usize>> {
        self.parts.own_part(index)
    }

    fn keep(&self, index: usize, part: RawTensor) {
        self.parts.keep(index, part);
    }

    fn gather(&self, stack: &str, block: usize, next: Option<usize>) -> Vec<(usize, RawTensor)> {
        let Some(number) = self.parts.number(stack, block) else {
            return Vec::new();
        };
        let next = next.and_then(|next| self.parts.number(stack, next));
        let whole = self.whole(number, next.filter(|next| *next != number));
        whole.unwrap_or_else(|lost| {
            Stopped::RankLost {
                why: lost.to_string(),
            }
            .stop()
        })
    }
}

impl Exchange for BlockExchange {
    fn world(&self) -> World {
        self.0.exchange.world()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.at_rest(|exchange| exchange.gather(mine))
    }

    fn sum(&self, lanes: &Lanes, parts: &mut [&mut dyn Values]) -> Result<(), Lost> {
        self.at_rest(|exchange| exchange.sum(lanes, parts))
    }

    fn settle(&self) -> Result<(), Lost> {
        // Of what this rank's device has under way; the others need not be there.
        self.0.exchange.settle()
    }

    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost> {
        self.at_rest(|exchange| exchange.broadcast(values, from))
    }

    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        self.at_rest(|exchange| exchange.share(values, counts))
    }

    fn transfer(&self, values: &mut dyn Values, from: usize, to: usize) -> Result<(), Lost> {
        self.at_rest(|exchange| exchange.transfer(values, from, to))
    }

    fn check(&self) -> Result<(), Lost> {
        self.0.exchange.check()
    }

    fn abort(&self, words: &str) {
        self.0.exchange.abort(words);
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
