//! A vision transformer with its norms before attention and feed-forward parts, and one after the last block.

use super::plain;
use crate::EncoderError;
use crate::parts::{LayerNorm, declared, linear, patch_tokens, side_by_side};
use crate::weights::Role;
use burn::tensor::Tensor;
use flow_core::exec::{Block, Exec, Linear, RegionKind};
use flow_core::params::LayoutBuilder;
use flow_core::{AttentionSpec, Handle, Init, ParamLayout, Rows};
use std::sync::Arc;

/// Colours of an image.
const COLOURS: usize = 3;
/// Where the weights are.
const UNDER: &str = "visual_encoder";
/// Initial values of a matrix. Encoders come with weights; these are for tests.
const MATRIX: Init = Init::Normal(0.02);

/// Dimensions of a [`BlipVision`].
#[derive(Clone, Debug, PartialEq)]
pub struct BlipVisionConfig {
    /// Side of the square images that it reads, in pixels.
    pub image: usize,
    /// Side of a patch, which becomes a token, in pixels.
    pub patch: usize,
    /// Channels.
    pub width: usize,
    /// Channels within the feed-forward parts.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads, of which `width` is a multiple.
    pub heads: usize,
    /// Added to the variance in layer norms.
    pub epsilon: f32,
}

impl BlipVisionConfig {
    /// Patches along a side.
    fn side(&self) -> usize {
        self.image / self.patch
    }

    /// Tokens of an image: the class token and its patches.
    pub fn tokens(&self) -> usize {
        1 + self.side() * self.side()
    }
}

/// BLIP's encoder of images.
#[derive(Debug)]
pub struct BlipVision {
    config: BlipVisionConfig,
    layout: Arc<ParamLayout>,
    class: Handle<3>,
    positions: Handle<3>,
    kernel: Handle<4>,
    kernel_bias: Handle<1>,
    blocks: Vec<Arc<VisionBlock>>,
    norm: LayerNorm,
}

impl BlipVision {
    /// The encoder that `config` describes.
    pub fn new(config: BlipVisionConfig) -> Self {
        let (layout, encoder) = declared(Rows::Tokens, |parts| {
            let (width, patch) = (config.width, config.patch);
            let mut model = parts.under(UNDER);
            let class = model.param("cls_token", [1, 1, width], MATRIX);
            let positions = model.param("pos_embed", [1, config.tokens(), width], MATRIX);
            let mut patches = model.under("patch_embed.proj");
            let kernel = patches.param("weight", [width, COLOURS, patch, patch], MATRIX);
            let kernel_bias = patches.param("bias", [width], Init::Zeros);
            let blocks = (0..config.layers)
                .map(|index| {
                    let block = model.under(format_args!("blocks.{index}"));
                    Arc::new(VisionBlock::new(block, &config))
                })
                .collect();
            let norm = LayerNorm::new(&mut model, "norm", width);
            (class, positions, kernel, kernel_bias, blocks, norm)
        });
        let (class, positions, kernel, kernel_bias, blocks, norm) = encoder;
        Self {
            config,
            layout,
            class,
            positions,
            kernel,
            kernel_bias,
            blocks,
            norm,
        }
    }

    /// Dimensions.
    pub fn config(&self) -> &BlipVisionConfig {
        &self.config
    }

    /// Its weights' names and shapes.
    pub fn layout(&self) -> &Arc<ParamLayout> {
        &self.layout
    }

    /// What the tensor called `name` in a file is to this encoder.
    pub fn role(&self, name: &str) -> Role {
        let name = plain(name);
        match name.strip_prefix(UNDER) {
            Some(rest) if rest.starts_with('.') => Role::Weight(name.into()),
            _ => Role::Ignored,
        }
    }

    /// Encodes images: pixels `[B, 3, image, image]`, normalised, to `[B, 1 + S, D]`, the class token first.
    ///
    /// # Errors
    /// [`EncoderError::Pixels`] for another shape.
    pub fn encode(&self, exec: &Exec<'_>, pixels_bchw: Tensor<4>) -> Result<Tensor<3>, EncoderError> {
        let [batch, colours, height, width] = pixels_bchw.dims();
        let side = self.config.image;
        if batch == 0 || [colours, height, width] != [COLOURS, side, side] {
            return Err(EncoderError::Pixels(format!(
                "they are {:?}; this encoder reads [images, {COLOURS}, {side}, {side}], at least one",
                [batch, colours, height, width]
            )));
        }
        let params = exec.params();
        let (kernel, bias) = (params.get(self.kernel), params.get(self.kernel_bias));
        let tokens = patch_tokens(exec, pixels_bchw, kernel, Some(bias));
        let class = params.get(self.class).repeat_dim(0, batch);
        let x_bsd = Tensor::cat(vec![class, tokens], 1) + params.get(self.positions);
        let x_bsd = exec.stack("visual_encoder.blocks", &self.blocks, x_bsd, ());
        Ok(self.norm.forward(exec, x_bsd, self.config.epsilon))
    }
}

/// Attention, then a feed-forward part, each after a layer norm.
#[derive(Debug)]
struct VisionBlock {
    attention_norm: LayerNorm,
    /// Queries, keys and values, one below the other.
    qkv: Linear,
    out: Linear,
    inner_norm: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
    epsilon: f32,
}

impl VisionBlock {
    fn new(mut parts: LayoutBuilder<'_>, config: &BlipVisionConfig) -> Self {
        let (width, inner) = (config.width, config.inner);
        Self {
            attention_norm: LayerNorm::new(&mut parts, "norm1", width),
            qkv: linear(&mut parts, "attn.qkv", width, 3 * width),
            out: linear(&mut parts, "attn.proj", width, width),
            inner_norm: LayerNorm::new(&mut parts, "norm2", width),
            up: linear(&mut parts, "mlp.fc1", width, inner),
            down: linear(&mut parts, "mlp.fc2", inner, width),
            heads: config.heads,
            epsilon: config.epsilon,
        }
    }

    fn attend(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let [batch, tokens, width] = x_bsd.dims();
        let normed = self.attention_norm.forward(exec, x_bsd.clone(), self.epsilon);
        let all = exec.linear(&self.qkv, normed);
        let [q, k, v] = [0, 1, 2].map(|part| {
            let part = all.clone().narrow(2, part * width, width);
            part.reshape([batch, tokens, self.heads, width / self.heads])
        });
        let attended = exec.attention_with(q, [(k, v)], &AttentionSpec::default());
        x_bsd + exec.linear(&self.out, side_by_side(attended))
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>) -> Tensor<3> {
        let normed = self.inner_norm.forward(exec, x_bsd.clone(), self.epsilon);
        let inner = burn::tensor::activation::gelu(exec.linear(&self.up, normed));
        x_bsd + exec.linear(&self.down, inner)
    }
}

impl Block for VisionBlock {
    type Carried = Tensor<3>;
    type Shared = ();

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x_bsd: Tensor<3>, (): ()) -> Tensor<3> {
        let attended = exec.region(RegionKind::Attention, self, x_bsd, Self::attend);
        exec.region(RegionKind::Mlp, self, attended, Self::feed_forward)
    }
}
