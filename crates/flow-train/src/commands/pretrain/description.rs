//! What a pretraining is: what decides its weights, in their file and in its state.

use crate::failure::{Failure, OrFailure};
use flow_config::{Config, Finetune};
use flow_trainer::description::Description;
use flow_trainer::setup::PipelineFolders;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Everything that decides the weights. Where the files lie does not matter to what is in them.
fn description(config: &Config) -> Value {
    let mut relevant = json!({ "model": config.model, "data": config.data, "pretrain": config.pretrain });
    if let Some(section) = relevant["pretrain"].as_object_mut() {
        section.remove("output");
        section.remove("classifier");
    }
    if config.model.path.is_some() {
        // A published model's text, guidance and adapters are the config's.
        relevant["text"] = json!(config.text);
        relevant["embedded_guidance_scale"] = json!(config.sampling.embedded_guidance_scale);
        if config.model.finetune == Finetune::Lora {
            relevant["lora"] = json!(config.lora);
        }
    }
    if config.model.own_autoencoder().is_some() {
        relevant["text"] = json!(config.text);
    } else {
        remove(&mut relevant["model"], "autoencoder");
    }
    if relevant["data"]["buckets"].is_null() {
        remove(&mut relevant["data"], "buckets");
    }
    // Nor does what the model does not have. These came later, and weights made before keep their hash.
    remove(&mut relevant["model"], "adapter");
    for later in ["flux", "qwen-image", "wan"] {
        if config.model.architecture != later {
            remove(&mut relevant["model"], later);
        }
    }
    if relevant["model"]["dit"]["moe"]["experts"] == 0 {
        remove(&mut relevant["model"]["dit"], "moe");
        remove(&mut relevant["pretrain"], "balance_weight");
    }
    relevant
}

/// As [`description`], for the state: of a diffusers folder the contents count, too, since weights that are not trained are in it and
/// not in the state.
pub(super) fn state_description(
    config: &Config,
    base: &Path,
    folders: &PipelineFolders,
) -> Result<Value, Failure> {
    let mut described = description(config);
    if config.model.works_in_latents() {
        let contents = Description::of(config, base, folders).or_bad_input()?.contents;
        // Where the folder lies does not matter.
        remove(&mut described["model"], "path");
        remove(&mut described["model"], "autoencoder");
        remove(&mut described["model"], "weights");
        remove(&mut described["data"], "cache");
        // Nor where the text encoder lies of a model that is of none.
        let has_own = config.model.own_autoencoder().is_some();
        if has_own {
            remove(&mut described["text"], "path");
        }
        let named = |key: &str| key.starts_with("model.") || (has_own && key.starts_with("text."));
        let contents = contents
            .unwrap_or_default()
            .into_iter()
            .filter(|(key, _)| named(key));
        let contents: BTreeMap<String, String> = contents
            .map(|(key, hash)| (key, hash.short().to_string()))
            .collect();
        described["contents"] = json!(contents);
    }
    Ok(described)
}

/// What made the weights, so that they can be made again and compared.
pub(super) fn metadata(config: &Config, steps: usize, final_loss: f64) -> BTreeMap<String, String> {
    let pairs = [
        ("flow-train.version", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "flow-train.config_blake3",
            blake3::hash(description(config).to_string().as_bytes())
                .to_hex()
                .to_string(),
        ),
        ("flow-train.seed", config.pretrain.seed.to_string()),
        ("flow-train.steps", steps.to_string()),
        ("flow-train.final_loss", format!("{final_loss:.9}")),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

/// What a safetensors file says of itself; nothing if it is none.
pub(super) fn file_metadata(path: &Path) -> Option<BTreeMap<String, String>> {
    /// Of a header; that of weights with a thousand tensors has 0.1 MB.
    const MOST_BYTES: u64 = 1 << 24;
    let mut file = fs::File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    let header: Value = serde_json::from_reader(file.take(length.min(MOST_BYTES))).ok()?;
    serde_json::from_value(header["__metadata__"].clone()).ok()
}

fn remove(table: &mut Value, key: &str) {
    if let Some(table) = table.as_object_mut() {
        table.shift_remove(key);
    }
}
