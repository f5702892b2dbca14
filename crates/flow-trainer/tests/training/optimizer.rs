//! AdamW against a host computation in f64.

use crate::support::{Visit, config, environment, registries, with_trainer};
use flow_core::cpu::to_host;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::shape;
use flow_core::{Kernels, RawTensor, Weights, device::ComputeDevice};
use flow_kernels::CpuKernels;
use flow_trainer::Trainer;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::optimizer::{
    Accumulated, AdamW, AdamWSettings, ConstantRate, FallingRate, MomentStorage, Moments, RateSchedule,
};
use flow_trainer::setup;

struct TakeWeights;

impl Visit for TakeWeights {
    type Output = Weights;
    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) -> Weights {
        trainer.state.weights.current
    }
}

const SETTINGS: AdamWSettings = AdamWSettings {
    learning_rate: 1e-2,
    betas: (0.9, 0.99),
    epsilon: 1e-8,
    weight_decay: 0.1,
    max_grad_norm: 0.5,
    warmup_steps: 3,
    schedule: RateSchedule::Constant(ConstantRate {}),
    moments: MomentStorage::F32,
    seed: 0,
};

fn gradients(weights: &Weights, step: u32) -> Vec<Option<RawTensor>> {
    let gradient = |(index, spec): (usize, &flow_core::ParamSpec)| {
        let mut values = vec![0.0; spec.shape.iter().product()];
        Stream::new(5, Purpose::Test)
            .at(index as u64, step)
            .fill_normal(&mut values);
        Some(ComputeDevice::cpu().plain(values, &spec.shape))
    };
    weights
        .layout()
        .specs()
        .iter()
        .enumerate()
        .map(gradient)
        .collect()
}

#[test]
fn the_learning_rate_rises_falls_and_stays_at_its_end() {
    let rates = |schedule: RateSchedule, warmup_steps: u64| -> Vec<f64> {
        let registries = registries();
        let weights = with_trainer(&config(&[]), &environment(&registries), TakeWeights);
        let settings = AdamWSettings {
            learning_rate: 8.0,
            warmup_steps,
            schedule,
            ..SETTINGS
        };
        let trained = vec![true; weights.layout().len()];
        let optimizer = AdamW::new(settings, weights.layout(), trained, &ComputeDevice::cpu());
        (1..=8).map(|step| optimizer.learning_rate_at(step)).collect()
    };
    let linear = RateSchedule::Linear(FallingRate { steps: 5, to: 0.5 });
    assert_eq!(rates(linear, 2), [4.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 4.0]);
    assert_eq!(
        rates(RateSchedule::default(), 2),
        [4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]
    );
    let cosine = rates(RateSchedule::Cosine(FallingRate { steps: 4, to: 0.0 }), 0);
    // 4 (1 + cos) of 0, 45, 90, 135 and 180 degrees.
    let half = 4.0 * std::f64::consts::FRAC_1_SQRT_2;
    for (rate, wanted) in cosine
        .iter()
        .zip([8.0, 4.0 + half, 4.0, 4.0 - half, 0.0, 0.0, 0.0, 0.0])
    {
        assert!((rate - wanted).abs() < 1e-12, "{cosine:?}");
    }
}

#[test]
fn a_config_gives_the_schedule_of_the_learning_rate() {
    let of = |set: &str| setup::optimizer_settings(&config(&[set])).schedule;
    assert_eq!(
        of("optimizer.schedule={ kind = \"cosine\", steps = 400 }"),
        RateSchedule::Cosine(FallingRate { steps: 400, to: 0.0 })
    );
    assert_eq!(
        of("optimizer.schedule={ kind = \"linear\", steps = 9, to = 0.1 }"),
        RateSchedule::Linear(FallingRate { steps: 9, to: 0.1 })
    );
    assert_eq!(
        of("optimizer.schedule={ kind = \"constant\" }"),
        RateSchedule::Constant(ConstantRate {})
    );
}

#[test]
fn steps_follow_the_formula_with_clipping_decay_and_warmup() {
    let registries = registries();
    let mut weights = with_trainer(&config(&[]), &environment(&registries), TakeWeights);
    let layout = weights.layout().clone();
    let device = ComputeDevice::cpu();
    let trained: Vec<bool> = layout
        .specs()
        .iter()
        .map(|spec| spec.kind == flow_core::ParamKind::Base)
        .collect();
    let mut optimizer = AdamW::new(SETTINGS, &layout, trained.clone(), &device);
    let host = |weights: &Weights| -> Vec<Vec<f64>> {
        (0..layout.len())
            .map(|i| weights.host(i).iter().map(|v| f64::from(*v)).collect())
            .collect()
    };
    let mut expected = host(&weights);
    let zeros: Vec<Vec<f64>> = expected.iter().map(|values| vec![0.0; values.len()]).collect();
    let (mut first, mut second) = (zeros.clone(), zeros);
    for step in 1..=5u32 {
        let mut accumulated = Accumulated::default();
        accumulated.add(&CpuKernels::default(), gradients(&weights, 2 * step));
        accumulated.add(&CpuKernels::default(), gradients(&weights, 2 * step + 1));
        let both = [gradients(&weights, 2 * step), gradients(&weights, 2 * step + 1)];
        let report = optimizer
            .step(&CpuKernels::default(), &device, &mut weights, accumulated)
            .expect("finite gradients");

        let mean: Vec<Vec<f64>> = (0..layout.len())
            .map(|i| {
                let of = |set: &Vec<Option<RawTensor>>| {
                    flow_core::cpu::to_host(set[i].as_ref().expect("a gradient"))
                };
                of(&both[0])
                    .iter()
                    .zip(of(&both[1]))
                    .map(|(a, b)| (f64::from(*a) + f64::from(b)) / 2.0)
                    .collect()
            })
            .collect();
        let norm = mean.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
        assert!(
            (report.gradient_norm / norm - 1.0).abs() < 1e-6,
            "{} and {norm}",
            report.gradient_norm
        );
        let clip = (SETTINGS.max_grad_norm / (norm + 1e-6)).min(1.0);
        let rate = SETTINGS.learning_rate * (f64::from(step) / 3.0).min(1.0);
        assert_eq!(report.learning_rate, rate);
        let (b1, b2) = SETTINGS.betas;
        for (i, spec) in layout.specs().iter().enumerate().filter(|(i, _)| trained[*i]) {
            let decay = if spec.decays { SETTINGS.weight_decay } else { 0.0 };
            for (j, g) in mean[i].iter().map(|g| g * clip).enumerate() {
                first[i][j] = b1 * first[i][j] + (1.0 - b1) * g;
                second[i][j] = b2 * second[i][j] + (1.0 - b2) * g * g;
                let m = first[i][j] / (1.0 - b1.powi(step as i32));
                let v = second[i][j] / (1.0 - b2.powi(step as i32));
                expected[i][j] -= rate * (decay * expected[i][j] + m / (v.sqrt() + SETTINGS.epsilon));
            }
        }
    }
    // Five steps of f32 rounding on values of about 1: a few units in the last place.
    for (i, (found, expected)) in host(&weights).iter().zip(&expected).enumerate() {
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 2e-6, "{}: {a} and {b}", layout.specs()[i].name);
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_names_the_weight() {
    let registries = registries();
    let mut weights = with_trainer(&config(&[]), &environment(&registries), TakeWeights);
    let before = crate::support::bits(&weights);
    let device = ComputeDevice::cpu();
    let layout = weights.layout().clone();
    let mut optimizer = AdamW::new(SETTINGS, &layout, vec![true; layout.len()], &device);
    let mut gradients = gradients(&weights, 1);
    let shape = &layout.specs()[4].shape;
    let mut values = vec![0.0; shape.iter().product()];
    values[1] = f32::INFINITY;
    gradients[4] = Some(device.plain(values, shape));
    let mut accumulated = Accumulated::default();
    accumulated.add(&CpuKernels::default(), gradients);
    let error = optimizer
        .step(&CpuKernels::default(), &device, &mut weights, accumulated)
        .expect_err("infinite");
    assert_eq!(error.weight, layout.specs()[4].name);
    assert_eq!(before, crate::support::bits(&weights));
    assert_eq!(optimizer.steps(), 0);
}

#[test]
fn a_snapshot_keeps_its_values_when_the_weights_step_on() {
    let registries = registries();
    let mut weights = with_trainer(&config(&[]), &environment(&registries), TakeWeights);
    let snapshot = weights.clone();
    let before = crate::support::bits(&snapshot);
    let device = ComputeDevice::cpu();
    let layout = weights.layout().clone();
    let mut optimizer = AdamW::new(SETTINGS, &layout, vec![true; layout.len()], &device);
    let mut accumulated = Accumulated::default();
    accumulated.add(&CpuKernels::default(), gradients(&weights, 1));
    optimizer
        .step(&CpuKernels::default(), &device, &mut weights, accumulated)
        .expect("finite gradients");
    assert_eq!(before, crate::support::bits(&snapshot));
    assert_ne!(before, crate::support::bits(&weights));
    let kernels: &dyn Kernels = &CpuKernels::default();
    assert!(kernels.ops().optimizer.sums_of_squares(&[&weights.stored()[0]])[0].is_finite());
}

/// Every weight, and every value of the moments.
fn bits(weights: &Weights, optimizer: &AdamW) -> Vec<Vec<u32>> {
    let moments = optimizer.moments().iter().flatten();
    let moments = moments.flat_map(|of| [to_host(&of.first), to_host(&of.second)]);
    let values = (0..weights.layout().len()).map(|index| weights.host(index));
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    values.chain(moments).map(bits).collect()
}

/// The moments as a checkpoint holds them, each value changed as `change` says.
fn in_f32(optimizer: &AdamW, change: impl Fn(f32) -> f32) -> Vec<Option<Moments>> {
    let device = ComputeDevice::cpu();
    let read = |moment: &RawTensor| {
        let values = to_host(moment).into_iter().map(&change).collect();
        device.plain(values, &shape(moment))
    };
    let moments = optimizer.moments().iter();
    moments
        .map(|of| {
            of.as_ref().map(|of| Moments {
                first: read(&of.first),
                second: read(&of.second),
            })
        })
        .collect()
}

#[test]
fn moments_in_bf16_are_those_of_f32_rounded_after_each_step_and_resume_to_the_bit() {
    let registries = registries();
    let start = with_trainer(&config(&[]), &environment(&registries), TakeWeights);
    let (layout, device) = (start.layout().clone(), ComputeDevice::cpu());
    let optimizer = |moments: MomentStorage| {
        let settings = AdamWSettings { moments, ..SETTINGS };
        AdamW::new(settings, &layout, vec![true; layout.len()], &device)
    };
    let step = |optimizer: &mut AdamW, weights: &mut Weights, number: u32| {
        let mut accumulated = Accumulated::default();
        accumulated.add(&CpuKernels::default(), gradients(weights, number));
        let taken = optimizer.step(&CpuKernels::default(), &device, weights, accumulated);
        taken.expect("finite gradients");
    };
    let rounded = |value: f32| half::bf16::from_f32(value).to_f32();
    let (mut narrow, mut wide) = (optimizer(MomentStorage::Bf16), optimizer(MomentStorage::F32));
    let (mut of_narrow, mut of_wide) = (start.clone(), start);
    for number in 1..=3 {
        step(&mut narrow, &mut of_narrow, number);
        step(&mut wide, &mut of_wide, number);
        let moments = in_f32(&wide, rounded);
        wide.restore(u64::from(number), moments);
        assert!(
            bits(&of_narrow, &narrow) == bits(&of_wide, &wide),
            "step {number}"
        );
    }
    let mut resumed = optimizer(MomentStorage::Bf16);
    resumed.restore(narrow.steps(), in_f32(&narrow, |value| value));
    let mut of_resumed = of_narrow.clone();
    step(&mut narrow, &mut of_narrow, 4);
    step(&mut resumed, &mut of_resumed, 4);
    assert!(
        bits(&of_narrow, &narrow) == bits(&of_resumed, &resumed),
        "after a resume"
    );
}
