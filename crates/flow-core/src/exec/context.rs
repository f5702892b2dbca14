//! The execution context: the weights, the implementations and the place of one call. And the interfaces of those who answer
//! for a model: they are asked through the context, and the context holds them, so both stand here.

use super::{AttentionLayer, AttentionLog, CallContext, Reusable, RowKey, Site, TrajectoryId};
use crate::model::{ModelInput, ModelSpec};
use crate::ops::{AttentionBackend, Compute, Kernels, Stash};
use crate::params::{ParamLayout, ParamView};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;
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

/// The implementations behind an execution context. Built once per stage, shared by all its calls.
#[derive(Clone, Debug)]
pub struct Backends {
    /// Computes attention.
    pub attention: Arc<dyn AttentionBackend>,
    /// Computes everything else.
    pub kernels: Arc<dyn Kernels>,
    /// Computes it within the blocks of a stack, if not the same kernels do.
    pub block_kernels: Option<Arc<dyn Kernels>>,
    /// Decides what backward keeps of a region.
    pub regions: Arc<dyn RegionEngine>,
    /// Runs the blocks of a stack; a feature cache may answer for some.
    pub stacks: Arc<dyn StackDriver>,
    /// Computes attention layers; a feature cache may answer for some.
    pub layers: Arc<dyn LayerDriver>,
    /// Calls the model; a feature cache may answer for it.
    pub velocities: Arc<dyn VelocityDriver>,
    /// Computes what several rows or calls have in common, or takes it from where it was computed.
    pub reuse: Arc<dyn ReuseDriver>,
    /// Which kernels answered.
    pub attention_log: Arc<AttentionLog>,
}

/// A model that predicts the velocity `noise - data` (Lipman et al. 2022, arXiv:2210.02747; Liu et al. 2022,
/// arXiv:2209.03003).
///
/// Written once against [`Exec`]; it holds weight handles, not weights.
pub trait FlowModel: Debug + Send + Sync {
    /// What it is.
    fn spec(&self) -> &ModelSpec;

    /// Its weights' names and shapes.
    fn layout(&self) -> &Arc<ParamLayout>;

    /// The velocity, `[B, N]`.
    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2>;

    /// The velocity, and of a model with experts how unevenly each row's tokens load them: the mean over its blocks of
    /// [`Routed::balance`](crate::ops::Routed::balance), `[B]`. Training from random weights adds it to the loss.
    fn velocity_and_balance(&self, exec: &Exec<'_>, input: ModelInput) -> (Tensor<2>, Option<Tensor<1>>) {
        (self.velocity(exec, input), None)
    }
}

/// A region as a value: a pure function of its inputs and of the weights that the context shows it. It can run again
/// during backward, on other leaves.
pub type Body = Arc<dyn Fn(&Exec<'_>, Vec<DispatchTensor>) -> Vec<DispatchTensor> + Send + Sync>;

/// Runs regions; decides what backward keeps of them.
pub trait RegionEngine: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// Runs `body` on `inputs`. `exec` is at the region's [`Site`].
    fn run(&self, exec: &Exec<'_>, inputs: Vec<DispatchTensor>, body: Body) -> Vec<DispatchTensor>;

    /// The size of the buffers that take most of what the engine holds now for backward passes, in bytes; none where it holds nothing.
    fn usual_bytes(&self) -> Option<u64> {
        None
    }

    /// Runs a part of a region that may be put off ([`Exec::deferrable`]), `exec` being where the model asks for it. An engine that
    /// puts nothing off runs `body` where it stands.
    fn run_deferrable(
        &self,
        exec: &Exec<'_>,
        inputs: Vec<DispatchTensor>,
        body: Body,
    ) -> Vec<DispatchTensor> {
        body(exec, inputs)
    }
}

/// A stack as a driver sees it.
pub trait Stack {
    /// Its name within the model.
    fn name(&self) -> &str;
    /// Number of blocks.
    fn len(&self) -> usize;
    /// Whether there is no block.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Runs block `index` on all or some trajectories of the batch.
    fn run_block(
        &self,
        exec: &Exec<'_>,
        index: usize,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor>;
    /// [`Block::modulated_input`](crate::exec::Block::modulated_input) of block `index`.
    fn modulated_input(
        &self,
        _exec: &Exec<'_>,
        _index: usize,
        _carried: &[DispatchTensor],
        _shared: &[DispatchTensor],
    ) -> Option<DispatchTensor> {
        None
    }
    /// Runs the blocks of `range`, one after another.
    fn run_blocks(
        &self,
        exec: &Exec<'_>,
        range: Range<usize>,
        carried: Vec<DispatchTensor>,
        shared: &[DispatchTensor],
    ) -> Vec<DispatchTensor> {
        range.fold(carried, |carried, index| {
            self.run_block(exec, index, carried, shared.to_vec())
        })
    }
}

/// Runs the blocks of a stack, or answers for some of them.
pub trait StackDriver: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// Takes `carried` through the stack.
    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor>;
}

/// An attention layer as a driver sees it: a function of its inputs, for all or some trajectories.
pub type LayerBody<'a> = &'a dyn Fn(&Exec<'_>, Vec<DispatchTensor>) -> Vec<DispatchTensor>;

/// Computes attention layers, or answers for them.
pub trait LayerDriver: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// The outputs of `layer` for `inputs`; each has the batch as its first axis.
    fn run(
        &self,
        exec: &Exec<'_>,
        layer: &AttentionLayer,
        inputs: Vec<DispatchTensor>,
        body: LayerBody<'_>,
    ) -> Vec<DispatchTensor>;
}

/// A part as a driver sees it: a function of the rows asked for, of all of them if `None`. The batch is the first axis of
/// its outputs.
pub type RowsBody<'a> = &'a dyn Fn(&Exec<'_>, Option<&[usize]>) -> Vec<DispatchTensor>;

/// A call of the model as a driver sees it.
pub type CallBody<'a> = &'a dyn Fn(&Exec<'_>, ModelInput) -> Tensor<2>;

/// Computes what is the same for several rows or calls, or takes it from where it was computed. Its answers have the bits
/// of computing everything.
pub trait ReuseDriver: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// The outputs of `part`, for every row of the call.
    fn part(&self, exec: &Exec<'_>, part: Reusable, body: RowsBody<'_>) -> Vec<DispatchTensor>;

    /// The velocity `[B, N]` of `model` at `input`.
    fn velocity(
        &self,
        exec: &Exec<'_>,
        model: &dyn FlowModel,
        input: ModelInput,
        compute: CallBody<'_>,
    ) -> Tensor<2>;
}

/// Calls a model, or answers for it.
pub trait VelocityDriver: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// The velocity `[B, N]` of `model` at `input`.
    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2>;

    /// Whether every row is computed in every call, with the bits that a call of the model gives. Then another driver may stand
    /// above this one, and ask it for what it does not answer itself.
    fn computes_every_row(&self) -> bool {
        false
    }
}
