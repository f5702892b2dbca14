//! The names of linear layers in Wan's own code, as diffusers 0.42.1 maps them (`convert_wan_transformer_to_diffusers`).

use crate::lora::OriginalLayer;

/// The original layers of a model of `blocks` blocks.
pub(super) fn layers(blocks: usize) -> Vec<OriginalLayer> {
    let outer = [
        ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
        ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
        ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
        ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
        ("time_projection.1", "condition_embedder.time_proj"),
        ("head.head", "proj_out"),
    ];
    let outer = outer.map(|(theirs, ours)| OriginalLayer::one(theirs.into(), ours.into()));
    let inner = [
        ("self_attn.q", "attn1.to_q"),
        ("self_attn.k", "attn1.to_k"),
        ("self_attn.v", "attn1.to_v"),
        ("self_attn.o", "attn1.to_out.0"),
        ("cross_attn.q", "attn2.to_q"),
        ("cross_attn.k", "attn2.to_k"),
        ("cross_attn.v", "attn2.to_v"),
        ("cross_attn.o", "attn2.to_out.0"),
        ("ffn.0", "ffn.net.0.proj"),
        ("ffn.2", "ffn.net.2"),
    ];
    let blocks = (0..blocks).flat_map(|block| {
        let name = move |layer: &str| format!("blocks.{block}.{layer}");
        inner.map(|(theirs, ours)| OriginalLayer::one(name(theirs), name(ours)))
    });
    outer.into_iter().chain(blocks).collect()
}
