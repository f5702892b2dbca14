//! The cases of `flow-attention-cube` on the processor's backends: masks, grouped heads, two segments of keys, strided
//! operands, awkward sizes, against its f64 reference.

use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use burn::tensor::Tensor;
use flow_attention::{AttentionSpec, CpuAttention, ReferenceAttention, attention};
use flow_attention_cube::Element;
use flow_attention_cube::cases::{Case, Data, Layout, Operand, Results, cases, reference};
use flow_core::device::ComputeDevice;
use flow_core::tensors::leaf;
use flow_core::{AttentionBackend, autograd};
use std::sync::Arc;

/// The operand as a tensor `[B, S, H, D]` that lies in memory as the case says.
fn tensor(layout: Layout, operand: &Operand) -> Tensor<4> {
    let [batch, heads, tokens, channels] = operand.shape;
    let memory: Vec<f32> = operand.memory().into_iter().map(|value| value as f32).collect();
    let of = |shape: [usize; 4]| ComputeDevice::cpu().tensor(memory.clone(), shape);
    match layout {
        Layout::Contiguous => of([batch, heads, tokens, channels]).swap_dims(1, 2),
        Layout::TokensFirst => of([batch, tokens, heads, channels]),
        Layout::Sliced => {
            let row = operand.strides[2];
            let whole = of([batch, heads, tokens + 3, row]);
            whole
                .slice([0..batch, 0..heads, 0..tokens, 0..channels])
                .swap_dims(1, 2)
        }
        Layout::Transposed => of([batch, heads, channels, tokens])
            .swap_dims(2, 3)
            .swap_dims(1, 2),
    }
}

/// Values of `[B, S, H, D]` in the order of `[B, H, S, D]`.
fn heads_first(values: Tensor<4>) -> Vec<f64> {
    let values = values.swap_dims(1, 2).into_data();
    values.iter::<f32>().map(f64::from).collect()
}

fn run(backend: &dyn AttentionBackend, case: &Case, data: &Data) -> Results {
    let spec = AttentionSpec {
        scale: Some(case.scale as f32),
        mask: Some(Arc::new(
            case.mask.mask(case.sizes()).expect("the masks of the cases fit"),
        )),
        ..AttentionSpec::default()
    };
    let tracked = |operand: &Operand| leaf(&tensor(case.layout, operand).into_dispatch());
    let q = tracked(&data.q);
    let segments: Vec<usize> = (0..2).filter(|&i| case.kv_segments[i] > 0).collect();
    let parts: Vec<[DispatchTensor; 2]> = segments
        .iter()
        .map(|&i| [tracked(&data.k[i]), tracked(&data.v[i])])
        .collect();
    let typed = |tensor: &DispatchTensor| Tensor::<4>::from_dispatch(tensor.clone());
    let pair = |i: usize| (typed(&parts[i][0]), typed(&parts[i][1]));
    let done = match parts.len() {
        1 => attention(backend, typed(&q), [pair(0)], &spec),
        _ => attention(backend, typed(&q), [pair(0), pair(1)], &spec),
    };
    let done = done.unwrap_or_else(|declined| panic!("{case:?}: {declined}"));
    let lse = done.lse.into_data();
    let seed = tensor(case.layout, &data.d_o).into_dispatch();
    let output = done.output.into_dispatch();
    let mut gradients = autograd::backward_from(vec![output.clone()], vec![Some(seed)]).expect("tracked");
    let mut gradient = |of: &DispatchTensor| {
        let found = <Dispatch as AutodiffBackend>::grad_remove(of, &mut gradients);
        heads_first(Tensor::from_dispatch(
            found.expect("every operand gets a gradient"),
        ))
    };
    let mut results = Results {
        o: heads_first(Tensor::from_dispatch(flow_core::tensors::plain(&output))),
        lse: lse.iter::<f32>().map(f64::from).collect(),
        dq: gradient(&q),
        dk: Default::default(),
        dv: Default::default(),
    };
    for (&segment, [k, v]) in segments.iter().zip(&parts) {
        results.dk[segment] = gradient(k);
        results.dv[segment] = gradient(v);
    }
    results
}

fn holds_for(backend: &dyn AttentionBackend) {
    let mut wrong = Vec::new();
    for case in cases(Element::F32) {
        let data = Data::new(&case, 7);
        let expected = reference(&case, &data).expect("the masks of the cases fit");
        let judgement = expected.compare(&case, &run(backend, &case, &data));
        if !judgement.holds() {
            wrong.push(format!("{case:?}: {judgement}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_processors_attention_holds_on_the_whole_catalogue() {
    holds_for(&CpuAttention);
}

#[test]
fn the_reference_attention_holds_on_the_whole_catalogue() {
    holds_for(&ReferenceAttention);
}

#[test]
fn a_mask_that_was_made_for_other_sizes_is_declined() {
    let tensor = |tokens| ComputeDevice::cpu().tensor(vec![1.0; 2 * tokens * 4], [2, tokens, 1, 4]);
    let spec = AttentionSpec {
        scale: None,
        mask: Some(Arc::new(
            flow_attention::Mask::key_padding(vec![3]).expect("a mask"),
        )),
        ..AttentionSpec::default()
    };
    let error = attention(&CpuAttention, tensor(3), [(tensor(5), tensor(5))], &spec).expect_err("declined");
    assert!(error.to_string().contains("batch"), "{error}");
}
