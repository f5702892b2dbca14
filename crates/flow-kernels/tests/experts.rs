//! A mixture of experts against f64 references: routing, sorting, linear layers per expert, combination.

mod support;

use burn::backend::DispatchTensor;
use flow_core::cpu::{from_ints, from_vec, read_ints, to_host};
use flow_core::ops::{Compute, GroupedWeights, Grouping, Routed, Stash};
use flow_core::tensors::plain;
use flow_core::{Activation, ExpertOps, Kernels, RawTensor};
use flow_kernels::CpuKernels;
use support::{Operand, bits, check, check_threads, gelu, operand};

const BATCH: usize = 2;
const TOKENS: usize = 7;
const EXPERTS: usize = 5;
const TOP_K: usize = 2;

fn with<R>(work: impl FnOnce(&dyn ExpertOps) -> R) -> R {
    let kernels = CpuKernels::default();
    work(kernels.ops().experts.expect("the processor has them"))
}

fn route(logits: &DispatchTensor, normalize: bool) -> Routed {
    with(|kernels| kernels.route(&Compute, logits, TOP_K, normalize))
}

/// Scores and choices of each token in f64.
fn reference_choices(logits: &[f64]) -> Vec<(Vec<f64>, Vec<usize>)> {
    let rows = logits.chunks(EXPERTS).map(|row| {
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        let scores: Vec<f64> = row.iter().map(|x| x.exp() / total).collect();
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(TOP_K);
        (scores, order)
    });
    rows.collect()
}

#[test]
fn weights_of_the_chosen_experts_agree_with_f64() {
    let operands = [operand(1, &[BATCH, TOKENS, EXPERTS])];
    for normalize in [false, true] {
        let reference = |values: &[Vec<f64>]| {
            let rows = reference_choices(&values[0]).into_iter();
            rows.flat_map(|(scores, order)| {
                let chosen: Vec<f64> = order.iter().map(|index| scores[*index]).collect();
                let total = if normalize { chosen.iter().sum() } else { 1.0 };
                chosen.into_iter().map(move |score| score / total)
            })
            .collect()
        };
        check(&operands, &reference, &|inputs| {
            route(&inputs[0], normalize).weights
        });
    }
}

#[test]
fn the_load_balance_agrees_with_f64_and_is_one_for_an_even_load() {
    let operands = [operand(2, &[BATCH, TOKENS, EXPERTS])];
    // Counts are constants to the gradient: those of the operand as it is.
    let counts: Vec<Vec<f64>> = reference_choices(&operands[0].wide())
        .chunks(TOKENS)
        .map(|tokens| {
            let mut counts = vec![0.0; EXPERTS];
            tokens
                .iter()
                .flat_map(|(_, order)| order)
                .for_each(|index| counts[*index] += 1.0);
            counts
        })
        .collect();
    let reference = |values: &[Vec<f64>]| {
        let choices = reference_choices(&values[0]);
        let samples = choices.chunks(TOKENS).zip(&counts);
        samples
            .map(|(tokens, counts)| {
                let mean = |expert: usize| {
                    tokens.iter().map(|(scores, _)| scores[expert]).sum::<f64>() / TOKENS as f64
                };
                let loads = (0..EXPERTS)
                    .map(|expert| counts[expert] * mean(expert))
                    .sum::<f64>();
                loads * EXPERTS as f64 / (TOP_K * TOKENS) as f64
            })
            .collect()
    };
    check(&operands, &reference, &|inputs| route(&inputs[0], false).balance);
    // Every expert is as likely and is chosen as often: `p` is even, so counts do not matter.
    let even = from_vec(vec![0.25; EXPERTS * 3], &[1, 3, EXPERTS]);
    assert!((to_host(&route(&even, false).balance)[0] - 1.0).abs() < 1e-6);
}

#[test]
fn of_equal_scores_the_lowest_index_is_chosen() {
    let logits = from_vec(
        vec![
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0, 0.0, 3.0,
        ],
        &[1, 3, EXPERTS],
    );
    assert_eq!(read_ints(&route(&logits, false).experts), [0, 1, 1, 3, 4, 0]);
}

/// Answers with choices of its own, as a checkpoint that kept them does.
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
    let logits = operand(3, &[1, 2, EXPERTS]);
    let kept = Kept(from_ints(vec![4, 2, 0, 1], &[1, 2, TOP_K]));
    let routed = with(|kernels| kernels.route(&kept, &logits.plain(), TOP_K, false));
    assert_eq!(read_ints(&routed.experts), [4, 2, 0, 1]);
    let scores = reference_choices(&logits.wide());
    let expected = [(0, 4), (0, 2), (1, 0), (1, 1)].map(|(token, expert)| scores[token].0[expert]);
    for (found, expected) in to_host(&routed.weights).into_iter().zip(expected) {
        assert!((f64::from(found) - expected).abs() < 1e-6);
    }
}

#[test]
fn rows_are_sorted_by_expert_and_within_one_by_token() {
    let choices = from_ints(vec![3, 0, 0, 3, 1, 3], &[1, 3, TOP_K]);
    let grouping = with(|kernels| kernels.group(&choices, EXPERTS));
    assert_eq!(read_ints(&grouping.slots), [1, 2, 4, 0, 3, 5]);
    assert_eq!(read_ints(&grouping.rows), [3, 0, 1, 4, 2, 5]);
    assert_eq!(read_ints(&grouping.offsets), [0, 2, 3, 3, 6, 6]);
}

/// Choices in which one expert has no token, and the grouping.
fn some_grouping(batch: usize) -> (Vec<usize>, Grouping) {
    let choice = |slot: usize| (slot / TOP_K * 3 + slot % TOP_K * 2 + slot / 5) % (EXPERTS - 1);
    let choices: Vec<usize> = (0..batch * TOKENS * TOP_K).map(choice).collect();
    let ints = choices.iter().map(|choice| *choice as i64).collect();
    let ints = from_ints(ints, &[batch, TOKENS, TOP_K]);
    (choices, with(|kernels| kernels.group(&ints, EXPERTS)))
}

#[test]
fn sorted_tokens_and_their_combination_agree_with_f64() {
    let columns = 6;
    let (_, grouping) = some_grouping(BATCH);
    let slots: Vec<usize> = read_ints(&grouping.slots)
        .into_iter()
        .map(|slot| slot as usize)
        .collect();
    let sorted = |values: &[Vec<f64>]| -> Vec<f64> {
        let rows = slots
            .iter()
            .map(|slot| &values[0][slot / TOP_K * columns..][..columns]);
        rows.flatten().copied().collect()
    };
    check(&[operand(4, &[BATCH, TOKENS, columns])], &sorted, &|inputs| {
        with(|kernels| kernels.permute(&inputs[0], &grouping))
    });
    let combined = |values: &[Vec<f64>]| {
        let mut out = vec![0.0; BATCH * TOKENS * columns];
        for (row, slot) in slots.iter().enumerate() {
            for column in 0..columns {
                out[slot / TOP_K * columns + column] += values[1][*slot] * values[0][row * columns + column];
            }
        }
        out
    };
    let operands = [
        operand(5, &[BATCH * TOKENS * TOP_K, columns]),
        operand(6, &[BATCH, TOKENS, TOP_K]),
    ];
    check(&operands, &combined, &|inputs| {
        with(|kernels| kernels.combine(&inputs[0], &inputs[1], &grouping))
    });
}

fn grouped(inputs: &[DispatchTensor], grouping: &Grouping, activation: Activation) -> DispatchTensor {
    let weights = GroupedWeights {
        weight: inputs[1].clone(),
        bias: inputs[2].clone(),
        activation,
    };
    with(|kernels| kernels.grouped_linear(&Compute, &inputs[0], grouping, &weights))
}

fn layer(rows: usize, inputs: usize, outputs: usize) -> [Operand; 3] {
    [
        operand(7, &[rows, inputs]),
        operand(8, &[EXPERTS, outputs, inputs]),
        operand(9, &[EXPERTS, outputs]),
    ]
}

#[test]
fn a_linear_layer_per_expert_agrees_with_f64() {
    let (inputs, outputs) = (6, 9);
    let (choices, grouping) = some_grouping(BATCH);
    let slots = read_ints(&grouping.slots);
    for (activation, function) in [
        (Activation::None, (|x| x) as fn(f64) -> f64),
        (Activation::GeluTanh, gelu),
    ] {
        let reference = |values: &[Vec<f64>]| {
            let mut out = Vec::new();
            for (row, slot) in slots.iter().enumerate() {
                let expert = choices[*slot as usize];
                for output in 0..outputs {
                    let weight = &values[1][(expert * outputs + output) * inputs..][..inputs];
                    let x = &values[0][row * inputs..][..inputs];
                    let sum: f64 = x.iter().zip(weight).map(|(x, w)| x * w).sum();
                    out.push(function(sum + values[2][expert * outputs + output]));
                }
            }
            out
        };
        let operands = layer(slots.len(), inputs, outputs);
        check(&operands, &reference, &|inputs| {
            grouped(inputs, &grouping, activation)
        });
    }
}

#[test]
fn threads_change_no_bit_of_a_large_layer_per_expert() {
    let (_, grouping) = some_grouping(60);
    let operands = layer(60 * TOKENS * TOP_K, 40, 72);
    check_threads(&operands, &|inputs| {
        grouped(inputs, &grouping, Activation::GeluTanh)
    });
}

#[test]
fn what_a_token_comes_to_does_not_depend_on_its_batch() {
    // The whole mixture, of a batch of 3 and of its samples alone.
    let (batch, columns) = (3, 24);
    let x = operand(10, &[batch, TOKENS, columns]);
    let logits = operand(11, &[batch, TOKENS, EXPERTS]);
    let [_, up, up_bias] = layer(1, columns, 40);
    let [_, down, down_bias] = layer(1, 40, columns);
    let mixture = |x: &Operand, logits: &Operand| {
        with(|kernels| {
            let routed = kernels.route(&Compute, &logits.plain(), TOP_K, true);
            let grouping = kernels.group(&routed.experts, EXPERTS);
            let sorted = kernels.permute(&x.plain(), &grouping);
            let inner = [sorted, up.plain(), up_bias.plain()];
            let inner = grouped(&inner, &grouping, Activation::GeluTanh);
            let outer = grouped(
                &[inner, down.plain(), down_bias.plain()],
                &grouping,
                Activation::None,
            );
            to_host(&plain(&kernels.combine(&outer, &routed.weights, &grouping)))
        })
    };
    let together = mixture(&x, &logits);
    let sample = |operand: &Operand, index: usize| {
        let count = operand.values.len() / batch;
        let mut shape = operand.shape.clone();
        shape[0] = 1;
        Operand {
            values: operand.values[index * count..][..count].to_vec(),
            shape,
        }
    };
    for (index, together) in together.chunks(TOKENS * columns).enumerate() {
        let alone = mixture(&sample(&x, index), &sample(&logits, index));
        assert_eq!(bits(&alone), bits(together), "sample {index}");
    }
}
