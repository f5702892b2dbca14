//! `DiT`: the diffusion transformer with adaLN-zero, conditioned on classes or tokens.
//!
//! Source: Peebles and Xie 2022, arXiv:2212.09748. It differs from the paper where SD3 does: rectangular images,
//! an RMS norm on queries and keys or a 2-D rotary embedding if asked for, and no learned variance.
//! Weight names follow diffusers, so that adapter targets are the ones people know.

mod block;
mod config;
mod moe;
mod rules;
mod section;

pub use config::{DitConfig, MoeConfig, Position};
pub use section::{ClassConditioning, Conditioning, DitSection, MoeSection, TokenConditioning};

use crate::layers::{
    Parts, PatchEmbedding, TIMESTEP_CHANNELS, TimestepEmbedding, add_positions, modulation, norm, rotary_2d,
    sincos_2d, unpatchify,
};
use crate::registry::{ModelFactory, ModelRegistry};
use crate::{Architecture, ModelError, settings};
use block::DitBlock;
use burn::tensor::Tensor;
use flow_config::ModelKind;
use flow_core::FlowModel;
use flow_core::device::ComputeDevice;
use flow_core::exec::{DependsOn, Exec, Linear, RegionKind};
use flow_core::model::{ModelInput, ModelSpec};
use flow_core::params::LayoutBuilder;
use flow_core::{Activation, AttentionShape, Handle, Init, ParamLayout, Rows};
use flow_registry::NameTaken;
use moe::MoeBlock;
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
    constants: Value,
    patch: usize,
    patches: PatchEmbedding<4>,
    /// `[1, S, D]`.
    positions: Option<Tensor<3>>,
    timestep: TimestepEmbedding,
    tokens: Option<Handle<2>>,
    blocks: Blocks,
    norm_out: Linear,
    out: Linear,
}

/// The blocks of a model are all of one kind.
#[derive(Debug)]
enum Blocks {
    Dense(Vec<Arc<DitBlock>>),
    Experts(Vec<Arc<MoeBlock>>),
}

impl Blocks {
    /// Kinds of regions that they announce.
    fn regions(&self) -> Vec<RegionKind> {
        let mut kinds = vec![RegionKind::AdaLn, RegionKind::Attention];
        match self {
            Self::Dense(_) => kinds.push(RegionKind::Mlp),
            Self::Experts(_) => kinds.extend([RegionKind::Moe, RegionKind::Router]),
        }
        kinds
    }
}

/// Builds a [`Dit`] from settings in the form of [`DitConfig`].
///
/// # Errors
/// [`ModelError::Settings`].
pub fn build(settings: &Value, device: &ComputeDevice) -> Result<Arc<dyn Architecture>, ModelError> {
    Ok(Arc::new(Dit::new(&settings::read("dit", settings)?, device)?))
}

/// Adds the architecture to `registry`.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut ModelRegistry) -> Result<(), NameTaken> {
    let kind = ModelKind {
        reads_text: false,
        checks_images: true,
        ..ModelKind::new::<DitSection>(
            "dit",
            "Diffusion transformer with adaLN-zero (Peebles and Xie 2022, arXiv 2212.09748).",
            "the DiT",
            ["hidden", "layers"],
        )
    };
    let factory = ModelFactory::new::<DitSection>(
        kind,
        |section, device| Ok(Arc::new(Dit::new(&section.into(), device)?)),
        build,
    );
    registry.register(factory.with_rules(rules::check))
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

        let patches = PatchEmbedding::image(parts.under("pos_embed"), latent, patch, hidden);
        let timestep = TimestepEmbedding::new(
            parts.under("time_embed.timestep_embedder"),
            TIMESTEP_CHANNELS,
            hidden,
            device,
        );
        let tokens = config.vocabulary.map(|vocabulary| {
            parts
                .under("token_embed")
                .param("weight", [vocabulary.size, hidden], Init::Normal(0.02))
        });
        let rope = config.position == Position::Rope;
        let rotary = rope.then(|| rotary_2d(config.head_dim(), rows, columns, device));
        let indices = 0..config.layers;
        let blocks = match &config.moe {
            None => Blocks::Dense(
                indices
                    .map(|index| {
                        Arc::new(DitBlock::new(
                            parts.under(format_args!("transformer_blocks.{index}")),
                            config,
                            rotary.clone(),
                        ))
                    })
                    .collect(),
            ),
            Some(moe) => Blocks::Experts(
                indices
                    .map(|index| {
                        Arc::new(MoeBlock::new(
                            parts.under(format_args!("transformer_blocks.{index}")),
                            config,
                            moe,
                            rotary.clone(),
                        ))
                    })
                    .collect(),
            ),
        };
        let norm_out = parts.applied_to(Rows::Sample).under("norm_out").linear(
            "linear",
            hidden,
            2 * hidden,
            Init::Zeros,
        );
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
            text: None,
            stacks: vec![("transformer_blocks".into(), config.layers)],
            regions: blocks.regions(),
            guidance: false,
            attentions: vec![AttentionShape {
                layers: config.layers,
                queries: &[Rows::Tokens],
                keys: &[Rows::Tokens],
                width: hidden,
                heads: config.heads,
            }],
        };
        Ok(Self {
            spec,
            layout: Arc::new(layout),
            linears,
            constants: serde_json::to_value(config).expect("plain numbers and names"),
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
        let [_, length] = tokens_bl.dims();
        let expected = self.spec.vocabulary.map(|vocabulary| vocabulary.length);
        assert_eq!(Some(length), expected, "tokens of one condition");
        let embed = |exec: &Exec<'_>, tokens_bl| {
            let embedded = exec.embedding(table, tokens_bl).sum_dim(1);
            let [batch, _, width] = embedded.dims();
            embedded.reshape([batch, width])
        };
        time + exec.reusable("token_embed", DependsOn::Condition, tokens_bl, embed)
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
        self.velocity_and_balance(exec, input).0
    }

    /// # Panics
    /// If `input` does not fit [`ModelSpec`], or if the kernels have no operations of the experts that the model has.
    fn velocity_and_balance(&self, exec: &Exec<'_>, input: ModelInput) -> (Tensor<2>, Option<Tensor<1>>) {
        let c_bd = self.conditioning(exec, &input);
        // Every modulation reads the conditioning through the same SiLU.
        let c_bd = exec.activation(c_bd, Activation::Silu);
        let ModelInput { x, sigma, .. } = input;
        let mut x_bsd = self.patches.forward(exec, x);
        if let Some(positions) = &self.positions {
            x_bsd = add_positions(x_bsd, positions.clone());
        }
        let name = "transformer_blocks";
        let (x_bsd, balance_b) = match &self.blocks {
            Blocks::Dense(blocks) => (exec.stack(name, blocks, x_bsd, c_bd.clone()), None),
            Blocks::Experts(blocks) => {
                let (x_bsd, sum_b) = exec.stack(name, blocks, (x_bsd, sigma.zeros_like()), c_bd.clone());
                (x_bsd, Some(sum_b / blocks.len() as f32))
            }
        };
        let modulation = modulation(exec, "norm_out", &self.norm_out, c_bd, 2);
        let y_bsd = exec.modulated_linear(x_bsd, modulation, norm(OUT_SHIFT, OUT_SCALE), &self.out);
        (unpatchify(y_bsd, &self.spec.latent, self.patch), balance_b)
    }
}

impl Architecture for Dit {
    fn linears(&self) -> &[Linear] {
        &self.linears
    }

    fn class_name(&self) -> &'static str {
        "FlowTrainDiT"
    }

    fn constants(&self) -> Value {
        self.constants.clone()
    }
}
