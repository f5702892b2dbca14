//! The workloads that are measured beside PyTorch: models of published sizes with random weights, and what they read.
//!
//! `tiny` gives each a few channels and tokens, so that both programs can be compared on any machine.

use flow_models::{FluxConfig, MmditConfig, QwenImageConfig, WanConfig};
use serde_json::{Value, json};

/// What a model reads besides latents and noise levels.
#[derive(Clone, Copy, Debug)]
pub enum Reads {
    /// One class of so many, the last standing for none.
    Class { classes: usize },
    /// Encoded text, and pooled text where there is any.
    Text {
        tokens: usize,
        channels: usize,
        pooled: Option<usize>,
        /// Whether the model embeds a guidance scale.
        guidance: bool,
    },
}

/// Adapters.
#[derive(Clone, Copy, Debug)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f32,
    pub targets: &'static [&'static str],
}

/// A model, its batch and how it is sampled.
#[derive(Clone, Debug)]
pub struct Workload {
    pub name: &'static str,
    pub architecture: &'static str,
    pub settings: Value,
    pub batch: usize,
    pub reads: Reads,
    pub lora: Option<Lora>,
    /// 1: no guidance.
    pub guidance_scale: f32,
    /// Denoising steps of a rollout.
    pub steps: usize,
}

impl Workload {
    /// The same with so many blocks, if a number is given.
    pub fn with_layers(mut self, layers: Option<usize>) -> Self {
        for name in ["layers", "num_layers", "num_single_layers"] {
            if let (Some(layers), Some(setting)) = (layers, self.settings.get_mut(name)) {
                *setting = layers.into();
            }
        }
        let dual = self.settings.get_mut("dual_attention_layers");
        if let (Some(layers), Some(dual)) = (layers, dual.and_then(|dual| dual.as_array_mut())) {
            dual.retain(|block| block.as_u64().is_some_and(|block| block < layers as u64));
        }
        self
    }

    /// The same of so many samples, if a number is given.
    pub fn with_batch(mut self, batch: Option<usize>) -> Self {
        self.batch = batch.unwrap_or(self.batch);
        self
    }
}

/// Names of all workloads.
pub const NAMES: [&str; 10] = [
    "wan-1.3b",
    "wan-1.3b-short",
    "wan-lora",
    "dit-xl-256",
    "dit-xl-1024",
    "sd35-medium",
    "dit-s",
    "flux-512",
    "flux-1024",
    "qwen-image-1024",
];

/// Every attention projection, whose names SD3, FLUX.1 and Qwen-Image have in common: Flow-GRPO's choice (`scripts/train_sd3.py`,
/// `scripts/train_flux.py`), and SD3's second attentions.
const ATTENTION_TARGETS: &[&str] = &[
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "add_q_proj",
    "add_k_proj",
    "add_v_proj",
    "to_add_out",
];

/// The same of Wan, whose attentions read one stream.
const WAN_TARGETS: &[&str] = &["to_q", "to_k", "to_v", "to_out.0"];

/// The workload called `name`.
///
/// # Errors
/// A message if there is none.
pub fn workload(name: &str, tiny: bool) -> Result<Workload, String> {
    let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
        return Err(format!(
            "there is no workload `{name}`; choose from {}",
            NAMES.join(", ")
        ));
    };
    Ok(match name {
        // 77 and 29 frames of 480 x 832 pixels: 31,200 and 12,480 tokens.
        "wan-1.3b" => wan(name, 20, tiny),
        "wan-1.3b-short" => wan(name, 8, tiny),
        "wan-lora" => wan_lora(name, tiny),
        // DiT-XL/2 of Peebles and Xie 2022, 16 heads of 72 channels, and its latents of 256 and 512 pixels.
        "dit-xl-256" => dit(name, (1152, 28, 16), (64, 32), tiny),
        "dit-xl-1024" => dit(name, (1152, 28, 16), (16, 64), tiny),
        "dit-s" => dit(name, (384, 12, 6), (8, 32), tiny),
        // Pictures of 512 and 1024 pixels: 1,024 and 4,096 tokens.
        "flux-512" => flux(name, (4, 64), tiny),
        "flux-1024" => flux(name, (1, 128), tiny),
        "qwen-image-1024" => qwen_image(name, tiny),
        _ => sd35(name, tiny),
    })
}

fn wan(name: &'static str, frames: usize, tiny: bool) -> Workload {
    let config = if tiny {
        WanConfig {
            latent_frames: 3,
            latent_height: 8,
            latent_width: 6,
            num_attention_heads: 2,
            attention_head_dim: 24,
            in_channels: 4,
            out_channels: None,
            text_dim: 16,
            freq_dim: 32,
            ffn_dim: 144,
            num_layers: 2,
            ..WanConfig::t2v_1_3b()
        }
    } else {
        WanConfig {
            latent_frames: frames,
            ..WanConfig::t2v_1_3b()
        }
    };
    Workload {
        name,
        architecture: "wan",
        reads: Reads::Text {
            tokens: if tiny { 5 } else { 512 },
            channels: config.text_dim,
            pooled: None,
            guidance: false,
        },
        settings: json!(config),
        batch: if tiny { 2 } else { 1 },
        lora: None,
        guidance_scale: 1.0,
        steps: if tiny { 3 } else { 10 },
    }
}

/// Adapters on Wan, and videos as in `configs/wan21-1.3b-grpo.toml`: 33 frames of 240 x 416 pixels, 3,510 tokens.
fn wan_lora(name: &'static str, tiny: bool) -> Workload {
    let mut workload = wan(name, 9, tiny);
    if !tiny {
        workload.settings["latent_height"] = 30.into();
        workload.settings["latent_width"] = 52.into();
        workload.batch = 4;
    }
    workload.lora = Some(Lora {
        targets: WAN_TARGETS,
        ..adapters(tiny)
    });
    workload
}

fn dit(
    name: &'static str,
    (hidden, layers, heads): (usize, usize, usize),
    (batch, side): (usize, usize),
    tiny: bool,
) -> Workload {
    let (hidden, layers, heads, batch, side, classes) = if tiny {
        (24, 2, 3, 3, 6, 5)
    } else {
        (hidden, layers, heads, batch, side, 1001)
    };
    Workload {
        name,
        architecture: "dit",
        settings: json!({
            "latent": { "channels": 4, "height": side, "width": side },
            "patch": 2, "hidden": hidden, "layers": layers, "heads": heads, "mlp_ratio": 4.0,
            "vocabulary": { "size": classes, "length": 1 }, "qk_norm": false, "position": "sincos",
        }),
        batch,
        reads: Reads::Class { classes },
        lora: None,
        guidance_scale: 1.0,
        steps: if tiny { 3 } else { 10 },
    }
}

fn sd35(name: &'static str, tiny: bool) -> Workload {
    // Pictures of 512 x 512 pixels: 1,024 tokens; 77 tokens of CLIP and 256 of T5.
    let config = if tiny {
        MmditConfig {
            sample_size: 8,
            latent_height: Some(4),
            latent_width: Some(6),
            in_channels: 4,
            out_channels: Some(4),
            num_layers: 3,
            attention_head_dim: 8,
            num_attention_heads: 3,
            joint_attention_dim: 10,
            caption_projection_dim: 24,
            pooled_projection_dim: 7,
            pos_embed_max_size: 4,
            dual_attention_layers: vec![0, 1],
            ..MmditConfig::sd35_medium()
        }
    } else {
        MmditConfig {
            latent_height: Some(64),
            latent_width: Some(64),
            ..MmditConfig::sd35_medium()
        }
    };
    Workload {
        name,
        architecture: "mmdit",
        reads: Reads::Text {
            tokens: if tiny { 5 } else { 333 },
            channels: config.joint_attention_dim,
            pooled: Some(config.pooled_projection_dim),
            guidance: false,
        },
        settings: json!(config),
        batch: if tiny { 2 } else { 8 },
        lora: Some(adapters(tiny)),
        guidance_scale: 4.5,
        steps: if tiny { 4 } else { 8 },
    }
}

fn adapters(tiny: bool) -> Lora {
    Lora {
        rank: if tiny { 3 } else { 32 },
        alpha: if tiny { 6.0 } else { 64.0 },
        targets: ATTENTION_TARGETS,
    }
}

fn flux(name: &'static str, (batch, side): (usize, usize), tiny: bool) -> Workload {
    let config = if tiny {
        FluxConfig {
            latent_height: 4,
            latent_width: 6,
            in_channels: 16,
            num_layers: 2,
            num_single_layers: 2,
            attention_head_dim: 16,
            num_attention_heads: 3,
            joint_attention_dim: 10,
            pooled_projection_dim: 7,
            axes_dims_rope: [4, 6, 6],
            ..FluxConfig::flux1_dev()
        }
    } else {
        FluxConfig {
            latent_height: side,
            latent_width: side,
            ..FluxConfig::flux1_dev()
        }
    };
    Workload {
        name,
        architecture: "flux",
        reads: Reads::Text {
            tokens: if tiny { 5 } else { 512 },
            channels: config.joint_attention_dim,
            pooled: Some(config.pooled_projection_dim),
            guidance: true,
        },
        settings: json!(config),
        batch: if tiny { 2 } else { batch },
        lora: Some(adapters(tiny)),
        guidance_scale: 1.0,
        steps: if tiny { 3 } else { 10 },
    }
}

fn qwen_image(name: &'static str, tiny: bool) -> Workload {
    let config = if tiny {
        QwenImageConfig {
            latent_height: 4,
            latent_width: 6,
            in_channels: 16,
            out_channels: 4,
            num_layers: 3,
            attention_head_dim: 16,
            num_attention_heads: 3,
            joint_attention_dim: 10,
            axes_dims_rope: [4, 6, 6],
            ..QwenImageConfig::published()
        }
    } else {
        QwenImageConfig::published()
    };
    Workload {
        name,
        architecture: "qwen-image",
        reads: Reads::Text {
            tokens: if tiny { 5 } else { 512 },
            channels: config.joint_attention_dim,
            pooled: None,
            guidance: false,
        },
        settings: json!(config),
        batch: if tiny { 2 } else { 1 },
        lora: Some(adapters(tiny)),
        // Its guidance is one of two branches, the second of which is another row.
        guidance_scale: 1.0,
        steps: if tiny { 3 } else { 10 },
    }
}
