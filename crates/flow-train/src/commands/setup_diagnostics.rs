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
    Failure::Input(match error {
        TrainError::Checkpoint(
            damaged @ (CheckpointError::Length { .. } | CheckpointError::Corrupt { .. }),
        ) => format!(
            "{}\n  help: a pretraining keeps one state; begin anew with `--on-exists overwrite`, which moves it aside",
            damaged.problem()
        ),
        other => other.to_string(),
    })
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
        TrainError::Setting { key, .. } => (codes::SETUP_REFUSED, key.as_deref().unwrap_or_default()),
        _ => (codes::SETUP_REFUSED, ""),
    };
    let refusal = error.refusal();
    let help = refusal.help.unwrap_or_else(|| usual_help(error, code).to_owned());
    vec![
        Diagnostic::error(code, refusal.why.trim_end_matches(['.', ' ']))
            .path(path)
            .help(begun_small(&help)),
    ]
}

/// What to do about an error that does not say it.
fn usual_help(error: &TrainError, code: &str) -> &'static str {
    match error {
        TrainError::NoAdapter { .. } => "name a LoRA file, or the folder of one",
        TrainError::NoTeacher { .. } => {
            "name a LoRA file in `adapter`, or the weights of a whole model in `weights`"
        }
        TrainError::Teacher { .. } => {
            "name a teacher of the run's architecture and constants: students and teachers call one model"
        }
        TrainError::Reward(_) => "correct the reward's parameters",
        TrainError::Model(ModelError::Adapter(_)) => {
            "name layers of the model in `lora.targets`; `*` stands for any text"
        }
        TrainError::Model(ModelError::AdapterFile(_)) => {
            "name a LoRA file of this model; the page on models says which are read"
        }
        _ if code == codes::OTHER_MODEL => {
            "give the model the constants of its weights, or leave them out: the weights decide then"
        }
        _ if code == codes::BAD_WEIGHTS => "name a safetensors file with the weights of this model",
        _ => WITHOUT_HELP,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_diagnostic_at_its_key_whatever_marks_its_texts_have() {
        let error = TrainError::setting("`a` is 1; `b` is 2")
            .with_help("Set `b` to 1; or remove it")
            .about("model.path");
        let found = diagnostics(&error);
        let one = &found[0];
        assert_eq!(one.message, "`a` is 1; `b` is 2");
        assert_eq!(one.help.as_deref(), Some("set `b` to 1; or remove it"));
        assert_eq!(
            (one.code, one.path.as_str()),
            (codes::SETUP_REFUSED, "model.path")
        );
        let said = "`a` is 1; `b` is 2; Set `b` to 1; or remove it";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn an_error_that_says_no_help_has_the_usual_one() {
        let found = diagnostics(&TrainError::setting("nothing fits"));
        assert_eq!(found[0].message, "nothing fits");
        assert_eq!(found[0].help.as_deref(), Some(WITHOUT_HELP));
    }
}
