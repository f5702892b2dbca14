//! What a run asks of memory: autoencoder, text encoders and the networks of its rewards, and the table that `check` prints.

use crate::terminal;
use flow_config::{Config, DeviceKind, RewardConfig, TextConfig};
use flow_core::ModelSpec;
use flow_pipeline::{Decoding, ModelSize};
use flow_rewards::RewardRegistry;
use flow_trainer::TrainError;
use flow_trainer::setup::{self, Environment, PipelineFolders};
use flow_validate::{Companion, Companions, Load, MemoryTable, gib};
use serde_json::{Value, json};
use std::path::Path;

/// Where what is beside the model that is trained comes from.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// Where relative paths start.
    pub base: &'a Path,
    /// What opens diffusers folders.
    pub folders: &'a PipelineFolders,
    /// The rewards that there are.
    pub rewards: &'a RewardRegistry,
}

impl<'a> Around<'a> {
    /// As a run has it.
    pub fn of(environment: &'a Environment<'_>) -> Self {
        Self {
            base: environment.base,
            folders: &environment.folders,
            rewards: &environment.plugins.rewards,
        }
    }
}

/// The models beside the one that is trained, which `spec` is: those of the diffusers folder that `config` names, or the autoencoder and
/// the text encoder that have folders of their own, and the networks of its rewards; nothing if there are none. Sizes are those of
/// configs and headers: no weight is read.
///
/// # Errors
/// If a folder is not there or not whole, or is of another model than `spec` reads.
pub fn companions(
    config: &Config,
    around: Around<'_>,
    (spec, load): (&ModelSpec, &Load),
) -> Result<Option<Companions>, TrainError> {
    let Around { base, folders, .. } = around;
    let (model, latent) = (&config.model, spec.latent);
    let pipeline = match &model.path {
        Some(_) => Some(setup::pipeline(config, base, folders)?),
        None => None,
    };
    // Other kinds of text need no encoders.
    let (encoders, tokens) = match (&config.text, &pipeline, spec.text) {
        (TextConfig::Encoders(text), Some(pipeline), _) => (
            pipeline.text_encoder_sizes()?,
            text.micro_batch * text.tokens.unwrap_or(pipeline.defaults().text_tokens),
        ),
        (TextConfig::Bert(text), _, Some(width)) => {
            let encoder = setup::sentence_encoder(text, base, width)?;
            (vec![encoder.size()?], text.micro_batch * text.tokens)
        }
        _ => (Vec::new(), 0),
    };
    let autoencoder = match (&pipeline, model.own_autoencoder()) {
        (Some(pipeline), _) => Some((pipeline.autoencoder_size()?, pipeline.autoencoder_config()?)),
        (None, Some(path)) => {
            let folder = setup::own_autoencoder(path, base, latent)?;
            Some((ModelSize::of_autoencoder(&folder)?, folder.config().clone()))
        }
        (None, None) => None,
    };
    let decoding = Decoding {
        samples: config.sampling.micro_batch,
        bytes_of_value: load.stored.activation,
        one_by_one: config.device.kind == DeviceKind::Cpu,
    };
    let companion = |size: ModelSize, tokens: usize| Companion {
        name: size.name,
        class: size.class,
        values: size.values,
        file_bytes: size.file_bytes,
        passing: tokens * size.block_outputs,
    };
    let decoding_bytes = autoencoder
        .as_ref()
        .map_or(0, |(_, config)| decoding.bytes(config, latent));
    let all = Companions {
        encoders: encoders.into_iter().map(|size| companion(size, tokens)).collect(),
        autoencoder: autoencoder.map(|(size, _)| companion(size, 0)),
        rewards: rewards(config, around),
        decoding_bytes: decoding_bytes as f64,
    };
    let is_alone = all.encoders.is_empty() && all.autoencoder.is_none() && all.rewards.is_empty();
    Ok((!is_alone).then_some(all))
}

/// The networks of rewards that are in the memory of the run's device, each once.
fn rewards(config: &Config, around: Around<'_>) -> Vec<Companion> {
    let mut asked: Vec<&RewardConfig> = Vec::new();
    for reward in config.rewards.iter().chain(config.effective_eval_rewards()) {
        let is_same = |other: &&RewardConfig| other.kind == reward.kind && other.params == reward.params;
        if !asked.iter().any(is_same) {
            asked.push(reward);
        }
    }
    let found = asked.into_iter().filter_map(|reward| {
        // What is wrong with its files is told, with where they were looked for, when it is built.
        let memory = around.rewards.memory(&reward.kind, &reward.params, around.base);
        let memory = memory.ok().filter(|memory| memory.values > 0)?;
        let is_here = memory.is_on_run_device || config.device.kind == DeviceKind::Cpu;
        is_here.then(|| Companion {
            name: format!("reward {}", reward.name()),
            class: reward.kind.clone(),
            values: memory.values,
            file_bytes: 0,
            passing: 0,
        })
    });
    found.collect()
}

/// Whether autoencoder or text encoder of `config` have folders, in which others published them.
pub fn is_of_published_models(config: &Config) -> bool {
    config.model.works_in_latents() || matches!(config.text, TextConfig::Bert(_))
}

/// The table for people; `device` is what it is about.
pub fn text(table: &MemoryTable, device: &str) -> String {
    let phases = |when: &[flow_validate::Phase]| match when.len() {
        3.. => "always".to_owned(),
        _ => when
            .iter()
            .map(|phase| phase.name())
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut rows = vec![["memory", "of", "when", "takes"].map(str::to_owned).to_vec()];
    for row in &table.rows {
        rows.push(vec![
            row.part.clone(),
            row.what.clone(),
            phases(&row.when),
            gib(row.bytes),
        ]);
    }
    let mut text = terminal::table(&rows, 3);
    text.push('\n');
    let sums = table.phases.iter();
    let mut sums: Vec<Vec<String>> = sums
        .map(|(phase, bytes)| vec![phase.in_words().to_owned(), gib(*bytes)])
        .collect();
    if let Some(available) = table.available {
        sums.push(vec![format!("{device} has"), gib(available as f64)]);
    }
    text.push_str(&terminal::table(&sums, 1));
    text
}

/// The table for programs; `docs/src/config.md` describes it.
pub fn json(table: &MemoryTable) -> Value {
    let (phase, bytes) = table.peak();
    let rows: Vec<Value> = table
        .rows
        .iter()
        .map(|row| {
            let when: Vec<&str> = row.when.iter().map(|phase| phase.name()).collect();
            json!({ "part": row.part, "what": row.what, "bytes": row.bytes, "when": when })
        })
        .collect();
    let phases: serde_json::Map<String, Value> = table
        .phases
        .iter()
        .map(|(phase, bytes)| (phase.name().to_owned(), json!(bytes)))
        .collect();
    json!({
        "parts": rows,
        "phases": phases,
        "peak": { "phase": phase.name(), "bytes": bytes },
        "device_bytes": table.available,
    })
}
