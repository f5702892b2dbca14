//! What a model sees of its weights during one call.

use super::{Adapter, BlockGradients, BlockWeights, Handle, ParamLayout, Weights, WeightsVersion};
use crate::autograd::{self, Gradients};
use crate::low_precision::LowPrecision;
use crate::tensors::{RawTensor, buffer, leaf};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// Weights as plain tensors, or with some of them as leaves of an autodiff graph.
#[derive(Clone, Debug)]
pub struct ParamView {
    layout: Arc<ParamLayout>,
    values: Arc<Vec<RawTensor>>,
    // Of weights that processes have parts of, with the number of the set. `values` has no whole ones in their places.
    blocks: Option<(Arc<dyn BlockWeights>, usize)>,
    // The whole ones of the block that this view is of.
    gathered: Option<Arc<BTreeMap<usize, RawTensor>>>,
    // Who takes the gradients of weights in parts; if nobody does, they are this view's as all others.
    gradients: Option<Arc<dyn BlockGradients>>,
    low_precision: Arc<[Option<LowPrecision>]>,
    // Of matrices that are trained, and stored as numbers.
    rounded: Arc<[Option<LowPrecision>]>,
    trained: Option<Arc<[bool]>>,
    // Leaves are made when a model first asks for them, so a replay of one block makes that block's only.
    leaves: Arc<Mutex<BTreeMap<u32, DispatchTensor>>>,
    // Of a view made by `untracked`: the trained weights that were read instead of becoming leaves.
    read: Option<Arc<Mutex<BTreeSet<u32>>>>,
    with_adapters: bool,
}

/// See [`ParamView::standing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    buffers: Vec<usize>,
    trained: Option<Arc<[bool]>>,
    with_adapters: bool,
}

impl Standing {
    /// Whether the values stand where those of `training` do, and some of these are trained, and none of those is.
    pub fn is_plain_of(&self, training: &Self) -> bool {
        let is_plain = self.trained.is_none() && training.trained.is_some();
        is_plain && (&self.buffers, self.with_adapters) == (&training.buffers, training.with_adapters)
    }
}

impl ParamView {
    /// Plain values: nothing is differentiated.
    pub fn plain(weights: &Weights) -> Self {
        Self {
            layout: weights.layout().clone(),
            values: weights.shared(),
            blocks: weights.parts_set(),
            gathered: None,
            gradients: None,
            low_precision: weights.forms().clone(),
            rounded: weights.rounded().clone(),
            trained: None,
            leaves: Arc::default(),
            read: None,
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
            gradients: None,
            trained: None,
            leaves: Arc::default(),
            read: None,
            ..self.clone()
        }
    }

    /// The same values with leaves of their own, for running a part of the model again. Of a view made by
    /// [`untracked`](Self::untracked), one that tracks again.
    pub fn fresh_leaves(&self) -> Self {
        Self {
            leaves: Arc::default(),
            read: None,
            ..self.clone()
        }
    }

    /// The same values, none of them a leaf. The view remembers which trained weights were [`read`](Self::read)
    /// from it, so a region engine learns what a region's gradients belong to.
    pub fn untracked(&self) -> Self {
        Self {
            leaves: Arc::default(),
            read: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// Positions of the trained weights read so far from a view made by [`untracked`](Self::untracked), ascending.
    /// Empty for other views.
    pub fn read(&self) -> Vec<usize> {
        let read = self.read.as_ref().map(|read| lock(read).clone());
        read.unwrap_or_default()
            .into_iter()
            .map(|index| index as usize)
            .collect()
    }

    /// This view's leaves of the weights at `positions`, made now where nothing asked for them before. A weight that
    /// is not trained comes as its plain value. Of a trained one that processes have parts of the leaf has no values of use, unless this view
    /// is of its block: it stands for the weight in a graph, and takes the gradient of the whole one.
    ///
    /// # Panics
    /// If a position is not in the layout.
    pub fn leaves_of(&self, positions: &[usize]) -> Vec<DispatchTensor> {
        let leaf_of = |position: &usize| match self.is_tracked(*position) && self.is_elsewhere(*position) {
            true => self.leaf_of(*position as u32, &self.values[*position]),
            false => self.dispatch(*position as u32),
        };
        positions.iter().map(leaf_of).collect()
    }

    /// The same view, which hands the gradients of weights in parts to `taker`.
    #[must_use]
    pub fn handing_to(self, taker: Arc<dyn BlockGradients>) -> Self {
        Self {
            gradients: Some(taker),
            ..self
        }
    }

    /// Tells who takes gradients of weights in parts, if somebody does, that a block was run which will run again in backward.
    pub fn expect_gradients(&self, stack: &str, block: usize) {
        if let Some(taker) = &self.gradients {
            taker.expect(stack, block);
        }
    }

    /// Hands over what a block's run in backward gave for `weights` of weights in parts, if somebody takes them. What is left belongs to the
    /// leaves of this view.
    pub fn hand_over(
        &self,
        (stack, block): (&str, usize),
        weights: &[usize],
        gradients: Vec<Option<RawTensor>>,
    ) -> Vec<Option<RawTensor>> {
        let Some(taker) = &self.gradients else {
            return gradients;
        };
        let mut taken = Vec::new();
        let mut left = Vec::with_capacity(gradients.len());
        for (index, gradient) in weights.iter().zip(gradients) {
            left.push(match gradient {
                Some(gradient) if self.is_elsewhere(*index) => {
                    taken.push((*index, gradient));
                    None
                }
                other => other,
            });
        }
        taker.take(stack, block, taken);
        left
    }

    /// The same view with the whole weights of block number `block` of `stack`, where processes have parts of them; `None` where this one
    /// has all weights whole, or has these already. They are there as long as the view and whatever reads from it. `next` is the block that
    /// will most likely be asked for after this one, as [`BlockWeights::gather`] wants it.
    ///
    /// As [`BlockWeights::gather`], it unwinds if a process is lost.
    pub fn of_block(&self, stack: &str, block: usize, next: Option<usize>) -> Option<Self> {
        let (blocks, set) = self.blocks.as_ref().filter(|_| self.gathered.is_none())?;
        let gathered = blocks.gather(*set, stack, block, next).into_iter().collect();
        Some(Self {
            gathered: Some(Arc::new(gathered)),
            ..self.clone()
        })
    }

    /// Whether any weight is differentiated.
    pub fn is_training(&self) -> bool {
        self.trained.is_some() && self.read.is_none()
    }

    /// Whether some weights are trained in the pass that this view belongs to, even if none of its values is a leaf (as
    /// in a view made by [`untracked`](Self::untracked)).
    pub fn is_of_training(&self) -> bool {
        self.trained.is_some()
    }

    /// Which values it shows.
    pub fn version(&self) -> WeightsVersion {
        WeightsVersion::of(&self.values, self.with_adapters)
    }

    /// Where the values stand and what is done with them: equal as long as a recording of a computation on this view may be
    /// replayed for another one.
    pub fn standing(&self) -> Standing {
        Standing {
            buffers: self.values.iter().map(|value| buffer(value).identity).collect(),
            trained: self.trained.clone().filter(|_| self.read.is_none()),
            with_adapters: self.with_adapters,
        }
    }

    /// The values it shows, plain, in the order of the layout. Of a weight that processes have parts of there is nothing of use here.
    pub fn values(&self) -> &[RawTensor] {
        &self.values
    }

    /// The weight behind `handle`.
    ///
    /// # Panics
    /// If it is stored in low precision: only the [matrices](super::LayoutBuilder::matrix) of linear layers are, which products
    /// read.
    pub fn get<const D: usize>(&self, handle: Handle<D>) -> Tensor<D> {
        assert!(
            self.low_precision(handle.index()).is_none(),
            "weight `{}` is stored in low precision and read outside of a product",
            self.layout.specs()[handle.index()].name
        );
        Tensor::from_dispatch(self.dispatch(handle.0))
    }

    /// The matrix of a linear layer as it is stored: numbers, with the form that products round them to, if they do; or if it is in low
    /// precision its words and their form.
    pub fn matrix(&self, handle: Handle<2>) -> (DispatchTensor, Option<LowPrecision>) {
        let index = handle.index();
        let rounded = self.rounded.get(index).copied().flatten();
        (self.dispatch(handle.0), self.low_precision(index).or(rounded))
    }

    /// Number of weights in low precision, or rounded to it in products.
    pub fn count_low_precision(&self) -> usize {
        let forms = self.low_precision.iter().chain(self.rounded.iter());
        forms.flatten().count()
    }

    fn low_precision(&self, index: usize) -> Option<LowPrecision> {
        self.low_precision.get(index).copied().flatten()
    }

    /// The adapter of `weight`, if it has one and adapters are on.
    pub fn adapter(&self, weight: Handle<2>) -> Option<Adapter> {
        self.layout.adapter(weight).filter(|_| self.with_adapters)
    }

    fn dispatch(&self, index: u32) -> DispatchTensor {
        let value = self.value(index as usize);
        if !self.is_trained(index as usize) {
            return value.clone();
        }
        if let Some(read) = &self.read {
            lock(read).insert(index);
            return value.clone();
        }
        self.leaf_of(index, value)
    }

    /// The leaf of a weight, made of `value` if there is none yet.
    fn leaf_of(&self, index: u32, value: &RawTensor) -> DispatchTensor {
        let mut leaves = lock(&self.leaves);
        leaves.entry(index).or_insert_with(|| leaf(value)).clone()
    }

    fn is_trained(&self, index: usize) -> bool {
        self.trained.as_ref().is_some_and(|trained| trained[index])
    }

    /// Whether this view has a leaf for the weight at `index`, or makes one.
    fn is_tracked(&self, index: usize) -> bool {
        self.read.is_none() && self.is_trained(index)
    }

    /// Whether the weight at `index` is in parts and this view does not have it whole.
    fn is_elsewhere(&self, index: usize) -> bool {
        let is_gathered = (self.gathered.as_ref()).is_some_and(|of_block| of_block.contains_key(&index));
        let is_in_parts = (self.blocks.as_ref()).is_some_and(|(blocks, _)| blocks.own_part(index).is_some());
        is_in_parts && !is_gathered
    }

    fn value(&self, index: usize) -> &RawTensor {
        let gathered = self.gathered.as_ref().and_then(|of_block| of_block.get(&index));
        if let Some(value) = gathered {
            return value;
        }
        assert!(
            !self.is_elsewhere(index),
            "the weight `{}` is shared out over processes, and read outside of the block that it is named after",
            self.layout.specs()[index].name
        );
        &self.values[index]
    }

    /// The leaves made so far, by weight.
    pub fn leaves(&self) -> BTreeMap<u32, DispatchTensor> {
        lock(&self.leaves).clone()
    }

    /// Takes this view's gradients out of `gradients`: one entry per weight, absent where no gradient arrived.
    pub fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<RawTensor>> {
        let mut found = vec![None; self.values.len()];
        for (index, leaf) in self.leaves() {
            found[index as usize] = autograd::take_gradient(&leaf, gradients);
        }
        found
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the lock")
}
