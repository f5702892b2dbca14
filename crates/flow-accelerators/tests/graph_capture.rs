//! `graph_capture` on a device that refuses to record, that keeps few recordings, and that loses what it was given.

mod support;

use burn::tensor::Tensor;
use flow_accel::{Acceleration, Params};
use flow_attention::CpuAttention;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::exec::Body;
use flow_core::{
    Backends, CallContext, Exec, FlowModel, InferencePass, Kernels, LayeredKernels, ModelInput,
    NoCheckpointing, RawTensor, Recorded, Recorder, Refusal, RegionEngine, Stage, Stopped, TrainingPass,
    TrajectoryId, Weights, stopped,
};
use flow_kernels::CpuKernels;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use support::{at_work, condition, noise, noisy, registry};

/// What a device does when it is asked to record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// Replays give what was computed when it recorded.
    Records,
    /// It has less memory left than a recording needs.
    Full,
    /// It has no memory left, and what it was given is gone.
    Broken,
}

impl Recorder for Manner {
    fn record(
        &self,
        inputs: &[RawTensor],
        warm_up: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
        compute: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
    ) -> Result<Box<dyn Recorded>, Refusal> {
        let outputs = warm_up(inputs);
        assert!(
            !outputs.is_empty(),
            "by them a device sees whether it computed them"
        );
        match self {
            Self::Records => Ok(Box::new(Recording(compute(inputs)))),
            Self::Full => Err(Refusal::because("a recording needs 9.10 GiB, 3.20 GiB are free")),
            Self::Broken => Err(Refusal::because("the device has no memory left")),
        }
    }

    fn copied(&self, tensor: &RawTensor) -> RawTensor {
        tensor.clone()
    }

    fn is_held(&self, _: &RawTensor) -> bool {
        false
    }

    fn is_readable(&self, tensors: &[RawTensor]) -> bool {
        assert!(tensors.len() > 2, "inputs and weights are asked for");
        *self != Self::Broken
    }

    fn release(&self, _: &RawTensor) {}
}

#[derive(Debug)]
struct Recording(Vec<RawTensor>);

impl Recorded for Recording {
    fn replay(&mut self, _: &[RawTensor]) -> Result<&[RawTensor], Refusal> {
        Ok(&self.0)
    }

    fn outputs(&self) -> &[RawTensor] {
        &self.0
    }
}

/// A device that counts its recordings, those that it made and those that are there, and whose memory comes in pages.
#[derive(Debug, Default)]
struct Counting {
    made: AtomicUsize,
    there: Arc<()>,
    /// Sizes that pages were to fit.
    fitted: Mutex<Vec<u64>>,
}

impl Recorder for Counting {
    fn record(
        &self,
        inputs: &[RawTensor],
        warm_up: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
        compute: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
    ) -> Result<Box<dyn Recorded>, Refusal> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Counted {
            recording: Manner::Records.record(inputs, warm_up, compute)?,
            _one: self.there.clone(),
        }))
    }

    fn copied(&self, tensor: &RawTensor) -> RawTensor {
        tensor.clone()
    }

    fn is_held(&self, _: &RawTensor) -> bool {
        false
    }

    fn is_readable(&self, _: &[RawTensor]) -> bool {
        true
    }

    fn release(&self, _: &RawTensor) {}

    fn has_pages(&self) -> bool {
        true
    }

    fn fit_pages(&self, _: &RawTensor, bytes: u64) {
        self.fitted.lock().expect("no panic").push(bytes);
    }
}

#[derive(Debug)]
struct Counted {
    recording: Box<dyn Recorded>,
    _one: Arc<()>,
}

impl Recorded for Counted {
    fn replay(&mut self, inputs: &[RawTensor]) -> Result<&[RawTensor], Refusal> {
        self.recording.replay(inputs)
    }

    fn outputs(&self) -> &[RawTensor] {
        self.recording.outputs()
    }
}

/// Stands for an engine that computes blocks again.
#[derive(Debug)]
struct Again;

impl RegionEngine for Again {
    fn name(&self) -> &str {
        "again"
    }

    fn run(&self, exec: &Exec<'_>, inputs: Vec<RawTensor>, body: Body) -> Vec<RawTensor> {
        NoCheckpointing.run(exec, inputs, body)
    }

    fn usual_bytes(&self) -> Option<u64> {
        Some(USUAL_BYTES)
    }
}

/// What an engine that computes blocks again says that its buffers take.
const USUAL_BYTES: u64 = 4096;

fn captured(manner: Manner, model: &dyn FlowModel) -> Acceleration {
    captured_by(Arc::new(manner), Arc::new(NoCheckpointing), model)
}

fn captured_by(
    recorder: Arc<dyn Recorder>,
    regions: Arc<dyn RegionEngine>,
    model: &dyn FlowModel,
) -> Acceleration {
    let kernels = Arc::new(RecordingKernels {
        kernels: Arc::new(CpuKernels::default()),
        recorder,
    });
    let base = Backends {
        regions,
        ..Backends::new(Arc::new(CpuAttention), kernels)
    };
    let fused: Params = serde_json::from_value(json!({ "mode": "full" })).expect("an object");
    let none = Params::new();
    registry()
        .arrangement(
            base,
            [("fused_kernels", &fused), ("graph_capture", &none)],
            [],
            model.spec(),
        )
        .map(at_work)
        .unwrap_or_else(|errors| panic!("{}", errors[0]))
}

fn input(model: &dyn FlowModel, batch: usize) -> ModelInput {
    let device = ComputeDevice::cpu();
    let values = model.spec().latent.values();
    let trajectories: Vec<TrajectoryId> = (0..batch as u64)
        .map(|sample| TrajectoryId {
            sample,
            conditional: true,
        })
        .collect();
    ModelInput {
        x: device.tensor(noise(batch * values, 5), [batch, values]),
        sigma: device.tensor(vec![0.5; batch], [batch]),
        condition: condition(model, &trajectories),
    }
}

fn velocity(plan: &Arc<Backends>, weights: &Weights, model: &dyn FlowModel, batch: usize) -> Vec<f32> {
    let rollout = InferencePass::new(weights, plan.clone());
    let exec = rollout.exec(CallContext::single(Stage::Rollout));
    to_host(&exec.velocity(model, input(model, batch)).into_dispatch())
}

/// What each accelerator counted.
fn counted(activity: &[flow_accel::Activity]) -> Vec<u64> {
    let numbers = activity
        .iter()
        .map(|each| each.engagements.counted().map(|(_, times)| times).sum());
    numbers.collect()
}

fn gradients(plan: &Arc<Backends>, weights: &Weights, model: &dyn FlowModel) -> Vec<Option<Vec<f32>>> {
    let trained: Arc<[bool]> = vec![true; weights.layout().len()].into();
    let pass = TrainingPass::new(weights, plan.clone(), trained);
    let velocity = pass
        .exec(CallContext::single(Stage::Training))
        .velocity(model, input(model, 2));
    let loss: Tensor<1> = (velocity.clone() * velocity).sum();
    let gradients = pass.gradients(&loss);
    gradients.iter().map(|each| each.as_ref().map(to_host)).collect()
}

#[test]
fn a_call_that_the_device_does_not_record_is_computed_to_the_same_bits_counted_and_named() {
    let (model, weights) = noisy("dit");
    let plain = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    let full = captured(Manner::Full, &*model);
    for _ in 0..3 {
        assert_eq!(
            velocity(full.training(), &weights, &*model, 2),
            velocity(&plain, &weights, &*model, 2)
        );
        assert_eq!(
            gradients(full.training(), &weights, &*model),
            gradients(&plain, &weights, &*model)
        );
    }
    let activity = full.take_activity();
    let [_, capture] = &activity[..] else {
        panic!("two are in force")
    };
    let shortfalls: Vec<_> = capture.shortfalls.iter().collect();
    let [(shortfall, times)] = shortfalls[..] else {
        panic!("{shortfalls:?}")
    };
    assert_eq!((&*shortfall.name, *times), ("calls_not_recorded", 6));
    assert!(
        shortfall.why.contains("needs 9.10 GiB, 3.20 GiB are free") && shortfall.why.contains("micro_batch"),
        "{}",
        shortfall.why
    );
    assert!(capture.why_idle.is_some(), "nothing was replayed");
}

#[test]
fn a_device_that_lost_what_it_was_given_stops_with_the_reason() {
    let (model, weights) = noisy("dit");
    let broken = captured(Manner::Broken, &*model);
    let why = stopped::caught(|| velocity(broken.training(), &weights, &*model, 2)).expect_err("it is lost");
    assert!(matches!(why, Stopped::RecordingLost { .. }) && !why.is_defect());
    let text = why.to_string();
    assert!(
        text.contains("no memory left") && text.contains("graph_capture"),
        "{text}"
    );
}

#[test]
fn recordings_beyond_the_number_that_is_kept_are_named_and_replays_count_what_they_do_again() {
    let (model, weights) = noisy("dit");
    let records = captured(Manner::Records, &*model);
    for _ in 0..2 {
        for batch in 1..=8 {
            velocity(records.training(), &weights, &*model, batch);
        }
    }
    let activity = records.take_activity();
    assert!(
        activity.iter().all(|each| each.shortfalls.is_empty()),
        "eight fit"
    );
    let [fused, replayed] = counted(&activity)[..] else {
        panic!("two are in force")
    };
    assert_eq!(replayed, 16);
    velocity(records.training(), &weights, &*model, 8);
    let [once, 1] = counted(&records.take_activity())[..] else {
        panic!("one replay")
    };
    assert!(once > 0, "the fused kernels are in the recording");
    assert_eq!(
        fused,
        16 * once,
        "each call counts once, whether it was recorded in it or before: a resumed run, which records anew, counts as one that was \
         never stopped"
    );

    velocity(records.training(), &weights, &*model, 9);
    let activity = records.take_activity();
    let names: Vec<&str> = activity[1].shortfalls.keys().map(|each| &*each.name).collect();
    assert_eq!(names, ["recordings_dropped"]);
}

#[test]
fn where_blocks_are_computed_again_a_rollout_replays_the_forward_pass_of_training() {
    let (model, weights) = noisy("dit");
    let engines: [Arc<dyn RegionEngine>; 2] = [Arc::new(Again), Arc::new(NoCheckpointing)];
    for (regions, (there, fitted)) in engines.into_iter().zip([(2, vec![USUAL_BYTES]), (3, Vec::new())]) {
        let recorder = Arc::new(Counting::default());
        let found = || {
            let made = recorder.made.load(Ordering::Relaxed);
            [made, Arc::strong_count(&recorder.there) - 1]
        };
        let records = captured_by(recorder.clone(), regions, &*model);
        let rollout = |batch| {
            let velocity = velocity(records.training(), &weights, &*model, batch);
            (velocity, counted(&records.take_activity()))
        };
        let before = rollout(2);
        assert_eq!(found(), [1, 1]);
        for _ in 0..2 {
            gradients(records.training(), &weights, &*model);
            records.take_activity();
            assert_eq!(
                rollout(2),
                before,
                "bits and counts are those of the recording that was dropped"
            );
            assert_eq!(found(), [3, there]);
        }
        rollout(3);
        assert_eq!(found(), [4, there + 1], "another size has a recording of its own");
        let sizes = recorder.fitted.lock().expect("no panic").clone();
        assert_eq!(
            sizes, fitted,
            "pages fit what is kept for backward, before that is recorded"
        );
    }
}

/// The processor's kernels, with a recorder.
#[derive(Clone, Debug)]
struct RecordingKernels {
    kernels: Arc<dyn Kernels>,
    recorder: Arc<dyn Recorder>,
}

impl LayeredKernels for RecordingKernels {
    fn inner(&self) -> &dyn Kernels {
        &*self.kernels
    }
    fn around(&self, kernels: Arc<dyn Kernels>) -> Arc<dyn Kernels> {
        let recorder = self.recorder.clone();
        Arc::new(Self { kernels, recorder })
    }
    fn name(&self) -> &str {
        "recording"
    }
    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        Some(self.recorder.clone())
    }
}
