//! Counts and times what kernels compute, forward and backward, without changing a bit of it.
//!
//! A planner learns from it what a block costs, a benchmark how often operations run, and tests that a policy computes
//! exactly what it says.

use crate::treatment::{ATTENTION, GROUPED_LINEAR, LINEAR};
use burn::backend::DispatchTensor;
use burn::tensor::DType;
use flow_core::exec::Stash;
use flow_core::experts::{ExpertKernels, GroupedWeights, Grouping, Routed};
use flow_core::kernels::{FeedForwardWeights, LinearWeights, NormChunks, OnFused, SdeOutputs, composed};
use flow_core::op::{self, Backward};
use flow_core::tensors::{is_tracked, shape};
use flow_core::{
    Activation, AdamWStep, Attended, AttentionBackend, AttentionCall, AttentionCapability, Declined, Kernels,
    KeyValue, LaneKernels, Plain, Plan, Updated,
};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What an operation of one name came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// How often its forward was computed, rather than taken from a store.
    pub forwards: u64,
    /// How often its backward was.
    pub backwards: u64,
    /// Floating-point operations of matrix products in its forward; 0 for operations that have none.
    pub forward_flops: u64,
    /// In its backward: those of the gradients that were wanted, and of what it computes again for them.
    pub backward_flops: u64,
    /// Time of its forwards.
    pub forward_time: Duration,
}

/// One forward that was computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// The operation.
    pub name: &'static str,
    /// Its time.
    pub time: Duration,
}

/// Time since some moment, all that was asked of the device being done.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What went through a metered plan.
pub struct Meter {
    clock: Clock,
    after: Option<Arc<dyn Fn() + Send + Sync>>,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    usage: BTreeMap<&'static str, Usage>,
    events: Vec<Event>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("usage", &self.usage()).finish()
    }
}

impl Meter {
    /// A meter with a clock of its own, which waits for the device if that works by itself.
    pub fn with_clock(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            after: None,
            books: Mutex::default(),
        })
    }

    /// A meter that calls `after` whenever a forward was computed, its results being there, and before every backward.
    pub fn calling(after: Arc<dyn Fn() + Send + Sync>) -> Arc<Self> {
        let start = std::time::Instant::now();
        Arc::new(Self {
            clock: Arc::new(move || start.elapsed()),
            after: Some(after),
            books: Mutex::default(),
        })
    }

    /// A meter for the processor, where an operation is done when it returns.
    pub fn on_processor() -> Arc<Self> {
        let start = std::time::Instant::now();
        Self::with_clock(Arc::new(move || start.elapsed()))
    }

    /// `plan` with everything that it computes metered.
    pub fn plan(self: &Arc<Self>, plan: &Plan) -> Plan {
        let kernels = |inner: &Arc<dyn Kernels>| -> Arc<dyn Kernels> {
            let is_fused = inner.fused(Arc::new(|| {})).is_none();
            Arc::new(MeteredKernels {
                inner: inner.clone(),
                is_fused,
                meter: self.clone(),
            })
        };
        Plan {
            attention: Arc::new(MeteredAttention {
                inner: plan.attention.clone(),
                meter: self.clone(),
            }),
            kernels: kernels(&plan.kernels),
            block_kernels: plan.block_kernels.as_ref().map(kernels),
            ..plan.clone()
        }
    }

    /// Usage by operation.
    pub fn usage(&self) -> BTreeMap<&'static str, Usage> {
        self.books().usage.clone()
    }

    /// Operations computed, forward and backward: on a GPU, launches or multiples of them.
    pub fn operations(&self) -> u64 {
        let usage = self.usage();
        usage.values().map(|usage| usage.forwards + usage.backwards).sum()
    }

    /// The forwards in order, which are forgotten with that.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.books().events)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("nothing panics while it holds the lock")
    }

    fn forward<T>(&self, name: &'static str, flops: u64, compute: impl FnOnce() -> T) -> T {
        let start = (self.clock)();
        let result = compute();
        let time = (self.clock)().saturating_sub(start);
        if let Some(after) = &self.after {
            after();
        }
        let mut books = self.books();
        let usage = books.usage.entry(name).or_default();
        usage.forwards += 1;
        usage.forward_flops += flops;
        usage.forward_time += time;
        books.events.push(Event { name, time });
        result
    }

    /// An operation that is computed whenever it is asked for.
    fn whole(
        self: &Arc<Self>,
        name: &'static str,
        compute: impl FnOnce() -> DispatchTensor,
    ) -> DispatchTensor {
        let output = self.forward(name, 0, compute);
        self.counting_backward(name, 0, output)
    }

    /// As [`whole`](Self::whole), with several outputs: backward is counted when it passes the first of them, so that is where
    /// it must pass.
    fn all(
        self: &Arc<Self>,
        name: &'static str,
        compute: impl FnOnce() -> Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let mut outputs = self.forward(name, 0, compute);
        if let Some(first) = outputs.first_mut() {
            *first = self.counting_backward(name, 0, first.clone());
        }
        outputs
    }

    /// An operation whose main result passes through a store.
    fn stored(
        self: &Arc<Self>,
        name: &'static str,
        (forward, backward): (u64, u64),
        stash: &dyn Stash,
        compute: impl FnOnce(&dyn Stash) -> DispatchTensor,
    ) -> DispatchTensor {
        let stash = MeteredStash {
            inner: stash,
            meter: self,
            flops: forward,
        };
        let output = compute(&stash);
        self.counting_backward(name, backward, output)
    }

    /// `output` behind a node that counts when backward passes it.
    fn counting_backward(
        self: &Arc<Self>,
        name: &'static str,
        flops: u64,
        output: DispatchTensor,
    ) -> DispatchTensor {
        if !is_tracked(&output) {
            return output;
        }
        let meter = self.clone();
        op::apply("metered", &[&output], move |values, _| {
            let backward: Backward = Arc::new(move |incoming| {
                let mut books = meter.books();
                let usage = books.usage.entry(name).or_default();
                usage.backwards += 1;
                usage.backward_flops += flops;
                drop(books);
                // The operation's own backward comes next; what is there now is what it starts from.
                if let Some(after) = &meter.after {
                    after();
                }
                vec![Some(incoming.gradient().clone())]
            });
            (values[0].clone(), backward)
        })
    }
}

/// Counts what a store lets be computed.
#[derive(Debug)]
struct MeteredStash<'a> {
    inner: &'a dyn Stash,
    meter: &'a Meter,
    flops: u64,
}

impl Stash for MeteredStash<'_> {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<Plain>) -> Vec<Plain> {
        self.inner
            .through(name, &mut || self.meter.forward(name, self.flops, &mut *compute))
    }

    fn keeps(&self, name: &'static str) -> bool {
        self.inner.keeps(name)
    }
}

#[derive(Debug)]
struct MeteredAttention {
    inner: Arc<dyn AttentionBackend>,
    meter: Arc<Meter>,
}

impl AttentionBackend for MeteredAttention {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capability(&self) -> AttentionCapability {
        self.inner.capability()
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Declined> {
        self.inner.kernel(call)
    }

    /// Forward: two products of `queries · keys · head_dim` per head. Backward: five, with the scores made again. Pairs that
    /// a mask forbids are counted, too.
    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Declined> {
        self.inner.kernel(call)?;
        let product = 2 * (call.batch * call.heads * call.queries * call.key_count() * call.head_dim) as u64;
        let mut lse = None;
        let output = self
            .meter
            .stored(ATTENTION, (2 * product, 5 * product), stash, |stash| {
                let attended = self.inner.attend(stash, q, parts, call);
                let attended = attended.expect("a backend serves what it has a kernel for");
                lse = Some(attended.lse);
                attended.output
            });
        let lse = lse.expect("attention ran");
        Ok(Attended { output, lse })
    }
}

/// Forward and backward of a linear layer: `x Wᵀ`, and a product for each of the gradients of `x` and `W` that is wanted;
/// the adapter's factors likewise.
fn linear_flops(x: &DispatchTensor, weights: &LinearWeights) -> (u64, u64) {
    let dims = shape(x);
    let rows: usize = dims[..dims.len() - 1].iter().product();
    let product = |weight: &DispatchTensor| 2 * (rows * shape(weight).iter().product::<usize>()) as u64;
    let wanted = |tensor: &DispatchTensor| u64::from(is_tracked(tensor));
    let main = product(&weights.weight);
    let (mut forward, mut backward) = (main, main * (wanted(x) + wanted(&weights.weight)));
    if let Some((down, up, _)) = &weights.adapter {
        let (a, b) = (product(down), product(up));
        forward += a + b;
        // The gradient of `A` and that of `x` both need `G B`; that of `B` needs `x Aᵀ` again.
        backward += wanted(x) * (b + a) + wanted(down) * (b + a) + wanted(up) * (a + b);
    }
    (forward, backward)
}

#[derive(Debug)]
struct MeteredKernels {
    inner: Arc<dyn Kernels>,
    /// Whether operations that are made of others are computed as one.
    is_fused: bool,
    meter: Arc<Meter>,
}

impl MeteredKernels {
    fn inner_experts(&self) -> &dyn ExpertKernels {
        self.inner
            .experts()
            .expect("these are handed out only where there are such")
    }
}

impl ExpertKernels for MeteredKernels {
    /// The whole is `route`, and the choice within it, which may come from the store, `router`.
    fn route(&self, stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed {
        let stash = MeteredStash {
            inner: stash,
            meter: &self.meter,
            flops: 0,
        };
        self.meter.forward("route", 0, || {
            self.inner_experts().route(&stash, logits, top_k, normalize)
        })
    }

    fn group(&self, choices: &Plain, experts: usize) -> Grouping {
        self.meter
            .forward("group", 0, || self.inner_experts().group(choices, experts))
    }

    fn permute(&self, x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        self.meter
            .whole("permute", || self.inner_experts().permute(x, grouping))
    }

    fn grouped_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        grouping: &Grouping,
        weights: &GroupedWeights,
        activation: Activation,
    ) -> DispatchTensor {
        // Each row is multiplied by the matrix of one expert.
        let of_expert: usize = shape(&weights.weight)[1..].iter().product();
        let product = 2 * (shape(x)[0] * of_expert) as u64;
        let wanted = |tensor: &DispatchTensor| u64::from(is_tracked(tensor));
        let flops = (product, product * (wanted(x) + wanted(&weights.weight)));
        self.meter.stored(GROUPED_LINEAR, flops, stash, |stash| {
            self.inner_experts()
                .grouped_linear(stash, x, grouping, weights, activation)
        })
    }

    fn combine(&self, y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        self.meter
            .whole("combine", || self.inner_experts().combine(y, weights, grouping))
    }
}

impl Kernels for MeteredKernels {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn activations(&self) -> DType {
        self.inner.activations()
    }

    fn is_row_independent(&self) -> bool {
        self.inner.is_row_independent()
    }

    fn lanes(&self) -> &dyn LaneKernels {
        self.inner.lanes()
    }

    fn experts(&self) -> Option<&dyn ExpertKernels> {
        self.inner.experts().map(|_| self as &dyn ExpertKernels)
    }

    fn layer_norm(
        &self,
        x: &DispatchTensor,
        weight: &DispatchTensor,
        bias: &DispatchTensor,
        epsilon: f32,
    ) -> DispatchTensor {
        self.meter
            .whole("layer_norm", || self.inner.layer_norm(x, weight, bias, epsilon))
    }

    fn linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        self.meter
            .stored(LINEAR, linear_flops(x, weights), stash, |stash| {
                self.inner.linear(stash, x, weights, activation)
            })
    }

    fn activation(&self, x: &DispatchTensor, activation: Activation) -> DispatchTensor {
        self.meter
            .whole("activation", || self.inner.activation(x, activation))
    }

    fn modulated_layer_norm(
        &self,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        shift: usize,
        scale: usize,
        epsilon: f32,
    ) -> DispatchTensor {
        self.meter.whole("modulated_layer_norm", || {
            self.inner
                .modulated_layer_norm(x, modulation, shift, scale, epsilon)
        })
    }

    fn gated_residual(
        &self,
        residual: &DispatchTensor,
        branch: &DispatchTensor,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        self.meter.whole("gated_residual", || {
            self.inner.gated_residual(residual, branch, modulation, gate)
        })
    }

    fn fused(&self, on_fused: OnFused) -> Option<Arc<dyn Kernels>> {
        let inner = self.inner.fused(on_fused)?;
        Some(Arc::new(Self {
            inner,
            is_fused: true,
            meter: self.meter.clone(),
        }))
    }

    fn recorder(&self) -> Option<Arc<dyn flow_core::Recorder>> {
        self.inner.recorder()
    }

    fn linear_gated_residual(
        &self,
        stash: &dyn Stash,
        residual: &DispatchTensor,
        x: &DispatchTensor,
        weights: &LinearWeights,
        modulation: &DispatchTensor,
        gate: usize,
    ) -> DispatchTensor {
        if !self.is_fused {
            return composed::linear_gated_residual(self, stash, residual, x, weights, modulation, gate);
        }
        self.meter.whole("linear_gated_residual", || {
            self.inner
                .linear_gated_residual(stash, residual, x, weights, modulation, gate)
        })
    }

    fn modulated_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &LinearWeights,
        activation: Activation,
    ) -> DispatchTensor {
        if !self.is_fused {
            return composed::modulated_linear(self, stash, x, modulation, norm, weights, activation);
        }
        self.meter.whole("modulated_linear", || {
            self.inner
                .modulated_linear(stash, x, modulation, norm, weights, activation)
        })
    }

    fn modulated_linears(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &[LinearWeights],
    ) -> Vec<DispatchTensor> {
        if !self.is_fused {
            return composed::modulated_linears(self, stash, x, modulation, norm, weights);
        }
        self.meter.all("modulated_linears", || {
            self.inner.modulated_linears(stash, x, modulation, norm, weights)
        })
    }

    fn modulated_feed_forward(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        modulation: &DispatchTensor,
        norm: NormChunks,
        weights: &FeedForwardWeights,
        gate: usize,
    ) -> DispatchTensor {
        if !self.is_fused {
            return composed::modulated_feed_forward(self, stash, x, modulation, norm, weights, gate);
        }
        self.meter.whole("modulated_feed_forward", || {
            self.inner
                .modulated_feed_forward(stash, x, modulation, norm, weights, gate)
        })
    }

    fn rms_norm(&self, x: &DispatchTensor, weight: Option<&DispatchTensor>, epsilon: f32) -> DispatchTensor {
        self.meter
            .whole("rms_norm", || self.inner.rms_norm(x, weight, epsilon))
    }

    fn rotary(&self, x: &DispatchTensor, cos: &Plain, sin: &Plain) -> DispatchTensor {
        self.meter.whole("rotary", || self.inner.rotary(x, cos, sin))
    }

    fn rms_norm_rotary(
        &self,
        x: &DispatchTensor,
        weight: Option<&DispatchTensor>,
        epsilon: f32,
        tables: [&Plain; 2],
    ) -> DispatchTensor {
        if !self.is_fused {
            return composed::rms_norm_rotary(self, x, weight, epsilon, tables);
        }
        self.meter.whole("rms_norm_rotary", || {
            self.inner.rms_norm_rotary(x, weight, epsilon, tables)
        })
    }

    fn embedding(&self, table: &DispatchTensor, index: &Plain) -> DispatchTensor {
        self.meter
            .whole("embedding", || self.inner.embedding(table, index))
    }

    fn sde_step(&self, x: &Plain, v: &Plain, noise: &Plain, coefficients: &Plain) -> SdeOutputs {
        self.inner.sde_step(x, v, noise, coefficients)
    }

    fn sde_log_prob(
        &self,
        x: &Plain,
        v: &DispatchTensor,
        x_next: &Plain,
        coefficients: &Plain,
    ) -> (DispatchTensor, DispatchTensor) {
        self.inner.sde_log_prob(x, v, x_next, coefficients)
    }

    fn mean_squared_distance(&self, a: &DispatchTensor, b: &Plain) -> DispatchTensor {
        self.inner.mean_squared_distance(a, b)
    }

    fn sums_of_squares(&self, tensors: &[&Plain]) -> Vec<f64> {
        self.inner.sums_of_squares(tensors)
    }

    fn step_values(
        &self,
        gradients: &[&Plain],
        factors: &flow_core::StepFactors,
        device: &flow_core::device::ComputeDevice,
    ) -> flow_core::StepValues {
        self.inner.step_values(gradients, factors, device)
    }

    fn accumulate(&self, accumulated: &mut Plain, gradient: &Plain) {
        self.inner.accumulate(accumulated, gradient);
    }

    fn adamw_all(&self, weights: Vec<Updated<'_>>, step: &AdamWStep) {
        self.inner.adamw_all(weights, step);
    }

    fn split(&self, value: &Plain) -> flow_core::Halves {
        self.inner.split(value)
    }

    fn join(&self, halves: &[flow_core::Halves]) -> Vec<Plain> {
        self.inner.join(halves)
    }

    fn average_all(&self, averages: Vec<(&mut Plain, &Plain)>, decay: &Plain) {
        self.inner.average_all(averages, decay);
    }
}
