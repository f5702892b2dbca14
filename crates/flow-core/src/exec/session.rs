//! Borrowed weights: a rollout or a training pass, during which no weight can change.

use super::{CallContext, Exec, Plan};
use crate::op;
use crate::params::{ParamView, Weights};
use crate::tensors::Plain;
use burn::tensor::Tensor;
use std::marker::PhantomData;
use std::sync::Arc;

/// Sampling with fixed weights. Holds a borrow of them, so an optimizer step meanwhile does not compile.
#[derive(Clone, Debug)]
pub struct Rollout<'w> {
    params: ParamView,
    plan: Arc<Plan>,
    weights: PhantomData<&'w Weights>,
}

impl<'w> Rollout<'w> {
    /// Borrows `weights`.
    pub fn new(weights: &'w Weights, plan: Arc<Plan>) -> Self {
        Self {
            params: ParamView::plain(weights),
            plan,
            weights: PhantomData,
        }
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
        Exec::new(self.params.clone(), self.plan.clone(), call)
    }
}

/// One forward and backward pass. Holds a borrow of the weights.
#[derive(Debug)]
pub struct Training<'w> {
    params: ParamView,
    plan: Arc<Plan>,
    weights: PhantomData<&'w Weights>,
}

impl<'w> Training<'w> {
    /// Borrows `weights`; those marked in `trained` get gradients.
    pub fn new(weights: &'w Weights, plan: Arc<Plan>, trained: Arc<[bool]>) -> Self {
        Self {
            params: ParamView::training(weights, trained),
            plan,
            weights: PhantomData,
        }
    }

    /// The context of one call. Calls of one pass share the leaves, so their gradients add up.
    pub fn exec(&self, call: CallContext) -> Exec<'w> {
        Exec::new(self.params.clone(), self.plan.clone(), call)
    }

    /// The same weights, none differentiated, without adapters: a reference policy.
    pub fn reference(&self) -> Rollout<'w> {
        Rollout {
            params: self.params.without_adapters(),
            plan: self.plan.clone(),
            weights: PhantomData,
        }
    }

    /// Differentiates `loss` (`[1]`) and ends the pass: one gradient per weight, absent where none arrived.
    ///
    /// # Panics
    /// If `loss` does not depend on a trained weight.
    pub fn gradients(self, loss: &Tensor<1>) -> Vec<Option<Plain>> {
        let mut gradients = op::backward(loss.clone().into_dispatch());
        self.params.take_gradients(&mut gradients)
    }
}
