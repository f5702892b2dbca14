//! Calls a model by replaying a recording of the call.
//!
//! A call without gradients is one recording. One with gradients is two: forward, whose results stay in the recording's
//! memory, and backward from the gradient of the velocity. The second is one node of the graph, with the trained weights as
//! leaves, so whatever a loss does with the velocity is none of its business.

use super::calls::{Call, Calls, Form, Key, Pair, join, split};
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_accel::{Engagement, Meter};
use flow_core::op::{self, Backward};
use flow_core::tensors::{is_tracked, plain, zeros_like};
use flow_core::{Exec, FlowModel, ModelInput, NotRecorded, ParamView, Plain, Recorder, VelocityDriver};
use std::sync::{Arc, Mutex, PoisonError};

/// Records what another driver computes, and replays it.
#[derive(Debug)]
pub(super) struct Replaying {
    inner: Arc<dyn VelocityDriver>,
    recorder: Arc<dyn Recorder>,
    meter: Meter,
    calls: Mutex<Calls>,
}

/// A call about to be recorded.
struct ToRecord<'a> {
    driver: &'a Replaying,
    exec: &'a Exec<'a>,
    model: &'a dyn FlowModel,
    form: Form,
    inputs: &'a [Plain],
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
        let inputs: Vec<Plain> = inputs.iter().map(plain).collect();
        let key = Key::new(model, form, &inputs, exec.params().standing());
        let of = ToRecord {
            driver: self,
            exec,
            model,
            form,
            inputs: &inputs,
        };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let velocity = match calls.of(key, || of.record()) {
            Call::Plain(recorded) => {
                let outputs = recorded
                    .replay(&inputs)
                    .unwrap_or_else(|why| refused(model, &why));
                Some(self.recorder.copied(&outputs[0]))
            }
            Call::Differentiated(pair) => self.differentiated(exec, model, pair, &inputs),
        };
        drop(calls);
        let Some(velocity) = velocity else {
            return self.inner.run(exec, model, input);
        };
        self.meter.count(Engagement::GraphReplayed, 1);
        Tensor::from_dispatch(velocity)
    }
}

impl Replaying {
    pub fn new(inner: Arc<dyn VelocityDriver>, recorder: Arc<dyn Recorder>, meter: Meter) -> Self {
        Self {
            inner,
            recorder,
            meter,
            calls: Mutex::default(),
        }
    }

    /// The velocity as a node above the weights; none if the pair is in the middle of another pass, or if someone holds the
    /// gradients that it would write.
    fn differentiated(
        &self,
        exec: &Exec<'_>,
        model: &dyn FlowModel,
        pair: &mut Pair,
        inputs: &[Plain],
    ) -> Option<DispatchTensor> {
        let pass = pair.begin()?;
        {
            let backward = pair.backward.lock().unwrap_or_else(PoisonError::into_inner);
            if backward
                .outputs()
                .iter()
                .any(|gradient| self.recorder.is_held(gradient))
            {
                return None;
            }
        }
        let outputs = pair
            .forward
            .replay(inputs)
            .unwrap_or_else(|why| refused(model, &why));
        let velocity = self.recorder.copied(&outputs[0]);
        let leaves = exec.params().leaves_of(&pair.positions);
        let backward = pair.backward.clone();
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
            let outputs = backward
                .replay(&[seed])
                .unwrap_or_else(|why| refused_of(&name, &why));
            meter.count(Engagement::GraphReplayed, 1);
            // Not copied: they are as large as the weights. Who holds them when the next pass begins keeps it from replaying.
            outputs.iter().cloned().map(Some).collect()
        });
        let outputs = op::bind_with_leaves("recorded call", &[], &leaves, vec![velocity], gradients);
        outputs.into_iter().next()
    }
}

impl ToRecord<'_> {
    fn record(&self) -> Call {
        let recorded = if self.exec.params().is_training() {
            self.pair().map(Call::Differentiated)
        } else {
            self.plain().map(Call::Plain)
        };
        self.driver.recorder.release(&self.inputs[0]);
        recorded.unwrap_or_else(|why| refused(self.model, &why))
    }

    fn plain(&self) -> Result<Box<dyn flow_core::Recorded>, NotRecorded> {
        let velocity = |views: &[Plain]| plain(&self.velocity(self.exec, views));
        self.driver
            .recorder
            .record(self.inputs, &mut |views| drop(velocity(views)), &mut |views| {
                vec![velocity(views)]
            })
    }

    fn velocity(&self, exec: &Exec<'_>, inputs: &[Plain]) -> DispatchTensor {
        let input = join(self.form, inputs);
        self.driver.inner.run(exec, self.model, input).into_dispatch()
    }

    /// A forward pass on leaves of its own.
    fn forward(&self, inputs: &[Plain]) -> (DispatchTensor, ParamView) {
        let params = self.exec.params().fresh_leaves();
        let within = self.exec.replay(params.clone(), self.exec.stash().clone());
        (self.velocity(&within, inputs), params)
    }

    fn pair(&self) -> Result<Pair, NotRecorded> {
        let recorder = &self.driver.recorder;
        let mut kept = None;
        let forward = recorder.record(
            self.inputs,
            &mut |views| {
                drop(self.forward(views));
                op::free_abandoned(&views[0]);
            },
            &mut |views| {
                let (velocity, params) = self.forward(views);
                let values = plain(&velocity);
                kept = Some((velocity, params));
                vec![values]
            },
        )?;
        let (velocity, params) = kept.expect("a recorded pass was computed");
        recorder.release(&self.inputs[0]);
        let seed = zeros_like(&plain(&velocity));
        let differentiate = |velocity: DispatchTensor, params: &ParamView, seed: &Plain| {
            let gradients = op::backward_from(vec![velocity], vec![Some(seed.clone())]);
            gradients.map_or_else(Vec::new, |mut gradients| params.take_gradients(&mut gradients))
        };
        let mut graph = Some(velocity);
        let mut positions = Vec::new();
        let backward = recorder.record(
            &[seed],
            // Of another forward pass: the recorded one can be differentiated once.
            &mut |seeds| {
                let (velocity, params) = self.forward(self.inputs);
                drop(differentiate(velocity, &params, &seeds[0]));
            },
            &mut |seeds| {
                let velocity = graph.take().expect("what is recorded is computed once");
                let found = differentiate(velocity, &params, &seeds[0]);
                let found = found.into_iter().enumerate();
                let (at, gradients) = found.filter_map(|(at, gradient)| Some((at, gradient?))).unzip();
                positions = at;
                gradients
            },
        )?;
        Ok(Pair::new(forward, backward, positions))
    }
}

fn refused(model: &dyn FlowModel, why: &NotRecorded) -> ! {
    refused_of(&model.spec().architecture, why)
}

fn refused_of(model: &str, why: &NotRecorded) -> ! {
    panic!(
        "`graph_capture` cannot record or replay a call of the model `{model}`: {why}. Remove it from `acceleration`"
    )
}
