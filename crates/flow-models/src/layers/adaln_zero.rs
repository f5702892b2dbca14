//! The order of the chunks of a block's modulation: that of DiT (Peebles and Xie 2022, arXiv:2212.09748), diffusers'
//! `AdaLayerNormZero`, and Wan's `WanTransformerBlock`.

pub const ATTENTION_SHIFT: usize = 0;
pub const ATTENTION_SCALE: usize = 1;
pub const ATTENTION_GATE: usize = 2;
pub const MLP_SHIFT: usize = 3;
pub const MLP_SCALE: usize = 4;
pub const MLP_GATE: usize = 5;
pub const COUNT: usize = 6;
