//! Scores with a bias by distance: the processor's backends against an f64 reference, and what becomes of a call where a backend
//! adds none.

#[path = "../../flow-kernels/tests/support/mod.rs"]
mod support;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_attention::{AttentionSpec, AutomaticAttention, CpuAttention, Mask, ReferenceAttention, attention};
use flow_core::device::ComputeDevice;
use flow_core::exec::{InferencePass, Stage};
use flow_core::ops::{Compute, Stash};
use flow_core::tensors::leaf;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, Backends, CallContext, KeyValue,
    ParamLayout, Refusal, RelativeBias, Weights,
};
use flow_kernels::CpuKernels;
use std::sync::Arc;
use support::{Operand, check, check_threads, distance, numeric_gradients, operand, run};

/// Sizes of a call: keys of both parts (the second may have none), and heads of queries and of keys.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    queries: usize,
    keys: [usize; 2],
    heads: [usize; 2],
    head_dim: usize,
    mask: Option<Mask>,
}

impl Case {
    fn all() -> Vec<Self> {
        let case = |batch, queries, keys, heads, head_dim, mask| Self {
            batch,
            queries,
            keys,
            heads,
            head_dim,
            mask,
        };
        let padding = Mask::key_padding(vec![3, 9]).expect("a mask");
        let documents = Mask::documents(vec![vec![1; 5]; 2], vec![vec![0, 1, 1, 0, 1], vec![0; 5]]);
        vec![
            case(1, 1, [1, 0], [1, 1], 1, None),
            case(2, 5, [9, 0], [2, 2], 8, None),
            case(1, 7, [3, 0], [2, 1], 5, None),
            case(1, 5, [4, 3], [4, 2], 3, Some(Mask::Causal)),
            case(2, 9, [9, 0], [3, 3], 4, Some(padding)),
            // The queries of the second sample see no key.
            case(2, 5, [5, 0], [1, 1], 6, Some(documents.expect("a mask"))),
            case(
                1,
                70,
                [66, 0],
                [2, 2],
                3,
                Some(Mask::Window { before: 3, after: 8 }),
            ),
        ]
    }

    fn operands(&self) -> Vec<Operand> {
        let tensor = |seed, tokens, heads| operand(seed, &[self.batch, tokens, heads, self.head_dim]);
        let mut operands = vec![tensor(1, self.queries, self.heads[0])];
        for (part, keys) in self.keys.into_iter().filter(|keys| *keys > 0).enumerate() {
            operands.extend([0, 1].map(|which| tensor(2 + 2 * part as u64 + which, keys, self.heads[1])));
        }
        operands
    }

    fn distances(&self) -> usize {
        self.queries + self.keys[0] + self.keys[1] - 1
    }

    fn bias(&self) -> Operand {
        let mut bias = operand(77, &[self.heads[0], self.distances()]);
        bias.values.iter_mut().for_each(|value| *value *= 3.0);
        bias
    }

    fn spec(&self) -> AttentionSpec {
        AttentionSpec {
            scale: Some(1.0),
            mask: self.mask.clone().map(Arc::new),
            bias: Some(Arc::new(RelativeBias::new(&self.bias().plain()).expect("a bias"))),
        }
    }

    /// The formula, one query at a time.
    fn reference(&self, values: &[Vec<f64>]) -> Vec<f64> {
        let (channels, [heads, kv_heads], bias) = (self.head_dim, self.heads, self.bias().wide());
        let keys = self.keys[0] + self.keys[1];
        let sizes = flow_core::ops::attention::Sizes {
            batch: self.batch,
            queries: self.queries,
            kv_segments: self.keys,
        };
        let bound = self
            .mask
            .as_ref()
            .map(|mask| mask.bind(sizes).expect("the mask fits"));
        let row = |of: &[f64], tokens: usize, heads: usize, [sample, token, head]: [usize; 3]| {
            of[((sample * tokens + token) * heads + head) * channels..][..channels].to_vec()
        };
        let of_key = |which: usize, sample: usize, key: usize, head: usize| {
            let part = usize::from(key >= self.keys[0]);
            let token = key - part * self.keys[0];
            row(
                &values[1 + 2 * part + which],
                self.keys[part],
                kv_heads,
                [sample, token, head],
            )
        };
        let mut output = Vec::new();
        for (sample, query, head) in (0..self.batch)
            .flat_map(|b| (0..self.queries).flat_map(move |s| (0..heads).map(move |h| (b, s, h))))
        {
            let q = row(&values[0], self.queries, heads, [sample, query, head]);
            let kv_head = head * kv_heads / heads;
            let weights: Vec<f64> = (0..keys)
                .map(|key| {
                    if bound
                        .as_ref()
                        .is_some_and(|bound| !bound.allows(sample, query, key))
                    {
                        return 0.0;
                    }
                    let k = of_key(0, sample, key, kv_head);
                    let score: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                    (score + bias[head * self.distances() + key + self.queries - 1 - query]).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; channels];
            for (key, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                let v = of_key(1, sample, key, kv_head);
                sum.iter_mut()
                    .zip(v)
                    .for_each(|(sum, v)| *sum += weight / total * v);
            }
            output.extend(sum);
        }
        output
    }

    fn attend(
        &self,
        backend: &dyn AttentionBackend,
        inputs: &[DispatchTensor],
    ) -> Result<DispatchTensor, Refusal> {
        let parts: Vec<KeyValue<'_>> = inputs[1..]
            .chunks(2)
            .map(|pair| KeyValue {
                k: &pair[0],
                v: &pair[1],
            })
            .collect();
        let call = AttentionCall::new(&inputs[0], &parts, &self.spec())?;
        Ok(backend.attend(&Compute, &inputs[0], &parts, &call)?.output)
    }
}

#[test]
fn the_processors_attention_and_the_reference_add_the_bias_forward_and_backward() {
    for case in Case::all() {
        for backend in [
            &CpuAttention as &(dyn AttentionBackend + Sync),
            &ReferenceAttention,
        ] {
            let kernel = |inputs: &[DispatchTensor]| case.attend(backend, inputs).expect("served");
            check(&case.operands(), &|values| case.reference(values), &kernel);
        }
    }
}

#[test]
fn one_thread_and_three_give_the_same_bits_with_a_bias() {
    for case in Case::all() {
        check_threads(&case.operands(), &|inputs| {
            case.attend(&CpuAttention, inputs).expect("served")
        });
    }
}

/// The processor's attention without what adds a bias.
#[derive(Debug)]
struct WithoutBias;

impl AttentionBackend for WithoutBias {
    fn name(&self) -> &str {
        "without-bias"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability::HOST
    }

    fn kernel(&self, _: &AttentionCall) -> Result<String, Refusal> {
        Ok(self.name().into())
    }

    fn is_row_independent(&self) -> bool {
        true
    }

    fn attend(
        &self,
        _: &dyn Stash,
        _: &DispatchTensor,
        _: &[KeyValue<'_>],
        _: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        panic!("a backend that adds no bias is not asked for a call with one")
    }
}

#[test]
fn a_context_computes_a_call_with_a_bias_itself_where_its_backend_adds_none() {
    let layout = Arc::new(ParamLayout::default());
    let weights = Weights::zeros(layout, &ComputeDevice::cpu());
    let plan = Arc::new(Backends::new(
        Arc::new(WithoutBias),
        Arc::new(CpuKernels::default()),
    ));
    for case in Case::all() {
        let exec = InferencePass::new(&weights, plan.clone()).exec(CallContext::single(Stage::Rollout));
        let kernel = |inputs: &[DispatchTensor]| {
            let typed = |tensor: &DispatchTensor| Tensor::<4>::from_dispatch(tensor.clone());
            let parts: Vec<(Tensor<4>, Tensor<4>)> = inputs[1..]
                .chunks(2)
                .map(|pair| (typed(&pair[0]), typed(&pair[1])))
                .collect();
            let (q, spec) = (typed(&inputs[0]), case.spec());
            let output = match <[_; 1]>::try_from(parts) {
                Ok(one) => exec.attention_with(q, one, &spec),
                Err(two) => exec.attention_with(q, <[_; 2]>::try_from(two).expect("two parts"), &spec),
            };
            output.into_dispatch()
        };
        let operands = case.operands();
        let wide: Vec<Vec<f64>> = operands.iter().map(Operand::wide).collect();
        let seed = operand(99, &operands[0].shape);
        let (found, gradients) = run(&operands, &vec![true; operands.len()], &kernel, &seed);
        assert!(distance(&found, &case.reference(&wide)) < 1e-6, "{case:?}");
        let wanted = numeric_gradients(&operands, &|values| case.reference(values), &seed);
        for (index, (found, wanted)) in gradients.iter().zip(&wanted).enumerate() {
            let found = found.as_ref().expect("every operand is tracked");
            assert!(distance(found, wanted) < 1e-5, "operand {index} of {case:?}");
        }
    }
    let used = plan.attention_log.since(0);
    assert!(used.iter().all(|used| used.kernel() == "composed"), "{used:?}");
    assert!(
        used[0].to_string().ends_with("F32, biased: composed"),
        "{}",
        used[0]
    );
}

#[test]
fn the_choice_among_backends_passes_over_those_that_add_no_bias() {
    let case = &Case::all()[1];
    let inputs: Vec<DispatchTensor> = case.operands().iter().map(Operand::plain).collect();
    let capability = CpuAttention.capability();
    let choice = AutomaticAttention::new(
        "some",
        capability,
        vec![Arc::new(WithoutBias), Arc::new(CpuAttention)],
    );
    assert!(case.attend(&choice, &inputs).is_ok());
    let none = AutomaticAttention::new("none", capability, vec![Arc::new(WithoutBias)]);
    let declined = case.attend(&none, &inputs).expect_err("declined").to_string();
    assert!(
        declined.contains("`without-bias`: it adds no bias to scores"),
        "{declined}"
    );
    let typed = |index: usize| Tensor::<4>::from_dispatch(inputs[index].clone());
    let direct = attention(&WithoutBias, typed(0), [(typed(1), typed(2))], &case.spec());
    assert!(
        direct
            .expect_err("declined")
            .to_string()
            .contains("it adds no bias to scores")
    );
}

#[test]
fn a_bias_that_does_not_fit_or_wants_a_gradient_is_declined() {
    let case = &Case::all()[1];
    let inputs: Vec<DispatchTensor> = case.operands().iter().map(Operand::plain).collect();
    let parts = [KeyValue {
        k: &inputs[1],
        v: &inputs[2],
    }];
    let short = Arc::new(RelativeBias::new(&operand(1, &[2, 12]).plain()).expect("a bias"));
    let spec = AttentionSpec {
        bias: Some(short),
        ..AttentionSpec::default()
    };
    let declined = AttentionCall::new(&inputs[0], &parts, &spec)
        .map(drop)
        .expect_err("declined")
        .to_string();
    assert!(
        declined.contains("the bias of the scores is [2, 12]; 2 heads, 5 queries and 9 keys need [2, 13]"),
        "{declined}"
    );
    let axes = RelativeBias::new(&operand(1, &[2, 3, 4]).plain())
        .expect_err("declined")
        .to_string();
    assert!(
        axes.contains("[heads, queries + keys - 1], not [2, 3, 4]"),
        "{axes}"
    );
    let tracked = RelativeBias::new(&leaf(&operand(1, &[2, 13]).plain()))
        .expect_err("declined")
        .to_string();
    assert!(tracked.contains("no gradient to a bias"), "{tracked}");
}
