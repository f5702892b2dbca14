//! An exchange that also gathers the sharded weights of a block whenever a rank computes it.
//!
//! Ranks do not compute the same blocks at the same time: a feature cache skips some, evaluations differ in length, a processor computes
//! several micro-batches beside one another. So every exchange begins with rounds. In a round each rank says which blocks it wants, if any,
//! and all take part in giving every one that somebody wants. A rank that computes asks for one round at most for each block. A rank that
//! comes to another exchange takes part in rounds until nobody wants a block any more; then all are at that exchange.
//!
//! # Sets of weights
//!
//! A run computes with several sets: the trained weights, their average, a reference. What is wanted is a row of a set, and a rank gives its
//! part of it whatever it computes itself. So a set changes on all ranks between the same two exchanges, and no rank computes
//! with it between the first of them and its change; a step of the optimizer comes behind the sums of gradients.
//!
//! # The next block
//!
//! A thread that asks for a block also says which one it will most likely ask for next. That one travels ahead: on a GPU beside the stream on
//! which the first one computes, so that its way is hidden; over a transport of the host at once. A thread has at most one row ahead.
//! It is used if the thread asks for that block, and dropped if it asks for another one or the set changes.
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

/// What a rank sends when it wants no block.
const NONE: [u64; 2] = [u64::MAX; 2];

/// A row of a set of weights, both by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SetRow {
    set: usize,
    row: usize,
}

/// The rows that a rank wants in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// The one that it computes with at once.
    now: Option<SetRow>,
    /// The one after that.
    next: Option<SetRow>,
}

impl Wanted {
    /// What the rank says.
    fn to_bytes(self) -> Vec<u8> {
        let numbers = |of: Option<SetRow>| of.map_or(NONE, |of| [of.set as u64, of.row as u64]);
        let said = [self.now, self.next].map(numbers).concat();
        said.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// What a rank said; `None` if it names a row that is not of `parts`, or says something else.
    fn from_bytes(said: &[u8], parts: Option<&BlockParts>) -> Option<Self> {
        let (words, []) = said.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [now, next] = [words.get(..2)?, words.get(2..)?].map(|of| <[u64; 2]>::try_from(of).ok());
        let place = |of: [u64; 2]| {
            if of == NONE {
                return Some(None);
            }
            let [set, row] = of.map(|number| usize::try_from(number).ok());
            let of = SetRow { set: set?, row: row? };
            let is_here = parts.is_some_and(|parts| of.row < parts.rows() && parts.is_shown(of.set));
            is_here.then_some(Some(of))
        };
        Some(Self {
            now: place(now?)?,
            next: place(next?)?,
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
    /// The row that each thread will most likely ask for next, and which one it is. Nothing reads it before [`Exchange::await_ahead`].
    ahead: HashMap<ThreadId, (SetRow, FlatTensor)>,
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
        let turn = self.0.turn();
        // What is ahead stays for the thread that asks for it: sums of gradients come between two blocks of a backward pass.
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
        let (mut now, mut next) = (BTreeSet::new(), BTreeSet::new());
        for (rank, theirs) in self.exchange.gather(&wanted.to_bytes())?.iter().enumerate() {
            let Some(theirs) = Wanted::from_bytes(theirs, parts) else {
                let problem =
                    "it wants a block of the model, or of a set of its weights, that is not shared out here"
                        .into();
                return Err(Lost::OutOfStep { rank, own, problem });
            };
            now.extend(theirs.now);
            next.extend(theirs.next);
        }
        // First what somebody waits for. The order is the same on all ranks.
        let all: Vec<SetRow> = now.iter().chain(next.difference(&now)).copied().collect();
        let (Some(parts), false) = (parts, all.is_empty()) else {
            return Ok(None);
        };
        let mut given = Given::default();
        for of in all {
            let (mut row, counts) = (parts.pack(of.set, of.row), parts.counts(of.row));
            if wanted.next == Some(of) {
                self.exchange.share_ahead(&mut row, &counts)?;
                given.next = Some(row);
                continue;
            }
            self.exchange.share(&mut row, &counts)?;
            if wanted.now == Some(of) {
                given.now = Some(row);
            }
        }
        Ok(Some(given))
    }

    /// This row if the calling thread has it ahead, ready to be read. Another one that it has ahead is dropped.
    fn take_ahead(&self, of: SetRow) -> Result<Option<FlatTensor>, Lost> {
        let mut turn = self.turn();
        let ahead = turn.ahead.remove(&thread::current().id());
        let Some((_, row)) = ahead.filter(|(ahead, _)| *ahead == of) else {
            return Ok(None);
        };
        self.exchange.await_ahead()?;
        Ok(Some(row))
    }

    /// Drops the rows of a set that are ahead: they have what the set is no more.
    fn drop_ahead(&self, set: usize) {
        self.turn().ahead.retain(|_, (of, _)| of.set != set);
    }

    /// A round in which the calling thread wants something: what it wants now, if it does; what it wants next is ahead then.
    fn fetch(&self, parts: &BlockParts, wanted: Wanted) -> Result<Option<FlatTensor>, Lost> {
        let mut turn = self.turn();
        let given = self.round(Some(parts), wanted)?.unwrap_or_default();
        if let (Some(of), Some(row)) = (wanted.next, given.next) {
            turn.ahead.insert(thread::current().id(), (of, row));
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
    fn whole(&self, of: SetRow, next: Option<SetRow>) -> Result<Vec<(usize, RawTensor)>, Lost> {
        if let Some(row) = self.rounds.take_ahead(of)? {
            // Before the next row is made, so that two blocks and not three are whole.
            let weights = self.parts.unpack(of.row, row);
            if next.is_some() {
                self.rounds.fetch(&self.parts, Wanted { now: None, next })?;
            }
            return Ok(weights);
        }
        let now = Some(of);
        let row = self.rounds.fetch(&self.parts, Wanted { now, next })?;
        let row = row.expect("a round gives a rank what it wants");
        Ok(self.parts.unpack(of.row, row))
    }
}

impl BlockWeights for PartsOfRanks {
    fn own_part(&self, index: usize) -> Option<Range<usize>> {
        self.parts.own_part(index)
    }

    fn counts(&self, index: usize) -> Option<Vec<usize>> {
        self.parts.counts_of(index)
    }

    fn open(&self) -> usize {
        self.parts.open()
    }

    fn show(&self, set: usize, index: usize, part: RawTensor) {
        self.rounds.drop_ahead(set);
        self.parts.show(set, index, part);
    }

    fn hide(&self, set: usize) {
        self.rounds.drop_ahead(set);
        self.parts.hide(set);
    }

    fn gather(&self, set: usize, stack: &str, block: usize, next: Option<usize>) -> Vec<(usize, RawTensor)> {
        let of_block = |block| {
            Some(SetRow {
                set,
                row: self.parts.number(stack, block)?,
            })
        };
        let Some(of) = of_block(block) else {
            return Vec::new();
        };
        let next = next.and_then(of_block).filter(|next| *next != of);
        let whole = self.whole(of, next);
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

    fn reduce_scatter(
        &self,
        lanes: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost> {
        self.at_rest(|exchange| exchange.reduce_scatter(lanes, parts, counts, own))
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
