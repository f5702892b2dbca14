//! Encoded prompts on disk, found by what they were made of: the files of tokenizers and encoders, settings, precision, text.

use crate::{EncodedPrompt, Pipeline, PipelineError, PromptSettings};
use burn::tensor::DType;
use flow_core::Backends;
use flow_core::device::ComputeDevice;
use flow_diffusers::safetensors::{StoredDtype, parse, replace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// What the hashes of the encoders' files are kept in, beside the prompts.
const HASHES: &str = "files.json";
/// Changes when what an entry holds does.
const FORMAT: &str = "flow-pipeline prompt 1";

/// A folder of encoded prompts.
///
/// An entry is found by a BLAKE3 hash of the pipeline, of the contents of its tokenizers and text encoders, of settings, precision
/// and text. Files are read once: their hashes are kept with their size and time of change.
#[derive(Clone, Debug)]
pub struct PromptCache {
    folder: PathBuf,
}

/// What the cache did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Prompts that were there.
    pub found: usize,
    /// Prompts that were encoded.
    pub encoded: usize,
    /// Entries that were damaged and have been made again.
    pub damaged: Vec<PathBuf>,
}

/// A file that was hashed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Hashed {
    bytes: u64,
    changed_ns: u128,
    blake3: String,
}

impl PromptCache {
    /// The cache in `folder`, which is made when something is put into it.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// `prompts` encoded, in their order: what is there is read, the rest encoded and kept. The values are the same either way.
    ///
    /// # Errors
    /// As [`Pipeline::encode_prompts`]; [`PipelineError::Io`] if the cache cannot be written.
    pub fn encode(
        &self,
        pipeline: &Pipeline,
        prompts: &[&str],
        settings: PromptSettings,
        device: &ComputeDevice,
        plan: &Arc<Backends>,
    ) -> Result<(Vec<EncodedPrompt>, CacheUse), PipelineError> {
        let stored = match plan.kernels.activations() {
            DType::BF16 => StoredDtype::Bf16,
            DType::F16 => StoredDtype::F16,
            _ => StoredDtype::F32,
        };
        let model = self.model_hash(pipeline)?;
        let path = |prompt: &str| {
            let mut hasher = blake3::Hasher::new();
            let parts = [
                FORMAT,
                &model,
                stored.name(),
                &settings.text_tokens.to_string(),
                prompt,
            ];
            for part in parts {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
            self.folder
                .join(format!("{}.safetensors", hasher.finalize().to_hex()))
        };
        let mut used = CacheUse::default();
        let mut all: Vec<Option<EncodedPrompt>> = Vec::with_capacity(prompts.len());
        let mut missing: Vec<&str> = Vec::new();
        for prompt in prompts {
            let path = path(prompt);
            let found = match fs::read(&path) {
                Ok(bytes) => {
                    let found = read(&bytes);
                    if found.is_none() {
                        used.damaged.push(path);
                    }
                    found
                }
                Err(_) => None,
            };
            if found.is_none() && !missing.contains(prompt) {
                missing.push(prompt);
            }
            used.found += usize::from(found.is_some());
            all.push(found);
        }
        used.encoded = missing.len();
        let encoded = match missing.is_empty() {
            true => Vec::new(),
            false => pipeline.encode_prompts(&missing, settings, device, plan)?,
        };
        for (prompt, encoded) in missing.iter().zip(&encoded) {
            self.write(&path(prompt), encoded, stored)?;
        }
        let of = |prompt: &&str| {
            missing
                .iter()
                .position(|missing| missing == prompt)
                .map(|at| encoded[at].clone())
        };
        let all = prompts.iter().zip(all).map(|(prompt, found)| {
            found
                .or_else(|| of(prompt))
                .expect("what was not found has been encoded")
        });
        Ok((all.collect(), used))
    }

    fn write(&self, path: &Path, prompt: &EncodedPrompt, stored: StoredDtype) -> Result<(), PipelineError> {
        let io = |source| PipelineError::Io {
            action: "write",
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(&self.folder).map_err(io)?;
        let encode = |values: &[f32]| {
            stored.encode(values).map_err(|value| {
                io(std::io::Error::other(format!(
                    "{value} is no number of {}",
                    stored.name()
                )))
            })
        };
        let text = encode(&prompt.text)?;
        let pooled = prompt.pooled.as_deref().map(encode).transpose()?;
        let mut header = serde_json::Map::new();
        let mut end = 0;
        let mut add = |name: &str, shape: Vec<usize>, bytes: usize| {
            let entry = serde_json::json!({
                "dtype": stored.name(), "shape": shape, "data_offsets": [end, end + bytes],
            });
            end += bytes;
            header.insert(name.into(), entry);
        };
        add("text", vec![prompt.tokens, prompt.channels], text.len());
        if let Some(pooled) = &pooled {
            add("pooled", vec![pooled.len() / stored.bytes()], pooled.len());
        }
        let mut header = serde_json::Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        replace(path, &mut |out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(header.as_bytes())?;
            out.write_all(&text)?;
            out.write_all(pooled.as_deref().unwrap_or_default())
        })
        .map_err(io)
    }

    /// A hash of everything that decides what the encoders make of a text.
    fn model_hash(&self, pipeline: &Pipeline) -> Result<String, PipelineError> {
        let list = self.folder.join(HASHES);
        let known = fs::read(&list)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut known: BTreeMap<String, Hashed> = known.unwrap_or_default();
        let before = known.clone();
        let mut hasher = blake3::Hasher::new();
        hasher.update(pipeline.folder().class().as_bytes());
        for path in files(pipeline)? {
            let hashed = hashed(&path, &mut known)?;
            let name = path.strip_prefix(pipeline.folder().folder()).unwrap_or(&path);
            hasher.update(name.to_string_lossy().as_bytes());
            hasher.update(hashed.as_bytes());
        }
        if known != before {
            let io = |source| PipelineError::Io {
                action: "write",
                path: list.clone(),
                source,
            };
            fs::create_dir_all(&self.folder).map_err(io)?;
            let text = serde_json::to_vec_pretty(&known).unwrap_or_default();
            replace(&list, &mut |out| out.write_all(&text)).map_err(io)?;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

/// The files of tokenizers and text encoders, sorted; of weights, those of the variant.
fn files(pipeline: &Pipeline) -> Result<Vec<PathBuf>, PipelineError> {
    let mut all = Vec::new();
    for component in pipeline.folder().components() {
        let folder = pipeline.part(&component.name);
        if component.name.starts_with("text_encoder") {
            all.push(folder.join("config.json"));
            all.extend(component.weight_files(pipeline.variant())?.files.iter().cloned());
        } else if component.name.starts_with("tokenizer") {
            let io = |source| PipelineError::Io {
                action: "list",
                path: folder.clone(),
                source,
            };
            for entry in fs::read_dir(&folder).map_err(io)? {
                let path = entry.map_err(io)?.path();
                if path.is_file() {
                    all.push(path);
                }
            }
        }
    }
    all.sort();
    Ok(all)
}

/// The hash of a file's contents: the known one, where size and time are the same.
fn hashed(path: &Path, known: &mut BTreeMap<String, Hashed>) -> Result<String, PipelineError> {
    let io = |source| PipelineError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let full = fs::canonicalize(path).map_err(io)?;
    let about = fs::metadata(&full).map_err(io)?;
    let changed = about
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let (bytes, changed_ns) = (about.len(), changed.map_or(0, |time| time.as_nanos()));
    let name = full.to_string_lossy().into_owned();
    if let Some(hashed) = known.get(&name)
        && (hashed.bytes, hashed.changed_ns) == (bytes, changed_ns)
    {
        return Ok(hashed.blake3.clone());
    }
    let mut file = fs::File::open(&full).map_err(io)?;
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer).map_err(io)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    let blake3 = hasher.finalize().to_hex().to_string();
    let hashed = Hashed {
        bytes,
        changed_ns,
        blake3: blake3.clone(),
    };
    known.insert(name, hashed);
    Ok(blake3)
}

/// An entry's prompt, if it is whole.
fn read(bytes: &[u8]) -> Option<EncodedPrompt> {
    let parsed = parse(bytes).ok()?;
    let find = |name: &str| parsed.tensors.iter().find(|tensor| tensor.name == name);
    let text = find("text")?;
    let [tokens, channels] = *text.shape.as_slice() else {
        return None;
    };
    Some(EncodedPrompt {
        tokens,
        channels,
        text: text.to_f32()?,
        pooled: match find("pooled") {
            Some(pooled) => Some(pooled.to_f32()?),
            None => None,
        },
    })
}
