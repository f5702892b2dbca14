//! The calls that were recorded, and what tells them apart.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Tensor};
use flow_accel::{Engagements, Meter};
use flow_core::params::Standing;
use flow_core::tensors::shape;
use flow_core::{Condition, FlowModel, ModelInput, RawTensor, Recorded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// Recordings that are kept at a time. Each holds the memory of what it computes.
pub(super) const MOST: usize = 8;

/// Which of its parts an input has, and what of them kernels are launched by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Form {
    tokens: bool,
    text: bool,
    text_lengths: Option<Arc<[usize]>>,
    pooled: bool,
    guidance: bool,
}

/// The tensors of an input in order.
pub(super) fn split(input: &ModelInput) -> (Form, Vec<RawTensor>) {
    let Condition {
        tokens,
        text,
        text_lengths,
        pooled,
        guidance,
    } = input.condition.clone();
    let form = Form {
        tokens: tokens.is_some(),
        text: text.is_some(),
        text_lengths,
        pooled: pooled.is_some(),
        guidance: guidance.is_some(),
    };
    let mut tensors = vec![
        input.x.clone().into_dispatch(),
        input.sigma.clone().into_dispatch(),
    ];
    tensors.extend(tokens.map(Tensor::into_dispatch));
    tensors.extend(text.map(Tensor::into_dispatch));
    tensors.extend(pooled.map(Tensor::into_dispatch));
    tensors.extend(guidance.map(Tensor::into_dispatch));
    (form, tensors)
}

/// The inverse of [`split`].
pub(super) fn join(form: &Form, tensors: &[RawTensor]) -> ModelInput {
    let mut tensors = tensors.iter().cloned();
    let mut next = || tensors.next().expect("as many tensors as were split");
    ModelInput {
        x: Tensor::from_dispatch(next()),
        sigma: Tensor::from_dispatch(next()),
        condition: Condition {
            tokens: form.tokens.then(|| Tensor::from_dispatch(next())),
            text: form.text.then(|| Tensor::from_dispatch(next())),
            text_lengths: form.text_lengths.clone(),
            pooled: form.pooled.then(|| Tensor::from_dispatch(next())),
            guidance: form.guidance.then(|| Tensor::from_dispatch(next())),
        },
    }
}

/// Calls with the same key launch the same kernels on the same weights, in memory and order of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    model: usize,
    form: Form,
    inputs: Vec<(Vec<usize>, DType)>,
    weights: Standing,
    thread: ThreadId,
}

impl Key {
    pub fn new(model: &dyn FlowModel, form: Form, inputs: &[RawTensor], weights: Standing) -> Self {
        Self {
            model: std::ptr::from_ref(model).cast::<()>() as usize,
            form,
            inputs: inputs.iter().map(|input| (shape(input), input.dtype())).collect(),
            weights,
            thread: std::thread::current().id(),
        }
    }
}

/// What accelerators counted while a call was recorded: their meters, with the counts before and after. A replay does the
/// same again.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted(Vec<(Meter, Engagements, Engagements)>);

impl Counted {
    pub fn new(meters: &[Meter], before: Vec<Engagements>, after: Vec<Engagements>) -> Self {
        let counts = before.into_iter().zip(after);
        Self(
            (meters.iter().cloned().zip(counts))
                .map(|(meter, (before, after))| (meter, before, after))
                .collect(),
        )
    }

    /// Counts it once more.
    pub fn again(&self) {
        for (meter, before, after) in &self.0 {
            meter.count_again(*before, *after);
        }
    }
}

/// A call that was seen before.
#[derive(Debug)]
pub(super) enum Call {
    /// The velocity, recorded.
    RawTensor(Box<dyn Recorded>, Counted),
    /// The velocity, and its gradients, recorded.
    Differentiated(Pair),
    /// The device did not record it, for this reason: it is computed each time.
    NotRecorded(String),
}

/// A forward and a backward pass. Backward reads what the last replay of forward left, so forward must not be replayed
/// between.
#[derive(Debug)]
pub(super) struct Pair {
    pub forward: Box<dyn Recorded>,
    pub backward: Arc<Mutex<Box<dyn Recorded>>>,
    /// The weights that backward gives gradients of.
    pub positions: Vec<usize>,
    /// Of the forward pass and of the backward pass.
    pub counted: [Counted; 2],
    under_way: Arc<AtomicBool>,
}

/// A replayed forward pass whose backward pass may still come. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<AtomicBool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Pair {
    pub fn new(
        forward: Box<dyn Recorded>,
        backward: Box<dyn Recorded>,
        positions: Vec<usize>,
        counted: [Counted; 2],
    ) -> Self {
        Self {
            forward,
            backward: Arc::new(Mutex::new(backward)),
            positions,
            counted,
            under_way: Arc::default(),
        }
    }

    /// Takes the pair for a pass, unless another pass is under way.
    pub fn begin(&self) -> Option<UnderWay> {
        let begun = (self.under_way).compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| UnderWay(self.under_way.clone()))
    }
}

/// The recorded calls, those used last at the end.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<(Key, Call)>);

impl Calls {
    /// The call with `key`, made by `record` if there is none yet; and whether another's recording was dropped for it.
    pub fn of(&mut self, key: Key, record: impl FnOnce() -> Call) -> (&mut Call, bool) {
        let mut made_room = false;
        let call = match self.0.iter().position(|(known, _)| *known == key) {
            Some(at) => self.0.remove(at).1,
            None => {
                if self.0.len() == MOST {
                    let (_, dropped) = self.0.remove(0);
                    made_room = !matches!(dropped, Call::NotRecorded(_));
                }
                record()
            }
        };
        self.0.push((key, call));
        (&mut self.0.last_mut().expect("one was pushed").1, made_room)
    }
}
