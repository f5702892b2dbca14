//! The calls that were recorded, and what tells them apart.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Tensor};
use flow_accel::{Engagements, Meter};
use flow_core::params::Standing;
use flow_core::tensors::shape;
use flow_core::{
    AttentionBackend, Backends, Condition, FlowModel, Kernels, LayerDriver, ModelInput, RawTensor, Recorded,
    ReuseDriver, StackDriver,
};
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

    /// Whether it is of the same call as `training`, which is differentiated, and it is not.
    fn is_plain_of(&self, training: &Self) -> bool {
        (self.model, self.thread) == (training.model, training.thread)
            && (&self.form, &self.inputs) == (&training.form, &training.inputs)
            && self.weights.is_plain_of(&training.weights)
    }
}

/// Who computes what a call asks for. Two are equal if they are the same ones, and so launch the same kernels.
#[derive(Clone, Debug)]
pub(super) struct Answering {
    attention: Arc<dyn AttentionBackend>,
    kernels: Arc<dyn Kernels>,
    block_kernels: Option<Arc<dyn Kernels>>,
    stacks: Arc<dyn StackDriver>,
    layers: Arc<dyn LayerDriver>,
    reuse: Arc<dyn ReuseDriver>,
}

/// Whether two are one.
fn is_one<T: ?Sized>(a: &Arc<T>, b: &Arc<T>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

impl Answering {
    pub fn of(backends: &Backends) -> Self {
        Self {
            attention: backends.attention.clone(),
            kernels: backends.kernels.clone(),
            block_kernels: backends.block_kernels.clone(),
            stacks: backends.stacks.clone(),
            layers: backends.layers.clone(),
            reuse: backends.reuse.clone(),
        }
    }
}

impl PartialEq for Answering {
    fn eq(&self, other: &Self) -> bool {
        let in_blocks = match (&self.block_kernels, &other.block_kernels) {
            (Some(a), Some(b)) => is_one(a, b),
            (None, None) => true,
            _ => false,
        };
        in_blocks
            && is_one(&self.attention, &other.attention)
            && is_one(&self.kernels, &other.kernels)
            && is_one(&self.stacks, &other.stacks)
            && is_one(&self.layers, &other.layers)
            && is_one(&self.reuse, &other.reuse)
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
    /// What the same call without gradients counts, if its recording was dropped for this one: its velocity is that of the forward pass.
    pub in_place_of: Option<Counted>,
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
            in_place_of: None,
            under_way: Arc::default(),
        }
    }

    /// Takes the pair for a pass, unless another pass is under way.
    pub fn begin(&self) -> Option<UnderWay> {
        let begun = (self.under_way).compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| UnderWay(self.under_way.clone()))
    }
}

/// The recorded calls with who computes them, those used last at the end.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<(Key, Answering, Call)>);

impl Calls {
    fn knows(&self, key: &Key) -> bool {
        self.0.iter().any(|(known, ..)| known == key)
    }

    /// The call with `key`, made by `record` if there is none yet; and whether another's recording was dropped for it.
    pub fn of(&mut self, key: Key, by: Answering, record: impl FnOnce() -> Call) -> (&mut Call, bool) {
        let mut made_room = false;
        let entry = match self.0.iter().position(|(known, ..)| *known == key) {
            Some(at) => self.0.remove(at),
            None => {
                if self.0.len() == MOST {
                    let (.., dropped) = self.0.remove(0);
                    made_room = !matches!(dropped, Call::NotRecorded(_));
                }
                (key, by, record())
            }
        };
        self.0.push(entry);
        (&mut self.0.last_mut().expect("one was pushed").2, made_room)
    }

    /// Drops the recording of the same call without gradients, if there is one and none with `key` yet; gives what it counted.
    pub fn supersede(&mut self, key: &Key, by: &Answering) -> Option<Counted> {
        if self.knows(key) {
            return None;
        }
        let is_superseded = |(plain, found, call): &(Key, Answering, Call)| {
            matches!(call, Call::RawTensor(..)) && plain.is_plain_of(key) && found == by
        };
        let at = self.0.iter().position(is_superseded)?;
        match self.0.remove(at) {
            (.., Call::RawTensor(_, counted)) => Some(counted),
            _ => None,
        }
    }

    /// The forward and backward pass that took the place of the call with `key`, if they did, taken for a pass.
    pub fn in_place_of(&mut self, key: &Key, by: &Answering) -> Option<(&mut Pair, UnderWay)> {
        if self.knows(key) {
            return None;
        }
        let stands_in = |(training, found, call): &(Key, Answering, Call)| {
            matches!(call, Call::Differentiated(pair) if pair.in_place_of.is_some())
                && key.is_plain_of(training)
                && found == by
        };
        let at = self.0.iter().position(stands_in)?;
        let entry = self.0.remove(at);
        self.0.push(entry);
        match self.0.last_mut() {
            Some((.., Call::Differentiated(pair))) => pair.begin().map(|pass| (pair, pass)),
            _ => None,
        }
    }
}
