//! What a config asks for that only some builds, machines or models have.

use crate::codes::{CHECKPOINTING_IGNORED, NO_BF16, NO_CHECKPOINTING, NO_DEVICE};
use crate::{Capabilities, Machine};
use flow_config::{CheckpointingConfig, Config, DType, DeviceKind, Diagnostic, key_in_path, nearest};
use flow_runtime::{Context, DeviceKind as RuntimeDevice, OptionsError};
use std::path::Path;

/// The device, precision and policies that a config asks for and a build or machine does not have.
pub fn unavailable(config: &Config, machine: &Machine) -> Vec<Diagnostic> {
    let mut found = device(config, machine);
    found.extend(checkpointing(config, machine, None));
    found
}

pub(crate) fn device(config: &Config, machine: &Machine) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let kind = config.device.kind.name();
    if !machine.devices.contains(&kind) {
        let names = machine.devices.iter().map(|name| format!("\"{name}\""));
        found.push(
            Diagnostic::error(NO_DEVICE, format!("the device \"{kind}\" is not in this build"))
                .path("device.kind")
                .allowed(names.collect())
                .nearest(nearest(kind, machine.devices.iter().copied()).map(str::to_owned))
                .help("choose a device that is there, or a build that has this one"),
        );
    } else if let (DeviceKind::Cpu, DType::Bf16, Err(why)) =
        (config.device.kind, config.device.dtype, &machine.bf16)
    {
        found.push(
            Diagnostic::error(
                NO_BF16,
                format!("`device.dtype = \"bf16\"` is not available here: {why}"),
            )
            .path("device.dtype")
            .help("set `device.dtype = \"f32\"`"),
        );
    }
    found
}

/// The policy of activation checkpointing, which the build must have and the model must heed.
pub(crate) fn checkpointing(
    config: &Config,
    machine: &Machine,
    model: Option<&Capabilities<'_>>,
) -> Option<Diagnostic> {
    let policy = match config.checkpointing {
        CheckpointingConfig::None(_) => return None,
        CheckpointingConfig::Full(_) => "full",
        CheckpointingConfig::AttnOnly(_) => "attn-only",
    };
    let path = "checkpointing.policy";
    if !machine.checkpointing.contains(&policy) {
        let names = machine.checkpointing.iter().map(|name| format!("\"{name}\""));
        let message = format!("`{path} = \"{policy}\"` is not available in this build");
        return Some(
            Diagnostic::error(NO_CHECKPOINTING, message)
                .path(path)
                .allowed(names.collect())
                .help(format!(
                    "set `{path} = \"none\"`, and lower `sampling.micro_batch` if memory is short"
                )),
        );
    }
    let model = model.filter(|model| model.spec.regions.is_empty())?;
    let message = format!(
        "`{path} = \"{policy}\"` would do nothing: the model `{}` announces no regions that could be computed again",
        model.spec.architecture
    );
    Some(
        Diagnostic::error(CHECKPOINTING_IGNORED, message)
            .path(path)
            .related(["model.architecture"])
            .help(format!("set `{path} = \"none\"`, or choose another architecture")),
    )
}

/// `[runtime.options]`: each must exist, have the right type, and have something that reads it.
pub(crate) fn runtime(config: &Config, machine: &Machine) -> Vec<Diagnostic> {
    let entries = config
        .acceleration
        .shared
        .iter()
        .chain(&config.acceleration.rollout);
    let context = Context {
        device: match config.device.kind {
            DeviceKind::Cpu => RuntimeDevice::Cpu,
            DeviceKind::Cuda => RuntimeDevice::Cuda,
        },
        features: machine.runtime_features.clone(),
        accelerators: entries.map(|entry| entry.name.clone()).collect(),
        variable_shapes: false,
        base: Path::new("").to_owned(),
    };
    let findings = match flow_runtime::parse(&config.runtime.options, &context) {
        Ok(options) => options.warnings().to_vec(),
        Err(OptionsError { findings }) => findings,
    };
    let diagnostic = |finding: flow_runtime::Finding| {
        let path = if finding.option.is_empty() {
            "acceleration".to_owned()
        } else {
            format!("runtime.options.{}", key_in_path(&finding.option))
        };
        let mut diagnostic = Diagnostic::new(finding.severity, finding.code, finding.message).path(path);
        let help = [
            finding
                .nearest
                .as_ref()
                .map(|nearest| format!("did you mean `{nearest}`?")),
            (!finding.help.is_empty()).then(|| begun_small(finding.help.trim_end_matches('.'))),
        ];
        let help: Vec<String> = help.into_iter().flatten().collect();
        if !help.is_empty() {
            diagnostic = diagnostic.help(help.join("\n"));
        }
        use flow_runtime::codes::{
            MISSING_ACCELERATOR, MISSING_FEATURE, NESTED_TABLE, UNKNOWN_OPTION, WRONG_DEVICE,
        };
        if [
            MISSING_ACCELERATOR,
            MISSING_FEATURE,
            NESTED_TABLE,
            UNKNOWN_OPTION,
            WRONG_DEVICE,
        ]
        .contains(&finding.code)
        {
            diagnostic = diagnostic.at_key();
        }
        diagnostic.allowed(finding.allowed).nearest(finding.nearest)
    };
    findings.into_iter().map(diagnostic).collect()
}

fn begun_small(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
