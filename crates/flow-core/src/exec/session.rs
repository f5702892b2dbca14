//! Borrowed weights: a rollout or a training pass, during which no weight can change.

use super::{Backends, CallContext, Exec};
use crate::autograd;
use crate::params::{BlockGradients, ParamView, Weights};
use crate::tensors::RawTensor;
use burn::tensor::Tensor;
use std::marker::PhantomData;
use std::sync::Arc;

/// Sampling with fixed weights. Holds a borrow of them, so an optimizer step meanwhile does not compile:
///
/// ```compile_fail,E0502
/// use flow_core::{CallContext, Backends, InferencePass, Stage, Weights};
/// use std::sync::Arc;
///
/// fn optimizer_step(weights: &mut Weights) {
///     weights.values_mut();
/// }
///
/// fn iteration(weights: &mut Weights, backends: Arc<Backends>) {
///     let rollout = InferencePass::new(weights, backends);
///     optimizer_step(weights); // the rollout below would go on with other weights
///     rollout.exec(CallContext::single(Stage::Rollout));
/// }
/// ```
///
/// Once the rollout has ended, it does:
///
/// ```
/// use flow_core::{CallContext, Backends, InferencePass, Stage, Weights};
/// use std::sync::Arc;
///
/// fn optimizer_step(weights: &mut Weights) {
///     weights.values_mut();
/// }
///
/// fn iteration(weights: &mut Weights, backends: Arc<Backends>) {
///     let rollout = InferencePass::new(weights, backends);
///     rollout.exec(CallContext::single(Stage::Rollout));
///     optimizer_step(weights);
/// }
/// ```
///
/// Nor can a context made by it outlive the borrow:
///
/// ```compile_fail,E0505
/// use flow_core::{CallContext, Backends, InferencePass, Stage, Weights};
/// use std::sync::Arc;
///
/// fn iteration(weights: Weights, backends: Arc<Backends>) {
///     let exec = InferencePass::new(&weights, backends).exec(CallContext::single(Stage::Rollout));
///     drop(weights);
///     exec.params();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct InferencePass<'w> {
    params: ParamView,
    backends: Arc<Backends>,
    weights: PhantomData<&'w Weights>,
}

impl<'w> InferencePass<'w> {
    /// Borrows `weights`.
    pub fn new(weights: &'w Weights, backends: Arc<Backends>) -> Self {
        Self {
            params: ParamView::plain(weights),
            backends,
            weights: PhantomData,
        }
    }

    /// Who answers for what.
    pub fn backends(&self) -> &Arc<Backends> {
        &self.backends
    }

    /// The same without adapters: the base model.
    pub fn without_adapters(&self) -> Self {
        Self {
            params: self.params.without_adapters(),
            ..self.clone()
        }
    }

    /// The context of one call.
    pub fn exec(&self, call: CallContext) -> Exec<'w> {
        Exec::new(self.params.clone(), self.backends.clone(), call)
    }
}

/// One forward and backward pass. Holds a borrow of the weights, so they cannot change between forward and backward:
///
/// ```compile_fail,E0502
/// use flow_core::{CallContext, Backends, Stage, TrainingPass, Weights};
/// use std::sync::Arc;
///
/// fn update(weights: &mut Weights, backends: Arc<Backends>, trained: Arc<[bool]>) {
///     let pass = TrainingPass::new(weights, backends, trained);
///     weights.values_mut();
///     pass.exec(CallContext::single(Stage::Training));
/// }
/// ```
///
/// `gradients` ends the pass, and with it the borrow:
///
/// ```
/// use burn::tensor::Tensor;
/// use flow_core::{CallContext, Exec, Backends, Stage, TrainingPass, Weights};
/// use std::sync::Arc;
///
/// fn update(
///     weights: &mut Weights,
///     backends: Arc<Backends>,
///     trained: Arc<[bool]>,
///     loss: fn(&Exec<'_>) -> Tensor<1>,
/// ) {
///     let pass = TrainingPass::new(weights, backends, trained);
///     let loss = loss(&pass.exec(CallContext::single(Stage::Training)));
///     let gradients = pass.gradients(&loss);
///     for (value, gradient) in weights.values_mut().iter_mut().zip(gradients) {
///         # let _ = (value, gradient);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct TrainingPass<'w> {
    params: ParamView,
    backends: Arc<Backends>,
    weights: PhantomData<&'w Weights>,
}

impl<'w> TrainingPass<'w> {
    /// Borrows `weights`; those marked in `trained` get gradients.
    pub fn new(weights: &'w Weights, backends: Arc<Backends>, trained: Arc<[bool]>) -> Self {
        Self {
            params: ParamView::training(weights, trained),
            backends,
            weights: PhantomData,
        }
    }

    /// The same pass, which hands the gradients of weights in parts to `taker` as they come: [`gradients`](Self::gradients) has none of them.
    #[must_use]
    pub fn handing_to(self, taker: Arc<dyn BlockGradients>) -> Self {
        Self {
            params: self.params.handing_to(taker),
            ..self
        }
    }

    /// The context of one call. Calls of one pass share the leaves, so their gradients add up.
    pub fn exec(&self, call: CallContext) -> Exec<'w> {
        Exec::new(self.params.clone(), self.backends.clone(), call)
    }

    /// The same weights, none differentiated, without adapters: a reference policy.
    pub fn reference(&self) -> InferencePass<'w> {
        InferencePass {
            params: self.params.without_adapters(),
            backends: self.backends.clone(),
            weights: PhantomData,
        }
    }

    /// Differentiates `loss` (`[1]`) and ends the pass: one gradient per weight, absent where none arrived.
    ///
    /// # Panics
    /// If `loss` does not depend on a trained weight.
    pub fn gradients(self, loss: &Tensor<1>) -> Vec<Option<RawTensor>> {
        let mut gradients = autograd::backward(loss.clone().into_dispatch());
        self.params.take_gradients(&mut gradients)
    }
}
