//! `feature_cache`: parts of a rollout answered from what earlier steps computed.

mod params;
mod policies;

pub use params::{
    AutoParams, Basis, DbCacheParams, EasyCacheParams, FasterParams, FeatureCacheParams, FirstBlockParams,
    ForecastTarget, MagCacheParams, PyramidParams, StepMaskParams, TaylorSeerParams, TeaCacheParams,
    TeaCacheSignal,
};

use flow_accel::{Accelerator, AcceleratorStage, Engagement, Part, Refusal, Safety, Target};
use flow_cache::{
    Auto, GuidanceCache, LayerCache, LayerPolicy, OnCall, Rules, StackCache, StackPolicy, VelocityCache,
    VelocityPolicy,
};
use flow_core::{
    Backends, CallModel, ComputeAllLayers, LayerDriver, RegionKind, RunAllBlocks, StackDriver, VelocityDriver,
};
use policies::Built;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Puts a cache in the place of the drivers that compute everything.
#[derive(Clone, Debug)]
pub(crate) struct FeatureCache {
    params: FeatureCacheParams,
    built: Built,
    errors: Arc<Mutex<Errors>>,
}

/// Sums of errors that were predicted, as the policy would without correction, and found; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    predicted: f64,
    found: f64,
}

impl Errors {
    /// By how much errors exceed predictions, within reason.
    fn factor(&self) -> f64 {
        let factor = self.found / self.predicted;
        if factor.is_finite() {
            factor.clamp(0.1, 10.0)
        } else {
            1.0
        }
    }
}

/// Share of samples that `auto` wants to see without it.
const AUDIT_SHARE: f64 = 0.01;

impl FeatureCache {
    pub(crate) const NAME: &'static str = "feature_cache";

    pub(crate) fn new(params: FeatureCacheParams) -> Result<Self, Refusal> {
        let built = params.build()?;
        Ok(Self {
            params,
            built,
            errors: Arc::default(),
        })
    }
}

impl Accelerator for FeatureCache {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Rollout
    }

    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossy(self.params.scope())
    }

    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        let into = Into { plan, target };
        match self.built.clone() {
            Built::Auto(policy, rules) => {
                let factor = self.errors().factor();
                into.velocity(Auto { factor, ..policy }, rules)
            }
            Built::FirstBlock(policy, rules) => into.stack(policy, rules),
            Built::DbCache(policy, rules) => into.stack(policy, rules),
            Built::StepMask(policy, rules) => into.stack(policy, rules),
            Built::MagCache(policy, rules) => into.stack(policy, rules),
            Built::TeaCache(policy, rules) => into.stack(policy, rules),
            Built::EasyCache(policy, rules) => into.velocity(policy, rules),
            Built::TaylorSeerVelocity(policy, rules) => into.velocity(policy, rules),
            Built::TaylorSeerAttention(policy, rules) => into.layers(policy, rules),
            Built::Pyramid(policy, rules) => into.layers(policy, rules),
            Built::Faster(attention, guidance, rules) => {
                let count = into.count(Engagement::BlockSkipped);
                let velocities = Arc::new(GuidanceCache::new(guidance, rules, count));
                let plan = into.layers(attention, rules)?;
                Ok(Backends { velocities, ..plan })
            }
        }
    }

    fn why_idle(&self) -> String {
        self.params.why_idle()
    }

    fn audit_share(&self) -> f64 {
        match self.built {
            Built::Auto(..) => AUDIT_SHARE,
            _ => 0.0,
        }
    }

    fn audited(&self, pairs: &[(f64, f64)]) {
        let mut errors = self.errors();
        let factor = errors.factor();
        let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
        // What was predicted had the factor in it.
        errors.predicted = 0.5 * errors.predicted + sum(|pair| pair.0) / factor;
        errors.found = 0.5 * errors.found + sum(|pair| pair.1);
    }

    fn learned(&self) -> Vec<u64> {
        match self.built {
            Built::Auto(..) => {
                let errors = self.errors();
                vec![errors.predicted.to_bits(), errors.found.to_bits()]
            }
            _ => Vec::new(),
        }
    }

    fn restore(&self, learned: &[u64]) {
        if let [predicted, found] = learned {
            *self.errors() = Errors {
                predicted: f64::from_bits(*predicted),
                found: f64::from_bits(*found),
            };
        }
    }
}

impl FeatureCache {
    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The plan that a cache is put into.
struct Into<'a> {
    plan: Backends,
    target: &'a Target<'a>,
}

impl Into<'_> {
    fn stack<P: StackPolicy>(self, policy: P, rules: Rules) -> Result<Backends, Refusal> {
        self.within_calls()?;
        let (shape, model) = (policy.shape(), self.target.model);
        let always = shape.front + shape.back;
        if !model.stacks.iter().any(|(_, blocks)| *blocks > always) {
            let why = format!(
                "the model `{}` declares no stack of at least {} blocks, so there is nothing to leave out: {always} \
                 {} always computed",
                model.architecture,
                match always + 1 {
                    2 => "two".into(),
                    more => more.to_string(),
                },
                if always == 1 { "is" } else { "are" },
            );
            let help = match policy.name() {
                "db_cache" | "step_mask" => "Lower `params.front_blocks`, or remove the entry",
                _ => "Remove the entry",
            };
            return Err(Refusal::new(why, help));
        }
        free(self.plan.stacks.name(), RunAllBlocks.name(), "the stacks")?;
        let count = self.count(Engagement::BlockSkipped);
        Ok(Backends {
            stacks: Arc::new(StackCache::new(policy, rules, count)),
            ..self.plan
        })
    }

    fn velocity<P: VelocityPolicy>(self, policy: P, rules: Rules) -> Result<Backends, Refusal> {
        let calls = self.plan.velocities.clone();
        if !calls.computes_every_row() {
            return Err(taken(calls.name(), "the velocities"));
        }
        let count = self.count(Engagement::BlockSkipped);
        Ok(Backends {
            velocities: Arc::new(VelocityCache::new(policy, rules, count).above(calls)),
            ..self.plan
        })
    }

    fn layers<P: LayerPolicy>(self, policy: P, rules: Rules) -> Result<Backends, Refusal> {
        self.within_calls()?;
        let model = self.target.model;
        if !model.regions.contains(&RegionKind::Attention) {
            return Err(Refusal::new(
                format!("the model `{}` announces no attention", model.architecture),
                "Take a policy that answers for blocks, for instance `first_block`, or remove the entry",
            ));
        }
        free(
            self.plan.layers.name(),
            ComputeAllLayers.name(),
            "the attention layers",
        )?;
        let count = self.count(Engagement::AttentionSkipped);
        Ok(Backends {
            layers: Arc::new(LayerCache::new(policy, rules, count)),
            ..self.plan
        })
    }

    /// Refuses a policy that decides within calls where these are not made: a replayed call asks nothing.
    fn within_calls(&self) -> Result<(), Refusal> {
        let velocities = &self.plan.velocities;
        if velocities.name() == CallModel.name() {
            return Ok(());
        }
        if !velocities.computes_every_row() {
            return Err(taken(velocities.name(), "the velocities"));
        }
        Err(Refusal::new(
            format!(
                "`{}` replays whole calls of the model, and this policy decides within a call what is computed",
                velocities.name()
            ),
            "Take a policy that answers for whole calls (`auto`, `easycache`, or `taylorseer` with `target = \"velocity\"`), or \
             remove `graph_capture`",
        ))
    }

    fn count(&self, what: Engagement) -> OnCall {
        let meter = self.target.meter.clone();
        Box::new(move |counters| {
            meter.count(what, counters.skipped());
            for (trajectory, error) in &counters.predicted {
                meter.predict(trajectory.sample, *error);
            }
            // Of a step that is left alone there is no share.
            if counters.rows == 0 {
                return;
            }
            let parts =
                std::iter::once(Part::Step(counters.step)).chain(counters.blocks.clone().map(Part::Block));
            parts.for_each(|part| meter.share(what, part, counters.answered, counters.rows));
        })
    }
}

/// Refuses a place that another driver has.
fn free(driver: &str, plain: &str, place: &str) -> Result<(), Refusal> {
    if driver == plain {
        return Ok(());
    }
    Err(taken(driver, place))
}

fn taken(driver: &str, place: &str) -> Refusal {
    Refusal::new(
        format!("`{driver}` drives {place} of this plan already"),
        "Keep one of the entries",
    )
}
