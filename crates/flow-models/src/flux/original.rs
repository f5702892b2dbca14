//! The names of linear layers in Black Forest Labs' own code, as diffusers 0.42.1 maps them (`lora_conversion_utils.py`,
//! `_convert_kohya_flux_lora_to_diffusers`): queries, keys and values are one layer there, in single blocks with the first layer of the
//! feed-forward part, and the last modulation gives shift before scale.

use super::FluxConfig;
use crate::lora::OriginalLayer;

/// The original layers of a model.
pub(super) fn layers(config: &FluxConfig) -> Vec<OriginalLayer> {
    let mut layers = vec![
        one("img_in".into(), "x_embedder".into()),
        one("txt_in".into(), "context_embedder".into()),
        one("final_layer.linear".into(), "proj_out".into()),
        OriginalLayer::swapped("final_layer.adaLN_modulation.1".into(), "norm_out.linear".into()),
    ];
    let guidance = config
        .guidance_embeds
        .then_some(("guidance_in", "guidance_embedder"));
    let embedders = [("time_in", "timestep_embedder"), ("vector_in", "text_embedder")];
    for (theirs, ours) in embedders.into_iter().chain(guidance) {
        for (their_layer, our_layer) in [("in_layer", "linear_1"), ("out_layer", "linear_2")] {
            layers.push(one(
                format!("{theirs}.{their_layer}"),
                format!("time_text_embed.{ours}.{our_layer}"),
            ));
        }
    }
    layers.extend((0..config.num_layers).flat_map(double_block));
    layers.extend((0..config.num_single_layers).flat_map(single_block));
    layers
}

fn one(theirs: String, ours: String) -> OriginalLayer {
    OriginalLayer::one(theirs, ours)
}

fn double_block(block: usize) -> Vec<OriginalLayer> {
    let theirs = |name: &str| format!("double_blocks.{block}.{name}");
    let ours = |name: &str| format!("transformer_blocks.{block}.{name}");
    let stacked = |name, layers: [&str; 3]| OriginalLayer::stacked(theirs(name), layers.map(ours));
    let mut layers = vec![
        stacked("img_attn.qkv", ["attn.to_q", "attn.to_k", "attn.to_v"]),
        stacked(
            "txt_attn.qkv",
            ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
        ),
    ];
    let renamed = [
        ("img_attn.proj", "attn.to_out.0"),
        ("txt_attn.proj", "attn.to_add_out"),
        ("img_mlp.0", "ff.net.0.proj"),
        ("img_mlp.2", "ff.net.2"),
        ("txt_mlp.0", "ff_context.net.0.proj"),
        ("txt_mlp.2", "ff_context.net.2"),
        ("img_mod.lin", "norm1.linear"),
        ("txt_mod.lin", "norm1_context.linear"),
    ];
    layers.extend(renamed.map(|(name, layer)| one(theirs(name), ours(layer))));
    layers
}

fn single_block(block: usize) -> Vec<OriginalLayer> {
    let theirs = |name: &str| format!("single_blocks.{block}.{name}");
    let ours = |name: &str| format!("single_transformer_blocks.{block}.{name}");
    vec![
        OriginalLayer::stacked(
            theirs("linear1"),
            ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"].map(ours),
        ),
        one(theirs("linear2"), ours("proj_out")),
        one(theirs("modulation.lin"), ours("norm.linear")),
    ]
}
