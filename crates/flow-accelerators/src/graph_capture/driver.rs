//! Calls a model by replaying a recording of the call.
//!
//! A call without gradients is one recording. One with gradients is two: forward, whose results stay in the recording's
//! memory, and backward from the gradient of the velocity. The second is one node of the graph, with the trained weights as
//! leaves, so whatever a loss does with the velocity is none of its business.
//!
//! The forward pass gives the bits of the call without gradients. Where backward computes blocks again, which is where memory is short,
//! it takes that call's place: a rollout replays it, and the recording of its own is dropped. Elsewhere it writes more than such a call,
//! which would cost a rollout time.
//!
//! A call that the device does not record (its memory is full, say) is computed as without recordings, to the same bits; it
//! is counted and named. So is a recording that makes room for another.

use super::calls::{Answering, Call, Calls, Counted, Form, Key, MOST, Pair, join, split};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_accel::{Engagement, Engagements, Meter};
use flow_core::autograd::{self, Backward};
use flow_core::tensors::{is_tracked, plain, zeros_like};
use flow_core::{
    Exec, FlowModel, ModelInput, NoCheckpointing, ParamView, RawTensor, Recorder, Refusal, RegionEngine,
    Stopped, VelocityDriver,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Records what another driver computes, and replays it.
#[derive(Debug)]
pub(super) struct Replaying {
    inner: Arc<dyn VelocityDriver>,
    recorder: Arc<dyn Recorder>,
    meter: Meter,
    /// Where those count whose work is recorded.
    recorded: Vec<Meter>,
    calls: Mutex<Calls>,
}

/// A call about to be recorded.
struct ToRecord<'a> {
    driver: &'a Replaying,
    exec: &'a Exec<'a>,
    model: &'a dyn FlowModel,
    form: Form,
    inputs: &'a [RawTensor],
}

impl VelocityDriver for Replaying {
    fn name(&self) -> &str {
        "graph-capture"
    }

    fn computes_every_row(&self) -> bool {
        self.inner.computes_every_row()
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let (form, inputs) = split(&input);
        // A gradient that goes on below the model's inputs is nobody's yet.
        if inputs.iter().any(is_tracked) {
            return self.inner.run(exec, model, input);
        }
        let inputs: Vec<RawTensor> = inputs.iter().map(plain).collect();
        let key = Key::new(model, form.clone(), &inputs, exec.params().standing());
        let of = ToRecord {
            driver: self,
            exec,
            model,
            form,
            inputs: &inputs,
        };
        let by = Answering::of(exec.backends());
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(velocity) = self.by_forward(&mut calls, (&key, &by), &inputs) {
            drop(calls);
            self.meter.count(Engagement::GraphReplayed, 1);
            return Tensor::from_dispatch(velocity);
        }
        let superseded = match of.computes_again() {
            true => calls.supersede(&key, &by),
            false => None,
        };
        let (call, made_room) = calls.of(key, by, || of.record());
        if let (Call::Differentiated(pair), Some(counted)) = (&mut *call, superseded) {
            pair.in_place_of = Some(counted);
        }
        if made_room {
            self.meter.falls_short(
                "recordings_dropped",
                format!(
                    "calls of the model come in more than {MOST} kinds (sizes of batch, sets of weights), and no more recordings \
                     than that are kept, so some are made again and again; let `sampling.micro_batch` divide the samples of \
                     rollout and evaluation, or remove the entry"
                ),
            );
        }
        let replayed = match call {
            Call::RawTensor(recorded, counted) => recorded.replay(&inputs).map(|outputs| {
                let velocity = self.recorder.copied(&outputs[0]);
                counted.again();
                Some(velocity)
            }),
            Call::Differentiated(pair) => self.differentiated(exec, model, pair, &inputs),
            Call::NotRecorded(_) => Ok(None),
        };
        let velocity = replayed.unwrap_or_else(|refusal| {
            *call = of.without_recording(&refusal);
            None
        });
        if let Call::NotRecorded(why) = call {
            self.meter.falls_short(
                "calls_not_recorded",
                format!(
                    "a call of the model is computed without a recording: {why}; the results are the same bits, but slower. \
                     Lower `sampling.micro_batch` if the memory is short, or remove the entry"
                ),
            );
        }
        drop(calls);
        let Some(velocity) = velocity else {
            return self.inner.run(exec, model, input);
        };
        self.meter.count(Engagement::GraphReplayed, 1);
        Tensor::from_dispatch(velocity)
    }
}

impl Replaying {
    pub fn new(
        inner: Arc<dyn VelocityDriver>,
        recorder: Arc<dyn Recorder>,
        meter: Meter,
        recorded: Vec<Meter>,
    ) -> Self {
        Self {
            inner,
            recorder,
            meter,
            recorded,
            calls: Mutex::default(),
        }
    }

    /// What the accelerators whose work is recorded have counted so far.
    fn counts(&self) -> Vec<Engagements> {
        self.recorded.iter().map(Meter::counted).collect()
    }

    /// Runs `compute`, which is being recorded, and notes what others count meanwhile.
    fn counting<T>(&self, counted: &mut Counted, compute: impl FnOnce() -> T) -> T {
        let before = self.counts();
        let computed = compute();
        *counted = Counted::new(&self.recorded, before, self.counts());
        computed
    }

    /// The velocity of a call without gradients by the forward pass of the same call with them, if that took its place and no pass is
    /// under way.
    fn by_forward(
        &self,
        calls: &mut Calls,
        (key, by): (&Key, &Answering),
        inputs: &[RawTensor],
    ) -> Option<RawTensor> {
        let (pair, _pass) = calls.in_place_of(key, by)?;
        // Refused, the call has a recording of its own.
        let outputs = pair.forward.replay(inputs).ok()?;
        let velocity = self.recorder.copied(&outputs[0]);
        pair.in_place_of.as_ref()?.again();
        Some(velocity)
    }

    /// The velocity as a node above the weights; none if the pair is in the middle of another pass, or if someone holds the
    /// gradients that it would write.
    fn differentiated(
        &self,
        exec: &Exec<'_>,
        model: &dyn FlowModel,
        pair: &mut Pair,
        inputs: &[RawTensor],
    ) -> Result<Option<DispatchTensor>, Refusal> {
        let Some(pass) = pair.begin() else {
            return Ok(None);
        };
        {
            let backward = pair.backward.lock().unwrap_or_else(PoisonError::into_inner);
            if backward
                .outputs()
                .iter()
                .any(|gradient| self.recorder.is_held(gradient))
            {
                return Ok(None);
            }
        }
        let outputs = pair.forward.replay(inputs)?;
        let velocity = self.recorder.copied(&outputs[0]);
        pair.counted[0].again();
        let leaves = exec.params().leaves_of(&pair.positions);
        let backward = pair.backward.clone();
        let counted = pair.counted[1].clone();
        let (meter, name) = (self.meter.clone(), model.spec().architecture.clone());
        let pass = Mutex::new(Some(pass));
        let gradients: Backward = Arc::new(move |incoming| {
            let pass = pass.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(_pass) = pass else {
                panic!(
                    "the recorded call of `{name}` was differentiated already; another backward pass needs another forward pass"
                )
            };
            let mut backward = backward.lock().unwrap_or_else(PoisonError::into_inner);
            let seed = incoming.gradient().clone();
            // Its forward pass was a replay, so there is nothing to differentiate but the recording.
            let outputs = backward.replay(&[seed]).unwrap_or_else(|refusal| {
                let (model, why) = (name.clone(), refusal.to_string());
                Stopped::RecordingLost { model, why }.stop()
            });
            counted.again();
            meter.count(Engagement::GraphReplayed, 1);
            // Not copied: they are as large as the weights. Who holds them when the next pass begins keeps it from replaying.
            outputs.iter().cloned().map(Some).collect()
        });
        let outputs = autograd::bind_with_leaves("recorded call", &[], &leaves, vec![velocity], gradients);
        Ok(outputs.into_iter().next())
    }
}

impl ToRecord<'_> {
    /// Whether it is differentiated, and backward computes parts of it again.
    fn computes_again(&self) -> bool {
        let regions = self.exec.backends().regions.name();
        self.exec.params().is_training() && regions != NoCheckpointing.name()
    }

    fn record(&self) -> Call {
        let before = self.driver.counts();
        let recorded = if self.exec.params().is_training() {
            self.pair().map(Call::Differentiated)
        } else {
            self.plain()
        };
        self.driver.recorder.release(&self.inputs[0]);
        // Each replay counts for itself, so that a run that was stopped and records anew counts as one that was not.
        for ((meter, before), after) in self.driver.recorded.iter().zip(before).zip(self.driver.counts()) {
            meter.take_back(before, after);
        }
        recorded.unwrap_or_else(|refusal| self.without_recording(&refusal))
    }

    /// What becomes of a call that the device did not record or replay, if what it was given is still there; else this stops.
    fn without_recording(&self, refusal: &Refusal) -> Call {
        let weights = self.exec.params().values().iter();
        let given: Vec<RawTensor> = self.inputs.iter().chain(weights).cloned().collect();
        if !self.driver.recorder.is_readable(&given) {
            let (model, why) = (self.model.spec().architecture.clone(), refusal.to_string());
            Stopped::RecordingLost { model, why }.stop();
        }
        // A forward pass that was recorded for a backward pass that was not.
        autograd::free_abandoned(&self.inputs[0]);
        self.driver.recorder.release(&self.inputs[0]);
        Call::NotRecorded(refusal.to_string())
    }

    fn plain(&self) -> Result<Call, Refusal> {
        let velocity = |views: &[RawTensor]| plain(&self.velocity(self.exec, views));
        let mut counted = Counted::default();
        let recorded =
            self.driver
                .recorder
                .record(self.inputs, &mut |views| vec![velocity(views)], &mut |views| {
                    self.driver.counting(&mut counted, || vec![velocity(views)])
                })?;
        Ok(Call::RawTensor(recorded, counted))
    }

    fn velocity(&self, exec: &Exec<'_>, inputs: &[RawTensor]) -> DispatchTensor {
        let input = join(&self.form, inputs);
        self.driver.inner.run(exec, self.model, input).into_dispatch()
    }

    /// A forward pass on leaves of its own.
    fn forward(&self, inputs: &[RawTensor]) -> (DispatchTensor, ParamView) {
        let params = self.exec.params().fresh_leaves();
        let within = self.exec.replay(params.clone(), self.exec.stash().clone());
        (self.velocity(&within, inputs), params)
    }

    /// Makes the device's pages such that what forward keeps for backward fills them, which takes a forward pass to know.
    fn fit_pages(&self) {
        let recorder = &self.driver.recorder;
        if !recorder.has_pages() || !self.computes_again() {
            return;
        }
        let (velocity, params) = self.forward(self.inputs);
        let usual = self.exec.backends().regions.usual_bytes();
        drop((velocity, params));
        autograd::free_abandoned(&self.inputs[0]);
        if let Some(bytes) = usual {
            recorder.fit_pages(&self.inputs[0], bytes);
        }
    }

    fn pair(&self) -> Result<Pair, Refusal> {
        self.fit_pages();
        let recorder = &self.driver.recorder;
        let mut kept = None;
        let mut counted = [Counted::default(), Counted::default()];
        let [of_forward, of_backward] = &mut counted;
        let forward = recorder.record(
            self.inputs,
            &mut |views| {
                let velocity = plain(&self.forward(views).0);
                autograd::free_abandoned(&views[0]);
                vec![velocity]
            },
            &mut |views| {
                let (velocity, params) = (self.driver).counting(of_forward, || self.forward(views));
                let values = plain(&velocity);
                kept = Some((velocity, params));
                vec![values]
            },
        )?;
        let (velocity, params) = kept.expect("a recorded pass was computed");
        recorder.release(&self.inputs[0]);
        let seed = zeros_like(&plain(&velocity));
        let differentiate = |velocity: DispatchTensor, params: &ParamView, seed: &RawTensor| {
            let gradients = autograd::backward_from(vec![velocity], vec![Some(seed.clone())]);
            gradients.map_or_else(Vec::new, |mut gradients| params.take_gradients(&mut gradients))
        };
        let mut graph = Some(velocity);
        let mut positions = Vec::new();
        let backward = recorder.record(
            &[seed],
            // Of another forward pass: the recorded one can be differentiated once.
            &mut |seeds| {
                let (velocity, params) = self.forward(self.inputs);
                let gradients = differentiate(velocity, &params, &seeds[0]);
                gradients.into_iter().flatten().collect()
            },
            &mut |seeds| {
                let velocity = graph.take().expect("what is recorded is computed once");
                let found =
                    (self.driver).counting(of_backward, || differentiate(velocity, &params, &seeds[0]));
                let found = found.into_iter().enumerate();
                let (at, gradients) = found.filter_map(|(at, gradient)| Some((at, gradient?))).unzip();
                positions = at;
                gradients
            },
        )?;
        Ok(Pair::new(forward, backward, positions, counted))
    }
}
