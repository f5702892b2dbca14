//! The engine: runs a region without a graph, keeps what a policy says, and runs it again when backward arrives.
//!
//! A region that runs again is one node of the graph. Its parents are the region's tracked inputs; the trained weights
//! that it read are leaves to which the node gives gradients. Its backward runs the body on fresh leaves and
//! differentiates that small graph. Nothing of the outer graph is ever captured, so nodes nest and threads share
//! nothing.
//!
//! The first run computes on plain tensors. That gives the bits of a run with a graph since every operation here
//! computes its forward on plain tensors either way ([`flow_core::op`]).

mod counters;
mod kept;
mod scope;

pub use counters::Counts;

use crate::block_policy::{Assignment, BlockPolicy, RegionPolicy};
use counters::{Counters, Held, take_all};
use flow_core::autograd::{self, Backward, take_gradient};
use flow_core::exec::Body;
use flow_core::tensors::{is_tracked, leaf, plain, shape, zeros_like};
use flow_core::{Exec, NoCheckpointing, RawTensor, RegionEngine, RegionKind, Site};
use scope::{Entry, Memory, Recording, Replaying, Separate};
use std::sync::{Arc, Mutex};

/// Follows an [`Assignment`].
#[derive(Debug)]
pub struct Checkpointing {
    name: String,
    assignment: Assignment,
    counters: Arc<Counters>,
}

impl Checkpointing {
    /// An engine that follows `assignment`; `name` is for logs and manifests.
    pub fn new(name: impl Into<String>, assignment: Assignment) -> Self {
        Self {
            name: name.into(),
            assignment,
            counters: Arc::default(),
        }
    }

    /// What becomes of each block.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// What the engine did, and holds now.
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }
}

impl RegionEngine for Checkpointing {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: Body) -> Vec<RawTensor> {
        let site = exec.site().expect("a region has a site");
        let block_policy = self.assignment.block(site);
        let stash = exec.stash().clone();
        let store = stash.as_any();
        if let Some(recording) = store.and_then(|store| store.downcast_ref::<Recording>()) {
            return self.record_nested(exec, inputs, body, block_policy, recording);
        }
        let replaying: Option<&Replaying> = store.and_then(|store| store.downcast_ref());
        if let Some(replaying) = replaying {
            if !site.effect.may_replay() {
                return kept::replay(exec, &inputs, replaying.kept(site.kind));
            }
            if block_policy.region(site.kind) == RegionPolicy::Separate {
                return self.replay_apart(exec, inputs, body, block_policy, replaying);
            }
        }
        let differentiated = exec.params().is_training() || inputs.iter().any(is_tracked);
        let again = match (site.kind, block_policy.region(site.kind)) {
            (RegionKind::Block, _) => block_policy.recompute,
            (_, RegionPolicy::Inline) => false,
            (_, RegionPolicy::Separate) => true,
        };
        if again && differentiated && site.effect.may_replay() {
            self.segment(exec, inputs, body, block_policy)
        } else {
            NoCheckpointing.run(exec, inputs, body)
        }
    }

    fn usual_bytes(&self) -> Option<u64> {
        self.counters.usual_bytes()
    }

    fn run_deferrable(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: Body) -> Vec<RawTensor> {
        let site = exec.site().expect("a part of a region has a site");
        let block_policy = self.assignment.block(site);
        if !block_policy.defers {
            return body(exec, inputs);
        }
        let stash = exec.stash().clone();
        let store = stash.as_any();
        if let Some(recording) = store.and_then(|store| store.downcast_ref::<Recording>()) {
            return self.record_apart(exec, inputs, body, recording);
        }
        match store.and_then(|store| store.downcast_ref::<Replaying>()) {
            Some(replaying) => self.replay_apart(exec, inputs, body, block_policy, replaying),
            // What does not run again keeps what its operations keep.
            None => body(exec, inputs),
        }
    }
}

impl Checkpointing {
    /// A region that runs again, in its first run: nothing but what the policy keeps outlives it.
    fn segment(
        &self,
        exec: &Exec<'_>,
        inputs: Vec<RawTensor>,
        body: Body,
        block_policy: &BlockPolicy,
    ) -> Vec<RawTensor> {
        let site = exec.site().expect("a region has a site");
        let values: Vec<RawTensor> = inputs.iter().map(plain).collect();
        let saves = Arc::new(block_policy.saves.clone());
        let recording = Recording::new(
            saves.clone(),
            self.counters.clone(),
            site.kind,
            exec.stash().clone(),
        );
        let params = exec.params().untracked();
        let first = exec.replay(params.clone(), Arc::new(recording.clone()));
        let outputs = body(&first, values.clone());
        self.untracked_only(site, &outputs);
        self.counters.recorded();
        if site.kind == RegionKind::Block {
            exec.params().expect_gradients(&site.stack, site.block);
        }
        let pending = Pending {
            memory: recording.finish(&outputs),
            inputs: self.counters.hold_all(values),
            weights: params.read(),
        };
        self.bind(exec, &inputs, outputs, body, pending, block_policy)
    }

    fn untracked_only(&self, site: &Site, outputs: &[RawTensor]) {
        assert!(
            !outputs.iter().any(is_tracked),
            "region {site} read a tensor that is neither among its inputs nor a weight of its context, so it cannot run \
             again"
        );
    }

    /// Binds `outputs` to a node that runs `body` again in backward.
    fn bind(
        &self,
        exec: &Exec<'_>,
        inputs: &[RawTensor],
        outputs: Vec<RawTensor>,
        body: Body,
        pending: Pending,
        block_policy: &BlockPolicy,
    ) -> Vec<RawTensor> {
        let leaves = exec.params().leaves_of(&pending.weights);
        let again = Again {
            later: exec.for_backward(),
            site: exec.site().cloned().expect("a region has a site"),
            body,
            saves: Arc::new(block_policy.saves.clone()),
            counters: self.counters.clone(),
            shapes: outputs.iter().map(shape).collect(),
            pending: Mutex::new(Some(pending)),
        };
        let backward: Backward =
            Arc::new(move |incoming| again.gradients(incoming.output_gradients, incoming.wanted));
        let inputs: Vec<&RawTensor> = inputs.iter().collect();
        autograd::bind_with_leaves("region", &inputs, &leaves, outputs, backward)
    }

    /// A region within the first run of one that runs again.
    fn record_nested(
        &self,
        exec: &Exec<'_>,
        inputs: Vec<RawTensor>,
        body: Body,
        block_policy: &BlockPolicy,
        recording: &Recording,
    ) -> Vec<RawTensor> {
        let site = exec.site().expect("a region has a site");
        if !site.effect.may_replay() {
            return kept::record(exec, site.kind, inputs, &body, recording);
        }
        if block_policy.region(site.kind) != RegionPolicy::Separate {
            let within = exec.replay(exec.params().clone(), Arc::new(recording.at(site.kind)));
            return body(&within, inputs);
        }
        self.record_apart(exec, inputs, body, recording)
    }

    /// What runs again by itself, within the first run of what encloses it.
    fn record_apart(
        &self,
        exec: &Exec<'_>,
        inputs: Vec<RawTensor>,
        body: Body,
        recording: &Recording,
    ) -> Vec<RawTensor> {
        let site = exec.site().expect("a region has a site");
        let apart = recording.apart(site.kind);
        let params = exec.params().untracked();
        let outputs = body(&exec.replay(params.clone(), Arc::new(apart.clone())), inputs);
        self.untracked_only(site, &outputs);
        self.counters.recorded();
        let weights = params.read();
        // The enclosing region hands on the gradients of these weights, so it must know that they are read.
        exec.params().leaves_of(&weights);
        recording.push(Entry::Separate(Separate {
            kind: site.kind,
            outputs: self.counters.hold_all(outputs.clone()),
            weights,
            memory: apart.finish(&outputs),
        }));
        outputs
    }

    /// What runs again by itself and whose outputs the first run kept, in the replay of what encloses it.
    fn replay_apart(
        &self,
        exec: &Exec<'_>,
        inputs: Vec<RawTensor>,
        body: Body,
        block_policy: &BlockPolicy,
        replaying: &Replaying,
    ) -> Vec<RawTensor> {
        let site = exec.site().expect("a region has a site");
        let Entry::Separate(apart) = replaying.next_region(site.kind) else {
            panic!("region {site} had an effect in the first run and has none now");
        };
        let pending = Pending {
            memory: apart.memory,
            inputs: inputs.iter().map(|input| Held::uncounted(plain(input))).collect(),
            weights: apart.weights,
        };
        let outputs = take_all(apart.outputs);
        self.bind(exec, &inputs, outputs, body, pending, block_policy)
    }
}

/// What the replay of one run of a region needs. It is used up by it.
#[derive(Debug)]
struct Pending {
    inputs: Vec<Held>,
    memory: Memory,
    /// Positions of the trained weights that the run read.
    weights: Vec<usize>,
}

/// A region that backward runs again.
struct Again {
    later: Exec<'static>,
    site: Site,
    body: Body,
    saves: Arc<crate::block_policy::Saves>,
    counters: Arc<Counters>,
    /// Of the outputs.
    shapes: Vec<Vec<usize>>,
    pending: Mutex<Option<Pending>>,
}

impl Again {
    /// Gradients of the inputs that are `wanted`, then of the weights.
    fn gradients(&self, output_gradients: &[Option<RawTensor>], wanted: &[bool]) -> Vec<Option<RawTensor>> {
        let pending = self
            .pending
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        let Pending {
            inputs,
            memory,
            weights,
        } = pending.unwrap_or_else(|| consumed(&self.site));
        self.counters.replayed();
        let params = self.later.params().fresh_leaves();
        let (site, saves, counters) = (self.site.clone(), self.saves.clone(), self.counters.clone());
        let replaying = Arc::new(Replaying::new(site, saves, counters, memory));
        let inputs: Vec<RawTensor> = take_all(inputs);
        let leaves: Vec<RawTensor> = inputs
            .iter()
            .zip(wanted)
            .map(|(value, wanted)| if *wanted { leaf(value) } else { value.clone() })
            .collect();
        let outputs = (self.body)(
            &self.later.replay(params.clone(), replaying.clone()),
            leaves.clone(),
        );
        replaying.finish();
        let shapes: Vec<Vec<usize>> = outputs.iter().map(shape).collect();
        assert!(
            shapes == self.shapes,
            "replay of region {}: its outputs have the shapes {shapes:?} and had {:?} in the first run",
            self.site,
            self.shapes
        );
        let mut gradients = autograd::backward_from(outputs, output_gradients.to_vec());
        let mut take = |leaf| take_gradient(leaf, gradients.as_mut()?);
        let of_inputs = leaves.iter().zip(&inputs).zip(wanted);
        let mut found: Vec<Option<RawTensor>> = of_inputs
            .map(|((leaf, value), wanted)| wanted.then(|| take(leaf).unwrap_or_else(|| zeros_like(value))))
            .collect();
        let of_weights: Vec<_> = params.leaves_of(&weights).iter().map(take).collect();
        let Site {
            stack, block, kind, ..
        } = &self.site;
        found.extend(match kind {
            // Regions within give theirs to the block.
            RegionKind::Block => (self.later.params()).hand_over((&**stack, *block), &weights, of_weights),
            _ => of_weights,
        });
        found
    }
}

fn consumed(site: &Site) -> ! {
    panic!(
        "region {site} was differentiated already, and what it kept went with that; another backward pass needs another \
         forward pass"
    )
}
