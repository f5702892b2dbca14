//! Regions that run once: what they keep is the graph of their only run.

use super::counters::{Held, take_all};
use super::scope::{Entry, Recording, Replaying};
use flow_core::autograd::{self, Backward, take_gradient};
use flow_core::exec::Body;
use flow_core::tensors::{is_float, leaf, plain, zeros_like};
use flow_core::{Exec, ParamView, RawTensor, RegionKind};
use std::sync::{Arc, Mutex};

/// A region's only run, differentiated.
#[derive(Debug)]
pub(super) struct Kept {
    pub kind: RegionKind,
    /// The inputs, those that are real numbers as leaves of the run's graph.
    inputs: Vec<RawTensor>,
    /// Values of inputs and outputs, of which the graph holds at least the outputs.
    held: Vec<Held>,
    outputs: Vec<RawTensor>,
    params: ParamView,
    /// Positions of the trained weights it read.
    weights: Vec<usize>,
}

/// Runs `body`, as a part of a region that will run again, on leaves of its own.
pub(super) fn record(
    exec: &Exec<'_>,
    kind: RegionKind,
    inputs: Vec<RawTensor>,
    body: &Body,
    recording: &Recording,
) -> Vec<RawTensor> {
    let params = exec.params().fresh_leaves();
    let lift = |value: &RawTensor| {
        if is_float(value) {
            leaf(value)
        } else {
            value.clone()
        }
    };
    let leaves: Vec<_> = inputs.iter().map(lift).collect();
    let outputs = body(
        &exec.replay(params.clone(), recording.outer().clone()),
        leaves.clone(),
    );
    let weights: Vec<usize> = params.leaves().keys().map(|index| *index as usize).collect();
    // The enclosing region hands on the gradients of these weights, so it must know that they are read.
    exec.params().leaves_of(&weights);
    let values: Vec<RawTensor> = outputs.iter().map(plain).collect();
    let held = inputs.into_iter().chain(values.clone()).collect();
    recording.push(Entry::Kept(Kept {
        kind,
        inputs: leaves,
        held: recording.counters().hold_all(held),
        outputs,
        params,
        weights,
    }));
    values
}

/// The outputs of the only run, as a node of the graph that is being made.
pub(super) fn replay(exec: &Exec<'_>, inputs: &[RawTensor], kept: Kept) -> Vec<RawTensor> {
    let values: Vec<RawTensor> = kept.outputs.iter().map(plain).collect();
    let leaves = exec.params().leaves_of(&kept.weights);
    let site = exec.site().cloned().expect("a region has a site");
    let pending = Mutex::new(Some(kept));
    let backward: Backward = Arc::new(move |incoming| {
        let mut pending = pending.lock().expect("taken once");
        let kept = pending.take().unwrap_or_else(|| super::consumed(&site));
        let outputs = kept.outputs;
        let mut gradients = autograd::backward_from(outputs, incoming.output_gradients.to_vec());
        let mut take = |leaf| take_gradient(leaf, gradients.as_mut()?);
        let of_inputs = kept.inputs.iter().zip(incoming.wanted);
        let mut found: Vec<Option<RawTensor>> = of_inputs
            .map(|(leaf, wanted)| wanted.then(|| take(leaf).unwrap_or_else(|| zeros_like(&plain(leaf)))))
            .collect();
        found.extend(kept.params.leaves_of(&kept.weights).iter().map(take));
        drop(take_all(kept.held));
        found
    });
    let inputs: Vec<&RawTensor> = inputs.iter().collect();
    autograd::bind_with_leaves("region", &inputs, &leaves, values, backward)
}

impl Replaying {
    /// The run of the region at which the replay is.
    ///
    /// # Panics
    /// If the first run had something else here.
    pub fn kept(&self, kind: RegionKind) -> Kept {
        match self.next_region(kind) {
            Entry::Kept(kept) => kept,
            _ => panic!("region `{kind}` ran once in the first run and now has no effect"),
        }
    }
}
