//! What a model sees of its weights during one call.

use super::{Adapter, Handle, ParamLayout, Weights};
use crate::op::Gradients;
use crate::tensors::{Plain, leaf};
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use burn::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Weights as plain tensors, or with some of them as leaves of an autodiff graph.
#[derive(Clone, Debug)]
pub struct ParamView {
    layout: Arc<ParamLayout>,
    values: Arc<Vec<Plain>>,
    trained: Option<Arc<[bool]>>,
    // Leaves are made when a model first asks for them, so a replay of one block makes that block's only.
    leaves: Arc<Mutex<BTreeMap<u32, DispatchTensor>>>,
    with_adapters: bool,
}

impl ParamView {
    /// Plain values: nothing is differentiated.
    pub fn plain(weights: &Weights) -> Self {
        Self {
            layout: weights.layout().clone(),
            values: weights.shared(),
            trained: None,
            leaves: Arc::default(),
            with_adapters: true,
        }
    }

    /// Values of which those marked in `trained` (one flag per weight) are fresh leaves.
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn training(weights: &Weights, trained: Arc<[bool]>) -> Self {
        assert_eq!(trained.len(), weights.layout().len(), "one flag per weight");
        Self {
            trained: Some(trained),
            ..Self::plain(weights)
        }
    }

    /// The same values without adapters: the base model, for instance as a reference policy. Plain.
    pub fn without_adapters(&self) -> Self {
        Self {
            with_adapters: false,
            trained: None,
            leaves: Arc::default(),
            ..self.clone()
        }
    }

    /// The same values with leaves of their own, for running a part of the model again.
    pub fn fresh_leaves(&self) -> Self {
        Self {
            leaves: Arc::default(),
            ..self.clone()
        }
    }

    /// The same values, none of them a leaf.
    pub fn untracked(&self) -> Self {
        Self {
            trained: None,
            leaves: Arc::default(),
            ..self.clone()
        }
    }

    /// Whether any weight is differentiated.
    pub fn is_training(&self) -> bool {
        self.trained.is_some()
    }

    /// The weight behind `handle`.
    pub fn get<const D: usize>(&self, handle: Handle<D>) -> Tensor<D> {
        Tensor::from_dispatch(self.dispatch(handle.0))
    }

    /// The adapter of `weight`, if it has one and adapters are on.
    pub fn adapter(&self, weight: Handle<2>) -> Option<Adapter> {
        self.layout.adapter(weight).filter(|_| self.with_adapters)
    }

    fn dispatch(&self, index: u32) -> DispatchTensor {
        let value = &self.values[index as usize];
        if !self
            .trained
            .as_ref()
            .is_some_and(|trained| trained[index as usize])
        {
            return value.clone();
        }
        let mut leaves = self.leaves.lock().expect("no panic while the leaves are locked");
        leaves.entry(index).or_insert_with(|| leaf(value)).clone()
    }

    /// The leaves made so far, by weight.
    pub fn leaves(&self) -> BTreeMap<u32, DispatchTensor> {
        self.leaves
            .lock()
            .expect("no panic while the leaves are locked")
            .clone()
    }

    /// Takes this view's gradients out of `gradients`: one entry per weight, absent where no gradient arrived.
    pub fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<Plain>> {
        let mut found = vec![None; self.values.len()];
        for (index, leaf) in self.leaves() {
            found[index as usize] = <Dispatch as AutodiffBackend>::grad_remove(&leaf, gradients);
        }
        found
    }
}
