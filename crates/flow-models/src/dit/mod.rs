//! `DiT`: the diffusion transformer with adaLN-zero, conditioned on classes or tokens.
//!
//! Source: Peebles and Xie 2022, arXiv:2212.09748. It differs from the paper where SD3 does: rectangular images,
//! an RMS norm on queries and keys or a 2-D rotary embedding if asked for, and no learned variance.
//! Weight names follow diffusers, so that adapter targets are the ones people know.

mod block;
mod config;

pub use config::{DitConfig, Position};

use crate::layers::{
    Parts, PatchEmbedding, TimestepEmbedding, add_positions, modulation, norm, rotary_2d, sincos_2d,
    unpatchify,
};
use crate::{Architecture, ModelError, settings};
use block::DitBlock;
use burn::tensor::Tensor;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Exec, Linear, RegionKind};
use flow_core::model::{FlowModel, ModelInput, ModelSpec};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, Handle, Init, ParamLayout};
use serde_json::Value;
use std::sync::Arc;

/// Chunks of the last modulation, in the order of diffusers' `AdaLayerNormContinuous`.
const OUT_SCALE: usize = 0;
const OUT_SHIFT: usize = 1;

/// A diffusion transformer. Its modulations and its last layer start at zero, so a fresh model predicts velocity 0.
#[derive(Debug)]
pub struct Dit {
    spec: ModelSpec,
    layout: Arc<ParamLayout>,
    linears: Vec<Linear>,
    patch: usize,
    patches: PatchEmbedding,
    /// `[1, S, D]`.
    positions: Option<Tensor<3>>,
    timestep: TimestepEmbedding,
    tokens: Option<Handle<2>>,
    blocks: Vec<Arc<DitBlock>>,
    norm_out: Linear,
    out: Linear,
}

/// Builds a [`Dit`] from settings in the form of [`DitConfig`].
///
/// # Errors
/// [`ModelError::Settings`].
pub fn build(settings: &Value, device: &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> {
    Ok(Arc::new(Dit::new(&settings::read("dit", settings)?, device)?))
}

impl Dit {
    /// The model that `config` describes, its position tables on `device`.
    ///
    /// # Errors
    /// [`ModelError::Settings`].
    pub fn new(config: &DitConfig, device: &ComputeDevice) -> Result<Self, ModelError> {
        config.check()?;
        let (mut layout, mut linears) = (ParamLayout::default(), Vec::new());
        let mut parts = Parts::new(LayoutBuilder::new(&mut layout), &mut linears);
        let DitConfig {
            latent,
            patch,
            hidden,
            ..
        } = *config;
        let (rows, columns) = config.grid();

        let patches = PatchEmbedding::new(parts.under("pos_embed"), latent, patch, hidden);
        let timestep = TimestepEmbedding::new(parts.under("time_embed.timestep_embedder"), hidden, device);
        let tokens = config.vocabulary.map(|vocabulary| {
            parts
                .under("token_embed")
                .param("weight", [vocabulary.size, hidden], Init::Normal(0.02))
        });
        let rope = config.position == Position::Rope;
        let rotary = rope.then(|| rotary_2d(config.head_dim(), rows, columns, device));
        let blocks = (0..config.layers)
            .map(|index| {
                let parts = parts.under(format_args!("transformer_blocks.{index}"));
                Arc::new(DitBlock::new(parts, config, rotary.clone()))
            })
            .collect();
        let norm_out = parts
            .under("norm_out")
            .linear("linear", hidden, 2 * hidden, Init::Zeros);
        let out = parts.linear("proj_out", hidden, patch * patch * latent.channels, Init::Zeros);
        let positions = (!rope).then(|| {
            let table = sincos_2d(hidden, rows, columns, 1.0);
            device.tensor(table, [1, rows * columns, hidden])
        });
        let spec = ModelSpec {
            architecture: "dit".into(),
            latent,
            tokens: rows * columns,
            vocabulary: config.vocabulary,
            reads_text: false,
            stacks: vec![("transformer_blocks".into(), config.layers)],
            regions: vec![RegionKind::AdaLn, RegionKind::Attention, RegionKind::Mlp],
        };
        Ok(Self {
            spec,
            layout: Arc::new(layout),
            linears,
            patch,
            patches,
            positions,
            timestep,
            tokens,
            blocks,
            norm_out,
            out,
        })
    }

    /// The conditioning `[B, D]`: embedded noise level plus the sum of the embedded tokens.
    fn conditioning(&self, exec: &Exec<'_>, input: &ModelInput) -> Tensor<2> {
        let time = self.timestep.forward(exec, input.sigma.clone());
        let Some(table) = self.tokens else {
            return time;
        };
        let tokens_bl = input.condition.tokens.clone();
        let tokens_bl = tokens_bl.expect("a model with a vocabulary is given `Condition::tokens`");
        let [batch, length] = tokens_bl.dims();
        let expected = self.spec.vocabulary.map(|vocabulary| vocabulary.length);
        assert_eq!(Some(length), expected, "tokens of one condition");
        let embedded = exec.embedding(table, tokens_bl).sum_dim(1);
        let width = embedded.dims()[2];
        time + embedded.reshape([batch, width])
    }
}

impl FlowModel for Dit {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// # Panics
    /// If `input` does not fit [`ModelSpec`].
    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2> {
        let c_bd = self.conditioning(exec, &input);
        // Every modulation reads the conditioning through the same SiLU.
        let c_bd = exec.activation(c_bd, Activation::Silu);
        let mut x_bsd = self.patches.forward(exec, input.x);
        if let Some(positions) = &self.positions {
            x_bsd = add_positions(x_bsd, positions.clone());
        }
        let x_bsd = exec.stack("transformer_blocks", &self.blocks, x_bsd, c_bd.clone());
        let modulation = modulation(exec, &self.norm_out, c_bd, 2);
        let y_bsd = exec.modulated_linear(x_bsd, modulation, norm(OUT_SHIFT, OUT_SCALE), &self.out);
        unpatchify(y_bsd, &self.spec.latent, self.patch)
    }
}

impl Architecture for Dit {
    fn linears(&self) -> &[Linear] {
        &self.linears
    }
}
