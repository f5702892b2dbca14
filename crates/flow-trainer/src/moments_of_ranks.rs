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

    /// In names of sections.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
        }
    }

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
    use super::{Which, request, requested};

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
}
