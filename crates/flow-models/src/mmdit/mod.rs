//! `MMDiT`: the transformer of Stable Diffusion 3 and 3.5, with joint attention of image and text.
//!
//! Source: Esser et al. 2024, arXiv:2403.03206, and diffusers 0.42.1 `SD3Transformer2DModel`, whose weight names and
//! numerics it has: a checkpoint from there loads as it is.

mod block;
mod config;
mod original;
mod section;

pub use config::MmditConfig;
pub use section::MmditSection;

use crate::layers::{
    Parts, PatchEmbedding, TIMESTEP_CHANNELS, TimestepEmbedding, add_positions, modulation, norm, sincos_2d,
    unpatchify,
};
use crate::lora::OriginalLayer;
use crate::registry::{ModelFactory, ModelRegistry};
use crate::{Architecture, ModelError, settings};
use block::MmditBlock;
use burn::tensor::Tensor;
use flow_config::ModelKind;
use flow_core::FlowModel;
use flow_core::device::ComputeDevice;
use flow_core::exec::{DependsOn, Exec, Linear, RegionKind};
use flow_core::model::{ModelInput, ModelSpec, TextWidth};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionShape, Handle, Init, ParamLayout, Rows};
use flow_registry::NameTaken;
use serde_json::Value;
use std::sync::Arc;

/// Chunks of the last modulation, in the order of diffusers' `AdaLayerNormContinuous`.
const OUT_SCALE: usize = 0;
const OUT_SHIFT: usize = 1;

/// A multimodal diffusion transformer. Reads [`Condition::text`](flow_core::Condition::text) `[B, L, joint_attention_dim]`
/// and [`Condition::pooled`](flow_core::Condition::pooled) `[B, pooled_projection_dim]`.
#[derive(Debug)]
pub struct Mmdit {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    linears: Vec<Linear>,
    config: MmditConfig,
    patches: PatchEmbedding<4>,
    /// `[1, side · side, D]`.
    positions: Handle<3>,
    timestep: TimestepEmbedding,
    pooled: [Linear; 2],
    context: Linear,
    blocks: Vec<Arc<MmditBlock>>,
    norm_out: Linear,
    out: Linear,
}

/// Builds an [`Mmdit`] from settings in the form of [`MmditConfig`]; a diffusers `config.json` is one.
///
/// # Errors
/// [`ModelError::Settings`].
pub fn build(settings: &Value, device: &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> {
    let settings = settings::without_private_keys(settings);
    Ok(Arc::new(Mmdit::new(
        &settings::read("mmdit", &settings)?,
        device,
    )?))
}

/// Adds the architecture to `registry`.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut ModelRegistry) -> Result<(), NameTaken> {
    let kind = ModelKind::new::<MmditSection>(
        "mmdit",
        "Multimodal DiT of Stable Diffusion 3 (Esser et al. 2024, arXiv 2403.03206), in the layout of diffusers' `SD3Transformer2DModel`.",
        "the MMDiT",
        ["num_layers", "num_attention_heads"],
    );
    let factory = ModelFactory::new::<MmditSection>(
        kind,
        |section, device| Ok(Arc::new(Mmdit::new(&section.into(), device)?)),
        build,
    );
    registry.register(factory.with_rules(section::check))
}

impl Mmdit {
    /// The model that `config` describes.
    ///
    /// # Errors
    /// [`ModelError::Settings`].
    pub fn new(config: &MmditConfig, device: &ComputeDevice) -> Result<Self, ModelError> {
        config.check()?;
        let (mut layout, mut linears) = (ParamLayout::default(), Vec::new());
        let mut parts = Parts::new(LayoutBuilder::new(&mut layout), &mut linears);
        let (hidden, latent, patch) = (config.hidden(), config.latent(), config.patch_size);

        let side = config.pos_embed_max_size;
        let positions = parts
            .under("pos_embed")
            .buffer("pos_embed", [1, side * side, hidden]);
        let patches = PatchEmbedding::image(parts.under("pos_embed"), latent, patch, hidden);
        let mut embedders = parts.under("time_text_embed");
        let timestep = TimestepEmbedding::new(
            embedders.under("timestep_embedder"),
            TIMESTEP_CHANNELS,
            hidden,
            device,
        );
        let mut text = embedders.applied_to(Rows::Sample);
        let mut text = text.under("text_embedder");
        let pooled = [
            text.linear(
                "linear_1",
                config.pooled_projection_dim,
                hidden,
                Init::Normal(0.02),
            ),
            text.linear("linear_2", hidden, hidden, Init::Normal(0.02)),
        ];
        let context = parts.applied_to(Rows::Text).linear(
            "context_embedder",
            config.joint_attention_dim,
            hidden,
            Init::XavierUniform,
        );
        let blocks = (0..config.num_layers)
            .map(|index| {
                let parts = parts.under(format_args!("transformer_blocks.{index}"));
                Arc::new(MmditBlock::new(parts, config, index))
            })
            .collect();
        let norm_out = parts.applied_to(Rows::Sample).under("norm_out").linear(
            "linear",
            hidden,
            2 * hidden,
            Init::Zeros,
        );
        let out = parts.linear("proj_out", hidden, patch * patch * latent.channels, Init::Zeros);
        let (rows, columns) = config.grid();
        let spec = ModelSpec {
            architecture: "mmdit".into(),
            latent,
            tokens: rows * columns,
            vocabulary: None,
            text: Some(TextWidth {
                channels: config.joint_attention_dim,
                pooled: Some(config.pooled_projection_dim),
            }),
            stacks: vec![("transformer_blocks".into(), config.num_layers)],
            regions: vec![RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp],
            guidance: false,
            attentions: vec![
                AttentionShape {
                    layers: config.num_layers,
                    queries: &[Rows::Tokens, Rows::Text],
                    keys: &[Rows::Tokens, Rows::Text],
                    width: hidden,
                    heads: config.num_attention_heads,
                },
                AttentionShape {
                    layers: config.dual_attention_layers.len(),
                    queries: &[Rows::Tokens],
                    keys: &[Rows::Tokens],
                    width: hidden,
                    heads: config.num_attention_heads,
                },
            ],
        };
        Ok(Self {
            spec,
            layout: Arc::new(layout),
            linears,
            config: config.clone(),
            patches,
            positions,
            timestep,
            pooled,
            context,
            blocks,
            norm_out,
            out,
        })
    }

    /// Dimensions.
    pub fn config(&self) -> &MmditConfig {
        &self.config
    }

    /// The centre of the position table, `[1, S, D]`.
    fn cropped_positions(&self, exec: &Exec<'_>) -> Tensor<3> {
        let (side, hidden) = (self.config.pos_embed_max_size, self.config.hidden());
        let (rows, columns) = self.config.grid();
        exec.params()
            .get(self.positions)
            .reshape([side, side, hidden])
            .narrow(0, (side - rows) / 2, rows)
            .narrow(1, (side - columns) / 2, columns)
            .reshape([1, rows * columns, hidden])
    }

    /// Embedded noise level plus embedded pooled text, `[B, D]`.
    fn conditioning(&self, exec: &Exec<'_>, sigma_b: Tensor<1>, pooled: Tensor<2>) -> Tensor<2> {
        let time = self.timestep.forward(exec, sigma_b);
        let embed = |exec: &Exec<'_>, pooled| {
            let text = exec.linear_activated(&self.pooled[0], pooled, Activation::Silu);
            exec.linear(&self.pooled[1], text)
        };
        time + exec.reusable("text_embedder", DependsOn::Condition, pooled, embed)
    }
}

impl FlowModel for Mmdit {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// # Panics
    /// If `input` does not fit [`ModelSpec`].
    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let text = input.condition.text;
        let text = text.expect("a model that reads text is given `Condition::text`");
        let pooled = input.condition.pooled;
        let pooled = pooled.expect("a model that reads text is given `Condition::pooled`");

        let c_bd = self.conditioning(exec, input.sigma, pooled);
        // Every modulation reads the conditioning through the same SiLU.
        let c_bd = exec.activation(c_bd, Activation::Silu);
        let x_bsd = add_positions(self.patches.forward(exec, input.x), self.cropped_positions(exec));
        let embed = |exec: &Exec<'_>, text| exec.linear(&self.context, text);
        let context_bld = exec.reusable("context_embedder", DependsOn::Condition, text, embed);
        let streams = (x_bsd, context_bld);
        let (x_bsd, _) = exec.stack("transformer_blocks", &self.blocks, streams, c_bd.clone());
        let modulation = modulation(exec, "norm_out", &self.norm_out, c_bd, 2);
        let y_bsd = exec.modulated_linear(x_bsd, modulation, norm(OUT_SHIFT, OUT_SCALE), &self.out);
        unpatchify(y_bsd, &self.spec.latent, self.config.patch_size)
    }
}

impl Architecture for Mmdit {
    fn linears(&self) -> &[Linear] {
        &self.linears
    }

    fn class_name(&self) -> &'static str {
        "SD3Transformer2DModel"
    }

    fn constants(&self) -> Value {
        self.config.constants()
    }

    fn is_size(&self, constant: &str) -> bool {
        constant == "sample_size"
    }

    fn original_layers(&self) -> Vec<OriginalLayer> {
        original::layers(&self.config)
    }

    fn buffers(&self) -> Vec<(usize, Vec<f32>)> {
        let side = self.config.pos_embed_max_size;
        // The table spans the patches of a latent of `sample_size`, whatever its own size (diffusers' `base_size`).
        let base = self.config.sample_size / self.config.patch_size;
        let table = sincos_2d(self.config.hidden(), side, side, base as f64 / side as f64);
        vec![(self.positions.index(), table)]
    }
}
