//! `op`: gradients of custom operations against f64, and the same bits with and without a graph.

use crate::support::{add, assert_close, bits, operand, tracked_operand, weighted_sum, wide};
use burn::backend::DispatchTensor;
use flow_core::autograd::{self, Backward};
use flow_core::cpu::{CpuTensor, from_vec, to_host};
use flow_core::tensors::{is_tracked, leaf, zeros_like};
use flow_core::{RawTensor, autograd::take_gradient};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const SHAPE: [usize; 3] = [3, 1, 7];

fn zip(a: &[f32], b: &[f32], with: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| with(*a, *b)).collect()
}

/// `a · sin(b)`.
fn product(a: &DispatchTensor, b: &DispatchTensor) -> DispatchTensor {
    autograd::apply("product", &[a, b], |inputs, _| {
        let (a, b) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let output = from_vec(zip(a.values(), b.values(), |a, b| a * b.sin()), a.shape());
        let backward: Backward = Arc::new(move |incoming| {
            let g = CpuTensor::read(incoming.gradient());
            let da = incoming.wanted[0].then(|| zip(g.values(), b.values(), |g, b| g * b.sin()));
            let db = incoming.wanted[1].then(|| {
                let slope = zip(a.values(), b.values(), |a, b| a * b.cos());
                zip(g.values(), &slope, |g, slope| g * slope)
            });
            [da, db]
                .map(|values| values.map(|values| from_vec(values, g.shape())))
                .into()
        });
        (output, backward)
    })
}

/// `(a · b, a + 2b, -b)`; notes which outputs' gradients arrive at each backward.
fn three(a: &DispatchTensor, b: &DispatchTensor, seen: &Arc<Mutex<Vec<Vec<bool>>>>) -> Vec<DispatchTensor> {
    let seen = seen.clone();
    autograd::apply_many("three", &[a, b], |inputs, _| {
        let (a, b) = (CpuTensor::read(&inputs[0]), CpuTensor::read(&inputs[1]));
        let outputs = [
            zip(a.values(), b.values(), |a, b| a * b),
            zip(a.values(), b.values(), |a, b| a + 2.0 * b),
            b.values().iter().map(|b| -b).collect(),
        ];
        let outputs = outputs.map(|values| from_vec(values, a.shape())).into();
        let backward: Backward = Arc::new(move |incoming| {
            seen.lock()
                .unwrap()
                .push(incoming.output_gradients.iter().map(Option::is_some).collect());
            let gradient = |index: usize| -> Vec<f32> {
                incoming.output_gradients[index]
                    .as_ref()
                    .map_or(vec![0.0; a.values().len()], to_host)
            };
            let (g0, g1, g2) = (gradient(0), gradient(1), gradient(2));
            let da = zip(&zip(&g0, b.values(), |g, b| g * b), &g1, |x, y| x + y);
            let db = zip(
                &zip(&g0, a.values(), |g, a| g * a),
                &zip(&g1, &g2, |g1, g2| 2.0 * g1 - g2),
                |x, y| x + y,
            );
            vec![Some(from_vec(da, a.shape())), Some(from_vec(db, a.shape()))]
        });
        (outputs, backward)
    })
}

fn gradients_of(loss: DispatchTensor, leaves: &[&DispatchTensor]) -> Vec<Option<RawTensor>> {
    let mut gradients = autograd::backward(loss);
    leaves
        .iter()
        .map(|leaf| take_gradient(leaf, &mut gradients))
        .collect()
}

#[test]
fn a_single_output_has_the_gradients_of_the_formula() {
    let (a, b, w) = (
        tracked_operand(1, &SHAPE),
        tracked_operand(2, &SHAPE),
        operand(3, &SHAPE),
    );
    let found = gradients_of(weighted_sum(&product(&a, &b), &w), &[&a, &b]);
    let (a, b, w) = (wide(&operand(1, &SHAPE)), wide(&operand(2, &SHAPE)), wide(&w));
    let da: Vec<f64> = w.iter().zip(&b).map(|(w, b)| w * b.sin()).collect();
    let db: Vec<f64> = w
        .iter()
        .zip(a.iter().zip(&b))
        .map(|(w, (a, b))| w * a * b.cos())
        .collect();
    assert_close(found[0].as_ref().unwrap(), &da);
    assert_close(found[1].as_ref().unwrap(), &db);
}

#[test]
fn only_tracked_inputs_get_a_gradient_and_a_result_of_plain_inputs_is_plain() {
    let (plain_a, plain_b, w) = (operand(1, &SHAPE), operand(2, &SHAPE), operand(3, &SHAPE));
    assert!(!is_tracked(&product(&plain_a, &plain_b)));
    let both = (leaf(&plain_a), leaf(&plain_b));
    let complete = gradients_of(weighted_sum(&product(&both.0, &both.1), &w), &[&both.0, &both.1]);
    let a = leaf(&plain_a);
    let only_a = gradients_of(weighted_sum(&product(&a, &plain_b), &w), &[&a]);
    let b = leaf(&plain_b);
    let only_b = gradients_of(weighted_sum(&product(&plain_a, &b), &w), &[&b]);
    assert_eq!(
        bits(only_a[0].as_ref().unwrap()),
        bits(complete[0].as_ref().unwrap())
    );
    assert_eq!(
        bits(only_b[0].as_ref().unwrap()),
        bits(complete[1].as_ref().unwrap())
    );
}

#[test]
fn plain_and_tracked_results_have_the_same_bits() {
    let (a, b) = (operand(4, &SHAPE), operand(5, &SHAPE));
    let plain = product(&a, &b);
    let tracked = product(&leaf(&a), &b);
    assert!(is_tracked(&tracked));
    assert_eq!(bits(&plain), bits(&flow_core::tensors::plain(&tracked)));
}

#[test]
fn outputs_that_the_loss_does_not_reach_have_no_gradient_and_the_others_theirs() {
    let (a_values, b_values, w) = (operand(6, &SHAPE), operand(7, &SHAPE), operand(8, &SHAPE));
    let (wide_a, wide_b, wide_w) = (wide(&a_values), wide(&b_values), wide(&w));
    // For every non-empty set of outputs: the loss is the sum over the set of w · output.
    for reached in 1..8usize {
        let (a, b, seen) = (leaf(&a_values), leaf(&b_values), Arc::default());
        let outputs = three(&a, &b, &seen);
        let terms = (0..3).filter(|index| reached >> index & 1 == 1);
        let loss = terms
            .map(|index| weighted_sum(&outputs[index], &w))
            .reduce(|x, y| add(&x, &y))
            .unwrap();
        let found = gradients_of(loss, &[&a, &b]);
        let on = [0, 1, 2].map(|index| (reached >> index & 1) as f64);
        let da: Vec<f64> = wide_w
            .iter()
            .zip(&wide_b)
            .map(|(w, b)| w * (on[0] * b + on[1]))
            .collect();
        let db: Vec<f64> = wide_w
            .iter()
            .zip(&wide_a)
            .map(|(w, a)| w * (on[0] * a + 2.0 * on[1] - on[2]))
            .collect();
        assert_close(found[0].as_ref().unwrap(), &da);
        assert_close(found[1].as_ref().unwrap(), &db);
        assert_eq!(
            *seen.lock().unwrap(),
            [on.map(|on| on == 1.0).to_vec()],
            "one backward for set {reached:03b}"
        );
    }
}

#[test]
fn an_operation_used_twice_and_a_tensor_given_twice_add_their_gradients() {
    let (x_values, w) = (operand(9, &SHAPE), operand(10, &SHAPE));
    let x = leaf(&x_values);
    // x sin(x), and then that times sin(x): x sin²(x).
    let once = product(&x, &x);
    let found = gradients_of(weighted_sum(&product(&once, &x), &w), &[&x]);
    let expected: Vec<f64> = wide(&w)
        .iter()
        .zip(wide(&x_values))
        .map(|(w, x)| w * (x.sin().powi(2) + 2.0 * x * x.sin() * x.cos()))
        .collect();
    assert_close(found[0].as_ref().unwrap(), &expected);
}

#[test]
fn one_result_in_two_losses_runs_its_backward_once() {
    let x = tracked_operand(11, &SHAPE);
    let w = operand(12, &SHAPE);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let y = autograd::apply("negate", &[&x], |inputs, tracked| {
        assert!(tracked, "the forward is told that a gradient is wanted");
        let x = CpuTensor::read(&inputs[0]);
        let negated = x.values().iter().map(|x| -x).collect();
        let backward: Backward = Arc::new(move |incoming| {
            counted.fetch_add(1, Ordering::SeqCst);
            let g = CpuTensor::read(incoming.gradient());
            vec![Some(from_vec(g.values().iter().map(|g| -g).collect(), g.shape()))]
        });
        (from_vec(negated, x.shape()), backward)
    });
    let loss = add(&weighted_sum(&y, &w), &weighted_sum(&y, &w));
    let found = gradients_of(loss, &[&x]);
    let expected: Vec<f64> = wide(&w).iter().map(|w| -2.0 * w).collect();
    assert_close(found[0].as_ref().unwrap(), &expected);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn backward_from_hands_every_seed_on_bit_for_bit() {
    let seed = vec![-0.0, 0.0, 1e-40, -3.4e38, f32::INFINITY, 1.0 + f32::EPSILON, 7.25];
    let (a, b, c) = (
        tracked_operand(1, &[7]),
        tracked_operand(2, &[7]),
        tracked_operand(3, &[7]),
    );
    let seeds = vec![Some(from_vec(seed.clone(), &[7])), None, Some(operand(4, &[7]))];
    let outputs = vec![a.clone(), b.clone(), c.clone()];
    let mut gradients = autograd::backward_from(outputs, seeds).expect("two outputs have a gradient");
    let found = [&a, &b, &c].map(|leaf| take_gradient(leaf, &mut gradients));
    assert_eq!(bits(found[0].as_ref().unwrap()), bits(&from_vec(seed, &[7])));
    assert!(found[1].is_none(), "an output without a seed gives none");
    assert_eq!(bits(found[2].as_ref().unwrap()), bits(&operand(4, &[7])));
}

#[test]
fn backward_from_equals_backward_of_the_weighted_sum() {
    let (a, b, w) = (
        tracked_operand(1, &SHAPE),
        tracked_operand(2, &SHAPE),
        operand(3, &SHAPE),
    );
    let from_loss = gradients_of(weighted_sum(&product(&a, &b), &w), &[&a, &b]);
    let mut gradients = autograd::backward_from(vec![product(&a, &b)], vec![Some(w)]).unwrap();
    for (leaf, expected) in [&a, &b].into_iter().zip(from_loss) {
        assert_eq!(
            bits(&take_gradient(leaf, &mut gradients).unwrap()),
            bits(&expected.unwrap())
        );
    }
}

#[test]
fn backward_from_nothing_tracked_gives_nothing() {
    assert!(autograd::backward_from(vec![operand(1, &[2])], vec![Some(operand(2, &[2]))]).is_none());
    assert!(autograd::backward_from(vec![tracked_operand(1, &[2])], vec![None]).is_none());
}

#[test]
fn more_leaves_than_parents_fit_get_their_gradients_with_or_without_a_tracked_input() {
    let weights: Vec<DispatchTensor> = (0..40).map(|seed| tracked_operand(seed, &[2])).collect();
    let input = tracked_operand(50, &[2]);
    for tracked_input in [false, true] {
        let input = if tracked_input {
            input.clone()
        } else {
            operand(50, &[2])
        };
        let backward: Backward = Arc::new(|incoming| {
            let g = incoming.gradient().clone();
            let mut found = vec![incoming.wanted[0].then(|| zeros_like(&g))];
            found.extend((0..40).map(|index| (index != 3).then(|| g.clone())));
            found
        });
        let output =
            autograd::bind_with_leaves("many", &[&input], &weights, vec![operand(51, &[2])], backward);
        let mut gradients = autograd::backward(weighted_sum(&output[0], &operand(52, &[2])));
        for (index, weight) in weights.iter().enumerate() {
            let found = take_gradient(weight, &mut gradients);
            assert_eq!(found.is_some(), index != 3, "weight {index}");
            assert!(found.is_none_or(|found| bits(&found) == bits(&operand(52, &[2]))));
        }
    }
}

#[test]
#[should_panic(expected = "operation `twice` was given a weight that is not a leaf")]
fn a_computed_tensor_is_refused_as_a_leaf() {
    let x = tracked_operand(1, &[2]);
    let computed = add(&x, &x);
    autograd::bind_with_leaves(
        "twice",
        &[],
        &[computed],
        vec![operand(2, &[2])],
        Arc::new(|_| vec![None]),
    );
}
