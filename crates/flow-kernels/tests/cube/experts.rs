//! The operations of a mixture of experts.

#[cfg(all(feature = "cuda", not(feature = "lavapipe")))]
use crate::bf16::compare_bf16;
use crate::support::*;
use burn::backend::DispatchTensor;
use burn::tensor::{Int, Tensor};
use flow_core::ops::{Compute, GroupedWeights, Grouping, Stash};
use flow_core::{Activation, ExpertOps, RawTensor};

const EXPERTS: usize = 5;
const TOP_K: usize = 2;
const BATCH: usize = 2;
const TOKENS: usize = 13;

fn experts(side: &Side) -> &dyn ExpertOps {
    side.kernels.ops().experts.expect("both have experts")
}

fn indices(tensor: &RawTensor) -> Vec<i64> {
    let count = flow_core::tensors::shape(tensor).iter().product::<usize>();
    let shape: Vec<usize> = flow_core::tensors::shape(tensor);
    let data = match shape.len() {
        1 => Tensor::<1, Int>::from_dispatch(tensor.clone()).into_data(),
        _ => Tensor::<3, Int>::from_dispatch(tensor.clone()).into_data(),
    };
    let found: Vec<i64> = data.iter::<i64>().collect();
    assert_eq!(found.len(), count);
    found
}

/// Choices as a router might make them, but that expert 3 has no token.
fn some_choices(side: &Side) -> RawTensor {
    let of_token = |token: usize| [[0, 4], [4, 1], [1, 2], [4, 0], [0, 2]][token * token % 7 % 5];
    let choices = (0..BATCH * TOKENS).flat_map(of_token).collect();
    let choices = side.device.int_tensor(choices, [BATCH, TOKENS, TOP_K]);
    choices.into_dispatch()
}

fn some_grouping(side: &Side) -> Grouping {
    experts(side).group(&some_choices(side), EXPERTS)
}

#[test]
fn routing_with_its_gradients() {
    for normalize in [false, true] {
        compare(
            "route",
            64,
            &[(&[BATCH, TOKENS, EXPERTS], true)],
            &|side, inputs| {
                let routed = experts(side).route(&Compute, &inputs[0], TOP_K, normalize);
                vec![routed.weights, routed.balance]
            },
        );
    }
    for (name, at) in [("weights", 0), ("balance", 1)] {
        compare(name, 64, &[(&[BATCH, TOKENS, EXPERTS], true)], &|side, inputs| {
            let routed = experts(side).route(&Compute, &inputs[0], TOP_K, true);
            vec![[routed.weights, routed.balance][at].clone()]
        });
    }
}

#[test]
fn the_same_experts_are_chosen_and_of_equal_ones_the_first() {
    let mut logits = values(1, &[BATCH, TOKENS, EXPERTS]);
    for (row, logits) in logits.chunks_mut(EXPERTS).enumerate() {
        match row % 3 {
            0 => logits.fill(-0.25),
            1 => logits[4] = logits[1],
            _ => {}
        }
    }
    let [expected, found] = sides().map(|side| {
        let logits = side.device.plain(logits.clone(), &[BATCH, TOKENS, EXPERTS]);
        let routed = experts(&side).route(&Compute, &logits, TOP_K, false);
        indices(&routed.experts)
    });
    assert_eq!(expected, found);
    assert_eq!(found[..TOP_K], [0, 1]);
}

/// Gives choices of its own, as a checkpoint that kept them does.
#[derive(Debug)]
struct Kept(RawTensor);

impl Stash for Kept {
    fn through(&self, name: &'static str, _: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        assert_eq!(name, "router");
        vec![self.0.clone()]
    }
}

#[test]
fn choices_that_were_kept_are_used_and_not_made_again() {
    let of: [Input<'_>; 1] = [(&[BATCH, TOKENS, EXPERTS], true)];
    compare("route with choices that were kept", 64, &of, &|side, inputs| {
        let kept = Kept(some_choices(side));
        let routed = experts(side).route(&kept, &inputs[0], TOP_K, true);
        assert_eq!(indices(&routed.experts), indices(&kept.0));
        vec![routed.weights, routed.balance]
    });
}

#[test]
fn slots_are_sorted_by_expert_in_the_order_of_the_slots() {
    let [expected, found] = sides().map(|side| {
        let Grouping { slots, rows, offsets } = some_grouping(&side);
        [slots, rows, offsets].map(|it| indices(&it))
    });
    assert_eq!(expected, found);
}

#[test]
fn tokens_go_to_experts_and_come_back() {
    let rows = BATCH * TOKENS * TOP_K;
    compare("permute", 4, &[(&[BATCH, TOKENS, 20], true)], &|side, inputs| {
        vec![experts(side).permute(&inputs[0], &some_grouping(side))]
    });
    let of: [Input<'_>; 2] = [(&[rows, 20], true), (&[BATCH, TOKENS, TOP_K], true)];
    compare("combine", 20, &of, &|side, inputs| {
        vec![experts(side).combine(&inputs[0], &inputs[1], &some_grouping(side))]
    });
}

fn layer(
    side: &Side,
    stash: &dyn Stash,
    inputs: &[DispatchTensor],
    activation: Activation,
) -> Vec<DispatchTensor> {
    let weights = GroupedWeights {
        weight: inputs[1].clone(),
        bias: inputs[2].clone(),
        activation,
    };
    let grouping = some_grouping(side);
    vec![experts(side).grouped_linear(stash, &inputs[0], &grouping, &weights)]
}

const LAYER: [Input<'static>; 3] = [
    (&[BATCH * TOKENS * TOP_K, 20], true),
    (&[EXPERTS, 30, 20], true),
    (&[EXPERTS, 30], true),
];

#[test]
fn a_linear_layer_per_expert_and_the_gradients_of_what_it_reads() {
    for activation in [Activation::None, Activation::GeluTanh, Activation::Silu] {
        compare("grouped_linear", 60, &LAYER, &|side, inputs| {
            layer(side, &Compute, inputs, activation)
        });
    }
    let frozen = [LAYER[0], (LAYER[1].0, false), (LAYER[2].0, false)];
    compare("grouped_linear, frozen", 60, &frozen, &|side, inputs| {
        layer(side, &Compute, inputs, Activation::GeluTanh)
    });
}

#[test]
fn a_kept_result_of_such_a_layer_gives_the_same_output_and_gradients() {
    let [_, cube] = sides();
    let keep = Keep::default();
    let through_keep = |side: &Side, inputs: &[DispatchTensor]| {
        keep.again();
        layer(side, &keep, inputs, Activation::GeluTanh)
    };
    let first = run(&cube, &LAYER, &through_keep);
    assert_eq!(first, run(&cube, &LAYER, &through_keep));
    let computed = run(&cube, &LAYER, &|side, inputs| {
        layer(side, &Compute, inputs, Activation::GeluTanh)
    });
    assert_eq!(first, computed);
}

/// Logits, tokens, and the weights of two layers.
fn mixture(side: &Side, inputs: &[DispatchTensor]) -> Vec<DispatchTensor> {
    let kernels = experts(side);
    let routed = kernels.route(&Compute, &inputs[0], TOP_K, true);
    let grouping = kernels.group(&routed.experts, EXPERTS);
    let weights = |at: usize, activation| GroupedWeights {
        weight: inputs[at].clone(),
        bias: inputs[at + 1].clone(),
        activation,
    };
    let sorted = kernels.permute(&inputs[1], &grouping);
    let inner = kernels.grouped_linear(&Compute, &sorted, &grouping, &weights(2, Activation::GeluTanh));
    let outer = kernels.grouped_linear(&Compute, &inner, &grouping, &weights(4, Activation::None));
    vec![
        kernels.combine(&outer, &routed.weights, &grouping),
        routed.balance,
    ]
}

const MIXTURE: [Input<'static>; 6] = [
    (&[BATCH, TOKENS, EXPERTS], true),
    (&[BATCH, TOKENS, 20], true),
    (&[EXPERTS, 30, 20], true),
    (&[EXPERTS, 30], true),
    (&[EXPERTS, 20, 30], true),
    (&[EXPERTS, 20], true),
];

#[test]
fn a_whole_mixture() {
    compare("mixture", 400, &MIXTURE, &mixture);
}

#[cfg(all(feature = "cuda", not(feature = "lavapipe")))]
#[test]
fn in_bf16_a_layer_per_expert_is_as_near_as_its_roundings_allow() {
    // Rows that begin at multiples of 16 bytes, so that it is the kernel for tensor cores.
    let of: [Input<'_>; 3] = [
        (&[BATCH * TOKENS * TOP_K, 64], true),
        (&[EXPERTS, 128, 64], true),
        (&[EXPERTS, 128], true),
    ];
    compare_bf16("grouped_linear", &of, &|side, inputs| {
        layer(side, &Compute, inputs, Activation::GeluTanh)
    });
    let of: [Input<'_>; 2] = [
        (&[BATCH * TOKENS * TOP_K, 64], true),
        (&[BATCH, TOKENS, TOP_K], true),
    ];
    compare_bf16("combine", &of, &|side, inputs| {
        vec![experts(side).combine(&inputs[0], &inputs[1], &some_grouping(side))]
    });
}
