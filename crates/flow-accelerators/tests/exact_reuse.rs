//! `exact_reuse`: the bits of computing everything, less work, and nothing of weights that are no more.

mod support;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_accel::{Acceleration, Engagement, Engagements, Params};
use flow_attention::CpuAttention;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallBody, Reusable, RowsBody};
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Backends, CallContext, Exec, FlowModel,
    InferencePass, KeyValue, ModelInput, Refusal, ReuseDriver, RowKey, Stage, TrainingPass, TrajectoryId,
    Weights,
};
use flow_kernels::CpuKernels;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use support::{at_work, condition, noise, noisy, registry};

const STEPS: u32 = 4;
/// The first random step; up to its velocity members of a group are the same.
const PARTING: u32 = 2;

fn with(kernels: CpuKernels, params: &Params, model: &dyn FlowModel) -> Acceleration {
    let base = Backends::new(Arc::new(CpuAttention), Arc::new(kernels));
    registry()
        .arrangement(base, [("exact_reuse", params)], [], model.spec())
        .map(at_work)
        .unwrap_or_else(|errors| panic!("{}", errors[0]))
}

fn without(kernels: CpuKernels) -> Arc<Backends> {
    Arc::new(Backends::new(Arc::new(CpuAttention), Arc::new(kernels)))
}

/// Groups of `group` samples, `micro_batch` of them in a call, conditional rows and then the others: their latents after
/// some steps of which one adds noise. Members of a group start from the same latent.
fn sample(rollout: &InferencePass<'_>, model: &dyn FlowModel, group: u64, micro_batch: usize) -> Vec<u32> {
    let device = ComputeDevice::cpu();
    let values = model.spec().latent.values();
    let samples: Vec<u64> = (0..2 * group).collect();
    let mut latents = Vec::new();
    for batch in samples.chunks(micro_batch) {
        // Conditions are told by the sample's number: members are given that of their group, and the empty one is one.
        let branches = |of: &dyn Fn(u64, bool) -> u64| -> Vec<TrajectoryId> {
            let branch = |conditional| {
                let trajectory = move |sample: &u64| TrajectoryId {
                    sample: of(*sample, conditional),
                    conditional,
                };
                batch.iter().map(trajectory)
            };
            [true, false].into_iter().flat_map(branch).collect()
        };
        let asked = branches(&|sample, conditional| if conditional { sample / group } else { 0 });
        let starts = branches(&|sample, _| sample / group);
        let trajectories = branches(&|sample, _| sample);
        let mut x: Vec<f32> = batch
            .iter()
            .flat_map(|sample| noise(values, sample / group))
            .collect();
        for step in 0..STEPS {
            let sigma = 1.0 - f64::from(step) / f64::from(STEPS);
            let key = |(asked, start): (&TrajectoryId, &TrajectoryId)| RowKey {
                condition: Some([asked.sample as u8, u8::from(asked.conditional)].into()),
                sigma: Some((sigma as f32).to_bits()),
                latent: (step <= PARTING).then_some(start.sample),
            };
            let call = CallContext {
                step,
                steps: STEPS,
                sigma: Some(sigma),
                trajectories: trajectories.clone().into(),
                ..CallContext::single(Stage::Rollout)
            };
            let rows = trajectories.len();
            let input = ModelInput {
                x: device.tensor([x.clone(), x.clone()].concat(), [rows, values]),
                sigma: device.tensor(vec![sigma as f32; rows], [rows]),
                condition: condition(model, &asked),
            };
            let exec = rollout
                .exec(call)
                .with_rows(asked.iter().zip(&starts).map(key).collect());
            let v = to_host(&exec.velocity(model, input).into_dispatch());
            let (conditional, unconditional) = v.split_at(x.len());
            for ((x, c), u) in x.iter_mut().zip(conditional).zip(unconditional) {
                *x -= 0.25 * (u + 2.0 * (c - u));
            }
            if step == PARTING {
                let added = batch.iter().flat_map(|sample| noise(values, 100 + sample));
                x.iter_mut().zip(added).for_each(|(x, noise)| *x += 0.3 * noise);
            }
        }
        latents.extend(x);
    }
    latents.into_iter().map(f32::to_bits).collect()
}

fn done(acceleration: &Acceleration) -> Engagements {
    acceleration.take_activity()[0].engagements
}

#[test]
fn every_bit_is_that_of_computing_everything_whatever_group_batch_model_and_precision() {
    let mut kernels = vec![CpuKernels::default()];
    match CpuKernels::bf16() {
        Ok(narrow) => kernels.push(narrow),
        Err(why) => test_support::skipped(why),
    }
    for architecture in ["dit", "mmdit", "qwen-image", "wan"] {
        let (model, weights) = noisy(architecture);
        for kernels in &kernels {
            let plain = InferencePass::new(&weights, without(kernels.clone()));
            let reusing = with(kernels.clone(), &Params::new(), &*model);
            let reused = InferencePass::new(&weights, reusing.training().clone());
            for (group, micro_batch) in [(1, 1), (1, 2), (3, 6), (3, 4), (5, 3), (7, 5), (2, 3)] {
                let about = format!("{architecture}, groups of {group}, {micro_batch} in a call");
                let expected = sample(&plain, &*model, group, micro_batch);
                assert_eq!(sample(&reused, &*model, group, micro_batch), expected, "{about}");
                // Once more, with everything in store.
                assert_eq!(sample(&reused, &*model, group, micro_batch), expected, "{about}");
                let done = done(&reusing);
                assert!(done.of(Engagement::PartReused) > 0, "{about}");
                let shares = micro_batch > 1 && group > 1;
                assert_eq!(done.of(Engagement::ForwardShared) > 0, shares, "{about}");
            }
        }
    }
}

#[test]
fn members_of_a_group_are_one_forward_until_they_part() {
    let (model, weights) = noisy("dit");
    let reusing = with(CpuKernels::default(), &Params::new(), &*model);
    sample(
        &InferencePass::new(&weights, reusing.training().clone()),
        &*model,
        4,
        8,
    );
    // Two groups of four in one call, each with two branches: of the 16 rows 4 are computed, in three of four steps.
    assert_eq!(done(&reusing).of(Engagement::ForwardShared), 12 * 3);
}

#[test]
fn the_same_prompt_is_embedded_once_however_many_ask_and_a_new_version_of_weights_computes_anew() {
    let (model, mut weights) = noisy("dit");
    let reusing = with(CpuKernels::default(), &Params::new(), &*model);
    let reused = |weights: &Weights| {
        let bits = sample(
            &InferencePass::new(weights, reusing.training().clone()),
            &*model,
            2,
            4,
        );
        let activity = reusing.take_activity().remove(0);
        (
            bits,
            activity.engagements.of(Engagement::PartReused),
            activity.kept_bytes,
        )
    };
    let (first, within, kept) = reused(&weights);
    let (_, again, _) = reused(&weights);
    assert!(
        again > within,
        "the second rollout finds what the first kept: {again} after {within}"
    );
    assert!(kept > 0);
    for index in 0..weights.layout().len() {
        let value = weights.stored()[index].clone();
        weights.set(index, value).expect("the same shape");
    }
    let (same, anew, _) = reused(&weights);
    assert_eq!(same, first, "the values are the same");
    assert_eq!(
        anew, within,
        "but nothing that was written to is taken for what it was"
    );
    let changed: Vec<f32> = weights.host(3).iter().map(|value| value + 0.5).collect();
    let shape = weights.layout().specs()[3].shape.clone();
    weights
        .set(3, ComputeDevice::cpu().plain(changed, &shape))
        .expect("the same shape");
    let plain = InferencePass::new(&weights, without(CpuKernels::default()));
    let (bits, ..) = reused(&weights);
    assert_ne!(bits, first);
    assert_eq!(bits, sample(&plain, &*model, 2, 4));
}

/// Counts the rows that each block's part of this name computes, whoever drives it.
#[derive(Debug)]
struct Counting {
    reuse: Arc<dyn ReuseDriver>,
    part: &'static str,
    computed: Mutex<HashMap<usize, usize>>,
}

impl ReuseDriver for Counting {
    fn name(&self) -> &str {
        self.reuse.name()
    }

    fn part(&self, exec: &Exec<'_>, part: Reusable, body: RowsBody<'_>) -> Vec<DispatchTensor> {
        let counted = |exec: &Exec<'_>, some: Option<&[usize]>| {
            if part.name == self.part {
                let block = exec.site().expect("within a block").block;
                let rows = some.map_or(exec.rows().len(), <[usize]>::len);
                *self.computed.lock().expect("no panic").entry(block).or_default() += rows;
            }
            body(exec, some)
        };
        self.reuse.part(exec, part, &counted)
    }

    fn velocity(
        &self,
        exec: &Exec<'_>,
        model: &dyn FlowModel,
        input: ModelInput,
        compute: CallBody<'_>,
    ) -> Tensor<2> {
        self.reuse.velocity(exec, model, input, compute)
    }
}

#[test]
fn keys_and_values_of_a_text_are_computed_once_per_prompt_and_version_of_the_weights() {
    let (model, mut weights) = noisy("wan");
    // Two prompts and the empty one, asked for by two members each in both branches.
    let (blocks, prompts, rows) = (model.spec().stacks[0].1, 3, 2 * 2 * 2);
    let counting = |plan: &Backends| {
        Arc::new(Counting {
            reuse: plan.reuse.clone(),
            part: "text_keys_values",
            computed: Mutex::default(),
        })
    };
    let of_each_block = |counting: &Counting, expected: usize| {
        let computed = std::mem::take(&mut *counting.computed.lock().expect("no panic"));
        let expected: HashMap<usize, usize> = (0..blocks).map(|block| (block, expected)).collect();
        assert_eq!(computed, expected);
    };
    let under = |plan: &Backends, counting: &Arc<Counting>| {
        Arc::new(Backends {
            reuse: counting.clone(),
            ..plan.clone()
        })
    };
    let plain = without(CpuKernels::default());
    let recomputing = counting(&plain);
    let expected = sample(
        &InferencePass::new(&weights, under(&plain, &recomputing)),
        &*model,
        2,
        4,
    );
    of_each_block(&recomputing, rows * STEPS as usize);

    let reusing = with(CpuKernels::default(), &Params::new(), &*model);
    let counted = counting(reusing.training());
    let plan = under(reusing.training(), &counted);
    for calls in [prompts, 0] {
        let reused = sample(&InferencePass::new(&weights, plan.clone()), &*model, 2, 4);
        assert_eq!(reused, expected);
        if calls > 0 {
            of_each_block(&counted, calls);
        } else {
            assert!(counted.computed.lock().expect("no panic").is_empty());
        }
    }
    let value = weights.stored()[0].clone();
    weights.set(0, value).expect("the same shape");
    assert_eq!(
        sample(&InferencePass::new(&weights, plan), &*model, 2, 4),
        expected
    );
    of_each_block(&counted, prompts);
}

#[test]
fn two_sets_of_weights_and_the_base_below_adapters_never_answer_for_one_another() {
    let (model, weights) = noisy("dit");
    let mut other = weights.clone();
    for index in 0..other.layout().len() {
        let values = other.host(index).iter().map(|value| value * 1.25).collect();
        let shape = other.layout().specs()[index].shape.clone();
        other
            .set(index, ComputeDevice::cpu().plain(values, &shape))
            .expect("the same shape");
    }
    let reusing = with(CpuKernels::default(), &Params::new(), &*model);
    let plan = reusing.training();
    for _ in 0..2 {
        for weights in [&weights, &other] {
            let expected = InferencePass::new(weights, without(CpuKernels::default()));
            let reused = InferencePass::new(weights, plan.clone());
            assert_eq!(sample(&reused, &*model, 2, 4), sample(&expected, &*model, 2, 4));
            assert_eq!(
                sample(&reused.without_adapters(), &*model, 2, 4),
                sample(&expected.without_adapters(), &*model, 2, 4)
            );
        }
    }
}

#[test]
fn little_memory_means_less_reuse_and_the_same_bits() {
    let (model, weights) = noisy("mmdit");
    let little = flow_cache_limit(&*model, &weights, 0);
    let much = flow_cache_limit(&*model, &weights, 1 << 30);
    assert_eq!(little.0, much.0);
    assert_eq!((little.2, much.2 > 0), (0, true), "bytes kept");
    assert!(
        little.1 < much.1 && little.1 > 0,
        "within a call rows are still computed once"
    );
}

/// Bits, rows of parts reused and bytes kept with a limit in bytes, which a config gives in MiB only.
fn flow_cache_limit(model: &dyn FlowModel, weights: &Weights, limit_bytes: u64) -> (Vec<u32>, u64, u64) {
    use flow_cache::{ExactReuse, Reused};
    use std::sync::atomic::{AtomicU64, Ordering};
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let reuse = Arc::new(ExactReuse::new(
        limit_bytes,
        Box::new(move |reused| {
            if let Reused::Part { rows, computed, .. } = reused {
                counted.fetch_add(rows - computed, Ordering::Relaxed);
            }
        }),
    ));
    let plan = (*without(CpuKernels::default())).clone();
    let plan = Arc::new(Backends {
        reuse: reuse.clone(),
        ..plan
    });
    let bits = sample(&InferencePass::new(weights, plan), model, 3, 6);
    (bits, count.load(Ordering::Relaxed), reuse.kept_bytes())
}

#[test]
fn a_pass_that_trains_computes_everything_and_gets_every_gradient() {
    let (model, weights) = noisy("dit");
    let trained: Arc<[bool]> = vec![true; weights.layout().len()].into();
    let gradients = |plan: &Arc<Backends>| {
        let pass = TrainingPass::new(&weights, plan.clone(), trained.clone());
        let trajectories = [TrajectoryId {
            sample: 0,
            conditional: true,
        }; 2];
        let call = CallContext {
            sigma: Some(0.5),
            ..CallContext::single(Stage::Training)
        };
        let key = RowKey {
            condition: Some([1].into()),
            sigma: Some(0.5f32.to_bits()),
            latent: Some(0),
        };
        let values = model.spec().latent.values();
        let device = ComputeDevice::cpu();
        let input = ModelInput {
            x: device.tensor([noise(values, 0), noise(values, 0)].concat(), [2, values]),
            sigma: device.tensor(vec![0.5; 2], [2]),
            condition: condition(&*model, &trajectories),
        };
        let exec = pass.exec(call).with_rows([key.clone(), key].into());
        let v = exec.velocity(&*model, input);
        let loss = (v.clone() * v).sum();
        let gradients = pass.gradients(&loss);
        gradients
            .iter()
            .map(|g| g.as_ref().map(to_host))
            .collect::<Vec<_>>()
    };
    let reusing = with(CpuKernels::default(), &Params::new(), &*model);
    assert_eq!(
        gradients(reusing.training()),
        gradients(&without(CpuKernels::default()))
    );
    assert!(done(&reusing).is_idle());
}

/// Attention that promises nothing about rows.
#[derive(Debug)]
struct Mixing;

impl AttentionBackend for Mixing {
    fn name(&self) -> &str {
        "mixing"
    }
    fn capability(&self) -> AttentionCapability {
        AttentionCapability::HOST
    }

    fn is_row_independent(&self) -> bool {
        false
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        CpuAttention.kernel(call)
    }
    fn attend(
        &self,
        stash: &dyn flow_core::ops::Stash,
        q: &burn::backend::DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        CpuAttention.attend(stash, q, parts, call)
    }
}

#[test]
fn kernels_that_do_not_promise_independent_rows_are_refused_and_so_is_a_second_entry() {
    let (model, _) = noisy("dit");
    let none = Params::new();
    let of = |plan: Backends, entries: &[(&str, &Params)]| {
        let result = registry().arrangement(plan, entries.iter().copied(), [], model.spec());
        result.map(|_| ()).map_err(|errors| errors[0].to_string())
    };
    let mixing = Backends::new(Arc::new(Mixing), Arc::new(CpuKernels::default()));
    let refused = of(mixing, &[("exact_reuse", &none)]).expect_err("rows may mix");
    assert!(
        refused.contains("attention `mixing`") && refused.contains("another attention backend"),
        "{refused}"
    );
    let fused: Params = serde_json::from_value(json!({ "mode": "full" })).expect("an object");
    let plain = || (*without(CpuKernels::default())).clone();
    let order =
        of(plain(), &[("exact_reuse", &none), ("fused_kernels", &fused)]).expect_err("the wrong order");
    assert!(order.contains("whether a row depends on others"), "{order}");
    of(plain(), &[("fused_kernels", &fused), ("exact_reuse", &none)]).expect("the right order");
}

#[test]
fn threads_that_need_the_same_value_at_once_compute_it_once() {
    let (model, weights) = noisy("dit");
    let counted = |threads: bool| {
        let reusing = with(CpuKernels::default(), &Params::new(), &*model);
        let one = || {
            sample(
                &InferencePass::new(&weights, reusing.training().clone()),
                &*model,
                3,
                6,
            )
        };
        let all: Vec<Vec<u32>> = if threads {
            std::thread::scope(|scope| {
                let under_way: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                let ended = under_way.into_iter().map(|thread| thread.join());
                ended.map(|bits| bits.expect("no panic")).collect()
            })
        } else {
            (0..4).map(|_| one()).collect()
        };
        (all, done(&reusing).of(Engagement::PartReused))
    };
    assert_eq!(counted(true), counted(false));
}

#[test]
fn a_panic_in_the_middle_of_a_value_leaves_nothing_that_others_wait_for() {
    use flow_cache::ExactReuse;
    use flow_core::exec::DependsOn;
    let (_, weights) = noisy("dit");
    let reuse = ExactReuse::new(1 << 20, Box::new(|_| {}));
    let key = RowKey {
        condition: Some([7].into()),
        ..RowKey::default()
    };
    let rollout = InferencePass::new(&weights, without(CpuKernels::default()));
    let exec = || {
        let call = CallContext::single(Stage::Rollout);
        rollout.exec(call).with_rows([key.clone(), key.clone()].into())
    };
    let part = Reusable {
        name: "part",
        depends_on: DependsOn::Condition,
    };
    let fails = |_: &Exec<'_>, _: Option<&[usize]>| panic!("asked to fail");
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reuse.part(&exec(), part, &fails)));
    assert!(failed.is_err());
    let value = |_: &Exec<'_>, rows: Option<&[usize]>| {
        assert_eq!(rows, Some(&[0][..]), "one of the two rows is computed");
        vec![flow_core::cpu::from_vec(vec![3.0, 4.0], &[1, 2])]
    };
    let results = reuse.part(&exec(), part, &value);
    assert_eq!(to_host(&results[0]), [3.0, 4.0, 3.0, 4.0]);
}
