//! Why parts of a run could not be built, as diagnostics of the config, or a pretraining cannot go on.

use crate::failure::Failure;
use flow_config::Diagnostic;
use flow_core::CoreError;
use flow_models::ModelError;
use flow_report::CheckpointError;
use flow_train::EnvironmentError;
use flow_trainer::TrainError;
use flow_validate::codes;

/// What to do where nobody knows better.
const WITHOUT_HELP: &str = "change what the message names";

/// What a config asks for and this build or machine does not have, with the key that it is about.
pub fn of_environment(error: &EnvironmentError) -> Vec<Diagnostic> {
    let (code, path) = match error {
        EnvironmentError::Unavailable(found) => return found.clone(),
        EnvironmentError::Device(CoreError::NoDevice { asked, refusal }) => {
            let message = format!("the device `{asked}` is not there: {}", refusal.why);
            let help = refusal.help.as_deref().unwrap_or(WITHOUT_HELP);
            let help = help.trim_end_matches('.');
            return vec![
                Diagnostic::error(codes::NO_DEVICE, message)
                    .path("device.kind")
                    .related(["device.index"])
                    .help(begun_small(help)),
            ];
        }
        EnvironmentError::Device(_) => (codes::NO_DEVICE, "device.kind"),
        EnvironmentError::DType(_) => (codes::NO_BF16, "device.dtype"),
        EnvironmentError::Gradients(_) => (codes::NEEDS_BF16_GPU, "optimizer.gradients"),
        EnvironmentError::Threads { .. } => (codes::SETUP_REFUSED, "device.threads"),
        _ => (codes::SETUP_REFUSED, ""),
    };
    let message = error.to_string();
    vec![
        Diagnostic::error(code, message.trim_end_matches('.'))
            .path(path)
            .help(WITHOUT_HELP),
    ]
}

/// Why a pretraining cannot go on from its state. It keeps one, so there is no older one to go on from, as a run has.
pub fn of_state(error: &TrainError) -> Failure {
    let text = error.to_string();
    let damaged = matches!(
        error,
        TrainError::Checkpoint(CheckpointError::Length { .. } | CheckpointError::Corrupt { .. })
    );
    match text.split_once("\n  help:") {
        Some((problem, _)) if damaged => Failure::Input(format!(
            "{problem}\n  help: a pretraining keeps one state; begin anew with `--on-exists overwrite`, which moves it aside"
        )),
        _ => Failure::Input(text),
    }
}

/// An error of the setup with its code and the key that it is about.
pub fn diagnostics(error: &TrainError) -> Vec<Diagnostic> {
    let (code, path) = match error {
        TrainError::Acceleration(found) => return found.clone(),
        TrainError::NoKernel(found) => return vec![(**found).clone()],
        TrainError::NoWeights { .. } => (codes::NO_WEIGHTS, "model.weights"),
        TrainError::NoAdapter { .. } => (codes::NO_WEIGHTS, "model.adapter"),
        TrainError::NoTeacher { key, .. } => (codes::NO_WEIGHTS, key.as_str()),
        TrainError::Teacher { key, source, .. } => match **source {
            ModelError::OtherModel { .. } => (codes::OTHER_MODEL, key.as_str()),
            _ => (codes::BAD_WEIGHTS, key.as_str()),
        },
        TrainError::Model(ModelError::OtherModel { .. }) => (codes::OTHER_MODEL, "model.weights"),
        TrainError::Model(ModelError::AdapterFile(_)) => (codes::BAD_WEIGHTS, "model.adapter"),
        TrainError::Model(ModelError::Adapter(_)) => (codes::ADAPTERS, "lora.targets"),
        TrainError::Model(
            ModelError::Io { .. }
            | ModelError::Format { .. }
            | ModelError::Mismatch(_)
            | ModelError::OutOfRange { .. },
        ) => (codes::BAD_WEIGHTS, "model.weights"),
        TrainError::Model(_) => (codes::SETUP_REFUSED, "model"),
        TrainError::Pipeline(_) | TrainError::Autoencoder(_) => (codes::SETUP_REFUSED, "model.path"),
        TrainError::Reward(_) => (codes::REWARD_REFUSED, "rewards.0.kind"),
        _ => (codes::SETUP_REFUSED, ""),
    };
    let text = error.to_string();
    let text = text.trim_end_matches('.');
    let (message, help) = match error {
        // The message has its help within.
        TrainError::NoWeights { help, .. } => {
            (text.strip_suffix(help.as_str()).unwrap_or(text), help.clone())
        }
        TrainError::NoAdapter { .. } => (text, "name a LoRA file, or the folder of one".into()),
        TrainError::NoTeacher { .. } => (
            text,
            "name a LoRA file in `adapter`, or the weights of a whole model in `weights`".into(),
        ),
        TrainError::Teacher { .. } => (
            text,
            "name a teacher of the run's architecture and constants: students and teachers call one model"
                .into(),
        ),
        TrainError::Reward(_) => match text.rsplit_once("; ") {
            Some((message, help)) => (message, help.to_owned()),
            None => (text, "correct the reward's parameters".into()),
        },
        TrainError::Model(ModelError::Adapter(_)) => (
            text,
            "name layers of the model in `lora.targets`; `*` stands for any text".into(),
        ),
        TrainError::Model(ModelError::AdapterFile(_)) => (
            text,
            "name a LoRA file of this model; the page on models says which are read".into(),
        ),
        _ if code == codes::OTHER_MODEL => (
            text,
            "give the model the constants of its weights, or leave them out: the weights decide then".into(),
        ),
        _ if code == codes::BAD_WEIGHTS => (
            text,
            "name a safetensors file with the weights of this model".into(),
        ),
        _ => (text, WITHOUT_HELP.into()),
    };
    let message = message.trim_end_matches(['.', ' ']);
    vec![
        Diagnostic::error(code, message)
            .path(path)
            .help(begun_small(&help)),
    ]
}

fn begun_small(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .into_iter()
        .flat_map(char::to_lowercase)
        .chain(letters)
        .collect()
}
