//! `QwenImage`: the transformer of Qwen-Image, text to image.
//!
//! Source: Wu et al. 2025, arXiv:2508.02324, and diffusers 0.42.1 `QwenImageTransformer2DModel`, whose weight names and numerics it
//! has: a checkpoint from there loads as it is. All blocks have two streams, one for the sample and one for the text, with joint
//! attention; positions are rotary, the picture's centred at the origin and the text's behind its edge; padding of the text is hidden
//! from attention by [`Condition::text_lengths`](flow_core::Condition::text_lengths).
//!
//! A latent `[C, H, W]` is packed here, two rows and two columns of all channels to a token; diffusers' pipeline does that outside
//! of the model.
//!
//! In bf16 diffusers rounds the frequencies of the timestep's embedding to bf16. Here they stay f32, and so do the noise levels.

mod config;
mod position;
mod section;

pub use config::QwenImageConfig;
pub use section::QwenImageSection;

use crate::layers::{
    NORM_EPSILON, PACKING, Parts, Place, StreamNames, TIMESTEP_CHANNELS, TimestepEmbedding, TwoStreamBlock,
    TwoStreamSettings, modulation, norm, pack_latents, unpack_latents,
};
use crate::registry::{ModelFactory, ModelRegistry};
use crate::{Architecture, ModelError, settings};
use burn::tensor::Tensor;
use flow_config::ModelKind;
use flow_core::device::ComputeDevice;
use flow_core::exec::{DependsOn, Exec, Linear, RegionKind};
use flow_core::model::{ModelInput, ModelSpec, TextWidth};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionShape, FlowModel, Handle, Init, ParamLayout, Rows};
use flow_registry::NameTaken;
use serde_json::Value;
use std::sync::Arc;

/// Its name in configs and registries.
const NAME: &str = "qwen-image";

/// Chunks of the last modulation, in the order of diffusers' `AdaLayerNormContinuous`.
const OUT_SCALE: usize = 0;
const OUT_SHIFT: usize = 1;

/// Most tokens of a text. The published pipeline reads up to 1024.
const MOST_TEXT_TOKENS: usize = 4096;

/// A Qwen-Image transformer. Reads [`Condition::text`](flow_core::Condition::text) `[B, L, joint_attention_dim]`, of which each row's
/// first [`Condition::text_lengths`](flow_core::Condition::text_lengths) tokens are attended to.
#[derive(Debug)]
pub struct QwenImage {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    linears: Vec<Linear>,
    config: QwenImageConfig,
    timestep: TimestepEmbedding,
    text_norm: Handle<1>,
    text: Linear,
    sample: Linear,
    blocks: Vec<Arc<TwoStreamBlock>>,
    norm_out: Linear,
    out: Linear,
}

/// Builds a [`QwenImage`] from settings in the form of [`QwenImageConfig`]: a diffusers `config.json` and the size of the latents.
///
/// # Errors
/// [`ModelError::Settings`].
pub fn build(settings: &Value, device: &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> {
    let settings = settings::without_private_keys(settings);
    Ok(Arc::new(QwenImage::new(
        &settings::read(NAME, &settings)?,
        device,
    )?))
}

/// Adds the architecture to `registry`.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut ModelRegistry) -> Result<(), NameTaken> {
    let kind = ModelKind::new::<QwenImageSection>(
        NAME,
        "Transformer of Qwen-Image (Wu et al. 2025, arXiv 2508.02324), in the layout of diffusers' `QwenImageTransformer2DModel`.",
        "Qwen-Image's transformer",
        ["num_layers", "num_attention_heads"],
    );
    let factory = ModelFactory::new::<QwenImageSection>(
        kind,
        |section, device| Ok(Arc::new(QwenImage::new(&section.into(), device)?)),
        build,
    );
    registry.register(factory.with_rules(section::check))
}

impl QwenImage {
    /// The model that `config` describes, its position tables on `device`.
    ///
    /// # Errors
    /// [`ModelError::Settings`].
    pub fn new(config: &QwenImageConfig, device: &ComputeDevice) -> Result<Self, ModelError> {
        config.check()?;
        let (mut layout, mut linears) = (ParamLayout::default(), Vec::new());
        let mut parts = Parts::new(LayoutBuilder::new(&mut layout), &mut linears);
        let hidden = config.hidden();

        let mut embedders = parts.under("time_text_embed");
        let embedder = embedders.under("timestep_embedder");
        let timestep = TimestepEmbedding::new(embedder, TIMESTEP_CHANNELS, hidden, device).scaled_last();
        let mut of_text = parts.applied_to(Rows::Text);
        let text_norm = of_text
            .under("txt_norm")
            .param("weight", [config.joint_attention_dim], Init::Ones);
        let text = of_text.linear("txt_in", config.joint_attention_dim, hidden, Init::XavierUniform);
        let sample = parts.linear("img_in", config.in_channels, hidden, Init::XavierUniform);
        // `1`: in diffusers the layer stands behind the activation, which all blocks share here.
        let names = |modulation, feed_forward| StreamNames {
            modulation: (modulation, "1"),
            feed_forward,
        };
        let streams = TwoStreamSettings {
            hidden,
            heads: config.num_attention_heads,
            sample: names("img_mod", "img_mlp"),
            text: names("txt_mod", "txt_mlp"),
            positions: position::of_sample(config, device),
            text_positions: Some(position::of_text(config, MOST_TEXT_TOKENS, device)),
        };
        let blocks = (0..config.num_layers)
            .map(|index| {
                let parts = parts.under(format_args!("transformer_blocks.{index}"));
                let place = Place {
                    is_first: index == 0,
                    text_is_last: index + 1 == config.num_layers,
                };
                Arc::new(TwoStreamBlock::new(parts, &streams, place))
            })
            .collect();
        let norm_out = parts.applied_to(Rows::Sample).under("norm_out").linear(
            "linear",
            hidden,
            2 * hidden,
            Init::Zeros,
        );
        let out = parts.linear("proj_out", hidden, config.in_channels, Init::Zeros);
        Ok(Self {
            spec: spec(config),
            layout: Arc::new(layout),
            linears,
            config: config.clone(),
            timestep,
            text_norm,
            text,
            sample,
            blocks,
            norm_out,
            out,
        })
    }

    /// Dimensions.
    pub fn config(&self) -> &QwenImageConfig {
        &self.config
    }
}

fn spec(config: &QwenImageConfig) -> ModelSpec {
    let (rows, columns) = config.grid();
    let both = &[Rows::Tokens, Rows::Text];
    ModelSpec {
        architecture: NAME.into(),
        latent: config.latent(),
        tokens: rows * columns,
        text: Some(TextWidth {
            channels: config.joint_attention_dim,
            pooled: None,
        }),
        stacks: vec![("transformer_blocks".into(), config.num_layers)],
        regions: vec![RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp],
        attentions: vec![AttentionShape {
            layers: config.num_layers,
            queries: both,
            keys: both,
            width: config.hidden(),
            heads: config.num_attention_heads,
        }],
        ..ModelSpec::default()
    }
}

impl FlowModel for QwenImage {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// # Panics
    /// If `input` does not fit [`ModelSpec`], or a text is longer than its row.
    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let condition = input.condition;
        let text = condition
            .text
            .expect("a model that reads text is given `Condition::text`");
        let [batch, text_tokens, _] = text.dims();
        assert!(
            text_tokens <= MOST_TEXT_TOKENS,
            "{text_tokens} tokens of text; at most {MOST_TEXT_TOKENS} are read"
        );
        if let Some(lengths) = &condition.text_lengths {
            assert!(
                lengths.len() == batch && lengths.iter().all(|length| *length <= text_tokens),
                "texts of {lengths:?} tokens in {batch} rows of {text_tokens}"
            );
        }
        let exec = &exec.clone().with_text_lengths(condition.text_lengths);

        let c_bd = self.timestep.forward(exec, input.sigma);
        // Every modulation reads the conditioning through the same SiLU.
        let c_bd = exec.activation(c_bd, Activation::Silu);
        let x_bsd = exec.linear(&self.sample, pack_latents(input.x, &self.spec.latent, PACKING));
        let embed = |exec: &Exec<'_>, text| {
            exec.linear(
                &self.text,
                exec.rms_norm(text, Some(self.text_norm), NORM_EPSILON),
            )
        };
        let text_bld = exec.reusable("txt_in", DependsOn::Condition, text, embed);
        let streams = (x_bsd, text_bld);
        let (x_bsd, _) = exec.stack("transformer_blocks", &self.blocks, streams, c_bd.clone());
        let modulation = modulation(exec, "norm_out", &self.norm_out, c_bd, 2);
        let y_bsd = exec.modulated_linear(x_bsd, modulation, norm(OUT_SHIFT, OUT_SCALE), &self.out);
        unpack_latents(y_bsd, &self.spec.latent, PACKING)
    }
}

impl Architecture for QwenImage {
    fn linears(&self) -> &[Linear] {
        &self.linears
    }

    fn class_name(&self) -> &'static str {
        "QwenImageTransformer2DModel"
    }

    fn constants(&self) -> Value {
        self.config.constants()
    }

    fn is_without_effect(&self, constant: &str) -> bool {
        constant == "pooled_projection_dim"
    }
}
