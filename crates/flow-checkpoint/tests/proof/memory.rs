//! What is held is what was predicted, to the byte.

use crate::support::*;
use flow_checkpoint::Policy;
use flow_core::{Backends, CallContext, RegionEngine, Stage, TrainingPass};
use flow_kernels::CpuKernels;

const F32: u64 = 4;

/// Bytes held between forward and backward.
fn held(subject: &Subject, policy: &Policy) -> u64 {
    held_under(&plan_of(CpuKernels::default()), subject, policy)
}

/// The same under a plan.
fn held_under(plan: &Backends, subject: &Subject, policy: &Policy) -> u64 {
    let engine = engine(policy, &*subject.model);
    let plan = with_engine(plan, &engine);
    let training = TrainingPass::new(&subject.weights, plan, subject.trained.clone());
    let exec = training.exec(CallContext::single(Stage::Training));
    let velocity = subject.model.velocity(&exec, subject.input(1)).into_dispatch();
    let held = engine.counts().held_bytes;
    let gradients = flow_core::autograd::backward_from(vec![velocity], vec![Some(subject.cotangent(2))]);
    assert!(gradients.is_some());
    let counts = engine.counts();
    assert_eq!(counts.held_bytes, 0, "{policy}");
    held
}

/// 3 × 2 tokens of 24 channels in 3 heads, and a feed-forward part of 60.
#[test]
fn what_a_policy_keeps_of_a_dit_is_its_closed_form() {
    let subject = Subject::dit();
    let (rows, tokens, width, heads, inner) = (2, 6, 24, 3, 60);
    let layers = LAYERS as u64;
    let stream = rows * tokens * width * F32;
    let (log_sum_exp, conditioning) = (rows * heads * tokens * F32, rows * width * F32);
    let attention = stream + log_sum_exp;
    let modulation = 6 * conditioning;
    let linears = modulation + 5 * stream + rows * tokens * inner * F32;
    let save = |pattern: &str| Policy::Regions {
        save: vec![pattern.into()],
    };
    for (policy, per_block, once) in [
        (Policy::Full { split: false }, stream, conditioning),
        (
            Policy::AttnOnly { split: false },
            stream + attention,
            conditioning,
        ),
        // The output of attention's region as well; that of the feed-forward part is the next block's input, but for
        // the last.
        (Policy::Full { split: true }, 2 * stream, stream + conditioning),
        (
            Policy::EveryNthLinear { n: 1 },
            stream + attention + linears,
            conditioning,
        ),
        (
            Policy::EveryNthLinear { n: 2 },
            // Modulation, key, projection, and the second of the feed-forward part.
            stream + attention + modulation + 3 * stream,
            conditioning,
        ),
        (save("adaln"), stream + modulation, conditioning),
        (
            save("mlp:linear"),
            stream + rows * tokens * inner * F32 + stream,
            conditioning,
        ),
    ] {
        assert_eq!(held(&subject, &policy), layers * per_block + once, "{policy}");
    }
    assert_eq!(held(&subject, &Policy::None), 0);
    assert_eq!(
        held(&subject, &Policy::BlockSkip { every: 2 }),
        2 * stream + conditioning
    );
}

#[test]
fn most_of_what_is_held_are_buffers_of_a_stream() {
    let subject = Subject::dit();
    let engine = engine(&Policy::AttnOnly { split: false }, &*subject.model);
    assert_eq!(engine.usual_bytes(), None);
    let plan = with_engine(&plan_of(CpuKernels::default()), &engine);
    let training = TrainingPass::new(&subject.weights, plan, subject.trained.clone());
    let exec = training.exec(CallContext::single(Stage::Training));
    let _velocity = subject.model.velocity(&exec, subject.input(1));
    assert_eq!(engine.usual_bytes(), Some(2 * 6 * 24 * F32));
}

#[test]
fn what_leaves_a_block_takes_memory_behind_the_last_one_alone_and_only_where_its_replay_is_given_it() {
    let subject = Subject::dit();
    let stream = 2 * 6 * 24 * F32;
    let plan = plan_of(CpuKernels::default());
    for (policy, extra) in [
        (Policy::Full { split: false }, stream),
        (Policy::AttnOnly { split: false }, stream),
        // The outputs of its regions are held anyway.
        (Policy::Full { split: true }, 0),
        // Of three blocks, the first and the last run again.
        (Policy::BlockSkip { every: 2 }, 2 * stream),
    ] {
        let [of_fused, alone] = [fused(&plan), plan.clone()].map(|plan| held_under(&plan, &subject, &policy));
        assert_eq!(of_fused, alone + extra, "{policy}");
    }
}

#[test]
fn full_keeps_less_than_attn_only_and_that_less_than_with_linear_layers() {
    for subject in Subject::all() {
        let held = |policy: Policy| held(&subject, &policy);
        let full = held(Policy::Full { split: false });
        let attention = held(Policy::AttnOnly { split: false });
        let second = held(Policy::EveryNthLinear { n: 2 });
        let all = held(Policy::EveryNthLinear { n: 1 });
        assert!(full < attention, "{}", subject.name);
        assert!(attention < second, "{}", subject.name);
        assert!(second < all, "{}", subject.name);
    }
}

#[test]
fn nothing_is_left_of_twenty_steps() {
    let subject = Subject::dit();
    for policy in [
        Policy::AttnOnly { split: true },
        Policy::Regions {
            save: vec!["attention".into(), "mlp:linear".into()],
        },
    ] {
        let engine = engine(&policy, &*subject.model);
        let plan = with_engine(&plan_of(CpuKernels::default()), &engine);
        let mut most = Vec::new();
        for _ in 0..20 {
            subject.pass(&plan, 1);
            let counts = engine.counts();
            assert_eq!(counts.held_bytes, 0, "{policy}");
            most.push(counts.most_held_bytes);
        }
        assert!(most.iter().all(|bytes| *bytes == most[0]), "{policy}: {most:?}");
    }
}
