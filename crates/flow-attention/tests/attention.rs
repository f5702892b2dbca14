//! Attention on the CPU against an f64 reference.

#[path = "../../flow-kernels/tests/support/mod.rs"]
mod support;

use burn::backend::DispatchTensor;
use flow_attention::{AttentionRegistry, CpuAttention, ReferenceAttention, register};
use flow_core::cpu::to_host;
use flow_core::ops::{Compute, Stash};
use flow_core::{AttentionBackend, AttentionCall, AttentionSpec, KeyValue, RawTensor, Refusal};
use std::sync::Mutex;
use support::{Operand, bits, check, check_threads, distance, operand, run};

/// Sizes of a call over one part, and its scale.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    head_dim: usize,
    scale: f32,
}

fn shape([batch, queries, keys, heads, head_dim]: [usize; 5]) -> Shape {
    Shape {
        batch,
        queries,
        keys,
        heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
    }
}

/// `backend` at `inputs`: queries, keys, values.
fn attend(
    backend: &dyn AttentionBackend,
    stash: &dyn Stash,
    scale: f32,
    inputs: &[DispatchTensor],
) -> Result<DispatchTensor, Refusal> {
    let parts = [KeyValue {
        k: &inputs[1],
        v: &inputs[2],
    }];
    let spec = AttentionSpec {
        scale: Some(scale),
        ..AttentionSpec::default()
    };
    let call = AttentionCall::new(&inputs[0], &parts, &spec)?;
    Ok(backend.attend(stash, &inputs[0], &parts, &call)?.output)
}

fn operands(shape: &Shape) -> [Operand; 3] {
    let key_shape = [shape.batch, shape.keys, shape.heads, shape.head_dim];
    [
        operand(1, &[shape.batch, shape.queries, shape.heads, shape.head_dim]),
        operand(2, &key_shape),
        operand(3, &key_shape),
    ]
}

fn kernel(stash: &dyn Stash, shape: &Shape, inputs: &[DispatchTensor]) -> DispatchTensor {
    attend(&CpuAttention, stash, shape.scale, inputs).expect("served")
}

/// `softmax(scale · q kᵀ) v`, one query at a time.
fn reference(shape: &Shape, values: &[Vec<f64>]) -> Vec<f64> {
    let Shape {
        batch,
        queries,
        keys,
        heads,
        head_dim,
        scale,
    } = *shape;
    let at = |tokens: usize, sample: usize, token: usize, head: usize| {
        ((sample * tokens + token) * heads + head) * head_dim
    };
    let mut output = vec![0.0; batch * queries * heads * head_dim];
    for (sample, query, head) in
        (0..batch).flat_map(|b| (0..queries).flat_map(move |q| (0..heads).map(move |h| (b, q, h))))
    {
        let q = &values[0][at(queries, sample, query, head)..][..head_dim];
        let scores: Vec<f64> = (0..keys)
            .map(|key| {
                let k = &values[1][at(keys, sample, key, head)..][..head_dim];
                f64::from(scale) * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()
            })
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let output = &mut output[at(queries, sample, query, head)..][..head_dim];
        for (key, weight) in weights.iter().enumerate() {
            let v = &values[2][at(keys, sample, key, head)..][..head_dim];
            output
                .iter_mut()
                .zip(v)
                .for_each(|(o, v)| *o += weight / total * v);
        }
    }
    output
}

#[test]
fn output_and_gradients_agree_with_f64_at_awkward_sizes() {
    for sizes in [
        [1, 1, 1, 1, 1],
        [2, 13, 21, 2, 5],
        [1, 7, 3, 3, 16],
        [1, 5, 9, 2, 24],
        [1, 70, 13, 1, 4],
        [1, 129, 1, 1, 3],
    ] {
        let shape = shape(sizes);
        check(
            &operands(&shape),
            &|values| reference(&shape, values),
            &|inputs| kernel(&Compute, &shape, inputs),
        );
    }
}

#[test]
fn the_reference_backend_is_the_formula_too() {
    for sizes in [[1, 1, 1, 1, 1], [2, 13, 21, 2, 5], [1, 7, 3, 3, 16]] {
        let shape = shape(sizes);
        check(
            &operands(&shape),
            &|values| reference(&shape, values),
            &|inputs| attend(&ReferenceAttention, &Compute, shape.scale, inputs).expect("served"),
        );
    }
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    for sizes in [[5, 64, 64, 4, 16], [2, 130, 77, 3, 24], [1, 200, 333, 2, 64]] {
        let shape = shape(sizes);
        check_threads(&operands(&shape), &|inputs| kernel(&Compute, &shape, inputs));
    }
}

#[test]
fn a_sample_has_the_same_bits_in_a_batch_of_any_size() {
    for sizes in [[4, 13, 21, 2, 5], [3, 64, 64, 4, 16], [2, 70, 130, 1, 24]] {
        let whole_shape = shape(sizes);
        let whole_operands = operands(&whole_shape);
        let seed = operand(9, &whole_operands[0].shape);
        let part = |operand: &Operand, sample: usize| {
            let mut shape = operand.shape.clone();
            let count: usize = shape[1..].iter().product();
            shape[0] = 1;
            Operand {
                values: operand.values[sample * count..][..count].to_vec(),
                shape,
            }
        };
        let (whole, whole_gradients) = run(
            &whole_operands,
            &[true; 3],
            &|inputs| kernel(&Compute, &whole_shape, inputs),
            &seed,
        );
        for sample in 0..sizes[0] {
            let shape = Shape {
                batch: 1,
                ..whole_shape
            };
            let operands: Vec<Operand> = whole_operands
                .iter()
                .map(|operand| part(operand, sample))
                .collect();
            let (alone, gradients) = run(
                &operands,
                &[true; 3],
                &|inputs| kernel(&Compute, &shape, inputs),
                &part(&seed, sample),
            );
            let of = |values: &[f32], count: usize| bits(&values[sample * count..][..count]);
            assert_eq!(bits(&alone), of(&whole, alone.len()));
            for (gradient, whole) in gradients.iter().zip(&whole_gradients) {
                let gradient = gradient.as_ref().expect("tracked");
                assert_eq!(
                    bits(gradient),
                    of(whole.as_ref().expect("tracked"), gradient.len())
                );
            }
        }
    }
}

#[test]
fn large_scores_neither_overflow_nor_lose_the_largest() {
    let shape = Shape {
        scale: 1000.0,
        ..shape([1, 5, 9, 2, 8])
    };
    let operands = operands(&shape);
    let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let wide: Vec<Vec<f64>> = operands.iter().map(Operand::wide).collect();
    let found = to_host(&kernel(&Compute, &shape, &inputs));
    // Scores of some thousands carry an f32 rounding error of some 1e-4, which the exponential turns into a relative one.
    assert!(distance(&found, &reference(&shape, &wide)) < 1e-3);
    assert!(found.iter().all(|value| value.is_finite()));
}

#[test]
fn a_value_that_is_not_a_number_stays_visible() {
    let shape = shape([2, 3, 5, 1, 4]);
    let mut operands = operands(&shape);
    operands[0].values[4] = f32::NAN;
    let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let found = to_host(&kernel(&Compute, &shape, &inputs));
    assert!(
        found[4..8].iter().all(|value| value.is_nan()),
        "the second query of the first sample"
    );
    assert!(
        found[..4]
            .iter()
            .chain(&found[8..])
            .all(|value| value.is_finite())
    );
}

/// Keeps what a first run makes and gives it to later runs; counts how often it was computed.
#[derive(Debug, Default)]
struct Kept(Mutex<(usize, Vec<RawTensor>)>);

impl Stash for Kept {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        assert_eq!(name, "attention");
        let mut kept = self.0.lock().expect("not poisoned");
        if kept.1.is_empty() {
            *kept = (kept.0 + 1, compute());
        }
        kept.1.clone()
    }
}

#[test]
fn a_kept_output_serves_a_tracked_run_without_computing_attention_again() {
    let shape = shape([2, 13, 21, 2, 5]);
    let (operands, seed) = (operands(&shape), operand(9, &[2, 13, 2, 5]));
    let stash = Kept::default();
    let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let first = to_host(&kernel(&stash, &shape, &inputs));
    let replayed = run(
        &operands,
        &[true; 3],
        &|inputs| kernel(&stash, &shape, inputs),
        &seed,
    );
    let fresh = run(
        &operands,
        &[true; 3],
        &|inputs| kernel(&Compute, &shape, inputs),
        &seed,
    );
    assert_eq!(bits(&first), bits(&fresh.0));
    assert_eq!(replayed, fresh);
    assert_eq!(stash.0.lock().expect("not poisoned").0, 1, "computed once");
}

#[test]
fn calls_that_make_no_sense_are_declined_with_a_reason() {
    let why = |shapes: [[usize; 4]; 3]| {
        let inputs = shapes.map(|shape| operand(1, &shape).plain());
        let found = attend(&CpuAttention, &Compute, 1.0, &inputs);
        found.expect_err("declined").to_string()
    };
    let no_keys = [1, 0, 1, 4];
    assert_eq!(
        why([[1, 1, 1, 4], no_keys, no_keys]),
        "attention over no keys has no value"
    );
    assert_eq!(why([[1, 1, 1, 0]; 3]), "a head needs at least one channel");
    assert_eq!(
        why([[1, 5, 6, 4], [1, 7, 4, 4], [1, 7, 4, 4]]),
        "6 heads of queries are no multiple of 4 heads of keys"
    );
    assert_eq!(
        why([[1, 5, 4, 4], [1, 7, 4, 4], [1, 8, 4, 4]]),
        "keys of [1, 7, 4, 4] and values of [1, 8, 4, 4] do not go with queries of [1, 5, 4, 4] and 4 heads of keys"
    );
}

#[test]
fn no_samples_and_no_queries_give_empty_results() {
    for sizes in [[0, 3, 5, 2, 4], [2, 0, 5, 2, 4]] {
        let shape = shape(sizes);
        let operands = operands(&shape);
        let seed = Operand {
            values: Vec::new(),
            shape: operands[0].shape.clone(),
        };
        let (output, gradients) = run(
            &operands,
            &[true; 3],
            &|inputs| kernel(&Compute, &shape, inputs),
            &seed,
        );
        assert!(output.is_empty());
        let zero = |gradient: &Option<Vec<f32>>| {
            gradient
                .as_ref()
                .expect("tracked")
                .iter()
                .all(|value| *value == 0.0)
        };
        assert!(gradients.iter().all(zero), "{sizes:?}");
    }
}

#[test]
fn an_unknown_backend_lists_what_there_is_and_the_nearest() {
    let mut registry = AttentionRegistry::default();
    register(&mut registry).expect("a new registry");
    assert_eq!(registry.get("CPU").expect("registered").name(), "cpu");
    let error = registry.get("cpuu").expect_err("not registered").to_string();
    let available = match cfg!(feature = "cube") {
        true => "cpu, cuda, mma, portable, reference, wgmma",
        false => "cpu, reference",
    };
    assert_eq!(
        error,
        format!("there is no attention backend `cpuu`; available: {available}. The nearest name is `cpu`")
    );
}
