//! How an operation becomes a node of Burn's graph.
//!
//! One output: a node whose parents are the tracked inputs. Several outputs: a hub node with the inputs as parents, and one
//! node per output with the hub as parent; the hub lies below its outputs, so its step runs after all of them. No one reads
//! the hub's value or gradient, so one of the outputs stands for it: an allocation of its own would cost a GPU's host more
//! than everything else here. Method and proof: the recompute study this crate follows (see `docs`, "Custom operations").

use super::gradient::{self, Incoming, Saved};
use crate::tensors::RawTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, DispatchKindConversion, DispatchTensor, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, NodeGuard, Ops, OpsKind},
    },
    tensor::FloatTensor,
};
use std::sync::{Arc, Mutex};

/// Calls `$body` with `$guards` as an array `[NodeGuard; N]`.
macro_rules! with_arity {
    ($vec:expr, |$array:ident: $n:ident| $body:expr) => {
        with_arity!(@ $vec, $array, $n, $body, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
    };
    (@ $vec:expr, $array:ident, $n:ident, $body:expr, $($k:literal)*) => {{
        let vec: Vec<NodeGuard> = $vec;
        match vec.len() {
            $($k => {
                const $n: usize = $k;
                let $array: [NodeGuard; $k] = vec.try_into().expect("length matched");
                $body
            })*
            n => panic!("{n} tracked tensors enter one operation, 16 at most"),
        }
    }};
}

fn primitive<B: Backend>(tensor: RawTensor) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor)
        .expect("a plain tensor of the operation's backend")
        .float()
}

fn tracked<B: Backend>(tensor: DispatchTensor) -> FloatTensor<Autodiff<B>>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>>,
{
    <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::try_into_backend(tensor)
        .expect("a tracked tensor of the operation's backend")
        .float()
}

fn erase<B: Backend>(tensor: FloatTensor<B>) -> RawTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor))
}

fn finish<B: Backend, T: Backward<B, N>, const N: usize>(
    op: T,
    guards: [NodeGuard; N],
    state: T::State,
    output: FloatTensor<B>,
) -> FloatTensor<Autodiff<B>> {
    match op.prepare::<NoCheckpointing>(guards).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(state, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// What an operation computes gradients with, and the leaves beyond its parents that get some.
#[derive(Clone, Debug)]
struct Recipe {
    saved: Saved,
    leaves: Vec<NodeId>,
}

fn register<B: Backend>(
    recipe: Recipe,
    output_gradients: &[Option<RawTensor>],
    parents: &[Option<NodeId>],
    grads: &mut Gradients,
) where
    DispatchTensor: DispatchKindConversion<B>,
{
    let Saved {
        name,
        wanted,
        backward,
    } = recipe.saved;
    let mut found = backward(Incoming {
        output_gradients,
        wanted: &wanted,
    });
    assert_eq!(
        found.len(),
        wanted.len() + recipe.leaves.len(),
        "operation `{name}`: one gradient per input and leaf"
    );
    // Nothing below a leaf consumes its gradient, so it needs no edge of this node, and may go without.
    for (gradient, leaf) in found.split_off(wanted.len()).into_iter().zip(recipe.leaves) {
        if let Some(gradient) = gradient {
            grads.register::<B>(leaf, primitive::<B>(gradient));
        }
    }
    let found = found
        .into_iter()
        .zip(&wanted)
        .filter(|(_, wanted)| **wanted)
        .map(|(gradient, _)| gradient);
    for (gradient, parent) in found.zip(parents) {
        // A parent's own step consumes its gradient, so it must get one.
        let gradient = gradient.unwrap_or_else(|| panic!("operation `{name}` left out a wanted gradient"));
        if let Some(id) = parent {
            grads.register::<B>(*id, primitive::<B>(gradient));
        }
    }
}

/// An operation with one output.
#[derive(Debug)]
struct Single;

impl<B: Backend, const N: usize> Backward<B, N> for Single
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Recipe;

    fn backward(self, ops: Ops<Recipe, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let parents = ops.parents.map(|parent| parent.map(|node| node.id));
        drop(ops.node);
        register::<B>(ops.state, &[Some(erase::<B>(gradient))], &parents, grads);
    }
}

type Collected = Arc<Mutex<Vec<Option<RawTensor>>>>;

/// The common parent of an operation's several outputs.
#[derive(Debug)]
struct Hub;

impl<B: Backend, const N: usize> Backward<B, N> for Hub
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (Recipe, Collected);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        drop(grads.consume::<B>(&ops.node));
        let parents = ops.parents.map(|parent| parent.map(|node| node.id));
        drop(ops.node);
        let (recipe, collected) = ops.state;
        let gradients = {
            let mut collected = collected.lock().expect("no step panics while it holds the lock");
            let outputs = collected.len();
            std::mem::replace(&mut *collected, vec![None; outputs])
        };
        register::<B>(recipe, &gradients, &parents, grads);
    }
}

/// One of several outputs: hands its gradient to the hub.
#[derive(Debug)]
struct Output;

impl<B: Backend> Backward<B, 1> for Output
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (usize, Collected);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let (index, collected) = ops.state;
        let mut collected = collected.lock().expect("no step panics while it holds the lock");
        if let ([Some(hub)], true) = (&ops.parents, collected.iter().all(Option::is_none)) {
            grads.register::<B>(hub.id, gradient.clone());
        }
        collected[index] = Some(erase::<B>(gradient));
    }
}

/// Binds `outputs` to a new node below `parents`, or below the first of `leaves` if there is none.
pub(super) fn attach<B: Backend>(
    mut parents: Vec<DispatchTensor>,
    leaves: &[DispatchTensor],
    saved: Saved,
    outputs: Vec<RawTensor>,
) -> Vec<DispatchTensor>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    if let ([], [anchor, ..]) = (&*parents, leaves) {
        parents.push(anchor.clone());
    }
    let guards: Vec<NodeGuard> = parents.into_iter().map(|t| tracked::<B>(t).node()).collect();
    let leaves = leaves
        .iter()
        .map(|leaf| tracked::<B>(leaf.clone()).id())
        .collect();
    let name = saved.name;
    let recipe = Recipe { saved, leaves };
    let convert = |output| {
        <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(output)
            .expect("a plain output of the operation's backend")
    };
    let outputs: Vec<BackendTensor<B>> = outputs.into_iter().map(convert).collect();
    assert!(!outputs.is_empty(), "operation `{name}` has no output");
    let lift =
        |t| <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::from_backend(BackendTensor::Float(t));
    let as_it_is = <DispatchTensor as DispatchKindConversion<B>>::from_backend;
    let first_float = outputs.iter().find_map(|output| match output {
        BackendTensor::Float(float) => Some(float.clone()),
        _ => None,
    });
    let Some(standing_in) = first_float else {
        return outputs.into_iter().map(as_it_is).collect();
    };
    let mut outputs = outputs;
    if outputs.len() == 1 {
        let output = outputs.pop().expect("one output").float();
        return vec![lift(with_arity!(guards, |guards: N| finish::<B, _, N>(
            Single, guards, recipe, output
        )))];
    }
    let collected: Collected = Arc::new(Mutex::new(vec![None; outputs.len()]));
    let state = (recipe, collected.clone());
    let hub = with_arity!(guards, |guards: N| finish::<B, _, N>(
        Hub,
        guards,
        state,
        standing_in
    ));
    let outputs = outputs.into_iter().enumerate();
    outputs
        .map(|(index, output)| match output {
            BackendTensor::Float(output) => lift(finish::<B, _, 1>(
                Output,
                [hub.node()],
                (index, collected.clone()),
                output,
            )),
            // Integers have no gradient.
            other => as_it_is(other),
        })
        .collect()
}

/// Root of a small graph: ignores its own gradient and gives `ends` theirs, exactly.
#[derive(Debug)]
struct Seed;

impl<B: Backend, const N: usize> Backward<B, N> for Seed {
    type State = Vec<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        drop(grads.consume::<B>(&ops.node));
        for (parent, gradient) in ops.parents.into_iter().zip(ops.state) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// Backward from `ends` with `seeds` as their gradients.
pub(super) fn seed<B: Backend>(ends: Vec<DispatchTensor>, seeds: Vec<RawTensor>) -> Gradients
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    let guards: Vec<NodeGuard> = ends.into_iter().map(|t| tracked::<B>(t).node()).collect();
    let seeds: Vec<FloatTensor<B>> = seeds.into_iter().map(primitive::<B>).collect();
    // Backward starts with ones of its shape. Nothing reads them or it.
    let output = B::float_empty([1].into(), &seeds[0].device(), seeds[0].dtype().into());
    let root = with_arity!(guards, |guards: N| finish::<B, _, N>(Seed, guards, seeds, output));
    let root =
        <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::from_backend(BackendTensor::Float(root));
    gradient::backward(root)
}
