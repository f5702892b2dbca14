//! Views of weights, where gradients land, and copy on write.

use crate::model::plan;
use crate::support::{add, assert_close, bits, normal, operand, weighted_sum, wide};
use burn::tensor::{FloatDType, Tensor};
use flow_core::cpu::{CpuTensor, to_host, update};
use flow_core::device::ComputeDevice;
use flow_core::exec::Linear;
use flow_core::params::LayoutBuilder;
use flow_core::tensors::{is_tracked, plain};
use flow_core::{
    CallContext, Exec, InferencePass, Init, ParamLayout, ParamView, Stage, TrainingPass, Weights, autograd,
};
use std::sync::Arc;

const ROWS: usize = 5;
const IN: usize = 3;
const OUT: usize = 7;

/// Two linear layers, the first with an adapter, and a third that nothing uses.
struct Layers {
    first: Linear,
    second: Linear,
    weights: Weights,
}

fn layers() -> Layers {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    let mut linear = |name: &str, out: usize, input: usize| Linear {
        weight: builder.param(&format!("{name}.weight"), [out, input], Init::Normal(1.0)),
        bias: Some(builder.param(&format!("{name}.bias"), [out], Init::Normal(1.0))),
    };
    let (first, second) = (linear("first", OUT, IN), linear("second", 2, OUT));
    linear("unused", 2, 2);
    layout.add_adapter(first.weight, 2, 3.0).unwrap();
    let mut weights = Weights::init(Arc::new(layout), 11, &ComputeDevice::cpu());
    // As it starts, an adapter is the identity and passes nothing on; give it values of its own.
    let up = weights.layout().position("first.lora_B.weight").unwrap();
    weights.set(up, operand(12, &[OUT, 2])).unwrap();
    Layers {
        first,
        second,
        weights,
    }
}

fn forward(layers: &Layers, exec: &Exec<'_>) -> Tensor<2> {
    let x: Tensor<2> = Tensor::from_dispatch(operand(13, &[ROWS, IN]));
    exec.linear(&layers.second, exec.linear(&layers.first, x))
}

fn flags(layers: &Layers, names: &[&str]) -> Arc<[bool]> {
    layers
        .weights
        .layout()
        .specs()
        .iter()
        .map(|spec| names.contains(&&*spec.name))
        .collect()
}

/// `a [m, k] · b [k, n]` in f64; a transposed operand is read through its accessor.
fn matmul(
    [m, k, n]: [usize; 3],
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let cell = |i: usize, j: usize| (0..k).map(|l| a(i, l) * b(l, j)).sum();
    (0..m * n).map(|index| cell(index / n, index % n)).collect()
}

#[test]
fn host_values_are_taken_in_the_declared_shape_and_in_no_other_number() {
    let Layers { mut weights, .. } = layers();
    let at = weights.layout().position("second.weight").unwrap();
    let values: Vec<f32> = (0..2 * OUT).map(|value| value as f32).collect();
    weights.set_host(at, values.clone()).unwrap();
    assert_eq!(weights.host(at), values);
    assert_eq!(flow_core::tensors::shape(&weights.stored()[at]), [2, OUT]);
    let error = weights.set_host(at, vec![0.0; 3]).unwrap_err().to_string();
    assert!(error.contains("second.weight"), "{error}");
    assert_eq!(weights.host(at), values, "nothing has changed");
}

#[test]
fn adapters_are_drawn_as_ever_where_a_file_gives_the_rest() {
    let Layers { weights, .. } = layers();
    let layout = weights.layout().clone();
    let fresh = Weights::init(layout.clone(), 5, &ComputeDevice::cpu());
    let awaiting = Weights::init_adapters(layout.clone(), 5, &ComputeDevice::cpu());
    for (index, spec) in layout.specs().iter().enumerate() {
        match spec.kind {
            flow_core::ParamKind::Adapter => {
                assert_eq!(awaiting.host(index), fresh.host(index), "{}", spec.name)
            }
            _ => assert!(
                awaiting.host(index).iter().all(|value| *value == 0.0),
                "{}",
                spec.name
            ),
        }
    }
}

#[test]
fn gradients_land_on_the_weights_they_belong_to_and_frozen_ones_get_none() {
    let layers = layers();
    let position = |name: &str| layers.weights.layout().position(name).unwrap();
    let value = |name: &str| wide(&layers.weights.stored()[position(name)]);
    let trained = [
        "second.bias",
        "second.weight",
        "first.lora_A.weight",
        "first.lora_B.weight",
        "unused.weight",
    ];
    let pass = TrainingPass::new(&layers.weights, plan(), flags(&layers, &trained));
    let exec = pass.exec(CallContext::single(Stage::Training));
    let w = operand(14, &[ROWS, 2]);
    let loss = weighted_sum(&forward(&layers, &exec).into_dispatch(), &w);
    let gradients = pass.gradients(&Tensor::from_dispatch(loss));

    let (x, w) = (wide(&operand(13, &[ROWS, IN])), wide(&w));
    let (down, up, scale) = (value("first.lora_A.weight"), value("first.lora_B.weight"), 1.5);
    let low = matmul([ROWS, IN, 2], |r, i| x[r * IN + i], |i, k| down[k * IN + i]);
    let (weight, bias) = (value("first.weight"), value("first.bias"));
    let base = matmul([ROWS, IN, OUT], |r, i| x[r * IN + i], |i, o| weight[o * IN + i]);
    let adapted = matmul([ROWS, 2, OUT], |r, k| low[r * 2 + k], |k, o| up[o * 2 + k]);
    let hidden: Vec<f64> = (0..ROWS * OUT)
        .map(|index| base[index] + bias[index % OUT] + scale * adapted[index])
        .collect();
    let second = value("second.weight");
    let hidden_gradient = matmul([ROWS, 2, OUT], |r, o| w[r * 2 + o], |o, h| second[o * OUT + h]);

    let expect =
        |name: &str, expected: &[f64]| assert_close(gradients[position(name)].as_ref().unwrap(), expected);
    expect(
        "second.bias",
        &matmul([1, ROWS, 2], |_, _| 1.0, |r, o| w[r * 2 + o]),
    );
    expect(
        "second.weight",
        &matmul([2, ROWS, OUT], |o, r| w[r * 2 + o], |r, h| hidden[r * OUT + h]),
    );
    expect(
        "first.lora_B.weight",
        &matmul(
            [OUT, ROWS, 2],
            |h, r| scale * hidden_gradient[r * OUT + h],
            |r, k| low[r * 2 + k],
        ),
    );
    let low_gradient = matmul(
        [ROWS, OUT, 2],
        |r, h| scale * hidden_gradient[r * OUT + h],
        |h, k| up[h * 2 + k],
    );
    expect(
        "first.lora_A.weight",
        &matmul(
            [2, ROWS, IN],
            |k, r| low_gradient[r * 2 + k],
            |r, i| x[r * IN + i],
        ),
    );
    for name in ["first.weight", "first.bias", "unused.weight", "unused.bias"] {
        assert!(gradients[position(name)].is_none(), "{name} is frozen or unused");
    }
}

#[test]
fn leaves_are_made_when_a_weight_is_asked_for_and_shared_by_the_calls_of_a_pass() {
    let layers = layers();
    let trained = flags(&layers, &["first.weight", "second.weight", "unused.weight"]);
    let pass = TrainingPass::new(&layers.weights, plan(), trained);
    let exec = pass.exec(CallContext::single(Stage::Training));
    assert!(exec.params().leaves().is_empty());
    let once = weighted_sum(&forward(&layers, &exec).into_dispatch(), &operand(14, &[ROWS, 2]));
    let made: Vec<u32> = exec.params().leaves().into_keys().collect();
    assert_eq!(
        made,
        [
            layers.first.weight.index() as u32,
            layers.second.weight.index() as u32
        ]
    );

    let again = pass.exec(CallContext::single(Stage::Training));
    let twice = weighted_sum(
        &forward(&layers, &again).into_dispatch(),
        &operand(14, &[ROWS, 2]),
    );
    let doubled = pass.gradients(&Tensor::from_dispatch(add(&once, &twice)));
    let single = TrainingPass::new(&layers.weights, plan(), flags(&layers, &["first.weight"]));
    let exec = single.exec(CallContext::single(Stage::Training));
    let loss = weighted_sum(&forward(&layers, &exec).into_dispatch(), &operand(14, &[ROWS, 2]));
    let single = single.gradients(&Tensor::from_dispatch(loss));
    let expected: Vec<f64> = wide(single[0].as_ref().unwrap())
        .iter()
        .map(|g| 2.0 * g)
        .collect();
    assert_close(doubled[0].as_ref().unwrap(), &expected);
}

#[test]
fn a_view_without_adapters_is_the_base_model_and_untracked() {
    let layers = layers();
    let rollout = InferencePass::new(&layers.weights, plan());
    let call = || CallContext::single(Stage::Rollout);
    let adapted = forward(&layers, &rollout.exec(call())).into_dispatch();
    let base = forward(&layers, &rollout.without_adapters().exec(call())).into_dispatch();
    assert_ne!(bits(&adapted), bits(&base));
    let mut off = layers.weights.clone();
    let up = off.layout().position("first.lora_B.weight").unwrap();
    update(&mut off.values_mut()[up], |values| values.fill(0.0));
    let expected = forward(&layers, &InferencePass::new(&off, plan()).exec(call())).into_dispatch();
    assert_close(&base, &wide(&expected));

    let pass = TrainingPass::new(
        &layers.weights,
        plan(),
        flags(&layers, &["first.weight", "first.lora_A.weight"]),
    );
    let reference = forward(&layers, &pass.reference().exec(call())).into_dispatch();
    assert!(!is_tracked(&reference));
    assert_eq!(bits(&reference), bits(&base));
}

#[test]
fn fresh_leaves_are_other_leaves_of_the_same_values() {
    let layers = layers();
    let view = ParamView::training(&layers.weights, flags(&layers, &["first.weight"]));
    let fresh = view.fresh_leaves();
    let (old, new) = (view.get(layers.first.weight), fresh.get(layers.first.weight));
    let w = operand(15, &[OUT, IN]);
    let mut gradients = autograd::backward(weighted_sum(&new.into_dispatch(), &w));
    assert!(view.take_gradients(&mut gradients).iter().all(Option::is_none));
    assert_eq!(
        bits(fresh.take_gradients(&mut gradients)[0].as_ref().unwrap()),
        bits(&w)
    );
    assert_eq!(
        bits(&flow_core::tensors::plain(&old.into_dispatch())),
        bits(&layers.weights.stored()[0])
    );
}

#[test]
fn an_untracked_view_is_plain_and_knows_which_trained_weights_were_read() {
    let layers = layers();
    let view = ParamView::training(
        &layers.weights,
        flags(&layers, &["first.weight", "second.weight", "second.bias"]),
    );
    let untracked = view.untracked();
    assert!(view.is_training() && !untracked.is_training());
    assert!(untracked.read().is_empty());
    for handle in [layers.second.weight, layers.first.weight, layers.second.weight] {
        assert!(!is_tracked(&untracked.get(handle).into_dispatch()));
    }
    untracked.get(layers.first.bias.unwrap());
    assert_eq!(
        untracked.read(),
        [layers.first.weight.index(), layers.second.weight.index()]
    );
    assert!(view.read().is_empty() && view.leaves().is_empty());
    let leaves = view.leaves_of(&untracked.read());
    assert!(leaves.iter().all(is_tracked));
    assert_eq!(view.leaves().len(), 2);
}

#[test]
#[should_panic(expected = "one flag per weight")]
fn a_view_needs_a_flag_for_every_weight() {
    ParamView::training(&layers().weights, Arc::from([true]));
}

#[test]
fn a_snapshot_keeps_its_bits_when_the_weights_are_updated() {
    let mut weights = layers().weights;
    let snapshot = weights.clone();
    let view = ParamView::plain(&weights);
    let before: Vec<Vec<u32>> = snapshot.stored().iter().map(bits).collect();
    for (index, value) in weights.values_mut().iter_mut().enumerate() {
        let step = normal(index as u64, CpuTensor::read(value).values().len());
        update(value, |values| {
            values
                .iter_mut()
                .zip(step)
                .for_each(|(value, step)| *value -= 1.0 + step.abs())
        });
    }
    let kept: Vec<Vec<u32>> = snapshot.stored().iter().map(bits).collect();
    assert_eq!(kept, before);
    assert_eq!(bits(&view.get(layers().first.weight).into_dispatch()), before[0]);
    for (old, new) in before.iter().zip(weights.stored()) {
        assert!(
            old.iter().zip(bits(new)).all(|(old, new)| *old != new),
            "every value moved"
        );
    }
}

#[test]
fn weights_that_nothing_else_holds_are_updated_in_place() {
    let mut weights = layers().weights;
    let address = |weights: &Weights| CpuTensor::read(&weights.stored()[0]).values().as_ptr();
    let before = address(&weights);
    update(&mut weights.values_mut()[0], |values| values.fill(2.0));
    assert_eq!(address(&weights), before);
    let snapshot = weights.clone();
    update(&mut weights.values_mut()[0], |values| values.fill(3.0));
    assert_ne!(address(&weights), address(&snapshot));
}

#[test]
fn models_see_copies_in_the_devices_type_that_follow_every_change_and_frozen_weights_are_held_in_it_alone() {
    let device = ComputeDevice::cpu().computing_in(FloatDType::BF16);
    let layout = layers().weights.layout().clone();
    let mut weights = Weights::init(layout, 11, &device);
    let seen = |weights: &Weights| -> Vec<Vec<f32>> {
        let all: Vec<usize> = (0..weights.layout().len()).collect();
        let values = ParamView::plain(weights).leaves_of(&all);
        values.iter().map(|value| to_host(&plain(value))).collect()
    };
    let rounded = |values: &[f32]| -> Vec<f32> {
        let round = |value: &f32| half::bf16::from_f32(*value).to_f32();
        values.iter().map(round).collect()
    };
    let before = seen(&weights);
    let masters: Vec<Vec<f32>> = (0..weights.layout().len()).map(|at| weights.host(at)).collect();
    for (seen, master) in before.iter().zip(&masters) {
        assert_eq!(*seen, rounded(master));
    }
    weights
        .update()
        .change(0, |value| *value = operand(5, &[OUT, IN]));
    let after = seen(&weights);
    assert_eq!(after[0], rounded(&weights.host(0)));
    assert_ne!(after[0], before[0]);
    assert_eq!(after[1..], before[1..]);

    let trained: Vec<bool> = (0..weights.layout().len()).map(|at| at == 0).collect();
    let master = weights.host(0);
    weights.freeze(&trained);
    assert_eq!(seen(&weights), after);
    assert_eq!(weights.host(0), master, "what is trained stays f32");
    assert_eq!(weights.host(1), after[1], "what is not is rounded once");
}
