//! From parameters, whose ranges their schema has checked, to policies; what a schema cannot say is checked here.

use super::params::{
    Basis, FasterParams, FeatureCacheParams, ForecastTarget, MagCacheParams, PyramidParams, TeaCacheSignal,
};
use flow_accel::{Refusal, StepScope};
use flow_cache::{
    Auto, DbCache, EasyCache, FasterAttention, FasterGuidance, FirstBlock, Forecast, MagCache, Mask,
    PublishedMask, Pyramid, Rules, StepMask, TaylorSeer, TeaCache, Timesteps,
};

/// A policy with its rules, and what it answers for.
#[derive(Clone, Debug)]
pub(super) enum Built {
    Auto(Auto, Rules),
    FirstBlock(FirstBlock, Rules),
    DbCache(DbCache, Rules),
    StepMask(StepMask, Rules),
    MagCache(MagCache, Rules),
    TeaCache(TeaCache, Rules),
    EasyCache(EasyCache, Rules),
    TaylorSeerAttention(TaylorSeer, Rules),
    TaylorSeerVelocity(TaylorSeer, Rules),
    Pyramid(Pyramid, Rules),
    Faster(FasterAttention, FasterGuidance, Rules),
}

impl FeatureCacheParams {
    pub(super) fn scope(&self) -> StepScope {
        match self {
            Self::Auto(params) => params.scope,
            Self::FirstBlock(params) => params.scope,
            Self::DbCache(params) => params.scope,
            Self::StepMask(params) => params.scope,
            Self::TaylorSeer(params) => params.scope,
            Self::MagCache(params) => params.scope,
            Self::TeaCache(params) => params.scope,
            Self::EasyCache(params) => params.scope,
            Self::Pyramid(params) => params.scope,
            Self::Faster(params) => params.scope,
        }
    }

    /// The policy.
    pub(super) fn build(&self) -> Result<Built, Refusal> {
        let together = |rules: Rules, per_batch| Rules { per_batch, ..rules };
        Ok(match self {
            Self::Auto(params) => {
                let policy = Auto {
                    target_error: params.target_error,
                    factor: 1.0,
                    order: params.order,
                };
                Built::Auto(policy, params.rules())
            }
            Self::FirstBlock(params) => {
                let threshold = params.threshold;
                let rules = together(params.rules(), params.per_batch);
                Built::FirstBlock(FirstBlock { threshold }, rules)
            }
            Self::DbCache(params) => {
                let mask = params.mask.as_deref().map(mask).transpose()?;
                let policy = DbCache {
                    threshold: params.threshold,
                    front_blocks: params.front_blocks,
                    back_blocks: params.back_blocks,
                    max_answered: params.max_answered,
                    mask: mask.map(|mask| (mask, params.mask_is_final)),
                    forecast: forecast(params.order, params.basis),
                };
                Built::DbCache(policy, together(params.rules(), params.per_batch))
            }
            Self::StepMask(params) => {
                let policy = StepMask {
                    mask: mask(&params.mask)?,
                    front_blocks: params.front_blocks,
                };
                Built::StepMask(policy, params.rules())
            }
            Self::TaylorSeer(params) => {
                let policy = TaylorSeer {
                    interval: params.interval,
                    first: params.warmup_steps,
                    last: params.compute_from,
                    forecast: forecast(params.order, params.basis),
                };
                match params.target {
                    ForecastTarget::Attention => Built::TaylorSeerAttention(policy, params.rules()),
                    ForecastTarget::Velocity => Built::TaylorSeerVelocity(policy, params.rules()),
                }
            }
            Self::MagCache(params) => magcache(params)?,
            Self::TeaCache(params) => {
                let policy = TeaCache {
                    threshold: params.threshold,
                    coefficients: params.coefficients.clone(),
                    compare_conditioning: params.signal == TeaCacheSignal::Conditioning,
                };
                Built::TeaCache(policy, together(params.rules(), params.per_batch))
            }
            Self::EasyCache(params) => {
                let threshold = params.threshold;
                let rules = together(params.rules(), params.per_batch);
                Built::EasyCache(EasyCache { threshold }, rules)
            }
            Self::Pyramid(params) => pyramid(params)?,
            Self::Faster(params) => faster(params)?,
        })
    }

    /// Why nothing may have been answered, and what to change; without a full stop.
    pub(super) fn why_idle(&self) -> String {
        let steps = "or `scheduler.steps`, or remove the entry";
        match self {
            Self::Auto(params) => format!(
                "after `warmup_steps = {}` every answer would have put more than the budget of `target_error = {}` into the \
                 latent; with few steps neighbours are far apart. Raise `target_error` {steps}",
                params.warmup_steps, params.target_error
            ),
            Self::FirstBlock(params) => format!(
                "after `warmup_steps = {}` no step changed the first block by as little as `threshold = {}` since the last \
                 computed one; with few steps neighbours are far apart. Lower `warmup_steps`, raise `threshold` {steps}",
                params.warmup_steps, params.threshold
            ),
            Self::DbCache(params) => format!(
                "after `warmup_steps = {}` no step changed the first blocks by as little as `threshold = {}`; with few \
                 steps neighbours are far apart.{} Lower `warmup_steps`, raise `threshold` {steps}",
                params.warmup_steps,
                params.threshold,
                match &params.mask {
                    Some(mask) => format!(
                        " And `mask = \"{mask}\"` may leave no step: one of digits is for trajectories of as many steps."
                    ),
                    None => String::new(),
                }
            ),
            Self::StepMask(params) => format!(
                "`mask = \"{}\"` leaves no step out: one of digits is for trajectories of as many steps, and the \
                 published ones are for 4, 6, 8 and more steps. Set `mask` to one digit per step {steps}",
                params.mask
            ),
            Self::TaylorSeer(params) => format!(
                "the schedule computes every step of so short a trajectory (`warmup_steps = {}`, `interval = {}`). Raise \
                 `interval` {steps}",
                params.warmup_steps, params.interval
            ),
            Self::MagCache(params) => format!(
                "the accumulated error is above `threshold = {}` at once, or `retention = {}` leaves no step. Raise \
                 `threshold`, lower `retention`, raise `scheduler.steps`, or remove the entry",
                params.threshold, params.retention
            ),
            Self::TeaCache(params) => format!(
                "the accumulated change reaches `threshold = {}` at every step; with few steps neighbours are far apart. \
                 Raise `threshold` {steps}",
                params.threshold
            ),
            Self::EasyCache(params) => format!(
                "after `warmup_steps = {}` the accumulated change reaches `threshold = {}` at every step; with few steps \
                 neighbours are far apart. Lower `warmup_steps`, raise `threshold` {steps}",
                params.warmup_steps, params.threshold
            ),
            Self::Pyramid(params) => format!(
                "no step between the timesteps {:?} left an attention layer out. Widen `timesteps`, raise \
                 `spatial_every` {steps}",
                params.timesteps
            ),
            Self::Faster(params) => format!(
                "no step between the timesteps {:?} left an attention layer out, and none between {:?} the unconditional \
                 branch, which there must be. Widen `attention_timesteps` and `unconditional_timesteps` {steps}",
                params.attention_timesteps, params.unconditional_timesteps
            ),
        }
    }
}

fn magcache(params: &MagCacheParams) -> Result<Built, Refusal> {
    let is_ratio = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    if params.ratios.is_empty() || !params.ratios.iter().all(is_ratio) {
        return Err(Refusal::new(
            "`ratios` must hold the ratio of the magnitudes of successive residuals for each step, all \
             above 0",
            "Measure them on the model with `flow-train calibrate CONFIG --policy magcache`, which writes the \
             entry",
        ));
    }
    let policy = MagCache {
        threshold: params.threshold,
        retention: params.retention,
        ratios: params.ratios.clone(),
    };
    Ok(Built::MagCache(policy, params.rules()))
}

fn pyramid(params: &PyramidParams) -> Result<Built, Refusal> {
    let every = [params.spatial_every, params.temporal_every, params.cross_every];
    if every == [1; 3] {
        return Err(Refusal::new(
            "every kind of attention is computed in every step, so nothing is ever repeated",
            "Set `params.spatial_every`, for instance to 2",
        ));
    }
    let policy = Pyramid {
        spatial: params.spatial_every,
        temporal: params.temporal_every,
        cross: params.cross_every,
        timesteps: timesteps("timesteps", params.timesteps)?,
    };
    Ok(Built::Pyramid(policy, params.rules()))
}

fn faster(params: &FasterParams) -> Result<Built, Refusal> {
    if [params.attention_every, params.unconditional_every] == [1; 2] {
        return Err(Refusal::new(
            "attention and the unconditional branch are computed in every step, so nothing is ever predicted",
            "Set `params.attention_every`, for instance to 2",
        ));
    }
    let attention = FasterAttention {
        every: params.attention_every,
        timesteps: timesteps("attention_timesteps", params.attention_timesteps)?,
        weight: params.attention_weight,
    };
    let low = timesteps("low_frequency_timesteps", params.low_frequency_timesteps)?;
    let high = timesteps("high_frequency_timesteps", params.high_frequency_timesteps)?;
    let guidance = FasterGuidance {
        every: params.unconditional_every,
        timesteps: timesteps("unconditional_timesteps", params.unconditional_timesteps)?,
        low: (low, params.low_frequency_factor),
        high: (high, params.high_frequency_factor),
    };
    Ok(Built::Faster(attention, guidance, params.rules()))
}

fn timesteps(name: &str, [above, below]: [f64; 2]) -> Result<Timesteps, Refusal> {
    if above < below {
        return Ok(Timesteps { above, below });
    }
    Err(Refusal::new(
        format!("no timestep is between {above} and {below}, the ends of `{name}`"),
        format!("Put the smaller one first in `params.{name}`"),
    ))
}

fn mask(text: &str) -> Result<Mask, Refusal> {
    let published = [
        ("slow", PublishedMask::Slow),
        ("medium", PublishedMask::Medium),
        ("fast", PublishedMask::Fast),
        ("ultra", PublishedMask::Ultra),
    ];
    if let Some((_, mask)) = published.into_iter().find(|(name, _)| *name == text) {
        return Ok(Mask::Published(mask));
    }
    if !text.is_empty() && text.bytes().all(|digit| matches!(digit, b'0' | b'1')) {
        return Ok(Mask::Steps(text.bytes().map(|digit| digit == b'1').collect()));
    }
    Err(Refusal::new(
        format!("`mask` is \"{text}\", but must be slow, medium, fast, ultra, or one digit per step, 1 or 0"),
        "Set `params.mask`, for instance to \"medium\"",
    ))
}

fn forecast(order: usize, basis: Basis) -> Forecast {
    match (order, basis) {
        (0, _) => Forecast::Latest,
        (order, Basis::Taylor) => Forecast::Taylor { order },
        (order, Basis::Newton) => Forecast::Newton { order },
    }
}
