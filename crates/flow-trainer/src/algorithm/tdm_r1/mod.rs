//! TDM-R1 (arXiv 2603.07700): TDM whose student also follows rewards, by a network that stands for them.
//!
//! Formulas as in Flow-Factory's `tdm_r1` trainer. The surrogate learns from rewards what to make of noisy points, and the student follows
//! it, as it follows the frozen teacher by distribution matching; `x0`, `x_s`, `real` and `fake` are those of [`Tdm`](super::Tdm). `K`
//! images are in a group, step `k` of `T` arrives at `x_mid`:
//!
//! ```text
//! surrogate  x = (1 - s) x_mid + s e      q = mean((v - (e - x_mid))²) of the surrogate, q_ref of the teacher, q_slow of its slower copy
//!            w = sigmoid(sum over the group of A preference_beta (sg q - q_ref) / K)
//!            L = k / T (mean(w A q) + reference_beta mean((q - q_ref)²))
//!            the first `q` has no gradient beyond bounds: exp(q_slow - q) against 1 ± clip_range, (q - q_ref)² against reference_threshold
//! student    L = TDM's + tdm_weight L(corr_cfg, real) + (1 - tdm_weight) L(corr_sur, sur)
//!            L(corr, other) = mean(mean((x0 - sg(x0 + corr))²) / 2 / n)          n = max(mean|x0 - other|, 1e-6)
//!            corr_cfg = cfg_reward_scale / (g - 1) (real - real without guidance)     where the teacher's guidance g is above 1
//!            corr_sur = sur - real                                                 sur = x_s - s v_surrogate under g
//! ```
//!
//! Legend: `B` rows, `N` values of one latent.

mod settings;
mod surrogate;

pub use settings::{SurrogateConfig, TdmR1FakeScoreConfig, TdmR1Settings};

use super::dmd2::later_draws;
use super::fake::{RUN_FACTS, copies, image_at_rows};
use super::tdm::Matched;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, NetworkPlan, NetworkRole,
    PointLoss, ReferenceWeights, StepRows, Tdm,
};
use crate::scheduler::{Schedule, SigmaShift, StepCoefficients};
use burn::tensor::Tensor;
use flow_accel::Paradigm;
use flow_config::{AlgorithmFacts, DistillationFacts};
use flow_core::RawTensor;
use flow_core::tensors::plain;
use flow_registry::NameTaken;

const NAME: &str = "tdm-r1";

/// What a run has to hold: all steps of a rollout, the fake score and the surrogate.
const FACTS: DistillationFacts = DistillationFacts {
    networks: 2,
    ..RUN_FACTS
};

/// TDM-R1.
#[derive(Clone, Debug)]
pub struct TdmR1 {
    settings: TdmR1Settings,
    /// The distribution matching.
    tdm: Tdm,
}

impl TdmR1 {
    /// The algorithm with these settings, in a run of this seed whose sampler has this shift.
    pub fn new(settings: TdmR1Settings, seed: u64, shift: f64) -> Self {
        Self {
            tdm: Tdm::new(settings.tdm(), seed, shift),
            settings,
        }
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |settings: &TdmR1Settings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: 1,
            copies: copies(settings.reference) + usize::from(settings.surrogate.keeps_slow()),
        };
        let factory = AlgorithmFactory::new::<TdmR1Settings>(
            NAME,
            "TDM-R1 (arXiv 2603.07700): TDM whose student follows rewards, too, by a network that learns them. Distillation.",
            facts,
            |context, settings| {
                let shift = SigmaShift::from_config(&context.config.scheduler.shift, context.tokens);
                let algorithm = Self::new(settings, context.config.run.seed, shift.factor()?);
                Ok(Box::new(algorithm))
            },
        );
        registry.register(
            factory
                .with_rules(settings::check)
                .with_step_rule(settings::check_steps)
                .with_distillation(|_: &TdmR1Settings| FACTS),
        )
    }

    /// Guidance of the teacher, and of the surrogate where the student follows it.
    fn guidance(&self, context: &LossContext<'_, '_>) -> f32 {
        let own = self.settings.real_guidance_scale;
        own.map_or(context.policy.guidance_scale, |scale| scale as f32)
    }

    /// What guidance makes of the teacher's image, times `cfg_reward_scale`, `[B, N]`; none where the teacher has no guidance.
    fn guidance_correction(&self, context: &LossContext<'_, '_>, matched: &Matched) -> Option<Tensor<2>> {
        let (guidance, scale) = (self.guidance(context), self.settings.cfg_reward_scale);
        if guidance <= 1.0 || scale == 0.0 {
            return None;
        }
        let reference = context.reference;
        let reference = reference.expect("the loop provides the reference an algorithm asks for");
        let points = (&matched.query.x_bn, &matched.query.sigmas[..]);
        let plain_bn = image_at_rows(context, points, 1.0, |call| reference.exec(call));
        let factor = scale as f32 / (guidance - 1.0);
        Some((matched.scores.real_bn.clone() - plain_bn) * factor)
    }
}

impl Algorithm for TdmR1 {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Distillation
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        self.tdm.reference()
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    fn advantage_clip(&self) -> f32 {
        self.settings.advantage_clip as f32
    }

    fn keeps_step(&self, step: &StepCoefficients) -> bool {
        self.tdm.keeps_step(step)
    }

    fn guidance_scales(&self) -> Vec<f64> {
        self.tdm.guidance_scales()
    }

    fn positions(&self, schedule: &Schedule, seed: u64, iteration: u64, pass: usize) -> Vec<LossPoint> {
        self.tdm.positions(schedule, seed, iteration, pass)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let matched = self.tdm.matched(context, position);
        let (real_bn, fake_bn) = (&matched.scores.real_bn, &matched.scores.fake_bn);
        let correction_bn = real_bn.clone() - fake_bn.clone();
        let (mut loss, size_b) = self.tdm.pull(context, &matched, correction_bn, real_bn);
        let logged = |loss: &Tensor<1>| plain(&loss.clone().into_dispatch());
        let mut terms = vec![
            ("teacher_difference", plain(&size_b.into_dispatch())),
            ("tdm_loss", logged(&loss)),
        ];
        let weight = self.settings.tdm_weight as f32;
        if let Some(correction_bn) = self.guidance_correction(context, &matched) {
            let (guided, _) = self.tdm.pull(context, &matched, correction_bn, real_bn);
            terms.push(("guidance_reward_loss", logged(&guided)));
            loss = loss + guided * weight;
        }
        let surrogate = context.surrogate;
        let surrogate = surrogate.expect("the loop provides the networks an algorithm asks for");
        let points = (&matched.query.x_bn, &matched.query.sigmas[..]);
        let guidance = self.guidance(context);
        let rewarded_bn = image_at_rows(context, points, guidance, |call| surrogate.exec(call));
        let correction_bn = rewarded_bn.clone() - real_bn.clone();
        let (rewarded, _) = self.tdm.pull(context, &matched, correction_bn, &rewarded_bn);
        terms.push(("surrogate_reward_loss", logged(&rewarded)));
        PointLoss {
            loss: loss + rewarded * (1.0 - weight),
            replayed: None,
            terms,
        }
    }

    fn network(&self, role: NetworkRole) -> Option<NetworkPlan> {
        match role {
            NetworkRole::FakeScore => self.tdm.network(role),
            NetworkRole::Surrogate => Some(self.settings.surrogate.plan()),
        }
    }

    fn network_positions(&self, role: NetworkRole, positions: &[LossPoint], turn: usize) -> Vec<LossPoint> {
        match role {
            NetworkRole::FakeScore => self.tdm.network_positions(role, positions, turn),
            // Noise of its own, after that of the fake score's turns.
            NetworkRole::Surrogate => later_draws(positions, self.settings.fake_score.updates + turn),
        }
    }

    fn network_loss(
        &self,
        role: NetworkRole,
        context: &LossContext<'_, '_>,
        position: LossPoint,
    ) -> PointLoss {
        match role {
            NetworkRole::FakeScore => self.tdm.network_loss(role, context, position),
            NetworkRole::Surrogate => surrogate::loss(&self.settings.surrogate, &self.tdm, context, position),
        }
    }

    fn network_survives(&self, role: NetworkRole, steps: u64) -> Option<f64> {
        (role == NetworkRole::Surrogate).then(|| self.settings.surrogate.survives(steps))
    }

    fn compares_rows(&self, role: Option<NetworkRole>) -> bool {
        role == Some(NetworkRole::Surrogate)
    }

    fn row_numbers(&self, context: &LossContext<'_, '_>, position: LossPoint) -> Vec<RawTensor> {
        surrogate::errors(&self.tdm, context, position, self.guidance(context))
    }

    fn compare(&self, rows: &StepRows<'_>) -> Vec<Vec<f32>> {
        surrogate::compare(&self.settings.surrogate, rows)
    }
}
