//! The operations of an optimizer, and what a step of AdamW is told.

use crate::device::{ComputeDevice, cpu};
use crate::tensors::RawTensor;
use std::fmt::Debug;

/// Constants and values of one AdamW step (Loshchilov and Hutter 2019, arXiv:1711.05101).
#[derive(Clone, Debug)]
pub struct AdamWStep {
    /// Decay of the first and of the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
    /// What changes from step to step, on the device: `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale]`, and maybe
    /// more that a step does not read. A scale below 0 stands for gradients that are not finite: the step changes nothing.
    pub scalars: RawTensor,
    /// What random rounding draws from.
    pub rounding: Rounding,
}

/// Where random rounding takes its numbers: value `i` of a weight takes the upper 16 bits of the `i`th number of
/// [`Stream::new(seed, Purpose::Rounding)`](crate::rng::Stream) at that weight's stream and this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The seed.
    pub seed: u64,
    /// The step, below 2^24.
    pub step: u32,
}

/// The form in which the f32 weight of a step is stored.
#[derive(Debug)]
pub enum MasterWeight<'a> {
    /// The weight is f32.
    F32,
    /// The weight is f32; this copy becomes the weight in the type that it has: what models on 16-bit devices compute with.
    F32WithCopy(&'a mut RawTensor),
    /// The lower half of an f32 whose upper half is the weight ([`SplitF32`](crate::split_f32::SplitF32)); changed.
    SplitF32(&'a mut RawTensor),
    /// The weight is bf16, and its step is rounded at random.
    StochasticRounding {
        /// By the numbers of this stream.
        stream: u32,
        /// Which of these the first value takes: 0, or where a part of a weight begins in it, a multiple of four.
        first: usize,
    },
}

/// A weight, and what its step of AdamW reads and writes.
#[derive(Debug)]
pub struct AdamWParam<'a> {
    /// Changed.
    pub weight: &'a mut RawTensor,
    /// Its form.
    pub master: MasterWeight<'a>,
    /// Sum of gradients.
    pub gradient: &'a RawTensor,
    /// First moment; changed.
    pub first: &'a mut RawTensor,
    /// Second moment; changed.
    pub second: &'a mut RawTensor,
}

/// What the factors of an optimizer step follow from, beside its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWFactors {
    /// Learning rate.
    pub learning_rate: f64,
    /// `1 - beta1^t` and `1 - beta2^t`.
    pub corrections: [f64; 2],
    /// Bound on the norm of the mean gradient, 0 for none.
    pub max_norm: f64,
    /// How many gradients were added up to the sums that the step gets.
    pub units: usize,
}

impl AdamWFactors {
    /// Added to a norm before something is divided by it (`torch.nn.utils.clip_grad_norm_`).
    pub const SMALL: f64 = 1e-6;

    /// Factor by which a mean gradient of norm `norm` is clipped.
    pub fn clip(&self, norm: f64) -> f64 {
        if self.max_norm > 0.0 {
            (self.max_norm / (norm + Self::SMALL)).min(1.0)
        } else {
            1.0
        }
    }

    /// The factors themselves, if the squares of all sums of gradients add up to `squares`.
    pub fn values(&self, squares: f64, device: &ComputeDevice) -> AdamWScalars {
        let units = self.units.max(1) as f64;
        let norm = squares.sqrt() / units;
        let scale = if norm.is_finite() {
            self.clip(norm) / units
        } else {
            -1.0
        };
        let [correction1, correction2] = self.corrections;
        let scalars = [self.learning_rate, correction1, correction2, scale, norm];
        AdamWScalars {
            scalars: device.plain(scalars.map(|value| value as f32).to_vec(), &[scalars.len()]),
            norm: Some(norm),
        }
    }
}

/// The factors of an optimizer step.
#[derive(Clone, Debug)]
pub struct AdamWScalars {
    /// `[learning rate, 1 - beta1^t, 1 - beta2^t, gradient scale, norm]` for [`AdamWStep::scalars`].
    pub scalars: RawTensor,
    /// Norm of the mean gradient before clipping, if the host knows it already.
    pub norm: Option<f64>,
}

/// The squares of one tensor's values, as far as kernels add them up before they add those of several tensors: sums over pieces of it
/// ([`OptimizerOps::squares_piece`]), in order.
#[derive(Clone, Debug)]
pub enum Squares {
    /// `[pieces]` on the host.
    Host(Vec<f64>),
    /// `[pieces]` in f32, on the device.
    Device(Box<RawTensor>),
}

impl Squares {
    /// Their sum: the pieces in order in f64. Waits for a device.
    pub fn total(&self) -> f64 {
        match self {
            Self::Host(pieces) => pieces.iter().sum(),
            Self::Device(pieces) => cpu::to_host(pieces).into_iter().map(f64::from).sum(),
        }
    }
}

/// The operations of an optimizer. None of them has a gradient.
pub trait OptimizerOps: Debug + Send + Sync {
    /// Sum of squares of the values of each tensor, in a fixed order: in f64, or in f32 for a few thousand of them and then
    /// in f64. Asked for all at once, since a device has to be waited for.
    fn sums_of_squares(&self, tensors: &[&RawTensor]) -> Vec<f64>;

    /// The factors of a step with these sums of gradients. A device computes them itself, so that nobody waits for it
    /// between the gradients and the step.
    fn adamw_scalars(
        &self,
        gradients: &[&RawTensor],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars;

    /// Values of a piece of a tensor, over which [`squares`](Self::squares) are summed; the last piece of a tensor may have fewer.
    fn squares_piece(&self) -> usize;

    /// The squares of one sum of gradients, of `length` values, for [`adamw_scalars_of`](Self::adamw_scalars_of); or of whole pieces of it, one
    /// behind the other: so a norm can be formed of tensors that are not all there at one time, nor whole in one place. What is
    /// summed of a piece has the same bits whichever other pieces are given.
    fn squares(&self, gradient: &RawTensor, length: usize) -> Squares;

    /// As [`adamw_scalars`](Self::adamw_scalars), bit by bit, of the squares of all sums of gradients in order.
    fn adamw_scalars_of(
        &self,
        squares: &[Squares],
        factors: &AdamWFactors,
        device: &ComputeDevice,
    ) -> AdamWScalars;

    /// `accumulated += gradient`, of one shape.
    fn accumulate(&self, accumulated: &mut RawTensor, gradient: &RawTensor);

    /// One AdamW step, computed in f32, on each of `weights`. A weight's result does not depend on what else is given: devices take
    /// many in one launch.
    fn adamw_all(&self, weights: Vec<AdamWParam<'_>>, step: &AdamWStep);

    /// `average = decay · average + (1 - decay) · value` of each pair; `decay [1]` on the device.
    fn average_all(&self, averages: Vec<(&mut RawTensor, &RawTensor)>, decay: &RawTensor);
}

impl<'a> dyn OptimizerOps + 'a {
    /// One AdamW step of one weight. See `adamw_all`.
    pub fn adamw(&self, weight: AdamWParam<'_>, step: &AdamWStep) {
        self.adamw_all(vec![weight], step);
    }

    /// One moving average. See `average_all`.
    pub fn average(&self, average: &mut RawTensor, value: &RawTensor, decay: &RawTensor) {
        self.average_all(vec![(average, value)], decay);
    }
}
