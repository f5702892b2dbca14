//! No bit of any velocity, loss, gradient, weight or moment depends on what is kept.
//!
//! No model here drops values at random; what such a region comes to is in [`super::regions`].

use crate::support::*;
use flow_checkpoint::Policy;
use flow_core::device::ComputeDevice;
use flow_core::{Backends, CallContext, InferencePass, Stage, TrainingPass, cpu};
use flow_kernels::CpuKernels;
use std::sync::Arc;

#[test]
fn every_policy_gives_the_bits_of_none_for_every_model_and_precision() {
    for Place { name, device, plan } in Place::all() {
        for (number, subject) in Subject::all_on(&device).into_iter().enumerate() {
            let expected = subject.pass(&Arc::new(plan.clone()), 1);
            let policies = policies(subject.model.spec());
            let engines = policies.iter().map(|policy| engine(policy, &*subject.model));
            let engines: Vec<_> = engines.chain(unusual(&*subject.model)).collect();
            for engine in tried(engines, &device, number, 2) {
                let found = subject.pass(&with_engine(&plan, &engine), 1);
                let what = format!("{}, {name}, {engine:?}", subject.name);
                found.assert_same_bits(&expected, &what, subject.weights.layout());
                assert_eq!(
                    engine.counts().held_bytes,
                    0,
                    "{what}: all that was kept is used up"
                );
            }
        }
    }
}

/// That so many `calls` by `plan` under each of these policies give what was `expected`.
fn assert_bits_under(
    policies: Vec<Policy>,
    subject: &Subject,
    place: &str,
    plan: &Backends,
    calls: u64,
    expected: &Found,
) {
    for policy in policies {
        let engine = engine(&policy, &*subject.model);
        let found = subject.pass(&with_engine(plan, &engine), calls);
        let what = format!("{}, {place}, {policy}", subject.name);
        found.assert_same_bits(expected, &what, subject.weights.layout());
    }
}

#[test]
fn several_calls_in_flight_add_up_to_the_same_bits() {
    for subject in Subject::all() {
        let plan = plan_of(CpuKernels::default());
        let expected = subject.pass(&Arc::new(plan.clone()), 3);
        let policies = policies(subject.model.spec());
        assert_bits_under(policies, &subject, "f32", &plan, 3, &expected);
    }
}

#[test]
fn three_optimizer_steps_give_the_same_weights_and_moments() {
    for Place { name, device, plan } in Place::all() {
        for (number, subject) in Subject::all_on(&device).into_iter().enumerate() {
            let run = |plan: &Arc<Backends>| {
                let mut state = State::of(&subject.weights, &device);
                for number in 1..=3 {
                    let found = subject.pass_with(plan, 1, &state.weights);
                    state.step(&*plan.kernels, &found.of_weights, number);
                }
                state.bits()
            };
            let expected = run(&Arc::new(plan.clone()));
            // Every policy's gradients are compared above. The first policy is none.
            let policies = policies(subject.model.spec());
            for policy in tried(policies, &device, number + 1, 12) {
                let engine = engine(&policy, &*subject.model);
                let found = run(&with_engine(&plan, &engine));
                assert!(found == expected, "{}, {name}, {policy}", subject.name);
            }
        }
    }
}

#[test]
fn fused_kernels_give_the_same_bits_under_every_policy() {
    for Place { name, device, plan } in Place::all() {
        let fused = fused(&plan);
        assert!(fused.block_kernels.is_some(), "{name} has fused kernels");
        for (number, subject) in Subject::all_on(&device).into_iter().enumerate() {
            let expected = subject.pass(&Arc::new(plan.clone()), 1);
            let policies = tried(policies(subject.model.spec()), &device, number, 4);
            assert_bits_under(policies, &subject, name, &fused, 1, &expected);
        }
    }
}

#[test]
fn two_stacks_of_different_blocks_give_the_bits_of_none_fused_and_not() {
    let subject = Subject::flux();
    let plan = plan_of(CpuKernels::default());
    let expected = subject.pass(&Arc::new(plan.clone()), 1);
    for plan in [fused(&plan), plan] {
        let policies = policies(subject.model.spec());
        assert_bits_under(policies, &subject, "f32", &plan, 1, &expected);
    }
}

#[test]
fn passes_beside_one_another_give_the_bits_of_passes_after_one_another() {
    let subject = Subject::dit();
    let engine = engine(&Policy::AttnOnly { split: true }, &*subject.model);
    let plan = with_engine(&plan_of(CpuKernels::default()), &engine);
    let one = |_| {
        let found = subject.pass(&plan, 2);
        found
            .of_weights
            .iter()
            .map(|gradient| gradient.as_ref().map(bits))
            .collect::<Vec<_>>()
    };
    let expected = one(0);
    let pool = rayon_pool();
    let found = pool.install(|| ComputeDevice::cpu().concurrently(8, one));
    assert!(found.iter().all(|found| *found == expected));
    assert_eq!(engine.counts().held_bytes, 0);
}

fn rayon_pool() -> rayon::ThreadPool {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(4);
    builder.build().expect("the system starts a thread")
}

#[test]
fn an_abandoned_forward_changes_nothing_and_is_let_go() {
    let subject = Subject::dit();
    let plan = plan_of(CpuKernels::default());
    let expected = subject.pass(&Arc::new(plan.clone()), 1);
    let engine = engine(&Policy::AttnOnly { split: false }, &*subject.model);
    let plan = with_engine(&plan, &engine);
    {
        let training = TrainingPass::new(&subject.weights, plan.clone(), subject.trained.clone());
        let exec = training.exec(CallContext::single(Stage::Training));
        let velocity = subject.model.velocity(&exec, subject.input(7));
        drop(velocity);
    }
    let found = subject.pass(&plan, 1);
    found.assert_same_bits(&expected, "after an abandoned forward", subject.weights.layout());
    assert_eq!(engine.counts().held_bytes, 0);
}

#[test]
fn rollouts_and_evaluations_keep_nothing_and_have_the_bits_of_training() {
    let subject = Subject::dit();
    for policy in policies(subject.model.spec()) {
        let engine = engine(&policy, &*subject.model);
        let plan = with_engine(&plan_of(CpuKernels::default()), &engine);
        let trained = subject.pass(&plan, 1);
        let before = engine.counts();
        for stage in [Stage::Rollout, Stage::Evaluation] {
            let exec = InferencePass::new(&subject.weights, plan.clone()).exec(CallContext::single(stage));
            let rolled = subject.model.velocity(&exec, subject.input(1)).into_dispatch();
            let host = cpu::to_host(&rolled);
            let host: Vec<u32> = host.iter().map(|value| value.to_bits()).collect();
            assert_eq!(host, bits(&trained.velocities[0]), "{policy}");
        }
        assert_eq!(engine.counts(), before, "{policy}: nothing is recorded");
    }
}
