//! Moments and weights that are shared out over ranks, on their way into a checkpoint: the rank that writes asks for one after another, as the
//! file goes on, and no rank holds more than one that is not its own.

use crate::optimizer::{AdamW, Moments};
use flow_core::{RawTensor, Weights, cpu};
use flow_exchange::{Exchange, HostValues, Lost};

/// The rank that writes.
const WRITER: usize = 0;

/// What there may be of a weight, each with a number of its own in a request.
const KINDS: u64 = 16;

/// Something that a rank has of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The first moment.
    First,
    /// The second one.
    Second,
    /// Its value in the set of this number, below 14.
    Value(usize),
}

impl Which {
    /// The moments.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// One of the two moments of a weight; none if something else is meant.
    pub fn of(self, moments: &Moments) -> Option<&RawTensor> {
        match self {
            Self::First => Some(&moments.first),
            Self::Second => Some(&moments.second),
            Self::Value(_) => None,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => 1,
            Self::Value(set) => 2 + set as u64,
        }
    }

    fn of_number(number: u64) -> Self {
        match number {
            0 => Self::First,
            1 => Self::Second,
            set => Self::Value(set as usize - 2),
        }
    }
}

/// Sets of weights by their numbers; absent where a run does not have one.
pub(crate) type Sets<'a> = [Option<&'a Weights>];

/// What the writer says to all: that it needs something of the weight at this place in the layout, or nothing more (no bytes).
fn request(index: usize, which: Which) -> [u8; 8] {
    (KINDS * index as u64 + which.number()).to_le_bytes()
}

/// What was said; an error if it is no request.
fn requested(bytes: &[u8]) -> Result<Option<(usize, Which)>, ()> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let number = u64::from_le_bytes(bytes.try_into().map_err(|_| ())?);
    Ok(Some((
        (number / KINDS) as usize,
        Which::of_number(number % KINDS),
    )))
}

/// Asks rank `owner` for the `count` values of the weight at `index`, or of a moment of it. All others are in [`give`].
///
/// # Errors
/// If a rank is lost.
pub(crate) fn ask(
    exchange: &dyn Exchange,
    owner: usize,
    (index, which): (usize, Which),
    count: usize,
) -> Result<Vec<f32>, Lost> {
    exchange.gather(&request(index, which))?;
    let mut values = HostValues(vec![0.0; count]);
    exchange.transfer(&mut values, owner, WRITER)?;
    Ok(values.0)
}

/// Asks all ranks for their parts of the weight at `index`, or of a moment of it, of `counts` values each; `own` is the writer's. All others are
/// in [`give`].
///
/// # Errors
/// If a rank is lost.
pub(crate) fn ask_all(
    exchange: &dyn Exchange,
    (index, which): (usize, Which),
    counts: &[usize],
    own: Vec<f32>,
) -> Result<Vec<f32>, Lost> {
    exchange.gather(&request(index, which))?;
    // The writer's part is the first.
    let mut all = own;
    for (rank, count) in others(counts) {
        let mut values = HostValues(vec![0.0; count]);
        exchange.transfer(&mut values, rank, WRITER)?;
        all.extend(values.0);
    }
    Ok(all)
}

/// The ranks that have something to give, and how many values.
fn others(counts: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let all = counts.iter().copied().enumerate();
    all.filter(|(rank, count)| *rank != WRITER && *count > 0)
}

/// Tells the others that no more is needed, where something is shared out.
///
/// # Errors
/// If a rank is lost.
pub(crate) fn end(exchange: &dyn Exchange, optimizer: &AdamW) -> Result<(), Lost> {
    match optimizer.shards() {
        Some(_) => exchange.gather(&[]).map(drop),
        None => Ok(()),
    }
}

/// Gives the writer what it asks for of `optimizer` and `sets`, until it needs no more; at once where nothing is shared out.
///
/// # Errors
/// If a rank is lost, or the writer asks for what nobody has.
pub(crate) fn give(exchange: &dyn Exchange, optimizer: &AdamW, sets: &Sets<'_>) -> Result<(), Lost> {
    let Some(shards) = optimizer.shards() else {
        return Ok(());
    };
    let own = exchange.world().rank;
    loop {
        let said = exchange.gather(&[])?;
        let out_of_step = || Lost::OutOfStep {
            rank: WRITER,
            own,
            problem: "it asks for a part of the state that no rank has".into(),
        };
        let (index, which) = match requested(&said[WRITER]) {
            Ok(None) => return Ok(()),
            Ok(Some(request)) if request.0 < optimizer.moments().len() => request,
            _ => return Err(out_of_step()),
        };
        let here = || {
            let moment = || which.of(optimizer.moments()[index].as_ref()?).map(cpu::to_host);
            match which {
                Which::First | Which::Second => moment(),
                Which::Value(set) => sets.get(set).copied().flatten().map(|set| set.own_host(index)),
            }
        };
        let counts = shards.counts(index);
        let owner = shards.owner(index);
        let givers: Vec<usize> = match (counts, owner) {
            (Some(counts), _) => others(counts).map(|(rank, _)| rank).collect(),
            (None, Some(owner)) => vec![owner],
            (None, None) => return Err(out_of_step()),
        };
        for giver in givers {
            let values = match giver == own {
                true => here().ok_or_else(out_of_step)?,
                false => Vec::new(),
            };
            exchange.transfer(&mut HostValues(values), giver, WRITER)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Which, ask, end, give, request, requested};
    use crate::optimizer::{AdamW, AdamWSettings, MomentStorage, Moments, RateSchedule};
    use crate::shards::Shards;
    use flow_core::device::ComputeDevice;
    use flow_core::params::LayoutBuilder;
    use flow_core::{Init, ParamLayout};
    use flow_exchange::{Exchange, World, in_process};
    use std::time::Duration;

    const SIZES: [usize; 4] = [3, 5, 4, 1];

    /// What the moments of a weight are filled with here.
    fn value(index: usize, which: Which) -> f32 {
        index as f32 + if which == Which::First { 0.25 } else { 0.5 }
    }

    /// An optimizer with its share of the moments.
    fn optimizer(world: World) -> AdamW {
        let mut layout = ParamLayout::default();
        let mut builder = LayoutBuilder::new(&mut layout);
        for (index, size) in SIZES.iter().enumerate() {
            builder.param(&format!("weight{index}"), [*size], Init::Zeros);
        }
        let settings = AdamWSettings {
            learning_rate: 1e-3,
            betas: (0.9, 0.99),
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 0.0,
            warmup_steps: 0,
            schedule: RateSchedule::default(),
            moments: MomentStorage::F32,
            seed: 0,
        };
        let (trained, device) = (vec![true; SIZES.len()], ComputeDevice::cpu());
        let shards = Shards::new(&layout, &trained, world);
        let filled = |index: usize, which: Which| {
            device.plain(vec![value(index, which); SIZES[index]], &[SIZES[index]])
        };
        let moments = (0..SIZES.len()).map(|index| {
            shards.is_own(index).then(|| Moments {
                first: filled(index, Which::First),
                second: filled(index, Which::Second),
            })
        });
        let moments = moments.collect();
        let mut optimizer = AdamW::sharded(settings, &layout, trained, Some(shards), &device);
        optimizer.restore(1, moments);
        optimizer
    }

    #[test]
    fn a_request_is_read_as_it_was_made_and_anything_else_is_refused() {
        for index in [0, 1, 77, usize::MAX / 16] {
            for which in [Which::First, Which::Second, Which::Value(0), Which::Value(13)] {
                assert_eq!(requested(&request(index, which)), Ok(Some((index, which))));
            }
        }
        assert_eq!(requested(&[]), Ok(None));
        assert_eq!(requested(&[1, 2, 3]), Err(()));
    }

    /// The writer asks for every moment that is not its own.
    fn asks(exchange: &dyn Exchange, optimizer: &AdamW) {
        let shards = optimizer.shards().expect("shared out");
        for (index, count) in SIZES
            .into_iter()
            .enumerate()
            .filter(|(index, _)| !shards.is_own(*index))
        {
            let owner = shards.owner(index).expect("trained");
            for which in Which::BOTH {
                let values = ask(exchange, owner, (index, which), count).expect("everyone is there");
                assert_eq!(values, vec![value(index, which); count], "{index} {which:?}");
            }
        }
        end(exchange, optimizer).expect("everyone is there");
    }

    #[test]
    fn the_writer_gets_every_moment_from_the_rank_that_has_it() {
        let threads = in_process(3, Duration::from_secs(20))
            .into_iter()
            .map(|exchange| {
                std::thread::spawn(move || {
                    let optimizer = optimizer(exchange.world());
                    match exchange.world().rank {
                        0 => asks(&*exchange, &optimizer),
                        _ => give(&*exchange, &optimizer, &[]).expect("everyone is there"),
                    }
                    // All are in step afterwards.
                    exchange.gather(b"done").expect("everyone is there");
                })
            });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no rank panics"));
    }

    #[test]
    fn a_rank_that_stops_before_it_gives_its_moments_ends_the_wait_of_the_writer_with_its_words() {
        let mut ranks = in_process(2, Duration::from_secs(20));
        let (other, writer) = (ranks.remove(1), ranks.remove(0));
        let optimizer = optimizer(writer.world());
        let shards = optimizer.shards().expect("shared out");
        let index = (0..SIZES.len())
            .find(|index| !shards.is_own(*index))
            .expect("both have some");
        other.abort("its device is lost");
        let lost = ask(&*writer, 1, (index, Which::First), SIZES[index]).unwrap_err();
        assert!(
            lost.to_string().contains("rank 1 stopped: its device is lost"),
            "{lost}"
        );
    }
}
