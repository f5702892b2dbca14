//! TDM, trajectory distribution matching (arXiv 2503.06674): distribution matching at every step of a few-step student.
//!
//! Formulas as in Flow-Factory's `tdm` trainer. A step goes from `cur` to `mid`; `s` is drawn for each row above `mid`, `xi` is noise:
//!
//! ```text
//! x0 = x - cur v(x)     eh = x0 + v(x)                 the image and the noise that the student points at; x as stored
//! rho = (1 - s) / (1 - mid)    c = rho mid    b = sqrt(s² - c²)
//! e   = (c eh + b xi) / s      x_s = (1 - s) x0 + s e  the point at `mid`, made as noisy as `s`
//! w   = exp(clamp((mean(xi²) - mean(e²)) / 2, ± ln clip))
//! fake score   L = mean(mean((x_s - s v_fake - x0)²) w min((1 - s)² / s², snr clip))
//! student      d = x0 - sg(x0 + real - fake)           real = x_s - s v_teacher, fake likewise
//!              L = mean(mean(sqrt(d² + h²) - h) / n)   n = max(mean|x0 - real|, 1e-6); or d² / 2 in the place of the root
//! ```
//!
//! Legend: `B` rows, `N` values of one latent.

mod settings;

pub use settings::{QueryDistribution, QueryInterval, TdmDistance, TdmSettings};
pub(super) use settings::{check, check_steps};

use super::dmd2::{later_draws, recorded};
use super::fake::{RUN_FACTS, Scores, column, copies, size, velocity_at_rows};
use super::forward::{detached, distance};
use super::grpo::velocity_at;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, NetworkPlan, NetworkRole,
    PointLoss, ReferenceWeights, mean_over_rows,
};
use crate::scheduler::{Schedule, SigmaShift, StepCoefficients};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "tdm";

/// Least square of a noise level that the ratio of signal to noise is divided by (Flow-Factory's constant).
const LEAST_SQUARE: f64 = 1e-6;

/// TDM.
#[derive(Clone, Debug)]
pub struct Tdm {
    settings: TdmSettings,
    /// Seed of the run, for noise levels.
    seed: u64,
    /// Shift of the sampler, as a factor.
    shift: f64,
}

/// How a row's point at `mid` is made as noisy as `s`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Renoising {
    s: f64,
    /// Share of the noise that the student points at.
    kept: f64,
    /// Share of fresh noise.
    fresh: f64,
}

impl Renoising {
    fn new(mid: f64, s: f64) -> Self {
        let kept = (1.0 - s) / (1.0 - mid) * mid;
        Self {
            s,
            kept,
            fresh: (s * s - kept * kept).max(0.0).sqrt(),
        }
    }
}

/// Points around what the student points at, without a graph.
pub(super) struct Query {
    pub sigmas: Vec<f64>,
    /// The points, `[B, N]`.
    pub x_bn: Tensor<2>,
    /// Their noise, `[B, N]`, of which `fresh_bn` is a part.
    noise_bn: Tensor<2>,
    fresh_bn: Tensor<2>,
}

/// What the student points at in a step, and what others make of points around it.
pub(super) struct Matched {
    /// The image that it points at, `[B, N]`.
    image_bn: Tensor<2>,
    /// The same without a graph.
    pub plain_bn: Tensor<2>,
    pub query: Query,
    pub scores: Scores,
}

impl Tdm {
    /// The algorithm with these settings, in a run of this seed whose sampler has this shift.
    pub fn new(settings: TdmSettings, seed: u64, shift: f64) -> Self {
        Self {
            settings,
            seed,
            shift,
        }
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &TdmSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: 1,
            copies: copies(settings.reference),
        };
        let factory = AlgorithmFactory::new::<TdmSettings>(
            NAME,
            "TDM (arXiv 2503.06674): matches its frozen self at every step of a few-step rollout, by a fake score. Distillation.",
            facts,
            |context, settings| {
                let shift = SigmaShift::from_config(&context.config.scheduler.shift, context.tokens);
                let tdm = Self::new(settings, context.config.run.seed, shift.factor()?);
                Ok(Box::new(tdm))
            },
        );
        registry.register(
            factory
                .with_rules(check)
                .with_step_rule(check_steps)
                .with_distillation(|_: &TdmSettings| RUN_FACTS),
        )
    }

    /// A noise level for each row, above that at which the step arrives.
    pub(super) fn levels(
        &self,
        context: &LossContext<'_, '_>,
        (step, draw): (&StepCoefficients, u32),
    ) -> Vec<f64> {
        let upper = match self.settings.query_interval {
            QueryInterval::Trajectory => step.sigma,
            QueryInterval::Reverse => self.settings.query_max_sigma,
        };
        let (ends, stream) = (
            (step.sigma_next, upper),
            Stream::new(self.seed, Purpose::Timesteps),
        );
        let of_row = |sample: &u64| {
            let share = stream.at(*sample, draw).uniform();
            let logit = [self.settings.query_logit_mean, self.settings.query_logit_std];
            (self.settings.query_distribution).level(ends, self.shift, logit, share)
        };
        context.batch.samples.iter().map(of_row).collect()
    }

    /// What the student points at in the recorded step of a position, and what the teacher and the fake score make of points around it.
    pub(super) fn matched(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Matched {
        let (record, draw) = recorded(context, position);
        let ours = (context.policy, &context.batch.conditions);
        let velocity_bn = velocity_at(context, record, ours, |call| context.pass.exec(call));
        let x_bn = Tensor::<2>::from_dispatch(record.x.clone());
        let image_bn = velocity_bn.clone() * -record.step.sigma as f32 + x_bn;
        let plain_bn = detached(&image_bn);
        let far_bn = plain_bn.clone() + detached(&velocity_bn);
        let query = self.query(context, (&record.step, draw), &plain_bn, &far_bn);
        let guidance = self.settings.real_guidance_scale;
        let scores = Scores::at(context, &query.x_bn, &query.sigmas, guidance);
        Matched {
            image_bn,
            plain_bn,
            query,
            scores,
        }
    }

    /// How far the student's image is from itself moved by `correction_bn`, over its size: its mean difference from `other_bn`. Gives the
    /// mean over rows, `[1]`, and the size of each, `[B]`.
    pub(super) fn pull(
        &self,
        context: &LossContext<'_, '_>,
        matched: &Matched,
        correction_bn: Tensor<2>,
        other_bn: &Tensor<2>,
    ) -> (Tensor<1>, Tensor<1>) {
        let size_b: Tensor<1> = size(&matched.plain_bn, other_bn).squeeze_dim(1);
        let target_bn = matched.plain_bn.clone() + correction_bn;
        let image_bn = matched.image_bn.clone();
        let distance_b: Tensor<1> = match self.settings.distance {
            TdmDistance::Square => distance(context, image_bn, target_bn) * 0.5,
            TdmDistance::Huber => {
                let threshold = self.settings.huber_threshold as f32;
                let difference_bn = image_bn - target_bn;
                let square_bn = difference_bn.clone() * difference_bn;
                // sqrt(d² + h²) - h = d² / (sqrt(d² + h²) + h), which is 0 where `d` is, and loses no digits.
                let root_bn = (square_bn.clone() + threshold * threshold).sqrt();
                (square_bn / (root_bn + threshold)).mean_dim(1).squeeze_dim(1)
            }
        };
        (mean_over_rows(distance_b / size_b.clone()), size_b)
    }

    /// Points around `image_bn`, the end of a step without noise, whose other end is `far_bn`.
    fn query(
        &self,
        context: &LossContext<'_, '_>,
        (step, draw): (&StepCoefficients, u32),
        image_bn: &Tensor<2>,
        far_bn: &Tensor<2>,
    ) -> Query {
        let levels = self.levels(context, (step, draw)).into_iter();
        let rows: Vec<Renoising> = levels
            .map(|level| Renoising::new(step.sigma_next, level))
            .collect();
        let numbers = |of: fn(&Renoising) -> f64| column(context, &rows.iter().map(of).collect::<Vec<f64>>());
        let noise = context
            .noise
            .clone()
            .expect("the loop draws the noise of a position");
        let fresh_bn = Tensor::<2>::from_dispatch(noise);
        let (kept_b1, share_b1) = (numbers(|row| row.kept / row.s), numbers(|row| row.fresh / row.s));
        let noise_bn = far_bn.clone() * kept_b1 + fresh_bn.clone() * share_b1;
        let (clean_b1, sigma_b1) = (numbers(|row| 1.0 - row.s), numbers(|row| row.s));
        Query {
            sigmas: rows.iter().map(|row| row.s).collect(),
            x_bn: image_bn.clone() * clean_b1 + noise_bn.clone() * sigma_b1,
            noise_bn,
            fresh_bn,
        }
    }

    /// How much each row counts in the fake score's loss, `[B]`.
    fn weights(&self, context: &LossContext<'_, '_>, query: &Query) -> Tensor<1> {
        let square_b1 = |of_bn: &Tensor<2>| (of_bn.clone() * of_bn.clone()).mean_dim(1);
        let bound = self.settings.importance_clip.ln() as f32;
        let importance_b1 = (square_b1(&query.fresh_bn) - square_b1(&query.noise_bn)) * 0.5;
        let importance_b1 = importance_b1.clamp(-bound, bound).exp();
        let clip = self.settings.signal_to_noise_clip;
        let ratio = |s: &f64| ((1.0 - s).powi(2) / (s * s).max(LEAST_SQUARE)).min(clip);
        let ratios: Vec<f64> = query.sigmas.iter().map(ratio).collect();
        (importance_b1 * column(context, &ratios)).squeeze_dim(1)
    }
}

impl Algorithm for Tdm {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Distillation
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        Some(self.settings.reference)
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    /// No bound: advantages are not read.
    fn advantage_clip(&self) -> f32 {
        f32::MAX
    }

    fn keeps_step(&self, _step: &StepCoefficients) -> bool {
        true
    }

    fn guidance_scales(&self) -> Vec<f64> {
        self.settings.real_guidance_scale.into_iter().collect()
    }

    fn positions(&self, schedule: &Schedule, _seed: u64, _iteration: u64, _pass: usize) -> Vec<LossPoint> {
        let of = |index| LossPoint::Step {
            index,
            draw: index as u32,
        };
        (0..schedule.grid().steps()).map(of).collect()
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let matched = self.matched(context, position);
        let Scores { real_bn, fake_bn } = &matched.scores;
        let correction_bn = real_bn.clone() - fake_bn.clone();
        let (loss, size_b) = self.pull(context, &matched, correction_bn, real_bn);
        PointLoss {
            loss,
            replayed: None,
            terms: vec![("teacher_difference", plain(&size_b.into_dispatch()))],
        }
    }

    fn network(&self, role: NetworkRole) -> Option<NetworkPlan> {
        (role == NetworkRole::FakeScore).then(|| (&self.settings.fake_score).into())
    }

    fn network_positions(&self, _role: NetworkRole, positions: &[LossPoint], turn: usize) -> Vec<LossPoint> {
        later_draws(positions, turn)
    }

    fn network_loss(
        &self,
        _role: NetworkRole,
        context: &LossContext<'_, '_>,
        position: LossPoint,
    ) -> PointLoss {
        let (record, draw) = recorded(context, position);
        let ours = (context.policy, &context.batch.conditions);
        let velocity_bn = velocity_at(context, record, ours, |call| context.current.exec(call));
        let velocity_bn = detached(&velocity_bn);
        let x_bn = Tensor::<2>::from_dispatch(record.x.clone());
        let image_bn = velocity_bn.clone() * -record.step.sigma as f32 + x_bn;
        let far_bn = image_bn.clone() + velocity_bn;
        let query = self.query(context, (&record.step, draw), &image_bn, &far_bn);
        let (x_bn, sigmas) = (query.x_bn.clone(), &query.sigmas);
        let fake_bn = velocity_at_rows(context, x_bn.clone(), sigmas, 1.0, |call| context.pass.exec(call));
        let found_bn = (fake_bn * column(context, sigmas)).neg() + x_bn;
        let loss_b = distance(context, found_bn, image_bn) * self.weights(context, &query);
        PointLoss {
            loss: mean_over_rows(loss_b),
            replayed: None,
            terms: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_renoised_as_computed_by_hand_and_keeps_its_variance() {
        let Renoising { s, kept, fresh } = Renoising::new(0.5, 0.6);
        assert!((kept - 0.4).abs() < 1e-12 && (fresh - 0.447_213_595_5).abs() < 1e-9);
        assert!((kept * kept + fresh * fresh - s * s).abs() < 1e-12);
        // An image of 0.7, the other end 1.1, noise -0.5: by the noise that is mixed, and by the point at 0.5.
        let mixed = (kept * 1.1 + fresh * -0.5) / s;
        let by_noise = (1.0 - s) * 0.7 + s * mixed;
        let by_point = 0.8 * (0.5 * 0.7 + 0.5 * 1.1) + fresh * -0.5;
        assert!((mixed - 0.360_655_337_1).abs() < 1e-9);
        assert!((by_noise - 0.496_393_202_3).abs() < 1e-9 && (by_point - by_noise).abs() < 1e-12);
        // The last step ends without noise: nothing is kept.
        assert_eq!(Renoising::new(0.0, 0.3).kept, 0.0);
    }
}
