//! Moments that are shared out over ranks, on their way into a checkpoint: the rank that writes asks for one after another, as the file
//! goes on, and no rank holds more than one that is not its own.

use crate::optimizer::{AdamW, Moments};
use flow_core::{RawTensor, cpu};
use flow_exchange::{Exchange, HostValues, Lost};

/// The rank that writes.
const WRITER: usize = 0;

/// One of the two moments of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    First,
    Second,
}

impl Which {
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    pub fn of(self, moments: &Moments) -> &RawTensor {
        match self {
            Self::First => &moments.first,
            Self::Second => &moments.second,
        }
    }
}

/// What the writer says to all: that it needs a moment of the weight at this place in the layout, or nothing more (no bytes).
fn request(index: usize, which: Which) -> [u8; 8] {
    (2 * index as u64 + u64::from(which == Which::Second)).to_le_bytes()
}

/// What was said; an error if it is no request.
fn requested(bytes: &[u8]) -> Result<Option<(usize, Which)>, ()> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let number = u64::from_le_bytes(bytes.try_into().map_err(|_| ())?);
    let which = Which::BOTH[(number % 2) as usize];
    Ok(Some(((number / 2) as usize, which)))
}

/// Asks rank `owner` for a moment of `count` values of the weight at `index`. All others are in [`give`].
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

/// Tells the others that no more is needed, where moments are shared out.
///
/// # Errors
/// If a rank is lost.
pub(crate) fn end(exchange: &dyn Exchange, optimizer: &AdamW) -> Result<(), Lost> {
    match optimizer.shards() {
        Some(_) => exchange.gather(&[]).map(drop),
        None => Ok(()),
    }
}

/// Gives the writer what it asks for, until it needs no more; at once where moments are not shared out.
///
/// # Errors
/// If a rank is lost, or the writer asks for what nobody has.
pub(crate) fn give(exchange: &dyn Exchange, optimizer: &AdamW) -> Result<(), Lost> {
    let Some(shards) = optimizer.shards() else {
        return Ok(());
    };
    let own = exchange.world().rank;
    loop {
        let said = exchange.gather(&[])?;
        let out_of_step = || Lost::OutOfStep {
            rank: WRITER,
            own,
            problem: "it asks for a moment that no rank has".into(),
        };
        let (index, which) = match requested(&said[WRITER]) {
            Ok(None) => return Ok(()),
            Ok(Some(request)) if request.0 < optimizer.moments().len() => request,
            _ => return Err(out_of_step()),
        };
        let owner = shards.owner(index).ok_or_else(out_of_step)?;
        let moments = optimizer.moments()[index].as_ref();
        let mut values = HostValues(match moments {
            Some(moments) => cpu::to_host(which.of(moments)),
            None => Vec::new(),
        });
        exchange.transfer(&mut values, owner, WRITER)?;
    }
}

#[cfg(test)]
mod tests {
    use super::{Which, ask, end, give, request, requested};
    use crate::optimizer::{AdamW, AdamWSettings, FloatDType, Moments, RateSchedule};
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
            schedule: RateSchedule::Constant,
            moments: FloatDType::F32,
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
        for index in [0, 1, 77, usize::MAX / 4] {
            for which in Which::BOTH {
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
                        _ => give(&*exchange, &optimizer).expect("everyone is there"),
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
