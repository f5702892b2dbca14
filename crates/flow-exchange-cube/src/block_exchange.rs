//! An exchange that also gathers the sharded frozen weights of a block whenever a rank computes it.
//!
//! Ranks do not compute the same blocks at the same time: a feature cache skips some, evaluations differ in length, a processor computes
//! several micro-batches beside one another. So every exchange begins with rounds. In a round each rank says which block it wants, if any,
//! and all take part in giving every one that somebody wants. A rank that computes asks for one round for each block. A rank that
//! comes to another exchange takes part in rounds until nobody wants a block any more; then all are at that exchange. So nobody waits for
//! a rank that waits for it, whatever they compute, and the order of the exchanges is the same on all.

use crate::block_parts::BlockParts;
use crate::flat_tensor::FlatTensor;
use flow_core::{BlockWeights, RawTensor, Stopped};
use flow_exchange::{Exchange, Lanes, Lost, Values, World};
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number that a rank sends when it wants no block.
const NONE: u64 = u64::MAX;

/// An exchange of ranks that keep parts of the weights of blocks. Either all ranks of a run use one, or none does.
#[derive(Clone, Debug)]
pub struct BlockExchange(Arc<Rounds>);

#[derive(Debug)]
struct Rounds {
    exchange: Arc<dyn Exchange>,
    /// This rank's parts, once there are some. Whoever has the lock speaks for the rank.
    turn: Mutex<Option<Arc<BlockParts>>>,
}

impl BlockExchange {
    /// Wraps `exchange`, which nothing else may use from then on.
    pub fn new(exchange: Arc<dyn Exchange>) -> Self {
        Self(Arc::new(Rounds {
            exchange,
            turn: Mutex::new(None),
        }))
    }

    /// Shares out the weights of blocks as `parts` say, in the place of earlier parts. All ranks call it before one of them computes a
    /// block.
    pub fn hold(&self, parts: BlockParts) -> Arc<dyn BlockWeights> {
        let parts = Arc::new(parts);
        *self.0.turn() = Some(parts.clone());
        Arc::new(PartsOfRanks {
            rounds: self.0.clone(),
            parts,
        })
    }

    /// Runs a collective that is not about blocks, once no rank wants a block any more.
    fn at_rest<T>(&self, exchange: impl FnOnce(&dyn Exchange) -> Result<T, Lost>) -> Result<T, Lost> {
        let turn = self.0.turn();
        while self.0.round(turn.as_deref(), None)?.is_some() {}
        exchange(&*self.0.exchange)
    }
}

/// The result of a round in which some rank wanted a block: the block that this rank wanted, if any.
struct Given(Option<FlatTensor>);

impl Rounds {
    fn turn(&self) -> MutexGuard<'_, Option<Arc<BlockParts>>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One round, in which this rank wants the row `wanted`, if any. `None` if no rank wants one.
    fn round(&self, parts: Option<&BlockParts>, wanted: Option<usize>) -> Result<Option<Given>, Lost> {
        let own = self.exchange.world().rank;
        let said = wanted.map_or(NONE, |number| number as u64);
        let mut numbers = BTreeSet::new();
        for (rank, theirs) in self.exchange.gather(&said.to_le_bytes())?.iter().enumerate() {
            let theirs = <[u8; 8]>::try_from(&theirs[..]).map(u64::from_le_bytes);
            match (theirs, parts) {
                (Ok(NONE), _) => {}
                (Ok(number), Some(parts)) if number < parts.rows() as u64 => {
                    numbers.insert(number as usize);
                }
                _ => {
                    let problem = "it wants a block of the model that is not shared out here".into();
                    return Err(Lost::OutOfStep { rank, own, problem });
                }
            }
        }
        let (Some(parts), false) = (parts, numbers.is_empty()) else {
            return Ok(None);
        };
        let mut given = None;
        for number in numbers {
            let mut row = parts.pack(number);
            self.exchange.share(&mut row, &parts.counts(number))?;
            if wanted == Some(number) {
                given = Some(row);
            }
        }
        Ok(Some(Given(given)))
    }
}

/// The parts of all ranks, as the weights of one rank see them.
#[derive(Debug)]
struct PartsOfRanks {
    rounds: Arc<Rounds>,
    parts: Arc<BlockParts>,
}

impl BlockWeights for PartsOfRanks {
    fn own_part(&self, index: usize) -> Option<Range<usize>> {
        self.parts.own_part(index)
    }

    fn keep(&self, index: usize, part: RawTensor) {
        self.parts.keep(index, part);
    }

    fn gather(&self, stack: &str, block: usize) -> Vec<(usize, RawTensor)> {
        let Some(number) = self.parts.number(stack, block) else {
            return Vec::new();
        };
        let given = {
            let _turn = self.rounds.turn();
            self.rounds.round(Some(&*self.parts), Some(number))
        };
        match given {
            Ok(Some(Given(Some(row)))) => self.parts.unpack(number, row),
            Ok(_) => unreachable!("a round gives a rank what it wants"),
            Err(lost) => Stopped::RankLost {
                why: lost.to_string(),
            }
            .stop(),
        }
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
