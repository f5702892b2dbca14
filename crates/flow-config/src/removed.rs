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
        [.., Segment::Key(key)] if SERVICES.contains(&key.to_ascii_lowercase().as_str()) => Some(Instead {
            why: "flow-train speaks to no service",
            help: "remove it: TensorBoard events (`logging.tensorboard`), metrics.jsonl and report.html are written into the \
                   run's folder"
                .to_owned(),
        }),
        _ => None,
    }
}

/// Flow-Factory's `model.attn_backend`, which its acceleration layer (PR #196) folded into an accelerator.
fn attention_backend(value: &Node) -> Instead {
    let why = "attention is chosen by an accelerator";
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
        _ => "remove it: without an accelerator the fastest attention of the device computes, on an NVIDIA GPU a kernel of \
              FlashAttention's kind. `flow-train list attention` shows the backends of this build, and the accelerator \
              `attention_backend` chooses one of them"
            .to_owned(),
    };
    Instead { why, help }
}
