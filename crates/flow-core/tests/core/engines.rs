//! Region engines, stores and backends written as another crate would write them: what the context must carry.

use burn::backend::DispatchTensor;
use flow_attention::CpuAttention;
use flow_core::autograd::{self, Backward, Incoming, take_gradient};
use flow_core::exec::Body;
use flow_core::ops::Stash;
use flow_core::tensors::{is_tracked, leaf, plain, zeros_like};
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Exec, KeyValue, NoCheckpointing,
    RawTensor, Refusal, RegionEngine, RegionKind,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Notes every region it is asked to run, with the number of trajectories of the call.
#[derive(Debug, Default)]
pub struct Recorder {
    pub sites: Mutex<Vec<String>>,
    pub trajectories: Mutex<Vec<usize>>,
}

impl RegionEngine for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<DispatchTensor>, body: Body) -> Vec<DispatchTensor> {
        let site = exec.site().expect("a region has a site");
        self.sites.lock().unwrap().push(site.to_string());
        self.trajectories
            .lock()
            .unwrap()
            .push(exec.call().trajectories.len());
        body(exec, inputs)
    }
}

/// Keeps the inputs of regions of some kinds, and the results called by one of the names in `save`; computes the rest
/// again in backward.
#[derive(Debug)]
pub struct Recompute {
    pub at: &'static [RegionKind],
    pub save: &'static [&'static str],
}

impl RegionEngine for Recompute {
    fn name(&self) -> &str {
        "recompute"
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<DispatchTensor>, body: Body) -> Vec<DispatchTensor> {
        let differentiated = exec.params().is_training() || inputs.iter().any(is_tracked);
        if !self.at.contains(&exec.site().unwrap().kind) || !differentiated {
            return NoCheckpointing.run(exec, inputs, body);
        }
        let values: Vec<RawTensor> = inputs.iter().map(plain).collect();
        let record = Arc::new(Record {
            save: self.save,
            outer: exec.stash().clone(),
            kept: Mutex::default(),
        });
        let first = exec.params().untracked();
        let outputs = body(&exec.replay(first.clone(), record.clone()), values.clone());
        assert!(
            !outputs.iter().any(is_tracked),
            "a region reads its inputs and weights only"
        );
        let kept = std::mem::take(&mut *record.kept.lock().unwrap());

        let weights = first.read();
        let leaves = exec.params().leaves_of(&weights);
        let later = exec.for_backward();
        let save = self.save;
        let backward: Backward = Arc::new(move |incoming: Incoming<'_>| {
            let params = later.params().fresh_leaves();
            let stash = Arc::new(Replay {
                save,
                kept: Mutex::new(kept.clone()),
            });
            let again = values.iter().zip(incoming.wanted);
            let again: Vec<_> = again
                .map(|(value, wanted)| if *wanted { leaf(value) } else { value.clone() })
                .collect();
            let outputs = body(&later.replay(params.clone(), stash.clone()), again.clone());
            assert!(
                stash.kept.lock().unwrap().is_empty(),
                "the replay asks for all that was kept"
            );
            let mut gradients = autograd::backward_from(outputs, incoming.output_gradients.to_vec());
            let mut take = |leaf| take_gradient(leaf, gradients.as_mut()?);
            let of_inputs = again
                .iter()
                .zip(&values)
                .zip(incoming.wanted)
                .map(|((leaf, value), wanted)| {
                    wanted.then(|| take(leaf).unwrap_or_else(|| zeros_like(value)))
                });
            let mut found: Vec<_> = of_inputs.collect();
            found.extend(params.leaves_of(&weights).iter().map(take));
            found
        });
        let inputs: Vec<&DispatchTensor> = inputs.iter().collect();
        autograd::bind_with_leaves("recompute", &inputs, &leaves, outputs, backward)
    }
}

/// Keeps what passes, and lets an outer store answer first.
#[derive(Debug)]
struct Record {
    save: &'static [&'static str],
    outer: Arc<dyn Stash>,
    kept: Mutex<VecDeque<Vec<RawTensor>>>,
}

impl Stash for Record {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        let result = self.outer.through(name, compute);
        if self.save.contains(&name) {
            self.kept.lock().unwrap().push_back(result.clone());
        }
        result
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.save.contains(&name) || self.outer.keeps(name)
    }
}

/// Gives back what was kept, in order.
#[derive(Debug)]
struct Replay {
    save: &'static [&'static str],
    kept: Mutex<VecDeque<Vec<RawTensor>>>,
}

impl Stash for Replay {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        if !self.save.contains(&name) {
            return compute();
        }
        self.kept
            .lock()
            .unwrap()
            .pop_front()
            .expect("the replay asks as often as the first run")
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.save.contains(&name)
    }
}

/// Counts how often attention is computed rather than taken from a store.
#[derive(Debug, Default)]
pub struct CountingAttention {
    pub computed: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct CountingStash<'a> {
    inner: &'a dyn Stash,
    computed: &'a AtomicUsize,
}

impl Stash for CountingStash<'_> {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        self.inner.through(name, &mut || {
            self.computed.fetch_add(1, Ordering::SeqCst);
            compute()
        })
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.inner.keeps(name)
    }
}

impl AttentionBackend for CountingAttention {
    fn name(&self) -> &str {
        "counting"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability::HOST
    }

    fn is_row_independent(&self) -> bool {
        CpuAttention.is_row_independent()
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        CpuAttention.kernel(call)
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        let stash = CountingStash {
            inner: stash,
            computed: &self.computed,
        };
        CpuAttention.attend(&stash, q, parts, call)
    }
}
