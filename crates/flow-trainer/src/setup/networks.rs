//! The networks that are trained beside the student: each begins as it does.

use super::{Environment, ModelParts, optimizer_settings};
use crate::algorithm::{Algorithm, NetworkPlan, NetworkRole};
use crate::optimizer::{AdamW, AdamWSettings};
use crate::trainer::TrainedNetwork;
use flow_config::Config;
use std::collections::BTreeMap;

/// Those that the algorithm has, of a run that begins with `model`.
pub(super) fn networks<A: Algorithm>(
    config: &Config,
    environment: &Environment<'_>,
    algorithm: &A,
    model: &ModelParts,
) -> BTreeMap<NetworkRole, TrainedNetwork> {
    let network = |plan: NetworkPlan| TrainedNetwork {
        weights: model.weights.clone(),
        // It is f32, in one piece, as all averages are.
        slow: (plan.keeps_slow).then(|| model.weights.whole(&*environment.plan.kernels)),
        optimizer: AdamW::new(
            AdamWSettings {
                learning_rate: plan.learning_rate,
                betas: (plan.betas[0], plan.betas[1]),
                ..optimizer_settings(config)
            },
            model.weights.layout(),
            model.trained.clone(),
            &environment.device,
        ),
    };
    let roles = NetworkRole::ALL.into_iter();
    roles
        .filter_map(|role| Some((role, network(algorithm.network(role)?))))
        .collect()
}
