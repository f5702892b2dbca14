//! Custom differentiable operations: one forward on plain tensors, one backward, both paths.
//!
//! [`apply`] computes the forward on plain tensors whether or not a gradient is wanted, so a rollout and a training
//! step run the very same kernel. Only then, if an input is tracked, the result is bound to a node of Burn's graph.
//!
//! Burn's own softmax, normalisation and attention have other kernels on plain than on tracked tensors
//! (`burn-flex`, `burn-autodiff` 0.22.1); the models here never call them.

mod bind;
mod gradient;

pub use gradient::{Backward, Gradients, Incoming, backward};

use crate::tensors::{RawTensor, is_leaf, is_tracked, leaf, plain};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor, DispatchTensorKind, Flex, TensorMetadata};
use burn::tensor::{FloatDType, Tensor};
use gradient::Saved;

/// Runs a differentiable operation with one output.
///
/// `forward` gets the inputs without their graph and whether a gradient is wanted at all; it returns the output and
/// the backward. `name` appears in panics and debug output.
pub fn apply(
    name: &'static str,
    inputs: &[&DispatchTensor],
    forward: impl FnOnce(&[RawTensor], bool) -> (RawTensor, Backward),
) -> DispatchTensor {
    let outputs = apply_many(name, inputs, |values, tracked| {
        let (output, backward) = forward(values, tracked);
        (vec![output], backward)
    });
    outputs.into_iter().next().expect("one output was given")
}

/// Runs a differentiable operation with any number of outputs and at most 16 tracked inputs.
pub fn apply_many(
    name: &'static str,
    inputs: &[&DispatchTensor],
    forward: impl FnOnce(&[RawTensor], bool) -> (Vec<RawTensor>, Backward),
) -> Vec<DispatchTensor> {
    let wanted: Vec<bool> = inputs.iter().map(|tensor| is_tracked(tensor)).collect();
    let values: Vec<RawTensor> = inputs.iter().map(|tensor| plain(tensor)).collect();
    let (outputs, backward) = forward(&values, wanted.contains(&true));
    bind(name, inputs, outputs, backward)
}

/// Attaches `backward` to results computed already, for instance taken from a recompute's store.
/// Plain results stay plain if no input is tracked, and integers always do.
pub fn bind(
    name: &'static str,
    inputs: &[&DispatchTensor],
    outputs: Vec<RawTensor>,
    backward: Backward,
) -> Vec<DispatchTensor> {
    bind_with_leaves(name, inputs, &[], outputs, backward)
}

/// As [`bind`], for an operation that also computes gradients of `leaves`, which it does not read: a region that runs
/// again in backward, and the weights that it read from its context.
///
/// `backward` returns one entry per input and then one per leaf. A leaf's entry may be absent; an input's may not if a
/// gradient is wanted. There may be any number of leaves, whereas tracked inputs are 16 at most. With no tracked input
/// the node hangs on the first leaf, so that backward reaches it.
///
/// # Panics
/// If one of `leaves` is not a leaf of a graph: gradients of computed tensors would be lost, they must be inputs.
pub fn bind_with_leaves(
    name: &'static str,
    inputs: &[&DispatchTensor],
    leaves: &[DispatchTensor],
    outputs: Vec<RawTensor>,
    backward: Backward,
) -> Vec<DispatchTensor> {
    assert!(
        leaves.iter().all(is_leaf),
        "operation `{name}` was given a weight that is not a leaf of a graph"
    );
    let wanted: Vec<bool> = inputs.iter().map(|tensor| is_tracked(tensor)).collect();
    let tracked_inputs = inputs.iter().zip(&wanted).filter(|(_, wanted)| **wanted);
    let Some(first) = tracked_inputs.map(|(input, _)| *input).chain(leaves).next() else {
        return outputs;
    };
    let parents: Vec<DispatchTensor> = inputs
        .iter()
        .zip(&wanted)
        .filter(|(_, wanted)| **wanted)
        .map(|(t, _)| (*t).clone())
        .collect();
    let saved = Saved {
        name,
        wanted,
        backward,
    };
    let DispatchTensorKind::Autodiff(kind) = &first.kind else {
        unreachable!("tracked tensors are on the autodiff backend");
    };
    match **kind {
        DispatchTensorKind::Flex(_) => bind::attach::<Flex>(parents, leaves, saved, outputs),
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => bind::attach::<burn::backend::Cube>(parents, leaves, saved, outputs),
        // One arm per backend: the others cannot be built here.
        #[allow(unreachable_patterns)]
        _ => panic!("operation `{name}` is not bound for this backend"),
    }
}

/// Frees what graphs hold that were dropped without a backward pass, which Burn does in the next one only
/// (`burn-autodiff` 0.22.1): this runs a backward pass of one value on the device of `like`.
pub fn free_abandoned(like: &RawTensor) {
    let one = Dispatch::float_zeros([1].into(), &like.device(), FloatDType::F32);
    let one = Tensor::<1>::from_dispatch(leaf(&one));
    backward(one.mul_scalar(2.0).into_dispatch());
}

/// Takes the gradient of `leaf` out of `gradients`, absent where none arrived.
pub fn take_gradient(leaf: &DispatchTensor, gradients: &mut Gradients) -> Option<RawTensor> {
    <Dispatch as AutodiffBackend>::grad_remove(leaf, gradients)
}

/// The gradients of the leaves below `outputs`, given the gradients of `outputs`.
///
/// Outputs without gradient, or that need none, are left out. Returns nothing if none is left.
pub fn backward_from(outputs: Vec<DispatchTensor>, gradients: Vec<Option<RawTensor>>) -> Option<Gradients> {
    let (ends, seeds): (Vec<_>, Vec<_>) = outputs
        .into_iter()
        .zip(gradients)
        .filter_map(|(output, gradient)| gradient.filter(|_| is_tracked(&output)).map(|g| (output, g)))
        .unzip();
    let DispatchTensorKind::Autodiff(kind) = &ends.first()?.kind else {
        unreachable!("tracked tensors are on the autodiff backend");
    };
    Some(match **kind {
        DispatchTensorKind::Flex(_) => bind::seed::<Flex>(ends, seeds),
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(_) => bind::seed::<burn::backend::Cube>(ends, seeds),
        // One arm per backend: the others cannot be built here.
        #[allow(unreachable_patterns)]
        _ => panic!("no backward pass begins in the middle of a graph on this backend"),
    })
}
