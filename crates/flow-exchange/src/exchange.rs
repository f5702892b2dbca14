//! What moves data between ranks.

use crate::lanes::Lanes;
use crate::lost::Lost;
use crate::portion::parts_of_ranks;
use crate::values::Values;
use flow_rendezvous::World;
use std::any::Any;
use std::fmt::Debug;

/// Moves data between the ranks of a run. Every rank makes the same calls in the same order; one that cannot go on calls
/// [`abort`](Self::abort), and the calls of the others end with its words.
pub trait Exchange: Debug + Send + Sync {
    /// This process's place.
    fn world(&self) -> World;

    /// Small host data of every rank, in the order of ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost>;

    /// Sums over all lanes, into the first of `parts` on every rank. `parts` are the sums of the nodes that
    /// [`Lanes::cover`] gives for this rank's lanes, in order; all have the same number of values, on all ranks. What is on a GPU may
    /// be on its way: what is launched behind it finds the sums, the host may count on them after [`settle`](Self::settle).
    ///
    /// # Errors
    /// If a rank is lost, or sums another number of values. What `parts` hold then is not said.
    fn sum(&self, lanes: &Lanes, parts: &mut [&mut dyn Values]) -> Result<(), Lost>;

    /// As [`sum`](Self::sum), where each rank gets some of the sums alone (reduce-scatter): the first `counts[0]` of them are for rank 0, the
    /// next `counts[1]` for rank 1, and so on. This rank's come into `own`, which has as many values; `parts` stay as they are.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    ///
    /// # Panics
    /// If `counts` has not one number for each rank, or these are not as many as the values of a part together.
    fn reduce_scatter(
        &self,
        lanes: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost>;

    /// Waits until every sum and every [shared](Self::share) row is there.
    ///
    /// # Errors
    /// If a rank is lost; none of them since the last call may be used then.
    fn settle(&self) -> Result<(), Lost>;

    /// Gives everyone the values of rank `from`.
    ///
    /// # Errors
    /// If a rank is lost, or has another number of values.
    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost>;

    /// Gives everyone one row of which each rank has a part: the first `counts[0]` of `values` are rank 0's to give, the next `counts[1]`
    /// rank 1's, and so on. What `values` hold of the parts of others is replaced. What is on a GPU may be on its way, as after
    /// [`sum`](Self::sum).
    ///
    /// # Errors
    /// If a rank is lost, or gives another number of values.
    ///
    /// # Panics
    /// If `counts` has not one number for each rank, or these are not as many as `values` together.
    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost>;

    /// As [`share`](Self::share), of a row that is read later. Where a device exchanges, the row travels beside what is launched from now
    /// on, and nothing reads it before [`await_ahead`](Self::await_ahead). One row at a time travels so: what is exchanged
    /// next waits for it, on the device. For other ranks this may be [`share`](Self::share).
    ///
    /// # Errors
    /// As [`share`](Self::share).
    ///
    /// # Panics
    /// As [`share`](Self::share).
    fn share_ahead(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        self.share(values, counts)
    }

    /// What is launched from now on comes behind the last row that was [shared ahead](Self::share_ahead), if one is on its way.
    /// It concerns this rank's device alone: the others need not be there.
    ///
    /// # Errors
    /// If the device does not do what it must.
    fn await_ahead(&self) -> Result<(), Lost> {
        Ok(())
    }

    /// Gives rank `to` the values of rank `from`. Those of the other ranks, which call this as well, stay as they are.
    ///
    /// # Errors
    /// If a rank is lost, or has another number of values.
    fn transfer(&self, values: &mut dyn Values, from: usize, to: usize) -> Result<(), Lost>;

    /// Whether everyone is there, as far as is known without waiting.
    ///
    /// # Errors
    /// If a rank is lost.
    fn check(&self) -> Result<(), Lost>;

    /// Tells every rank that this one stops, and why. The first that does is the one whose words count.
    fn abort(&self, words: &str);

    /// Itself, to be downcast to its type; `None` for an exchange that offers nothing beyond this trait.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// A run of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Exchange for Alone {
    fn world(&self) -> World {
        World::ALONE
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        Ok(vec![mine.to_vec()])
    }

    fn sum(&self, _: &Lanes, _: &mut [&mut dyn Values]) -> Result<(), Lost> {
        // The cover of all lanes is the whole tree.
        Ok(())
    }

    fn reduce_scatter(
        &self,
        _: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost> {
        let sums = parts.first().map_or_else(Vec::new, |part| part.read());
        parts_of_ranks(counts, 1, sums.len());
        own.write(sums);
        Ok(())
    }

    fn settle(&self) -> Result<(), Lost> {
        Ok(())
    }

    fn broadcast(&self, _: &mut dyn Values, _: usize) -> Result<(), Lost> {
        Ok(())
    }

    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        parts_of_ranks(counts, 1, values.count());
        Ok(())
    }

    fn transfer(&self, _: &mut dyn Values, _: usize, _: usize) -> Result<(), Lost> {
        Ok(())
    }

    fn check(&self) -> Result<(), Lost> {
        Ok(())
    }

    fn abort(&self, _: &str) {}
}
