//! `Wan`: the video transformer of Wan 2.1, text to video.
//!
//! Source: Wan Team 2025, arXiv:2503.20314, and diffusers 0.42.1 `WanTransformer3DModel`, whose weight names and
//! numerics it has: a checkpoint from there loads as it is. Positions are rotary over frames, rows and columns; one
//! projection of the noise level serves all blocks, each of which adds a table of its own; the text is read by an
//! attention of its own in every block.

mod attention;
mod block;
mod config;
mod original;
mod section;

pub use config::WanConfig;
pub use section::WanSection;

use crate::layers::{Parts, PatchEmbedding, TimestepEmbedding, rotary_table, unpatchify};
use crate::lora::OriginalLayer;
use crate::registry::{ModelFactory, ModelRegistry};
use crate::{Architecture, ModelError, settings};
use block::{CHUNKS, WanBlock};
use burn::tensor::Tensor;
use flow_config::ModelKind;
use flow_core::FlowModel;
use flow_core::device::ComputeDevice;
use flow_core::exec::{DependsOn, Exec, Linear, RegionKind};
use flow_core::model::{ModelInput, ModelSpec, TextWidth};
use flow_core::ops::NormChunks;
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionShape, Handle, Init, ParamLayout, Rows};
use flow_registry::NameTaken;
use serde_json::Value;
use std::sync::Arc;

/// Chunks of the last modulation.
const OUT_SHIFT: usize = 0;
const OUT_SCALE: usize = 1;

/// A video transformer. Reads [`Condition::text`](flow_core::Condition::text) `[B, L, text_dim]`; its last layer starts
/// at zero, so a fresh model predicts velocity 0.
#[derive(Debug)]
pub struct Wan {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    linears: Vec<Linear>,
    config: WanConfig,
    patches: PatchEmbedding<5>,
    timestep: TimestepEmbedding,
    /// From the embedded noise level to the blocks' modulation, `[6 · D, D]`.
    time: Linear,
    text: [Linear; 2],
    blocks: Vec<Arc<WanBlock>>,
    /// `[1, 2, D]`, added to the embedded noise level.
    table: Handle<3>,
    out: Linear,
}

/// Builds a [`Wan`] from settings in the form of [`WanConfig`]: a diffusers `config.json` and the size of the latents.
///
/// # Errors
/// [`ModelError::Settings`].
pub fn build(settings: &Value, device: &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> {
    let settings = settings::without_private_keys(settings);
    Ok(Arc::new(Wan::new(&settings::read("wan", &settings)?, device)?))
}

/// Adds the architecture to `registry`.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut ModelRegistry) -> Result<(), NameTaken> {
    let kind = ModelKind::new::<WanSection>(
        "wan",
        "Video transformer of Wan 2.1, text to video (Wan Team 2025, arXiv 2503.20314), in the layout of diffusers' `WanTransformer3DModel`.",
        "the video transformer",
        ["num_layers", "num_attention_heads"],
    );
    let factory = ModelFactory::new::<WanSection>(
        kind,
        |section, device| Ok(Arc::new(Wan::new(&section.into(), device)?)),
        build,
    );
    registry.register(factory.with_rules(section::check))
}

impl Wan {
    /// The model that `config` describes, its position table on `device`.
    ///
    /// # Errors
    /// [`ModelError::Settings`].
    pub fn new(config: &WanConfig, device: &ComputeDevice) -> Result<Self, ModelError> {
        config.check()?;
        let (mut layout, mut linears) = (ParamLayout::default(), Vec::new());
        let mut parts = Parts::new(LayoutBuilder::new(&mut layout), &mut linears);
        let (hidden, latent, patch) = (config.hidden(), config.latent(), config.patch());

        let patches = PatchEmbedding::video(parts.under("patch_embedding"), latent, patch, hidden);
        let mut embedder = parts.under("condition_embedder");
        let timestep =
            TimestepEmbedding::new(embedder.under("time_embedder"), config.freq_dim, hidden, device);
        let mut of_sample = embedder.applied_to(Rows::Sample);
        let time = of_sample.linear("time_proj", hidden, CHUNKS * hidden, Init::XavierUniform);
        let mut text = embedder.applied_to(Rows::Text);
        let mut text = text.under("text_embedder");
        let text = [("linear_1", config.text_dim), ("linear_2", hidden)]
            .map(|(name, input)| text.linear(name, input, hidden, Init::Normal(0.02)));
        let rotary = rotary_table(&config.rotary_axes(), device);
        let blocks = (0..config.num_layers)
            .map(|index| {
                let parts = parts.under(format_args!("blocks.{index}"));
                Arc::new(WanBlock::new(parts, config, rotary.clone()))
            })
            .collect();
        let table = Init::Normal(1.0 / (hidden as f32).sqrt());
        let table = parts.param("scale_shift_table", [1, 2, hidden], table);
        let out = parts.linear("proj_out", hidden, patch * patch * latent.channels, Init::Zeros);
        let spec = ModelSpec {
            architecture: "wan".into(),
            latent,
            tokens: config.grid().iter().product(),
            vocabulary: None,
            text: Some(TextWidth {
                channels: config.text_dim,
                pooled: None,
            }),
            stacks: vec![("blocks".into(), config.num_layers)],
            regions: vec![RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp],
            guidance: false,
            attentions: [&[Rows::Tokens], &[Rows::Text]]
                .map(|keys| AttentionShape {
                    layers: config.num_layers,
                    queries: &[Rows::Tokens],
                    keys,
                    width: hidden,
                    heads: config.num_attention_heads,
                })
                .into(),
        };
        Ok(Self {
            spec,
            layout: Arc::new(layout),
            linears,
            config: config.clone(),
            patches,
            timestep,
            time,
            text,
            blocks,
            table,
            out,
        })
    }

    /// Dimensions.
    pub fn config(&self) -> &WanConfig {
        &self.config
    }
}

impl FlowModel for Wan {
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
        let time_bd = self.timestep.forward(exec, input.sigma);
        let [batch, hidden] = time_bd.dims();
        let project = |exec: &Exec<'_>, time_bd: Tensor<2>| {
            let activated = exec.activation(time_bd, Activation::Silu);
            let projected = exec.linear(&self.time, activated);
            let [batch, _] = projected.dims();
            projected.reshape([batch, CHUNKS, hidden])
        };
        let time_bkd = exec.reusable("time_proj", DependsOn::Sigma, time_bd.clone(), project);
        let embed = |exec: &Exec<'_>, text| {
            let text_bld = exec.linear_activated(&self.text[0], text, Activation::GeluTanh);
            exec.linear(&self.text[1], text_bld)
        };
        let text_bld = exec.reusable("text_embedder", DependsOn::Condition, text, embed);
        let x_bsd = self.patches.forward(exec, input.x);
        let x_bsd = exec.stack("blocks", &self.blocks, x_bsd, (time_bkd, text_bld));
        let modulation = time_bd.reshape([batch, 1, hidden]) + exec.params().get(self.table);
        let norm = NormChunks {
            shift: OUT_SHIFT,
            scale: OUT_SCALE,
            epsilon: self.config.eps,
        };
        let y_bsd = exec.modulated_linear(x_bsd, modulation, norm, &self.out);
        unpatchify(y_bsd, &self.spec.latent, self.config.patch())
    }
}

impl Architecture for Wan {
    fn linears(&self) -> &[Linear] {
        &self.linears
    }

    fn class_name(&self) -> &'static str {
        "WanTransformer3DModel"
    }

    fn constants(&self) -> Value {
        self.config.constants()
    }

    fn original_layers(&self) -> Vec<OriginalLayer> {
        original::layers(self.config.num_layers)
    }
}
