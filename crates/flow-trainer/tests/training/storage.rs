//! Trained weights in 16 bits: halves lose no bit, bf16 is right on average, and both go on where they stopped.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, FloatDType};
use flow_core::cpu::to_host;
use flow_core::params::LayoutBuilder;
use flow_core::rng::{Purpose, Stream};
use flow_core::split_f32;
use flow_core::{Init, ParamLayout, ParamView, RawTensor, WeightStorage, Weights, device::ComputeDevice};
use flow_kernels::CpuKernels;
use flow_trainer::optimizer::{Accumulated, AdamW, AdamWSettings, ConstantRate, MomentStorage, RateSchedule};
use std::sync::Arc;

const SETTINGS: AdamWSettings = AdamWSettings {
    learning_rate: 1e-3,
    betas: (0.9, 0.99),
    epsilon: 1e-8,
    weight_decay: 0.01,
    max_grad_norm: 0.0,
    warmup_steps: 0,
    schedule: RateSchedule::Constant(ConstantRate {}),
    moments: MomentStorage::F32,
    seed: 7,
};

/// Weights, who steps them, and what their gradients are.
struct Run {
    weights: Weights,
    optimizer: AdamW,
    kernels: CpuKernels,
    device: ComputeDevice,
}

impl Run {
    fn new(storage: WeightStorage, seed: u64) -> Self {
        let device = ComputeDevice::cpu().computing_in(FloatDType::BF16);
        let layout = layout();
        let settings = AdamWSettings { seed, ..SETTINGS };
        let optimizer = AdamW::new(settings, &layout, trained(), &device);
        let mut weights = Weights::init(layout, 3, &device);
        let kernels = CpuKernels::default();
        weights.store(&trained(), storage, &kernels);
        Self {
            weights,
            optimizer,
            kernels,
            device,
        }
    }

    fn step(&mut self, gradient: impl Fn(usize, usize) -> f32) {
        let specs = self.weights.layout().specs().iter().enumerate();
        let gradients = specs.map(|(index, spec)| {
            let values = (0..spec.shape.iter().product())
                .map(|at| gradient(index, at))
                .collect();
            Some(self.device.plain(values, &spec.shape))
        });
        let mut sums = Accumulated::of(1);
        sums.add(&self.kernels, gradients.collect());
        let stepped = self
            .optimizer
            .step(&self.kernels, &self.device, &mut self.weights, sums);
        stepped.expect("finite gradients");
    }

    /// Steps by gradients that follow from the number of the step.
    fn steps(&mut self, numbers: std::ops::RangeInclusive<u32>) {
        for number in numbers {
            let normal = |index: usize| {
                let mut values = vec![0.0; 77 * 13];
                Stream::new(5, Purpose::Test)
                    .at(index as u64, number)
                    .fill_normal(&mut values);
                values
            };
            let gradients: Vec<Vec<f32>> = (0..self.weights.layout().len()).map(normal).collect();
            self.step(|index, at| gradients[index][at]);
        }
    }

    /// A run that goes on from what a checkpoint of this one holds.
    fn resumed(&self, storage: WeightStorage, seed: u64) -> Self {
        let mut resumed = Self::new(storage, seed);
        for index in 0..self.weights.layout().len() {
            let values = self.weights.host(index);
            resumed.weights.set_host(index, values).expect("of one layout");
        }
        resumed.weights.settle(&self.kernels);
        resumed
            .optimizer
            .restore(self.optimizer.steps(), self.optimizer.moments().to_vec());
        resumed
    }

    fn bits(&self) -> Vec<Vec<u32>> {
        let values = (0..self.weights.layout().len()).map(|index| self.weights.host(index));
        let moments = self.optimizer.moments().iter().flatten();
        let moments = moments.flat_map(|of| [to_host(&of.first), to_host(&of.second)]);
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
        values.chain(moments).map(bits).collect()
    }

    /// What models compute with.
    fn seen(&self) -> Vec<RawTensor> {
        let all: Vec<usize> = (0..self.weights.layout().len()).collect();
        let view = ParamView::plain(&self.weights);
        view.leaves_of(&all)
    }
}

fn layout() -> Arc<ParamLayout> {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.param("frozen", [5, 3], Init::Normal(1.0));
    builder.param("matrix", [77, 13], Init::Normal(1.0));
    builder.param("bias", [13], Init::Normal(1.0));
    Arc::new(layout)
}

fn trained() -> Vec<bool> {
    vec![false, true, true]
}

#[test]
fn halves_take_the_steps_of_f32_to_the_bit_and_models_see_the_nearest_bf16() {
    let mut whole = Run::new(WeightStorage::Whole, 7);
    let mut parts = Run::new(WeightStorage::SplitF32, 7);
    for number in 1..=5 {
        whole.steps(number..=number);
        parts.steps(number..=number);
        assert!(parts.bits() == whole.bits(), "step {number}");
        for (index, seen) in parts.seen().iter().enumerate().skip(1) {
            let nearest: Vec<u16> = parts
                .weights
                .host(index)
                .into_iter()
                .map(|value| split_f32::split(value)[0])
                .collect();
            assert_eq!(split_f32::bits(seen), nearest);
        }
    }
    let joined = parts.weights.values(&[0, 1, 2], &parts.kernels);
    assert_eq!(to_host(&joined[1]), parts.weights.host(1));
    let copy = parts.weights.whole(&parts.kernels);
    assert_eq!(copy.stored()[1].dtype(), DType::F32);
    assert_eq!(copy.host(1), parts.weights.host(1));
}

#[test]
fn a_snapshot_of_weights_in_halves_stays_as_it_was() {
    let mut run = Run::new(WeightStorage::SplitF32, 7);
    run.steps(1..=1);
    let (snapshot, before) = (run.weights.clone(), run.weights.host(1));
    run.steps(2..=2);
    assert_eq!(snapshot.host(1), before);
    assert_ne!(run.weights.host(1), before);
}

#[test]
fn both_go_on_from_a_checkpoint_to_the_bit() {
    for storage in [WeightStorage::SplitF32, WeightStorage::Narrow] {
        let mut run = Run::new(storage, 7);
        run.steps(1..=3);
        let mut resumed = run.resumed(storage, 7);
        run.steps(4..=6);
        resumed.steps(4..=6);
        assert!(run.bits() == resumed.bits(), "{storage:?}");
    }
}

#[test]
fn a_value_that_was_replaced_is_trained_in_f32_until_it_is_settled() {
    let mut run = Run::new(WeightStorage::SplitF32, 7);
    let mut whole = Run::new(WeightStorage::Whole, 7);
    for run in [&mut run, &mut whole] {
        run.weights.set_host(1, vec![0.3; 77 * 13]).expect("of its shape");
        run.steps(1..=2);
    }
    assert!(run.bits() == whole.bits());
    run.weights.settle(&run.kernels);
    assert!(run.bits() == whole.bits());
    run.steps(3..=3);
    whole.steps(3..=3);
    assert!(run.bits() == whole.bits());
}

#[test]
fn storage_can_be_changed_and_what_is_frozen_later_is_what_models_saw() {
    let mut run = Run::new(WeightStorage::SplitF32, 7);
    run.steps(1..=2);
    let (before, seen) = (run.weights.host(1), to_host(&run.seen()[1]));
    run.weights.store(&trained(), WeightStorage::Whole, &run.kernels);
    assert_eq!(run.weights.host(1), before);
    assert_eq!(run.weights.stored()[1].dtype(), DType::F32);
    run.weights
        .store(&trained(), WeightStorage::SplitF32, &run.kernels);
    assert_eq!(run.weights.host(1), before);
    assert_eq!(to_host(&run.seen()[1]), seen);
    run.weights.freeze(&[false, false, true]);
    assert_eq!(run.weights.host(1), seen, "the lower half is gone");
    run.weights.store(&trained(), WeightStorage::Narrow, &run.kernels);
    assert_eq!(run.weights.host(1), seen);
}

#[test]
fn bf16_rounds_by_its_seed_alone_and_moves_by_less_than_it_can_store() {
    let steps = 200;
    let walk = |storage: WeightStorage, seed: u64| {
        let mut run = Run::new(storage, seed);
        for index in [1, 2] {
            let count = run.weights.host(index).len();
            run.weights
                .set_host(index, vec![1.0; count])
                .expect("of its shape");
        }
        run.weights.settle(&run.kernels);
        for _ in 0..steps {
            run.step(|_, _| 1.0);
        }
        run
    };
    let [one, again, other, exact] = [
        (WeightStorage::Narrow, 7),
        (WeightStorage::Narrow, 7),
        (WeightStorage::Narrow, 8),
        (WeightStorage::Whole, 7),
    ]
    .map(|(storage, seed)| walk(storage, seed));
    assert!(one.bits() == again.bits());
    assert!(one.bits() != other.bits());
    // A step moves a weight by a thousandth; below 1 the next bf16 is four thousandths away, so rounding to nearest would not
    // move it at all.
    let mean = |run: &Run| {
        run.weights
            .host(1)
            .iter()
            .map(|value| f64::from(*value))
            .sum::<f64>()
            / (77.0 * 13.0)
    };
    let (mean, exact) = (mean(&one), mean(&exact));
    assert!(exact < 0.82, "{exact}");
    // A walk of 200 steps, each of variance at most a quarter of 2^-16: 0.03 a weight, 0.001 in the mean of a thousand.
    assert!((mean - exact).abs() < 4e-3, "{mean} instead of {exact}");
}
