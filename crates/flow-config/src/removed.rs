//! Keys that people know from elsewhere and that have become something else here: what to write instead.

use crate::tree::{Node, Segment, Value};

/// What became of a key, and how to mend a config that has it.
pub(crate) struct Instead {
    pub(crate) why: &'static str,
    pub(crate) help: String,
}

/// What to write instead of the key at `path`, with the value that was written; nothing if it is no such key.
pub(crate) fn instead(path: &[Segment], value: &Node) -> Option<Instead> {
    match path {
        [Segment::Key(model), Segment::Key(key)] if model == "model" && key == "attn_backend" => {
            Some(attention_backend(value))
        }
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
        written => {
            let backend = match written {
                Value::String(backend) => backend.as_str(),
                _ => "reference",
            };
            format!(
                "remove it, and write at the end of the file:\n\n[[acceleration.shared]]\nname = \
                 \"attention_backend\"\nparams = {{ backend = {backend:?} }}\n\n`flow-train list attention` shows the \
                 backends of this build"
            )
        }
    };
    Instead { why, help }
}
