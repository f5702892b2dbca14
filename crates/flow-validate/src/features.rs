//! What a config asks for that only some builds, machines or models have.

use crate::codes::{
    CHECKPOINTING_IGNORED, MANY_THREADS, NEEDS_BF16_GPU, NO_BF16, NO_CHECKPOINTING, NO_DEVICE, NO_REGION,
};
use crate::{Capabilities, Machine};
use flow_checkpoint::{Policy, PolicyError};
use flow_config::codes::RULE_IMAGE_SHAPE;
use flow_config::{
    Catalog, CheckpointingConfig, Config, DType, DeviceKind, Diagnostic, GradientStorage, ImageFacts,
    WeightStorage, begun_small, key_in_path, nearest,
};
use flow_runtime::{Context, DeviceKind as RuntimeDevice, OptionsError};
use std::path::Path;

/// The device, precision and policies that a config asks for and a build or machine does not have.
pub fn unavailable(config: &Config, machine: &Machine) -> Vec<Diagnostic> {
    let mut found = device(config, machine);
    found.extend(checkpointing(config, machine, None));
    found
}

/// Whether it is a GPU that computes in bf16: what else is stored in 16 bits is there alone.
pub(crate) fn is_bf16_gpu(config: &Config) -> bool {
    config.device.kind == DeviceKind::Cuda && config.device.dtype == DType::Bf16
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
                .help(match config.device.kind {
                    DeviceKind::Cuda => {
                        "build with `--features cuda`, or set `device.kind = \"cpu\"`; `check` and `plan` judge a config for a \
                         GPU that is not here with `--device h100`"
                    }
                    DeviceKind::Cpu => "set `device.kind` to a device that is there",
                }),
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
    let threads = config.device.threads;
    if let Some(processors) = machine.processors.filter(|processors| threads > 4 * processors) {
        let message = format!(
            "`device.threads = {threads}` is many times what this machine has: {processors} processors"
        );
        found.push(
            Diagnostic::warning(MANY_THREADS, message)
                .path("device.threads")
                .help("set `device.threads = 0`, which takes one for each; results do not depend on their number"),
        );
    }
    let narrow = is_bf16_gpu(config);
    let optimizer = &config.optimizer;
    let asked = [
        (
            "optimizer.gradients",
            optimizer.gradients == GradientStorage::Bf16,
        ),
        ("optimizer.weights", optimizer.weights == WeightStorage::Bf16),
    ];
    for (path, _) in asked.into_iter().filter(|(_, asked)| *asked && !narrow) {
        let message = format!("`{path} = \"bf16\"` is for a GPU that computes in bf16");
        found.push(
            Diagnostic::error(NEEDS_BF16_GPU, message)
                .path(path)
                .allowed(vec!["\"f32\"".into()])
                .help(format!(
                    "set `{path} = \"f32\"`, or `device.kind = \"cuda\"` and `device.dtype = \"bf16\"`"
                )),
        );
    }
    found
}

/// Whether a model makes the images that the data set has. A DiT's own keys are compared by `flow_config`.
pub(crate) fn images(config: &Config, catalog: &Catalog, model: &Capabilities<'_>) -> Option<Diagnostic> {
    if config.model.works_in_latents() {
        // An autoencoder stands between them, and the data's images are not trained on.
        return None;
    }
    let latent = model.spec.latent;
    let ImageFacts { size, channels } = catalog.data_facts(config)?.images?;
    let same = (latent.frames, latent.channels, latent.height, latent.width) == (1, channels, size, size);
    if catalog.model(config).is_some_and(|kind| kind.checks_images) || same {
        return None;
    }
    let frames = match latent.frames {
        1 => String::new(),
        frames => format!("{frames} frames of "),
    };
    let message = format!(
        "the model makes {frames}{}x{}x{}, and the images of `[data]` have {channels}x{size}x{size} (channels, height, width); \
         there is no autoencoder between them",
        latent.channels, latent.height, latent.width
    );
    let section = format!("model.{}", model.spec.architecture);
    Some(
        Diagnostic::error(RULE_IMAGE_SHAPE, message)
            .path(section)
            .related(["data.kind", "data.image_size"])
            .help("give the model the channels and the size of the images, and one frame"),
    )
}

/// The policy of activation checkpointing, which the build must have and the model must heed.
pub(crate) fn checkpointing(
    config: &Config,
    machine: &Machine,
    model: Option<&Capabilities<'_>>,
) -> Option<Diagnostic> {
    let path = "checkpointing.policy";
    let policy = checkpoint_policy(config);
    let name = policy.name();
    if !machine.checkpointing.contains(&name) {
        let names = machine.checkpointing.iter().map(|name| format!("\"{name}\""));
        let message = format!("`{path} = \"{name}\"` is not available in this build");
        return Some(
            Diagnostic::error(NO_CHECKPOINTING, message)
                .path(path)
                .allowed(names.collect())
                .help(format!(
                    "set `{path} = \"none\"`, and lower `sampling.micro_batch` if memory is short"
                )),
        );
    }
    let error = policy.assign(model?.spec).err()?;
    let pattern = |pattern: &str| {
        let CheckpointingConfig::Regions(regions) = &config.checkpointing else {
            return "checkpointing.save".to_owned();
        };
        let at = regions.save.iter().position(|one| one == pattern);
        at.map_or("checkpointing.save".into(), |at| {
            format!("checkpointing.save.{at}")
        })
    };
    let ignored = |message: String| {
        Diagnostic::error(CHECKPOINTING_IGNORED, message)
            .path(path)
            .related(["model.architecture"])
            .help(format!("set `{path} = \"none\"`, or choose another architecture"))
    };
    Some(match &error {
        PolicyError::NoMatch {
            pattern: lost,
            architecture,
            available,
            nearest,
        } => {
            let message = format!("`{lost}` names no region and no result of the model `{architecture}`");
            let help = "name a region, or a result after a colon; `*` stands for any characters, and what follows a dot \
                        of a name suffices";
            Diagnostic::error(NO_REGION, message)
                .path(pattern(lost))
                .related(["model.architecture"])
                .allowed(available.clone())
                .nearest(nearest.clone())
                .help(match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => help.into(),
                })
        }
        PolicyError::BadPattern { pattern: lost, .. } => Diagnostic::error(NO_REGION, error.to_string())
            .path(pattern(lost))
            .help(
                "`*` stands for any characters, `?` for one, `[ab]` for one of these; put others as they are",
            ),
        PolicyError::Ignored {
            architecture,
            missing,
            ..
        } => {
            let message = format!(
                "`{path} = \"{name}\"` would do nothing: the model `{architecture}` announces no {missing}"
            );
            ignored(message)
        }
        other => ignored(format!("`{path} = \"{name}\"`: {other}")),
    })
}

/// The policy of activation checkpointing that a config asks for.
pub fn checkpoint_policy(config: &Config) -> Policy {
    match &config.checkpointing {
        CheckpointingConfig::None(_) => Policy::None,
        CheckpointingConfig::Full(full) => Policy::Full { split: full.split },
        CheckpointingConfig::BlockSkip(skip) => Policy::BlockSkip { every: skip.every },
        CheckpointingConfig::EveryNthLinear(linear) => Policy::EveryNthLinear { n: linear.n },
        CheckpointingConfig::AttnOnly(attention) => Policy::AttnOnly {
            split: attention.split,
        },
        CheckpointingConfig::Regions(regions) => Policy::Regions {
            save: regions.save.clone(),
        },
        CheckpointingConfig::Budget(budget) => Policy::Budget {
            peak_gib: budget.peak_gib,
        },
    }
}

/// `[runtime.options]`: each must exist, have the right type, and have something that reads it.
pub(crate) fn runtime(config: &Config, machine: &Machine, training: bool) -> Vec<Diagnostic> {
    let entries = config
        .acceleration
        .shared
        .iter()
        .chain(&config.acceleration.rollout)
        .chain(&config.exploration.accelerators);
    let context = Context {
        device: match config.device.kind {
            DeviceKind::Cpu => RuntimeDevice::Cpu,
            DeviceKind::Cuda => RuntimeDevice::Cuda,
        },
        features: machine.runtime_features.clone(),
        accelerators: entries.map(|entry| entry.name.clone()).collect(),
        variable_shapes: training && config.has_ragged_batches(),
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
        use flow_runtime::codes::{MISSING_FEATURE, NESTED_TABLE, NEVER_READ, UNKNOWN_OPTION, WRONG_DEVICE};
        if [
            MISSING_FEATURE,
            NESTED_TABLE,
            NEVER_READ,
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
