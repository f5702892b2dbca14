//! Algorithms, advantages and the optimizer.

use super::schedule::timesteps;
use crate::algorithm::{AdvantageMode, Grpo, GrpoGuard, Kl, KlTarget, Nft, ReferenceWeights};
use crate::error::TrainError;
use crate::optimizer::{AdamWSettings, FloatDType, RateSchedule};
use flow_config::{Config, GrpoConfig, GrpoGuardConfig, KlConfig, KlKind, NftConfig, Reference};

fn reference(config: Reference) -> ReferenceWeights {
    match config {
        Reference::LoraOff => ReferenceWeights::WithoutAdapters,
        Reference::Snapshot => ReferenceWeights::Snapshot,
    }
}

fn kl(config: &KlConfig) -> Option<Kl> {
    let target = match config.kind {
        KlKind::None => return None,
        KlKind::Velocity => KlTarget::Velocity,
        KlKind::Mean => KlTarget::Mean,
    };
    Some(Kl {
        target,
        beta: config.beta as f32,
        reference: reference(config.reference),
    })
}

fn clip_range([low, high]: [f64; 2]) -> (f32, f32) {
    (low as f32, high as f32)
}

pub(super) fn grpo(config: &GrpoConfig) -> Grpo {
    Grpo {
        clip_range: clip_range(config.clip_range),
        advantage_clip: config.advantage_clip as f32,
        kl: kl(&config.kl),
        inner_epochs: config.inner_epochs,
    }
}

pub(super) fn guard(config: &GrpoGuardConfig) -> GrpoGuard {
    GrpoGuard {
        clip_range: clip_range(config.clip_range),
        advantage_clip: config.advantage_clip as f32,
        kl: kl(&config.kl),
        inner_epochs: config.inner_epochs,
        reweight: config.reweight,
    }
}

pub(super) fn nft(config: &NftConfig, whole: &Config, tokens: usize) -> Result<Nft, TrainError> {
    Ok(Nft {
        beta: config.beta as f32,
        advantage_clip: config.advantage_clip as f32,
        advantage_mode: match config.advantage_mode {
            flow_config::AdvantageMode::All => AdvantageMode::All,
            flow_config::AdvantageMode::PositiveOnly => AdvantageMode::PositiveOnly,
            flow_config::AdvantageMode::NegativeOnly => AdvantageMode::NegativeOnly,
            flow_config::AdvantageMode::OneOnly => AdvantageMode::OneOnly,
            flow_config::AdvantageMode::Binary => AdvantageMode::Binary,
        },
        kl: (config.kl_beta > 0.0).then(|| (config.kl_beta as f32, reference(config.reference))),
        old_policy: (&config.old_policy).into(),
        timesteps: timesteps(config, whole, tokens)?,
        inner_epochs: config.inner_epochs,
    })
}

/// The optimizer's settings.
pub fn settings(config: &Config) -> AdamWSettings {
    let optimizer = &config.optimizer;
    AdamWSettings {
        learning_rate: optimizer.learning_rate,
        betas: (optimizer.betas[0], optimizer.betas[1]),
        epsilon: optimizer.epsilon,
        weight_decay: optimizer.weight_decay,
        max_grad_norm: optimizer.max_grad_norm,
        warmup_steps: optimizer.warmup_steps as u64,
        schedule: match &optimizer.schedule {
            flow_config::RateSchedule::Constant(_) => RateSchedule::Constant,
            flow_config::RateSchedule::Linear(falling) => RateSchedule::Linear {
                steps: falling.steps as u64,
                to: falling.to,
            },
            flow_config::RateSchedule::Cosine(falling) => RateSchedule::Cosine {
                steps: falling.steps as u64,
                to: falling.to,
            },
        },
        moments: match optimizer.moments {
            flow_config::MomentStorage::F32 => FloatDType::F32,
            flow_config::MomentStorage::Bf16 => FloatDType::BF16,
        },
        seed: config.run.seed,
    }
}
