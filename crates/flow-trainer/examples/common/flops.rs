//! How many floating-point operations a workload takes: a multiplication and an addition are two.
//!
//! Blocks alone: embeddings and the output are a thousandth of it. Attention's backward pass counts 2.5 times its forward pass
//! (the convention of FlashAttention: scores are computed again). What recomputation repeats is counted, of a block's last product only
//! where its gates are trained, as fused kernels do it; what adapters add (1 to 3 %) and what a kernel computes twice is not.

use super::workloads::{Reads, Workload};
use serde_json::Value;

/// Operations of one sample's forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forward {
    /// Of linear layers.
    pub linear: f64,
    /// Of attention between queries, keys and values.
    pub attention: f64,
}

impl Forward {
    /// Of a workload's model.
    ///
    /// # Panics
    /// If the workload's settings lack what its architecture has.
    pub fn of(workload: &Workload) -> Self {
        let settings = &workload.settings;
        match workload.architecture {
            "dit" => dit(settings),
            "mmdit" => mmdit(settings, text_tokens(workload) as f64),
            "flux" => flux(settings, text_tokens(workload) as f64),
            "qwen-image" => qwen_image(settings, text_tokens(workload) as f64),
            _ => wan(settings, text_tokens(workload) as f64),
        }
    }
}

/// Tera-operations of a `part` of a workload, once: `forward`, `rollout` or `step`.
pub fn tera(workload: &Workload, part: &str, checkpoint: &str) -> f64 {
    let Forward { linear, attention } = Forward::of(workload);
    let guided = if workload.guidance_scale == 1.0 { 1.0 } else { 2.0 };
    let rows = workload.batch as f64;
    let operations = match part {
        "forward" => rows * (linear + attention),
        "rollout" => rows * guided * workload.steps as f64 * (linear + attention),
        _ => {
            // Without gradients of frozen weights a backward pass is one product per layer, not two.
            let (backward, spared) = match workload.lora {
                Some(_) => (1.0, of_last_products(workload)),
                None => (2.0, 0.0),
            };
            let (linear_again, attention_again) = match checkpoint {
                "full" => (linear - spared, 1.0),
                "attn_only" => (linear - spared, 0.0),
                _ => (0.0, 0.0),
            };
            let linear = linear * (1.0 + backward) + linear_again;
            rows * guided * (linear + attention * (1.0 + 2.5 + attention_again))
        }
    };
    operations / 1e12
}

/// Of one sample's forward pass, the products that blocks end with, of each stream: the second of a feed-forward part, or of FLUX.1's
/// blocks of one stream the projection of attention and feed-forward part. They are not computed again.
pub fn of_last_products(workload: &Workload) -> f64 {
    let (settings, text) = (&workload.settings, text_tokens(workload) as f64);
    let layers = |key: &str| number(settings, key);
    let width = || number(settings, "num_attention_heads") * number(settings, "attention_head_dim");
    match workload.architecture {
        "dit" => {
            let hidden = number(settings, "hidden");
            2.0 * layers("layers") * dit_tokens(settings) * hidden * hidden * number(settings, "mlp_ratio")
        }
        "mmdit" => {
            let both = mmdit_tokens(settings) + text;
            8.0 * (layers("num_layers") * both - text) * width() * width()
        }
        "flux" => {
            let both = packed(settings) + text;
            (8.0 * layers("num_layers") + 10.0 * layers("num_single_layers")) * both * width() * width()
        }
        "qwen-image" => {
            let both = packed(settings) + text;
            8.0 * (layers("num_layers") * both - text) * width() * width()
        }
        _ => 2.0 * layers("num_layers") * wan_tokens(settings) * width() * number(settings, "ffn_dim"),
    }
}

/// Tokens of the text that a workload's model reads; 0 without.
pub fn text_tokens(workload: &Workload) -> usize {
    match workload.reads {
        Reads::Text { tokens, .. } => tokens,
        Reads::Class { .. } => 0,
    }
}

fn number(settings: &Value, key: &str) -> f64 {
    let found = key.split('.').try_fold(settings, |value, key| value.get(key));
    found
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("the settings have no number `{key}`"))
}

/// adaLN-zero blocks with an MLP of `mlp_ratio` times the width, and a modulation of six widths a sample.
fn dit(settings: &Value) -> Forward {
    let width = number(settings, "hidden");
    let tokens = dit_tokens(settings);
    let inner = number(settings, "mlp_ratio") * width;
    let linear = 8.0 * tokens * width * width + 4.0 * tokens * width * inner + 12.0 * width * width;
    let layers = number(settings, "layers");
    Forward {
        linear: layers * linear,
        attention: layers * 4.0 * tokens * tokens * width,
    }
}

fn dit_tokens(settings: &Value) -> f64 {
    let side = |name: &str| number(settings, name) / number(settings, "patch");
    side("latent.height") * side("latent.width")
}

/// Joint blocks over image and text, some with a second attention of the image; the last one reads the text and drops it.
fn mmdit(settings: &Value, text: f64) -> Forward {
    let width = number(settings, "num_attention_heads") * number(settings, "attention_head_dim");
    let image = mmdit_tokens(settings);
    let (layers, both) = (number(settings, "num_layers"), image + text);
    let dual = settings["dual_attention_layers"].as_array().map_or(0, Vec::len) as f64;
    let linear = layers * 24.0 * both + dual * 8.0 * image - 18.0 * text;
    Forward {
        linear: linear * width * width,
        attention: (layers * 4.0 * both * both + dual * 4.0 * image * image) * width,
    }
}

fn mmdit_tokens(settings: &Value) -> f64 {
    let side = |name: &str| number(settings, name) / number(settings, "patch_size");
    side("latent_height") * side("latent_width")
}

/// Tokens of a latent, two rows and two columns of it in each.
fn packed(settings: &Value) -> f64 {
    number(settings, "latent_height") * number(settings, "latent_width") / 4.0
}

/// Blocks with two streams, then blocks with one for both, all alike in what a token costs: its feed-forward part is four times as
/// wide.
fn flux(settings: &Value, text: f64) -> Forward {
    let width = number(settings, "num_attention_heads") * number(settings, "attention_head_dim");
    let layers = number(settings, "num_layers") + number(settings, "num_single_layers");
    let both = packed(settings) + text;
    Forward {
        linear: layers * 24.0 * both * width * width,
        attention: layers * 4.0 * both * both * width,
    }
}

/// Blocks with two streams; the last one reads the text and drops it.
fn qwen_image(settings: &Value, text: f64) -> Forward {
    let width = number(settings, "num_attention_heads") * number(settings, "attention_head_dim");
    let layers = number(settings, "num_layers");
    let both = packed(settings) + text;
    Forward {
        linear: (layers * 24.0 * both - 18.0 * text) * width * width,
        attention: layers * 4.0 * both * both * width,
    }
}

/// Blocks with an attention over the video, one to the text, and a feed-forward part.
fn wan(settings: &Value, text: f64) -> Forward {
    let width = number(settings, "num_attention_heads") * number(settings, "attention_head_dim");
    let tokens = wan_tokens(settings);
    let inner = number(settings, "ffn_dim");
    let linear = 12.0 * tokens * width * width + 4.0 * tokens * width * inner + 4.0 * text * width * width;
    let layers = number(settings, "num_layers");
    Forward {
        linear: layers * linear,
        attention: layers * 4.0 * tokens * (tokens + text) * width,
    }
}

fn wan_tokens(settings: &Value) -> f64 {
    let patch = |axis: usize| {
        settings["patch_size"][axis]
            .as_f64()
            .expect("three sides of a patch")
    };
    let sides = ["latent_frames", "latent_height", "latent_width"];
    let sides = sides.iter().enumerate();
    sides
        .map(|(axis, name)| number(settings, name) / patch(axis))
        .product()
}
