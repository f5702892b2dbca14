//! What a text is that is no config of Flow-Factory. A config of another tool must not become a training run made of
//! Flow-Factory's defaults, so it is refused by name.

use crate::draft::quoted;
use crate::error::ImportError;
use crate::shortened;
use crate::table;
use crate::yaml::{Node, Pair};

/// A tool or a kind of file, and the keys by which it is known; dots lead into maps. `least` of them must be there.
struct Kind {
    name: &'static str,
    keys: &'static [&'static str],
    least: usize,
}

const fn kind(name: &'static str, least: usize, keys: &'static [&'static str]) -> Kind {
    Kind { name, keys, least }
}

/// Told apart by the keys at their top.
const KINDS: [Kind; 30] = [
    kind(
        "a config of ai-toolkit",
        2,
        &["job", "config.process", "config.name", "meta.version"],
    ),
    kind(
        "a config of axolotl",
        2,
        &[
            "base_model",
            "sequence_len",
            "micro_batch_size",
            "dataset_prepared_path",
            "sample_packing",
            "val_set_size",
            "num_epochs",
            "lora_r",
        ],
    ),
    kind(
        "a training config of FastVideo",
        2,
        &[
            "models.student",
            "method._target_",
            "training.distributed",
            "training.loop",
            "callbacks",
            "pipeline.flow_shift",
            "models",
        ],
    ),
    kind(
        "an inference config of FastVideo",
        2,
        &["generator", "request", "generator.model_path"],
    ),
    kind(
        "a config of accelerate",
        2,
        &[
            "compute_environment",
            "distributed_type",
            "fsdp_config",
            "deepspeed_config",
            "downcast_bf16",
            "main_training_function",
            "rdzv_backend",
            "same_network",
        ],
    ),
    kind(
        "a config of DeepSpeed",
        1,
        &[
            "zero_optimization",
            "train_micro_batch_size_per_gpu",
            "zero_allow_untested_optimizer",
            "train_batch_size",
        ],
    ),
    kind(
        "a config of SimpleTuner",
        2,
        &[
            "model_family",
            "data_backend_config",
            "base_model_precision",
            "validation_prompt",
            "vae_batch_size",
            "--model_family",
            "--model_type",
            "--data_backend_config",
            "checkpoint_step_interval",
        ],
    ),
    kind(
        "a list of diffusers' pipeline parts (model_index.json)",
        3,
        &[
            "_class_name",
            "_diffusers_version",
            "scheduler",
            "transformer",
            "vae",
            "text_encoder",
        ],
    ),
    kind(
        "a config.json of diffusers",
        1,
        &["_class_name", "_diffusers_version"],
    ),
    kind(
        "a config.json of transformers",
        1,
        &["architectures", "transformers_version", "auto_map"],
    ),
    kind(
        "an adapter_config.json of peft",
        1,
        &["peft_type", "base_model_name_or_path"],
    ),
    kind(
        "a config of LLaMA-Factory",
        2,
        &[
            "stage",
            "finetuning_type",
            "template",
            "cutoff_len",
            "per_device_train_batch_size",
            "do_train",
        ],
    ),
    kind(
        "a config of TRL or transformers' Trainer",
        2,
        &[
            "per_device_train_batch_size",
            "num_train_epochs",
            "dataset_name",
            "output_dir",
            "eval_strategy",
            "save_strategy",
            "logging_steps",
        ],
    ),
    kind(
        "a config of verl",
        1,
        &[
            "actor_rollout_ref",
            "reward_model.model",
            "trainer.n_gpus_per_node",
        ],
    ),
    kind(
        "a config of torchtune",
        2,
        &[
            "tokenizer._component_",
            "model._component_",
            "optimizer._component_",
            "checkpointer",
        ],
    ),
    kind(
        "a config of OneTrainer",
        2,
        &[
            "__version",
            "training_method",
            "base_model_name",
            "concept_file_name",
        ],
    ),
    kind(
        "a config of kohya's sd-scripts",
        1,
        &[
            "pretrained_model_name_or_path",
            "network_module",
            "train_data_dir",
            "train_batch_size",
        ],
    ),
    kind("a config of Hydra", 1, &["defaults", "hydra", "_target_"]),
    kind(
        "a config of PyTorch Lightning",
        2,
        &[
            "trainer",
            "model.class_path",
            "data.class_path",
            "seed_everything",
        ],
    ),
    kind(
        "a config of OmegaConf with targets (latent-diffusion)",
        1,
        &["model.target", "model.params", "data.target"],
    ),
    kind(
        "a workflow of ComfyUI",
        2,
        &["nodes", "links", "last_node_id", "last_link_id"],
    ),
    kind(
        "an index of safetensors shards",
        1,
        &["weight_map", "metadata.total_size"],
    ),
    kind(
        "a tokenizer",
        2,
        &[
            "tokenizer_class",
            "added_tokens_decoder",
            "model_max_length",
            "added_tokens",
            "normalizer",
        ],
    ),
    kind(
        "a run's config of Weights & Biases",
        1,
        &["wandb_version", "_wandb"],
    ),
    kind("a Docker Compose file", 1, &["services"]),
    kind("a workflow of GitHub Actions", 2, &["jobs", "on", "name"]),
    kind("a Kubernetes manifest", 2, &["apiVersion", "kind", "metadata"]),
    kind("a conda environment", 2, &["channels", "dependencies"]),
    kind("a notebook", 2, &["cells", "nbformat"]),
    kind("a config of flow-train", 1, &["config_version"]),
];

/// Keys that Flow-Factory has in common with half of all training configs.
const COMMON: [&str; 27] = [
    "model.model_name_or_path",
    "model.model_type",
    "model.lora_rank",
    "model.lora_alpha",
    "model.resume_path",
    "model.target_modules",
    "data.cache_dir",
    "data.dataset_dir",
    "data.image_dir",
    "data.datasets",
    "data.dataloader_num_workers",
    "scheduler.seed",
    "scheduler.shift",
    "train.seed",
    "train.learning_rate",
    "train.resolution",
    "train.height",
    "train.width",
    "train.num_frames",
    "train.max_epochs",
    "train.max_grad_norm",
    "train.beta",
    "train.warmup_steps",
    "train.total_steps",
    "train.gradient_accumulation_steps",
    "log.project",
    "log.run_name",
];

/// Refuses a map that is no config of Flow-Factory.
pub(crate) fn refuse(text: &str, root: &Node) -> Result<(), ImportError> {
    let pairs = root.map().unwrap_or_default();
    let (mut own, mut known, mut unknown) = (0, 0, 0);
    for pair in pairs {
        let inner = pair
            .node
            .map()
            .filter(|_| table::SECTIONS.contains(&pair.key.as_str()));
        let paths: Vec<String> = match inner {
            Some(inner) => inner
                .iter()
                .map(|inner| format!("{}.{}", pair.key, inner.key))
                .collect(),
            None => vec![pair.key.clone()],
        };
        for path in paths {
            let rule = table::rule(&path).is_some();
            let below = path.contains('.') || is_own_list(pair);
            match (rule, below) {
                (true, true) if !COMMON.contains(&path.as_str()) => own += 1,
                (true, true) => known += 1,
                // Processes, ports and precision are accelerate's words too.
                (true, false) => {}
                (false, _) => unknown += 1,
            }
        }
    }
    let kind = recognised(root).or_else(|| workflow(pairs));
    if own > 0 && kind.is_none() || own > 1 {
        return Ok(());
    }
    if own + known > unknown && kind.is_none() {
        return Ok(());
    }
    let looks = match kind {
        Some(found) => found,
        None if pairs.is_empty() => "it is an empty map".to_owned(),
        None => {
            let named: Vec<String> = pairs.iter().take(4).map(|pair| code(&pair.key)).collect();
            let more = if pairs.len() > named.len() { ", …" } else { "" };
            let format = if text.trim_start().starts_with('{') {
                "JSON"
            } else {
                "YAML"
            };
            format!(
                "it is {format} with {}{more} and none of Flow-Factory's keys",
                named.join(", ")
            )
        }
    };
    Err(ImportError::NotFlowFactory { looks })
}

/// A list of the top level whose entries only Flow-Factory has.
fn is_own_list(pair: &Pair) -> bool {
    let has = |node: &Node, key: &str| {
        let entries = node.list().unwrap_or(std::slice::from_ref(node));
        entries.iter().any(|entry| entry.get(key).is_some())
    };
    match pair.key.as_str() {
        "rewards" | "eval_rewards" => has(&pair.node, "reward_model") || has(&pair.node, "reward_configs"),
        "optimizers" => true,
        _ => false,
    }
}

/// What a map looks like, with the keys that say so.
fn recognised(root: &Node) -> Option<String> {
    let found = |key: &&&str| {
        let mut parts = key.split('.');
        parts.try_fold(root, |node, part| node.get(part)).is_some()
    };
    let scored = KINDS.iter().filter_map(|kind| {
        let keys: Vec<&str> = kind.keys.iter().filter(found).copied().collect();
        (keys.len() >= kind.least).then_some((kind, keys))
    });
    // The first of those that know most of their keys.
    let best = scored.fold(None, |best: Option<(&Kind, Vec<&str>)>, next| match best {
        Some(best) if best.1.len() >= next.1.len() => Some(best),
        _ => Some(next),
    });
    let (kind, keys) = best?;
    let keys: Vec<String> = keys.iter().take(3).map(|key| code(key)).collect();
    let advice = if kind.name == "a config of flow-train" {
        ", which needs no conversion"
    } else {
        ""
    };
    Some(format!(
        "it looks like {} ({}){advice}",
        kind.name,
        keys.join(", ")
    ))
}

/// Whether the entries are nodes of ComfyUI, which its API takes by number.
fn workflow(pairs: &[Pair]) -> Option<String> {
    let is_node = |pair: &Pair| pair.node.get("class_type").is_some();
    (!pairs.is_empty() && pairs.iter().all(is_node))
        .then(|| "it looks like a workflow of ComfyUI (`class_type`)".to_owned())
}

fn code(key: &str) -> String {
    format!("`{}`", shortened(&quoted(key), 40).trim_matches('"'))
}

/// What a text is that is no YAML, or no map, if it can be told; otherwise the error that reading it gave.
pub(crate) fn instead_of(text: &str, error: ImportError) -> ImportError {
    match looks(text).map(str::to_owned).or_else(|| by_its_lines(text)) {
        Some(looks) => ImportError::NotFlowFactory { looks },
        None => error,
    }
}

/// What a text that cannot be read looks like by the keys at the beginnings of its lines.
fn by_its_lines(text: &str) -> Option<String> {
    let json = text.trim_start().starts_with('{');
    let key = |line: &'_ str| -> Option<String> {
        let indented = line.starts_with([' ', '\t']);
        if indented != json {
            return None;
        }
        let (key, _) = line.trim_start().split_once(':')?;
        Some(key.trim().trim_matches(['"', '\'']).to_owned())
    };
    let keys: std::collections::BTreeSet<String> = text.lines().filter_map(key).collect();
    // One of Flow-Factory's own with a slip is told where the slip is.
    if table::SECTIONS
        .iter()
        .filter(|section| keys.contains(**section))
        .count()
        > 1
    {
        return None;
    }
    let known = |kind: &&Kind| {
        let found = kind.keys.iter().filter(|key| keys.contains(**key)).count();
        found >= kind.least && found > 1
    };
    let kind = KINDS.iter().find(known)?;
    Some(format!("it looks like {}", kind.name))
}

fn looks(text: &str) -> Option<&'static str> {
    let lines = || {
        text.lines()
            .map(str::trim_end)
            .filter(|line| !line.trim_start().starts_with('#') && !line.is_empty())
    };
    let any = |test: fn(&str) -> bool| lines().any(test);
    if text.trim().is_empty() {
        return Some("it is empty");
    }
    if lines().next().is_none() {
        return Some("it is empty but for comments");
    }
    if text.contains('\0') {
        return Some("it holds bytes that no text has");
    }
    if text.contains("ml_collections") {
        return Some("it looks like a config of flow_grpo, which is a Python program (`ml_collections`)");
    }
    let python = |line: &str| {
        let imports = line.starts_with("import ") || line.starts_with("from ") && line.contains(" import ");
        imports || (line.starts_with("def ") || line.starts_with("class ")) && line.ends_with(':')
    };
    if any(python) {
        return Some("it looks like a Python program");
    }
    if text.starts_with("#!")
        || any(|line| {
            line.starts_with("torchrun ")
                || line.starts_with("accelerate launch")
                || line.starts_with("export ")
        })
    {
        return Some("it looks like a shell script");
    }
    if lines()
        .next()
        .is_some_and(|line| line.trim_start().starts_with('<'))
    {
        return Some("it looks like HTML or XML");
    }
    let header = |line: &str| line.starts_with('[') && line.ends_with(']') && !line.contains(',');
    let assigns = |line: &str| {
        line.split_once('=').is_some_and(|(key, _)| {
            !key.trim().is_empty()
                && key
                    .trim()
                    .chars()
                    .all(|c| c.is_alphanumeric() || "_-.\"".contains(c))
        })
    };
    if any(|line| line.starts_with("config_version") && line.contains('=')) {
        return Some("it looks like a config of flow-train (`config_version`), which needs no conversion");
    }
    if any(assigns) && (any(header) || lines().all(assigns)) {
        let has = |keys: &[&str]| {
            let mut set = lines().filter_map(|line| Some(line.split_once('=')?.0.trim()));
            set.any(|key| keys.contains(&key))
        };
        if has(&["pretrained_model_name_or_path", "network_module", "enable_bucket"]) {
            return Some("it looks like TOML of kohya's sd-scripts");
        }
        if has(&["micro_batch_size_per_gpu", "pipeline_stages"]) {
            return Some("it looks like TOML of diffusion-pipe");
        }
        return Some("it looks like TOML");
    }
    let backends = [
        "\"dataset_type\"",
        "\"instance_data_dir\"",
        "dataset_type:",
        "instance_data_dir:",
    ];
    if text.trim_start().starts_with(['[', '-']) && backends.iter().any(|key| text.contains(key)) {
        return Some("it looks like a list of data backends of SimpleTuner (`dataset_type`)");
    }
    if text.trim_start().starts_with('[') {
        return Some("it is a list");
    }
    None
}
