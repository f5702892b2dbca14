//! The execution context: the weights, the implementations and the place of one call.

use super::{Backends, CallContext, RowKey, Site, TrajectoryId};
use crate::ops::{Compute, Kernels, Stash};
use crate::params::ParamView;
use std::marker::PhantomData;
use std::sync::Arc;

/// What a model computes through, for one call. Borrows the weights, so they cannot change meanwhile.
#[derive(Clone, Debug)]
pub struct Exec<'w> {
    pub(super) params: ParamView,
    pub(super) backends: Arc<Backends>,
    pub(super) call: Arc<CallContext>,
    pub(super) rows: Arc<[RowKey]>,
    pub(super) text_lengths: Option<Arc<[usize]>>,
    pub(super) stash: Arc<dyn Stash>,
    pub(super) site: Option<Site>,
    /// Whether what computes belongs to a backward pass, which takes blocks from the last to the first.
    pub(super) in_backward: bool,
    pub(super) weights: PhantomData<&'w ()>,
}

impl<'w> Exec<'w> {
    pub(super) fn new(params: ParamView, backends: Arc<Backends>, call: CallContext) -> Self {
        Self {
            params,
            backends,
            call: Arc::new(call),
            rows: Arc::from([]),
            text_lengths: None,
            stash: Arc::new(Compute),
            site: None,
            in_backward: false,
            weights: PhantomData,
        }
    }

    /// The weights of this call.
    pub fn params(&self) -> &ParamView {
        &self.params
    }

    /// Who answers for what.
    pub fn backends(&self) -> &Arc<Backends> {
        &self.backends
    }

    /// The kernels of the place where this context computes: within a block of a stack, or outside.
    pub fn kernels(&self) -> &dyn Kernels {
        let of_blocks = self.site.as_ref().and(self.backends.block_kernels.as_ref());
        &**of_blocks.unwrap_or(&self.backends.kernels)
    }

    /// Stage, step and trajectories of this call.
    pub fn call(&self) -> &CallContext {
        &self.call
    }

    /// The same call on other parameter leaves and with another store of results: how a region engine runs a body
    /// again.
    pub fn replay(&self, params: ParamView, stash: Arc<dyn Stash>) -> Exec<'w> {
        Exec {
            params,
            stash,
            ..self.clone()
        }
    }

    /// The same call as a value that lives until backward: no leaf is made yet and nothing is kept. A region engine
    /// holds it, takes [`fresh_leaves`](ParamView::fresh_leaves) of its parameters, and [`replay`](Self::replay)s on
    /// them.
    ///
    /// It holds the values that the weights have now. If they are updated before it is dropped, they are copied first.
    pub fn for_backward(&self) -> Exec<'static> {
        Exec {
            params: self.params.fresh_leaves(),
            backends: self.backends.clone(),
            call: self.call.clone(),
            rows: self.rows.clone(),
            text_lengths: self.text_lengths.clone(),
            stash: Arc::new(Compute),
            site: self.site.clone(),
            in_backward: true,
            weights: PhantomData,
        }
    }

    /// The same call with what is known of the inputs of its rows, one entry per row.
    pub fn with_rows(self, rows: Arc<[RowKey]>) -> Self {
        Exec { rows, ..self }
    }

    /// What is known of the inputs of each row; empty where nothing is.
    pub fn rows(&self) -> &Arc<[RowKey]> {
        &self.rows
    }

    /// The same call with the lengths of its rows' texts, one entry per row: how a model that hides padding
    /// ([`Condition::text_lengths`](crate::Condition::text_lengths)) tells its blocks, which may run for some rows only.
    pub fn with_text_lengths(self, text_lengths: Option<Arc<[usize]>>) -> Self {
        Exec { text_lengths, ..self }
    }

    /// How many tokens of text each row has; absent where no padding is hidden.
    pub fn text_lengths(&self) -> Option<&Arc<[usize]>> {
        self.text_lengths.as_ref()
    }

    /// The same call for some trajectories of its batch only: how a stack driver runs a block for part of the trajectories.
    ///
    /// # Panics
    /// If texts have lengths, and the call has not one of these trajectories.
    pub fn on_trajectories(&self, trajectories: Arc<[TrajectoryId]>) -> Exec<'w> {
        let row_of =
            |trajectory: &TrajectoryId| self.call.trajectories.iter().position(|of| of == trajectory);
        let keys = trajectories
            .iter()
            .map(|trajectory| self.rows.get(row_of(trajectory)?).cloned());
        // Nothing is known of a trajectory that the call does not have.
        let rows: Option<Vec<RowKey>> = keys.collect();
        let text_lengths = self.text_lengths.as_ref().map(|lengths| {
            let length = |trajectory| lengths[row_of(trajectory).expect("a trajectory of the call")];
            trajectories.iter().map(length).collect()
        });
        let part = self.part_of_call(trajectories.clone(), rows.unwrap_or_default());
        part.with_text_lengths(text_lengths)
    }

    /// The same call for some rows of its batch only, in the order asked for.
    pub fn on_rows(&self, rows: &[usize]) -> Exec<'w> {
        let trajectories = rows
            .iter()
            .filter_map(|row| self.call.trajectories.get(*row).copied());
        let keys = rows.iter().filter_map(|row| self.rows.get(*row).cloned());
        let text_lengths = self.text_lengths.as_ref();
        let text_lengths = text_lengths.map(|lengths| rows.iter().map(|row| lengths[*row]).collect());
        let part = self.part_of_call(trajectories.collect(), keys.collect());
        part.with_text_lengths(text_lengths)
    }

    fn part_of_call(&self, trajectories: Arc<[TrajectoryId]>, rows: Vec<RowKey>) -> Exec<'w> {
        let call = CallContext {
            trajectories,
            ..(*self.call).clone()
        };
        Exec {
            call: Arc::new(call),
            rows: rows.into(),
            ..self.clone()
        }
    }

    /// The store that results worth keeping pass through.
    pub fn stash(&self) -> &Arc<dyn Stash> {
        &self.stash
    }

    /// The block and region being computed, `None` outside of a stack.
    pub fn site(&self) -> Option<&Site> {
        self.site.as_ref()
    }
}
