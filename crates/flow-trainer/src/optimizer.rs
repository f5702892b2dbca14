//! AdamW over a flat list of weights, with f32 or bf16 moments and clipping by the global norm in a fixed order.

mod accumulated;
mod block_sums;
mod scatter;

pub use accumulated::Accumulated;
pub(crate) use block_sums::{BlockSums, LossTermLanes};

use crate::shards::Shards;
use accumulated::Summed;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, FloatDType};
pub use flow_config::{ConstantRate, FallingRate, MomentStorage, RateSchedule};
use flow_core::device::ComputeDevice;
use flow_core::tensors::cast;
use flow_core::{
    AdamWFactors, AdamWParam, AdamWScalars, AdamWStep, Kernels, MasterWeight, ParamLayout, ParamSpec,
    RawTensor, Rounding, Squares, Weights, cpu,
};
use flow_exchange::{Exchange, Lost};

/// The share of the learning rate that `schedule` leaves at `step`, of which `first` is the first after the warm-up. Steps count from 1.
fn share_at(schedule: &RateSchedule, step: u64, first: u64) -> f64 {
    let progress = |steps: usize| {
        // The step after the last one is at the end, so that none of those that the schedule has is without a rate.
        let (done, all) = (
            step.saturating_sub(first),
            (steps as u64 + 1).saturating_sub(first).max(1),
        );
        (done as f64 / all as f64).min(1.0)
    };
    match schedule {
        RateSchedule::Constant(_) => 1.0,
        RateSchedule::Linear(falling) => 1.0 - (1.0 - falling.to) * progress(falling.steps),
        RateSchedule::Cosine(falling) => {
            let wave = libm::cos(std::f64::consts::PI * progress(falling.steps));
            falling.to + (1.0 - falling.to) * 0.5 * (1.0 + wave)
        }
    }
}

/// AdamW's settings (Loshchilov and Hutter 2019, arXiv:1711.05101).
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWSettings {
    /// Learning rate after the warm-up.
    pub learning_rate: f64,
    /// Decays of the moments.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled decay of matrices.
    pub weight_decay: f64,
    /// Bound on the global gradient norm; 0 for none.
    pub max_grad_norm: f64,
    /// Steps in which the learning rate rises linearly.
    pub warmup_steps: u64,
    /// How it goes on then.
    pub schedule: RateSchedule,
    /// How the moments are stored: those in bf16 are rounded after each step, which itself is f32.
    pub moments: MomentStorage,
    /// Seed of random rounding, for weights that are stored in bf16.
    pub seed: u64,
}

/// The first and second moments of one weight.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Mean of the gradient.
    pub first: RawTensor,
    /// Mean of its square.
    pub second: RawTensor,
}

/// AdamW with its state.
#[derive(Clone, Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    trained: Vec<bool>,
    /// Which rank has which moments; none if this process has all.
    shards: Option<Shards>,
    moments: Vec<Option<Moments>>,
    steps: u64,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Factor that clipping applied, 1 for none.
    pub clip_factor: f64,
    /// Learning rate used.
    pub learning_rate: f64,
}

/// A gradient that is infinite or not a number.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the gradient of `{weight}` ({values} values) is not finite; the weights were left as they were. \
     Lower `optimizer.learning_rate`, or check the rewards and the advantages in metrics.jsonl"
)]
pub struct NonFiniteGradient {
    /// The first weight concerned.
    pub weight: String,
    /// Its size.
    pub values: usize,
}

/// `moment` as it is stored. Values that were stored like this before stay what they are.
fn stored(moment: RawTensor, storage: MomentStorage) -> RawTensor {
    match storage {
        MomentStorage::F32 => moment,
        MomentStorage::Bf16 => cast(&moment, FloatDType::BF16),
    }
}

impl AdamW {
    /// Fresh state for the weights marked in `trained`.
    pub fn new(
        settings: AdamWSettings,
        layout: &ParamLayout,
        trained: Vec<bool>,
        device: &ComputeDevice,
    ) -> Self {
        Self::sharded(settings, layout, trained, None, device)
    }

    /// As [`new`](Self::new), with the moments of this rank's weights and parts of weights alone, if `shards` says which these are: a step
    /// changes nothing else.
    pub fn sharded(
        settings: AdamWSettings,
        layout: &ParamLayout,
        trained: Vec<bool>,
        shards: Option<Shards>,
        device: &ComputeDevice,
    ) -> Self {
        let zeros = |shape: &[usize]| stored(device.zeros(shape), settings.moments);
        let shape_here = |(index, spec): (usize, &ParamSpec)| match &shards {
            _ if !trained[index] => None,
            Some(shards) => shards.shape_of_moments(index, &spec.shape),
            None => Some(spec.shape.clone()),
        };
        let shapes = layout.specs().iter().enumerate().map(shape_here);
        let moments = shapes.map(|shape| {
            shape.map(|shape| Moments {
                first: zeros(&shape),
                second: zeros(&shape),
            })
        });
        let moments = device.with_persistent_allocation(|| moments.collect());
        Self {
            settings,
            trained,
            shards,
            moments,
            steps: 0,
        }
    }

    /// The settings.
    pub fn settings(&self) -> &AdamWSettings {
        &self.settings
    }

    /// Which weights are trained.
    pub fn trained(&self) -> &[bool] {
        &self.trained
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Which rank has which moments; none if this process has all.
    pub fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }

    /// The moments, by weight; absent for frozen weights, and for those of other ranks. Those of a part of a weight are one row.
    pub fn moments(&self) -> &[Option<Moments>] {
        &self.moments
    }

    /// Puts back a state saved earlier.
    ///
    /// # Panics
    /// If it was saved for other weights; the checkpoint's layout is checked before.
    pub fn restore(&mut self, steps: u64, moments: Vec<Option<Moments>>) {
        assert_eq!(moments.len(), self.moments.len(), "one entry per weight");
        self.steps = steps;
        let storage = self.settings.moments;
        let stored = |of: Moments| Moments {
            first: stored(of.first, storage),
            second: stored(of.second, storage),
        };
        self.moments = moments.into_iter().map(|of| of.map(stored)).collect();
    }

    /// Changes the bound on the gradient norm and the learning rate (a resumed run may set other values).
    pub fn set_settings(&mut self, settings: AdamWSettings) {
        self.settings = settings;
    }

    /// One step with the mean of the accumulated gradients, of the weights that have [moments](Self::moments) here. Those of other ranks
    /// stay as they are.
    ///
    /// # Errors
    /// [`NonFiniteGradient`]; nothing has changed then.
    pub fn step(
        &mut self,
        kernels: &dyn Kernels,
        device: &ComputeDevice,
        weights: &mut Weights,
        gradients: Accumulated,
    ) -> Result<StepReport, NonFiniteGradient> {
        let loss_terms = gradients.loss_terms();
        let summed = gradients.total(kernels);
        let sums = &summed.sums;
        let layout = weights.layout().clone();
        self.steps += 1;
        let (beta1, beta2) = self.settings.betas;
        let exponent = self.steps as f64;
        let factors = AdamWFactors {
            learning_rate: self.learning_rate_at(self.steps),
            corrections: [1.0 - beta1.powf(exponent), 1.0 - beta2.powf(exponent)],
            max_norm: self.settings.max_grad_norm,
            units: loss_terms,
        };
        let AdamWScalars { scalars, norm } = scalars_of(kernels, &summed, &factors, device);
        let step = |weight_decay: f64| AdamWStep {
            betas: (beta1 as f32, beta2 as f32),
            epsilon: self.settings.epsilon as f32,
            weight_decay: weight_decay as f32,
            scalars: scalars.clone(),
            rounding: Rounding {
                seed: self.settings.seed,
                step: self.steps as u32 & 0xFF_FFFF,
            },
        };
        let (decaying, steady) = (step(self.settings.weight_decay), step(0.0));
        let (mut update, shards) = (weights.update(), self.shards.as_ref());
        let (mut decayed, mut others) = (Vec::new(), Vec::new());
        let state = self.moments.iter_mut().zip(sums).zip(layout.specs());
        for ((changing, stream), ((moments, gradient), spec)) in update.each().zip(0..).zip(state) {
            let (Some(Moments { first, second }), Some(gradient)) = (moments, gradient) else {
                continue;
            };
            let narrow = changing.value.dtype() == DType::BF16;
            let of = AdamWParam {
                weight: changing.value,
                master: match (changing.lower, changing.copy) {
                    (Some(lower), _) => MasterWeight::SplitF32(lower),
                    (None, Some(copy)) => MasterWeight::F32WithCopy(copy),
                    (None, None) if narrow => {
                        let part = shards.and_then(|shards| shards.own_part(stream as usize));
                        let first = part.map_or(0, |part| part.start);
                        MasterWeight::StochasticRounding { stream, first }
                    }
                    (None, None) => MasterWeight::F32,
                },
                gradient,
                first,
                second,
            };
            if spec.decays { &mut decayed } else { &mut others }.push(of);
        }
        // What something else still holds is written to a new place, which lasts as well.
        device.with_persistent_allocation(|| {
            kernels.ops().optimizer.adamw_all(decayed, &decaying);
            kernels.ops().optimizer.adamw_all(others, &steady);
        });
        // Read after all is launched: the device need not wait for the host.
        let gradient_norm = norm.unwrap_or_else(|| f64::from(cpu::to_host(&scalars)[4]));
        if !gradient_norm.is_finite() {
            self.steps -= 1;
            return Err(worst_gradient(kernels, &summed, &layout));
        }
        Ok(StepReport {
            gradient_norm,
            clip_factor: factors.clip(gradient_norm),
            learning_rate: factors.learning_rate,
        })
    }

    /// Gives all ranks the weights that each has stepped, where the state is shared out over them. `stepped` says which weights had a gradient
    /// on some rank.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(crate) fn share(
        &self,
        exchange: &dyn Exchange,
        weights: &mut Weights,
        stepped: &[bool],
        on: (&dyn Kernels, &ComputeDevice),
    ) -> Result<(), Lost> {
        match &self.shards {
            Some(shards) => shards.share(exchange, weights, stepped, on),
            None => Ok(()),
        }
    }

    /// Learning rate of step `step`, counted from 1.
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        let rise = self.settings.warmup_steps;
        let share = if rise == 0 {
            1.0
        } else {
            (step as f64 / rise as f64).min(1.0)
        };
        self.settings.learning_rate * share * share_at(&self.settings.schedule, step, rise.max(1))
    }
}

/// The factors of a step with these sums of gradients. Their bits do not depend on whether some are in parts.
fn scalars_of(
    kernels: &dyn Kernels,
    summed: &Summed,
    factors: &AdamWFactors,
    device: &ComputeDevice,
) -> AdamWScalars {
    let ops = kernels.ops().optimizer;
    if summed.squares.is_empty() {
        let present: Vec<&RawTensor> = summed.sums.iter().flatten().collect();
        return ops.adamw_scalars(&present, factors, device);
    }
    let all: Vec<Squares> = summed.squares(kernels).map(|(_, squares)| squares).collect();
    ops.adamw_scalars_of(&all, factors, device)
}

/// The weight whose gradient is not finite, the first of several. All may be finite, and their sum too large for f32: the largest then.
fn worst_gradient(kernels: &dyn Kernels, summed: &Summed, layout: &ParamLayout) -> NonFiniteGradient {
    let size = |squares: f64| {
        if squares.is_finite() {
            squares
        } else {
            f64::INFINITY
        }
    };
    let totals = summed
        .squares(kernels)
        .map(|(index, squares)| (index, size(squares.total())));
    let worst = totals.reduce(|worst, next| if next.1 > worst.1 { next } else { worst });
    let (index, _) = worst.expect("a norm that is not finite is of some gradient");
    let spec = &layout.specs()[index];
    NonFiniteGradient {
        weight: spec.name.clone(),
        values: spec.shape.iter().product(),
    }
}
