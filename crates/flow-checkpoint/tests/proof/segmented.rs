//! The oracle: recomputation without nodes, block by block by hand.

use crate::support::*;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use flow_core::autograd::{self, Backward, backward_from, take_gradient};
use flow_core::tensors::{is_tracked, leaf, plain};
use flow_core::{Backends, Exec, RawTensor, StackDriver};
use std::sync::{Arc, Mutex};

/// Gradients of a stack's inputs and of all weights of the model, absent where none arrived.
#[derive(Clone, Debug, Default)]
pub struct OfStack {
    pub of_carried: Vec<Option<RawTensor>>,
    pub of_shared: Vec<Option<RawTensor>>,
    pub of_weights: Vec<Option<RawTensor>>,
}

/// Forward on plain tensors, then block by block from the last one, each on leaves of its own.
#[derive(Debug)]
pub struct Segmented {
    /// Gradients of the stack's outputs.
    seeds: Vec<Option<RawTensor>>,
    found: Mutex<OfStack>,
}

impl Segmented {
    pub fn new(seeds: Vec<Option<RawTensor>>) -> Arc<Self> {
        Arc::new(Self {
            seeds,
            found: Mutex::default(),
        })
    }

    pub fn found(&self) -> OfStack {
        self.found.lock().expect("the pass is over").clone()
    }
}

impl StackDriver for Segmented {
    fn name(&self) -> &str {
        "segmented"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn flow_core::Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let shared: Vec<RawTensor> = shared.iter().map(plain).collect();
        let plainly = exec.replay(exec.params().untracked(), exec.stash().clone());
        let mut inputs = vec![carried.iter().map(plain).collect::<Vec<_>>()];
        for index in 0..stack.len() {
            inputs.push(stack.run_block(&plainly, index, inputs[index].clone(), shared.clone()));
        }
        let outputs = inputs.pop().expect("there are blocks");
        // In the type that they have, as the graph adds them.
        let add = |sum: &mut Option<RawTensor>, found: Option<RawTensor>| {
            *sum = match (sum.take(), found) {
                (Some(sum), Some(found)) => Some(Dispatch::float_add(sum, found)),
                (sum, found) => sum.or(found),
            };
        };
        let mut found = OfStack {
            of_carried: self.seeds.clone(),
            of_shared: vec![None; shared.len()],
            of_weights: Vec::new(),
        };
        for (index, input) in inputs.iter().enumerate().rev() {
            let params = exec.params().fresh_leaves();
            let leaves: Vec<_> = input.iter().map(leaf).collect();
            let shared: Vec<_> = shared.iter().map(leaf).collect();
            let again = exec.replay(params.clone(), exec.stash().clone());
            let outputs = stack.run_block(&again, index, leaves.clone(), shared.clone());
            let mut gradients = backward_from(outputs, found.of_carried).expect("it is tracked");
            let taken =
                |leaves: &[DispatchTensor], gradients: &mut autograd::Gradients| -> Vec<Option<RawTensor>> {
                    leaves.iter().map(|leaf| take_gradient(leaf, gradients)).collect()
                };
            found.of_carried = taken(&leaves, &mut gradients);
            for (sum, of_block) in found.of_shared.iter_mut().zip(taken(&shared, &mut gradients)) {
                add(sum, of_block);
            }
            let of_weights = params.take_gradients(&mut gradients);
            found.of_weights.resize(of_weights.len(), None);
            for (sum, of_block) in found.of_weights.iter_mut().zip(of_weights) {
                add(sum, of_block);
            }
        }
        *self.found.lock().expect("nothing panics while it holds the lock") = found;
        outputs
    }
}

/// Notes the gradients that pass the ends of a stack, and changes none.
#[derive(Debug, Default)]
struct Watching {
    carried: Seen,
    shared: Seen,
    outputs: Seen,
}

type Seen = Arc<Mutex<Vec<Option<RawTensor>>>>;

/// `tensors` behind nodes that note their gradients.
fn watched(tensors: Vec<DispatchTensor>, seen: &Seen) -> Vec<DispatchTensor> {
    *seen.lock().expect("nothing panics while it holds the lock") = vec![None; tensors.len()];
    let behind = |(at, tensor): (usize, DispatchTensor)| {
        if !is_tracked(&tensor) {
            return tensor;
        }
        let seen = seen.clone();
        autograd::apply("watched", &[&tensor], move |values, _| {
            let backward: Backward = Arc::new(move |incoming| {
                let gradient = incoming.gradient().clone();
                seen.lock().expect("nothing panics while it holds the lock")[at] = Some(gradient.clone());
                vec![Some(gradient)]
            });
            (values[0].clone(), backward)
        })
    };
    tensors.into_iter().enumerate().map(behind).collect()
}

impl StackDriver for Watching {
    fn name(&self) -> &str {
        "watching"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn flow_core::Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let carried = watched(carried, &self.carried);
        let shared = watched(shared, &self.shared);
        let outputs = stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        watched(outputs, &self.outputs)
    }
}

fn all_bits(gradients: &[Option<RawTensor>]) -> Vec<Option<Vec<u32>>> {
    gradients.iter().map(|it| it.as_ref().map(bits)).collect()
}

#[test]
fn gradients_of_every_models_blocks_are_those_of_going_through_them_by_hand() {
    for place in Place::all() {
        for (number, subject) in Subject::all_on(&place.device).into_iter().enumerate() {
            for policy in tried(policies(subject.model.spec()), &place.device, number, 4) {
                let what = format!("{}, {}, {policy}", subject.name, place.name);
                let watching = Arc::new(Watching::default());
                let plan = Backends {
                    stacks: watching.clone(),
                    regions: engine(&policy, &*subject.model),
                    ..place.plan.clone()
                };
                let found = subject.pass(&Arc::new(plan), 1);
                let seen = |seen: &Seen| seen.lock().expect("the pass is over").clone();
                let by_hand = Segmented::new(seen(&watching.outputs));
                let plan = Backends {
                    stacks: by_hand.clone(),
                    ..place.plan.clone()
                };
                subject.forward(&Arc::new(plan));
                let expected = by_hand.found();
                // Leaves have gradients also where nothing behind them is trained.
                for (found, expected) in [
                    (seen(&watching.carried), &expected.of_carried),
                    (seen(&watching.shared), &expected.of_shared),
                ] {
                    for (found, expected) in all_bits(&found).into_iter().zip(all_bits(expected)) {
                        assert!(
                            found.is_none() || found == expected,
                            "{what}: an input of the stack"
                        );
                    }
                }
                let specs = subject.weights.layout().specs().iter();
                let pairs = all_bits(&found.of_weights)
                    .into_iter()
                    .zip(all_bits(&expected.of_weights));
                let mut compared = 0;
                for (spec, (found, expected)) in specs.zip(pairs) {
                    if expected.is_some() {
                        assert!(found == expected, "{what}: {}", spec.name);
                        compared += 1;
                    }
                }
                assert!(compared >= 4 * LAYERS, "{what}: {compared} weights of blocks");
            }
        }
    }
}
