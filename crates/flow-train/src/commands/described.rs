//! A config together with what its weights and its adapter say of their model.

use super::config_report::ConfigUse;
use super::weights::Given;
use super::{setup_diagnostics, weights};
use crate::arguments::ConfigArguments;
use crate::failure::Failure;
use flow_config::{Catalog, Config, Diagnostic, Inspection, Resolved, Severity, Source, WeightsLayer};
use flow_models::ModelRegistry;
use flow_trainer::TrainError;
use flow_trainer::setup::{PipelineFolders, Said, said_by_adapter, said_by_folder, said_by_weights};
use flow_validate::codes;
use std::path::Path;

/// Reads a config. Where it is silent its weights decide; where it says something else than they do, that is an error. `folders` opens
/// its diffusers folder.
pub fn inspect(
    arguments: &ConfigArguments,
    wanted: ConfigUse,
    (models, catalog): (&ModelRegistry, &Catalog),
    folders: &PipelineFolders,
) -> Result<Inspection, Failure> {
    let given = match &arguments.weights {
        Some(path) => Some(weights::find(path)?),
        None => None,
    };
    let mut layers = Vec::new();
    let mut found = Vec::new();
    let mut inspection = flow_config::inspect(catalog, &arguments.config, &arguments.set);
    // Pretraining makes weights, and those that are there do not matter to it; but of a diffusers folder it begins from them.
    let is_folder = inspection
        .partial
        .as_ref()
        .is_some_and(|it| it.config.model.path.is_some());
    if wanted != ConfigUse::Pretraining || is_folder {
        let base = flow_config::base_dir(&arguments.config);
        let ask: [&Ask<'_>; 3] = [
            &|config: &Config| said_by_folder(config, &base, folders),
            &|config: &Config| said_by_weights(config, &base),
            &|config: &Config| said_by_adapter(config, models, &base),
        ];
        for ask in ask {
            let Some(resolved) = inspection.partial.as_mut().filter(|it| it.is_whole("model")) else {
                break;
            };
            put(given.as_ref(), &mut resolved.config);
            match ask(&resolved.config) {
                Ok(None) => {}
                Ok(Some(said)) => {
                    let conflicts = conflicts(resolved, &said);
                    // Its other keys would be of an architecture, or of adapters, that the config does not have.
                    let is_another = conflicts
                        .iter()
                        .any(|one| ["model.architecture", "model.finetune"].contains(&one.path.as_str()));
                    found.extend(conflicts);
                    if is_another {
                        break;
                    }
                    layers.push(WeightsLayer {
                        path: said.from.display().to_string(),
                        text: said.toml(),
                    });
                    inspection =
                        flow_config::inspect_over(catalog, &arguments.config, &arguments.set, &layers);
                }
                Err(error) => {
                    found.extend(setup_diagnostics::diagnostics(&error));
                    // What follows from the config alone would hide the reason, or mislead: without what the files say it is another model.
                    resolved
                        .report
                        .diagnostics
                        .retain(|one| one.path != "model.adapter" && one.severity == Severity::Error);
                    break;
                }
            }
        }
    }
    if let Some(resolved) = inspection.partial.as_mut() {
        put(given.as_ref(), &mut resolved.config);
        resolved.report = resolved.located(found);
        inspection.report = resolved.report.clone();
    }
    Ok(inspection)
}

type Ask<'a> = dyn Fn(&Config) -> Result<Option<Said>, TrainError> + 'a;

/// Puts weights of the command line in the place of the config's.
fn put(given: Option<&Given>, config: &mut Config) {
    match given {
        Some(Given::Model(path)) => {
            config.model.weights = Some(path.clone());
            config.model.adapter = None;
        }
        Some(Given::Adapter(path)) => config.model.adapter = Some(path.clone()),
        None => {}
    }
}

/// What somebody wrote and the file contradicts.
fn conflicts(resolved: &Resolved, said: &Said) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for one in &said.values {
        let source = resolved.sources.get(&one.key);
        if matches!(source, None | Some(Source::Default | Source::Weights { .. })) {
            continue;
        }
        let Some(given) = resolved.value(&one.key).filter(|given| one.differs(given)) else {
            continue;
        };
        let message = format!(
            "`{}` is {given}, and {} in `{}`",
            one.key,
            one.value,
            shown(&said.from)
        );
        let help = format!(
            "set `{} = {}`, or leave it out: the file decides then",
            one.key, one.value
        );
        found.push(
            Diagnostic::error(codes::OTHER_MODEL, message)
                .path(&one.key)
                .help(help),
        );
    }
    found
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
