//! Experts: a router's choice is made once, and what policies compute of experts is what they say.

use crate::support::*;
use burn::tensor::{Int, Tensor};
use flow_checkpoint::profiler::{OpProfiler, Usage};
use flow_checkpoint::{Checkpointing, Policy, ROUTER};
use flow_core::device::ComputeDevice;
use flow_core::exec::Body;
use flow_core::ops::Stash;
use flow_core::{Backends, Exec, NoCheckpointing, RawTensor, RegionEngine, RegionKind};
use flow_kernels::CpuKernels;
use flow_models::{Dit, Position, Trained};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FULL: Policy = Policy::Full { split: false };
const ATTN_ONLY: Policy = Policy::AttnOnly { split: false };
const EXPERTS: i64 = 5;

fn subject(shared: usize) -> Subject {
    let config = experts_config(Position::Rope, shared);
    let dit = Dit::new(&config, &ComputeDevice::cpu()).expect("it fits");
    Subject::new("experts", Box::new(dit), Trained::Full, 2)
}

/// A model in which all experts tie for every token: the scores are 0.
fn tied() -> Subject {
    let mut subject = subject(28);
    let layout = subject.weights.layout().clone();
    let routers = (layout.specs().iter().enumerate()).filter(|(_, spec)| spec.name.contains("router"));
    let mut found = 0;
    for (index, spec) in routers {
        let zeros = vec![0.0; spec.shape.iter().product()];
        let zeros = ComputeDevice::cpu().plain(zeros, &spec.shape);
        subject.weights.set(index, zeros).expect("its own shape");
        found += 1;
    }
    assert_eq!(found, LAYERS);
    subject
}

/// Breaks ties another way whenever a choice is made: the expert after the one that was chosen, after as many choices as
/// there were. Where all experts tie, each of these is a right answer.
#[derive(Debug)]
struct FickleStash {
    inner: Arc<dyn Stash>,
    choices: Arc<AtomicUsize>,
}

impl Stash for FickleStash {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        if name != ROUTER {
            return self.inner.through(name, compute);
        }
        self.inner.through(name, &mut || {
            let number = self.choices.fetch_add(1, Ordering::SeqCst) as i64;
            let turn = |choice: RawTensor| {
                let choice = Tensor::<3, Int>::from_dispatch(choice);
                ((choice + number).remainder_scalar(EXPERTS)).into_dispatch()
            };
            compute().into_iter().map(turn).collect()
        })
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.inner.keeps(name)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.inner.as_any()
    }
}

/// An engine's regions, with routers that are fickle.
#[derive(Debug)]
struct Fickle {
    inner: Arc<dyn RegionEngine>,
    choices: Arc<AtomicUsize>,
}

impl RegionEngine for Fickle {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: Body) -> Vec<RawTensor> {
        if exec.site().is_none_or(|site| site.kind != RegionKind::Router) {
            return self.inner.run(exec, inputs, body);
        }
        let choices = self.choices.clone();
        let fickle: Body = Arc::new(move |exec, inputs| {
            let stash = FickleStash {
                inner: exec.stash().clone(),
                choices: choices.clone(),
            };
            body(&exec.replay(exec.params().clone(), Arc::new(stash)), inputs)
        });
        self.inner.run(exec, inputs, fickle)
    }
}

/// A pass with routers that break ties another way every time, `earlier` choices having been made, and how many were made
/// in all.
fn fickle_pass(subject: &Subject, engine: Arc<dyn RegionEngine>, earlier: usize) -> (Found, usize) {
    let choices = Arc::new(AtomicUsize::new(earlier));
    let plan = Backends {
        regions: Arc::new(Fickle {
            inner: engine,
            choices: choices.clone(),
        }),
        ..plan_of(CpuKernels::default())
    };
    let found = subject.pass(&Arc::new(plan), 1);
    (found, choices.load(Ordering::SeqCst) - earlier)
}

#[test]
fn a_replay_routes_as_the_first_run_did_however_ties_would_fall_the_second_time() {
    let subject = tied();
    let (expected, _) = fickle_pass(&subject, Arc::new(NoCheckpointing), 0);
    // That the choice matters: other ties give other values.
    let (other, _) = fickle_pass(&subject, Arc::new(NoCheckpointing), 1);
    assert_ne!(bits(&other.velocities[0]), bits(&expected.velocities[0]));
    let engines = policies(subject.model.spec());
    let engines = engines.iter().map(|policy| engine(policy, &*subject.model));
    for engine in engines.chain(unusual(&*subject.model)) {
        let what = format!("{engine:?}");
        let (found, choices) = fickle_pass(&subject, engine, 0);
        found.assert_same_bits(&expected, &what, subject.weights.layout());
        assert_eq!(choices, LAYERS, "{what}: one choice per block");
    }
}

/// Usage of the operations of one pass.
fn usage(subject: &Subject, policy: &Policy) -> BTreeMap<&'static str, Usage> {
    let profiler = OpProfiler::on_processor();
    let plan = profiler.plan(&plan_of(CpuKernels::default()));
    let engine: Arc<Checkpointing> = engine(policy, &*subject.model);
    subject.pass(&with_engine(&plan, &engine), 1);
    profiler.usage()
}

#[test]
fn experts_run_once_and_twice_and_attention_beside_them_as_without_them() {
    let subject = subject(28);
    let layers = LAYERS as u64;
    let save = |pattern: &str| Policy::Regions {
        save: vec![pattern.into()],
    };
    for (policy, attention, of_experts) in [
        (Policy::None, 1, 2),
        (FULL, 2, 4),
        (ATTN_ONLY, 1, 4),
        (Policy::Full { split: true }, 2, 4),
        (Policy::AttnOnly { split: true }, 1, 4),
        (Policy::EveryNthLinear { n: 1 }, 1, 2),
        // The first of the two is kept.
        (Policy::EveryNthLinear { n: 2 }, 1, 3),
        (save("moe:grouped_linear"), 2, 2),
        (save("moe"), 2, 4),
    ] {
        let usage = usage(&subject, &policy);
        assert_eq!(usage["attention"].forwards, attention * layers, "{policy}");
        assert_eq!(usage["grouped_linear"].forwards, of_experts * layers, "{policy}");
        assert_eq!(usage["grouped_linear"].backwards, 2 * layers, "{policy}");
        // Scores are computed again, the choice is not.
        let scores = if policy == Policy::None { 1 } else { 2 };
        assert_eq!(usage["route"].forwards, scores * layers, "{policy}");
        assert_eq!(usage["router"].forwards, layers, "{policy}");
    }
}

/// Every token goes through `top_k` experts of two products, and a product of the gradient of each operand; experts that are
/// computed again cost their forward once more.
#[test]
fn floating_point_operations_of_experts_are_those_of_the_closed_form() {
    let subject = subject(0);
    let (tokens, top_k, width, inner) = (2 * 6, 2, 24, 20);
    let forward = (LAYERS * 2 * 2 * tokens * top_k * width * inner) as u64;
    for (policy, forwards) in [
        (Policy::None, 1),
        (FULL, 2),
        (ATTN_ONLY, 2),
        (Policy::EveryNthLinear { n: 1 }, 1),
    ] {
        let found = usage(&subject, &policy)["grouped_linear"];
        assert_eq!(found.forward_flops, forwards * forward, "{policy}");
        assert_eq!(found.backward_flops, 2 * forward, "{policy}");
    }
}
