//! Why parts of a run could not be built, as diagnostics of the config.

use flow_config::Diagnostic;
use flow_models::ModelError;
use flow_trainer::TrainError;
use flow_validate::codes;

/// An error of the setup with its code and the key that it is about.
pub fn diagnostics(error: &TrainError) -> Vec<Diagnostic> {
    let (code, path) = match error {
        TrainError::Acceleration(found) => return found.clone(),
        TrainError::NoWeights { .. } => (codes::NO_WEIGHTS, "model.weights"),
        TrainError::Model(ModelError::Adapter(_)) => (codes::ADAPTERS, "lora.targets"),
        TrainError::Model(
            ModelError::Io { .. }
            | ModelError::Format { .. }
            | ModelError::Mismatch(_)
            | ModelError::OutOfRange { .. },
        ) => (codes::BAD_WEIGHTS, "model.weights"),
        TrainError::Model(_) => (codes::SETUP_REFUSED, "model"),
        TrainError::Reward(_) => (codes::REWARD_REFUSED, "rewards.0.kind"),
        _ => (codes::SETUP_REFUSED, ""),
    };
    let text = error.to_string();
    vec![Diagnostic::error(code, text.trim_end_matches('.')).path(path)]
}
