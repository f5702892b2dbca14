//! A block: attention of the video to itself, attention to the text, feed-forward.

use super::WanConfig;
use super::attention::Attention;
use crate::layers::adaln_zero as chunk;
use crate::layers::{Parts, RotaryTable, feed_forward};
use burn::tensor::Tensor;
use flow_core::exec::{AttentionKind, Block, DependsOn, Exec, FeedForward, RegionKind};
use flow_core::ops::NormChunks;
use flow_core::{Handle, Init, Rows};
use std::sync::Arc;

/// Chunks of a block's modulation.
pub(super) const CHUNKS: usize = chunk::COUNT;

/// One block. Carries `x [B, S, D]`, reads the projected noise level `[B, 6, D]` and the text `[B, L, D]`.
#[derive(Debug)]
pub(super) struct WanBlock {
    /// `[1, 6, D]`, added to the projected noise level.
    table: Handle<3>,
    attention: Attention,
    /// Weight and bias.
    cross_norm: Option<[Handle<1>; 2]>,
    cross_attention: Attention,
    mlp: FeedForward,
    rotary: RotaryTable,
    epsilon: f32,
}

impl WanBlock {
    pub fn new(mut parts: Parts<'_>, config: &WanConfig, rotary: RotaryTable) -> Self {
        let hidden = config.hidden();
        // Wan's own initial values are normal over the root of the width (`wan/modules/model.py`).
        let table = Init::Normal(1.0 / (hidden as f32).sqrt());
        let table = parts.param("scale_shift_table", [1, CHUNKS, hidden], table);
        let attention = Attention::new(parts.under("attn1"), config, Rows::Tokens);
        let cross_attention = Attention::new(parts.under("attn2"), config, Rows::Text);
        let cross_norm = config.cross_attn_norm.then(|| {
            let mut norm = parts.under("norm2");
            [
                norm.param("weight", [hidden], Init::Ones),
                norm.param("bias", [hidden], Init::Zeros),
            ]
        });
        let mlp = feed_forward(parts.under("ffn"), hidden, config.ffn_dim);
        Self {
            table,
            attention,
            cross_norm,
            cross_attention,
            mlp,
            rotary,
            epsilon: config.eps,
        }
    }

    fn modulate(self: &Arc<Self>, exec: &Exec<'_>, time_bkd: Tensor<3>) -> Tensor<3> {
        time_bkd + exec.params().get(self.table)
    }

    fn norm(&self, shift: usize, scale: usize) -> NormChunks {
        NormChunks {
            shift,
            scale,
            epsilon: self.epsilon,
        }
    }

    /// What the video's attention to itself reads.
    fn normed(&self, exec: &Exec<'_>, x: Tensor<3>, modulation: Tensor<3>) -> Tensor<3> {
        let (shift, scale) = (chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
        exec.modulated_layer_norm(x, modulation, shift, scale, self.epsilon)
    }

    /// What the video's heads attend to in the video.
    fn attended(self: &Arc<Self>, exec: &Exec<'_>, inputs: (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        exec.attention_layer("attn1", AttentionKind::Spatial, inputs, |exec, inputs| {
            let norm = self.norm(chunk::ATTENTION_SHIFT, chunk::ATTENTION_SCALE);
            self.attention.attend_to_itself(exec, inputs, norm, &self.rotary)
        })
    }

    /// What they attend to in the text. The norm before is computed with it, so that what it gives is not in memory earlier.
    fn attended_text(self: &Arc<Self>, exec: &Exec<'_>, (x, text): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let normed = match self.cross_norm {
            Some([weight, bias]) => exec.layer_norm(x, weight, bias, self.epsilon),
            None => x,
        };
        let inputs = (normed, text);
        exec.attention_layer("attn2", AttentionKind::Cross, inputs, |exec, (normed, text)| {
            // Nothing of a latent or a noise level is in the text, so these are the same at every step.
            let project = |exec: &Exec<'_>, text| self.cross_attention.keys_and_values(exec, text);
            let context = exec.reusable("text_keys_values", DependsOn::Condition, text, project);
            self.cross_attention.attend(exec, normed, context)
        })
    }

    fn attend(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let attended = exec.deferrable(self, (x.clone(), modulation.clone()), Self::attended);
        let (out, gate) = (self.attention.out(), chunk::ATTENTION_GATE);
        exec.linear_gated_residual(x, out, attended, modulation, gate)
    }

    fn attend_to_text(self: &Arc<Self>, exec: &Exec<'_>, (x, text): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let attended = exec.deferrable(self, (x.clone(), text), Self::attended_text);
        x + exec.linear(self.cross_attention.out(), attended)
    }

    fn feed_forward(self: &Arc<Self>, exec: &Exec<'_>, (x, modulation): (Tensor<3>, Tensor<3>)) -> Tensor<3> {
        let norm = self.norm(chunk::MLP_SHIFT, chunk::MLP_SCALE);
        exec.modulated_feed_forward(x, modulation, norm, &self.mlp, chunk::MLP_GATE)
    }
}

impl Block for WanBlock {
    type Carried = Tensor<3>;
    type Shared = (Tensor<3>, Tensor<3>);

    fn forward(self: &Arc<Self>, exec: &Exec<'_>, x: Tensor<3>, (time, text): Self::Shared) -> Tensor<3> {
        let modulation = exec.region(RegionKind::AdaLn, self, time, Self::modulate);
        let inputs = (x, modulation.clone());
        let x = exec.region(RegionKind::Attention, self, inputs, Self::attend);
        let x = exec.region(RegionKind::Attention, self, (x, text), Self::attend_to_text);
        exec.region(RegionKind::Mlp, self, (x, modulation), Self::feed_forward)
    }

    fn modulated_input(
        self: &Arc<Self>,
        exec: &Exec<'_>,
        x: &Tensor<3>,
        (time, _): &Self::Shared,
    ) -> Option<Tensor<3>> {
        let modulation = self.modulate(exec, time.clone());
        Some(self.normed(exec, x.clone(), modulation))
    }
}
