//! What moves data between ranks.

use crate::lanes::Lanes;
use crate::lost::Lost;
use crate::values::Values;
use flow_rendezvous::World;
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

    /// Waits until every sum is there.
    ///
    /// # Errors
    /// If a rank is lost; no sum since the last call may be used then.
    fn settle(&self) -> Result<(), Lost>;

    /// Gives everyone the values of rank `from`.
    ///
    /// # Errors
    /// If a rank is lost, or has another number of values.
    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost>;

    /// Whether everyone is there, as far as is known without waiting.
    ///
    /// # Errors
    /// If a rank is lost.
    fn check(&self) -> Result<(), Lost>;

    /// Tells every rank that this one stops, and why. The first that does is the one whose words count.
    fn abort(&self, words: &str);
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

    fn settle(&self) -> Result<(), Lost> {
        Ok(())
    }

    fn broadcast(&self, _: &mut dyn Values, _: usize) -> Result<(), Lost> {
        Ok(())
    }

    fn check(&self) -> Result<(), Lost> {
        Ok(())
    }

    fn abort(&self, _: &str) {}
}
