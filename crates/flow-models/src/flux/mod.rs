//! `Flux`: the transformer of FLUX.1, dev and schnell.
//!
//! Source: Black Forest Labs 2024, and diffusers 0.42.1 `FluxTransformer2DModel`, whose weight names and numerics it has: a
//! checkpoint from there loads as it is. Blocks with two streams come first, blocks with one stream for sample and text follow;
//! positions are rotary over rows and columns, and the text stands at the origin. FLUX.1-dev also embeds a guidance scale.
//!
//! A latent `[C, H, W]` is packed here, two rows and two columns of all channels to a token; diffusers' pipeline does that outside
//! of the model.

mod config;
mod original;
mod section;
mod single_block;

pub use config::FluxConfig;
pub use section::FluxSection;

use crate::layers::{
    PACKING, Parts, Place, StreamNames, TIMESTEP_CHANNELS, TimestepEmbedding, TwoStreamBlock,
    TwoStreamSettings, modulation, norm, pack_latents, rotary_table, unpack_latents,
};
use crate::lora::OriginalLayer;
use crate::registry::{ModelFactory, ModelRegistry};
use crate::{Architecture, ModelError, settings};
use burn::tensor::Tensor;
use flow_config::ModelKind;
use flow_core::device::ComputeDevice;
use flow_core::exec::{DependsOn, Exec, Linear, RegionKind};
use flow_core::model::{ModelInput, ModelSpec, TextWidth};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionShape, FlowModel, Init, ParamLayout, Rows};
use flow_registry::NameTaken;
use serde_json::Value;
use single_block::SingleBlock;
use std::sync::Arc;

/// Chunks of the last modulation, in the order of diffusers' `AdaLayerNormContinuous`.
const OUT_SCALE: usize = 0;
const OUT_SHIFT: usize = 1;

/// Most tokens of a text. The published pipelines read up to 512.
const MOST_TEXT_TOKENS: usize = 4096;

/// A FLUX.1 transformer. Reads [`Condition::text`](flow_core::Condition::text) `[B, L, joint_attention_dim]`,
/// [`Condition::pooled`](flow_core::Condition::pooled) `[B, pooled_projection_dim]`, and with `guidance_embeds`
/// [`Condition::guidance`](flow_core::Condition::guidance) `[B]`.
#[derive(Debug)]
pub struct Flux {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    linears: Vec<Linear>,
    config: FluxConfig,
    timestep: TimestepEmbedding,
    guidance: Option<TimestepEmbedding>,
    pooled: [Linear; 2],
    text: Linear,
    sample: Linear,
    double_blocks: Vec<Arc<TwoStreamBlock>>,
    single_blocks: Vec<Arc<SingleBlock>>,
    norm_out: Linear,
    out: Linear,
}

/// Builds a [`Flux`] from settings in the form of [`FluxConfig`]: a diffusers `config.json` and the size of the latents.
///
/// # Errors
/// [`ModelError::Settings`].
pub fn build(settings: &Value, device: &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> {
    let settings = settings::without_private_keys(settings);
    Ok(Arc::new(Flux::new(&settings::read("flux", &settings)?, device)?))
}

/// Adds the architecture to `registry`.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut ModelRegistry) -> Result<(), NameTaken> {
    let kind = ModelKind::new::<FluxSection>(
        "flux",
        "Transformer of FLUX.1 (Black Forest Labs 2024), in the layout of diffusers' `FluxTransformer2DModel`.",
        "FLUX.1's transformer",
        ["num_layers", "num_single_layers"],
    );
    let factory = ModelFactory::new::<FluxSection>(
        kind,
        |section, device| Ok(Arc::new(Flux::new(&section.into(), device)?)),
        build,
    );
    registry.register(factory.with_rules(section::check))
}

impl Flux {
    /// The model that `config` describes, its position tables on `device`.
    ///
    /// # Errors
    /// [`ModelError::Settings`].
    pub fn new(config: &FluxConfig, device: &ComputeDevice) -> Result<Self, ModelError> {
        config.check()?;
        let (mut layout, mut linears) = (ParamLayout::default(), Vec::new());
        let mut parts = Parts::new(LayoutBuilder::new(&mut layout), &mut linears);
        let hidden = config.hidden();

        let mut embedders = parts.under("time_text_embed");
        let mut embedding =
            |name| TimestepEmbedding::new(embedders.under(name), TIMESTEP_CHANNELS, hidden, device);
        let timestep = embedding("timestep_embedder");
        let guidance = config.guidance_embeds.then(|| embedding("guidance_embedder"));
        let mut pooled = embedders.applied_to(Rows::Sample);
        let mut pooled = pooled.under("text_embedder");
        let pooled = [("linear_1", config.pooled_projection_dim), ("linear_2", hidden)]
            .map(|(name, input)| pooled.linear(name, input, hidden, Init::Normal(0.02)));
        let text = parts.applied_to(Rows::Text).linear(
            "context_embedder",
            config.joint_attention_dim,
            hidden,
            Init::XavierUniform,
        );
        let sample = parts.linear("x_embedder", config.in_channels, hidden, Init::XavierUniform);
        let rotary = rotary_table(&config.rotary_axes(), device);
        let names = |modulation, feed_forward| StreamNames {
            modulation: (modulation, "linear"),
            feed_forward,
        };
        let streams = TwoStreamSettings {
            hidden,
            heads: config.num_attention_heads,
            sample: names("norm1", "ff"),
            text: names("norm1_context", "ff_context"),
            positions: rotary.clone(),
            text_positions: None,
        };
        let double_blocks = (0..config.num_layers)
            .map(|index| {
                let parts = parts.under(format_args!("transformer_blocks.{index}"));
                let place = Place {
                    is_first: index == 0,
                    // The blocks of one stream read it.
                    text_is_last: false,
                };
                Arc::new(TwoStreamBlock::new(parts, &streams, place))
            })
            .collect();
        let rotary = rotary.followed_by_still(MOST_TEXT_TOKENS, device);
        let single_blocks = (0..config.num_single_layers)
            .map(|index| {
                let parts = parts.under(format_args!("single_transformer_blocks.{index}"));
                Arc::new(SingleBlock::new(parts, config, rotary.clone()))
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
            guidance,
            pooled,
            text,
            sample,
            double_blocks,
            single_blocks,
            norm_out,
            out,
        })
    }

    /// Dimensions.
    pub fn config(&self) -> &FluxConfig {
        &self.config
    }

    /// Embedded noise level, guidance scale and pooled text, added up, `[B, D]`.
    fn conditioning(
        &self,
        exec: &Exec<'_>,
        sigma_b: Tensor<1>,
        guidance_b: Option<Tensor<1>>,
        pooled: Tensor<2>,
    ) -> Tensor<2> {
        let mut time = self.timestep.forward(exec, sigma_b);
        if let Some(guidance) = &self.guidance {
            let scale = guidance_b.expect("a model that embeds guidance is given `Condition::guidance`");
            time = time + guidance.of_guidance(exec, scale);
        }
        let embed = |exec: &Exec<'_>, pooled| {
            let text = exec.linear_activated(&self.pooled[0], pooled, Activation::Silu);
            exec.linear(&self.pooled[1], text)
        };
        time + exec.reusable("text_embedder", DependsOn::Condition, pooled, embed)
    }
}

fn spec(config: &FluxConfig) -> ModelSpec {
    let (rows, columns) = config.grid();
    let attention = |layers, rows| AttentionShape {
        layers,
        queries: rows,
        keys: rows,
        width: config.hidden(),
        heads: config.num_attention_heads,
    };
    ModelSpec {
        architecture: "flux".into(),
        latent: config.latent(),
        tokens: rows * columns,
        vocabulary: None,
        text: Some(TextWidth {
            channels: config.joint_attention_dim,
            pooled: Some(config.pooled_projection_dim),
        }),
        guidance: config.guidance_embeds,
        stacks: vec![
            ("transformer_blocks".into(), config.num_layers),
            ("single_transformer_blocks".into(), config.num_single_layers),
        ],
        regions: vec![RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp],
        attentions: vec![
            attention(config.num_layers, &[Rows::Tokens, Rows::Text]),
            attention(config.num_single_layers, &[Rows::TokensAndText]),
        ],
    }
}

impl FlowModel for Flux {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// # Panics
    /// If `input` does not fit [`ModelSpec`].
    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let condition = input.condition;
        let text = condition
            .text
            .expect("a model that reads text is given `Condition::text`");
        let pooled = condition
            .pooled
            .expect("a model that reads text is given `Condition::pooled`");
        let text_tokens = text.dims()[1];
        assert!(
            text_tokens <= MOST_TEXT_TOKENS,
            "{text_tokens} tokens of text; at most {MOST_TEXT_TOKENS} are read"
        );

        let c_bd = self.conditioning(exec, input.sigma, condition.guidance, pooled);
        // Every modulation reads the conditioning through the same SiLU.
        let c_bd = exec.activation(c_bd, Activation::Silu);
        let x_bsd = exec.linear(&self.sample, pack_latents(input.x, &self.spec.latent, PACKING));
        let embed = |exec: &Exec<'_>, text| exec.linear(&self.text, text);
        let text_bld = exec.reusable("context_embedder", DependsOn::Condition, text, embed);
        let streams = (x_bsd, text_bld);
        let (x_bsd, text_bld) = exec.stack("transformer_blocks", &self.double_blocks, streams, c_bd.clone());
        // The sample first, so that what is read of the result begins where the sequence does.
        let both = Tensor::cat(vec![x_bsd, text_bld], 1);
        let both = exec.stack(
            "single_transformer_blocks",
            &self.single_blocks,
            both,
            c_bd.clone(),
        );
        let x_bsd = both.narrow(1, 0, self.spec.tokens);
        let modulation = modulation(exec, "norm_out", &self.norm_out, c_bd, 2);
        let y_bsd = exec.modulated_linear(x_bsd, modulation, norm(OUT_SHIFT, OUT_SCALE), &self.out);
        unpack_latents(y_bsd, &self.spec.latent, PACKING)
    }
}

impl Architecture for Flux {
    fn linears(&self) -> &[Linear] {
        &self.linears
    }

    fn class_name(&self) -> &'static str {
        "FluxTransformer2DModel"
    }

    fn constants(&self) -> Value {
        self.config.constants()
    }

    fn original_layers(&self) -> Vec<OriginalLayer> {
        original::layers(&self.config)
    }
}
