//! The names of linear layers in Stability AI's own code, as diffusers 0.42.1 maps them
//! (`convert_sd3_transformer_checkpoint_to_diffusers`): queries, keys and values are one layer there, and the
//! modulations of `AdaLayerNormContinuous` give shift before scale.

use super::MmditConfig;
use crate::lora::OriginalLayer;

/// The original layers of a model.
pub(super) fn layers(config: &MmditConfig) -> Vec<OriginalLayer> {
    let one = |name: &str, ours: &str| OriginalLayer::one(name.into(), ours.into());
    let mut layers = vec![
        one("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
        one("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
        one("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
        one("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
        one("final_layer.linear", "proj_out"),
        OriginalLayer::swapped("final_layer.adaLN_modulation.1".into(), "norm_out.linear".into()),
    ];
    for block in 0..config.num_layers {
        let is_last = block + 1 == config.num_layers;
        let has_dual = config.dual_attention_layers.contains(&block);
        layers.extend(block_layers(block, is_last, has_dual));
    }
    layers
}

fn block_layers(block: usize, is_last: bool, has_dual: bool) -> Vec<OriginalLayer> {
    let theirs = |name: &str| format!("joint_blocks.{block}.{name}");
    let ours = |name: &str| format!("transformer_blocks.{block}.{name}");
    let one = |name, layer| OriginalLayer::one(theirs(name), ours(layer));
    let stacked = |name, layers: [&str; 3]| OriginalLayer::stacked(theirs(name), layers.map(ours));
    let mut layers = vec![
        stacked("x_block.attn.qkv", ["attn.to_q", "attn.to_k", "attn.to_v"]),
        stacked(
            "context_block.attn.qkv",
            ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
        ),
        one("x_block.attn.proj", "attn.to_out.0"),
        one("x_block.adaLN_modulation.1", "norm1.linear"),
        one("x_block.mlp.fc1", "ff.net.0.proj"),
        one("x_block.mlp.fc2", "ff.net.2"),
    ];
    let context_modulation = "context_block.adaLN_modulation.1";
    if is_last {
        layers.push(OriginalLayer::swapped(
            theirs(context_modulation),
            ours("norm1_context.linear"),
        ));
    } else {
        layers.extend([
            one(context_modulation, "norm1_context.linear"),
            one("context_block.attn.proj", "attn.to_add_out"),
            one("context_block.mlp.fc1", "ff_context.net.0.proj"),
            one("context_block.mlp.fc2", "ff_context.net.2"),
        ]);
    }
    if has_dual {
        layers.push(stacked(
            "x_block.attn2.qkv",
            ["attn2.to_q", "attn2.to_k", "attn2.to_v"],
        ));
        layers.push(one("x_block.attn2.proj", "attn2.to_out.0"));
    }
    layers
}
