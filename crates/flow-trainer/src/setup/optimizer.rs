//! The optimizer.

use crate::optimizer::AdamWSettings;
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
        schedule: optimizer.schedule.clone(),
        moments: optimizer.moments,
        seed: config.run.seed,
    }
}
