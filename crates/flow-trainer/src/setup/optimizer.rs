//! The optimizer.

use crate::optimizer::{AdamWSettings, FloatDType, RateSchedule};
use flow_config::Config;

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
