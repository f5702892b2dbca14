//! Keys that people know from elsewhere and that are something else here, or nothing: what to write instead.

use crate::tree::{Node, Segment, Value};

/// What stands in the place of a key, and how to mend a config that has it.
pub(crate) struct Instead {
    pub(crate) why: &'static str,
    pub(crate) help: String,
}

/// Keys of services that other trainers report to.
const SERVICES: [&str; 12] = [
    "wandb",
    "use_wandb",
    "wandb_project",
    "wandb_entity",
    "report_to",
    "swanlab",
    "mlflow",
    "comet",
    "comet_ml",
    "neptune",
    "clearml",
    "logging_backend",
];

/// Attention by name that builds of flow-train have, whatever the device (`flow-train list attention`).
const BACKENDS: [&str; 5] = ["reference", "cpu", "portable", "mma", "wgmma"];

/// What to write instead of the key at `path`, with the value that was written; nothing if it is no such key.
pub(crate) fn instead(path: &[Segment], value: &Node) -> Option<Instead> {
    match path {
        [Segment::Key(model), Segment::Key(key)] if model == "model" && key == "attn_backend" => {
            Some(attention_backend(value))
        }
        [.., Segment::Key(key)] if is_service(key) => Some(service()),
        _ => None,
    }
}

/// Of a key that people know from elsewhere, by its name or its path: why it is none here, and what to do; nothing of any other.
pub fn explain_elsewhere(key: &str) -> Option<String> {
    let name = key.rsplit('.').next().unwrap_or(key);
    let Instead { why, help } = match key {
        "attn_backend" | "model.attn_backend" => any_attention_backend(),
        _ if is_service(name) => service(),
        _ => return None,
    };
    Some(format!("`{key}` is no key here: {why}\n  help: {help}\n"))
}

fn is_service(key: &str) -> bool {
    SERVICES.contains(&key.to_ascii_lowercase().as_str())
}

fn service() -> Instead {
    Instead {
        why: "flow-train speaks to no service",
        help: "remove it: TensorBoard events (`logging.tensorboard`), metrics.jsonl and report.html are written into the \
               run's folder"
            .to_owned(),
    }
}

/// Of a name of attention that is none of ours.
fn any_attention_backend() -> Instead {
    Instead {
        why: "attention is chosen by an accelerator",
        help: "remove it: without an accelerator the fastest attention of the device computes, on an NVIDIA GPU a kernel of \
               FlashAttention's kind. `flow-train list attention` shows the backends of this build, and the accelerator \
               `attention_backend` chooses one of them"
            .to_owned(),
    }
}

/// Flow-Factory's `model.attn_backend`, which its acceleration layer (PR #196) folded into an accelerator.
fn attention_backend(value: &Node) -> Instead {
    let Instead { why, help: of_any } = any_attention_backend();
    let help = match &value.value {
        // The name in diffusers of PyTorch's own attention, the default there as it is here.
        Value::String(backend) if backend == "native" => {
            "remove it: without an accelerator the device's own attention computes, as with \"native\""
                .to_owned()
        }
        Value::String(backend) if BACKENDS.contains(&backend.as_str()) => format!(
            "remove it, and write at the end of the file:\n\n[[acceleration.shared]]\nname = \
             \"attention_backend\"\nparams = {{ backend = {backend:?} }}\n\n`flow-train list attention` shows the \
             backends of this build"
        ),
        _ => of_any,
    };
    Instead { why, help }
}
