//! CLIP as open_clip names it: HPSv2's files.
//!
//! Source: open_clip, `src/open_clip/{model,transformer}.py`, and HPSv2, `hpsv2/src/open_clip/model_configs/ViT-H-14.json`. A query, a key
//! and a value projection are one matrix there, and final projections are `[in, out]`.

use crate::clip::Towers;
use crate::weight_file::Placed;
use flow_models::weights::StoredTensor;
use flow_text_encoder::clip::{ClipActivation, EndToken};
use flow_text_encoder::{ClipConfig, ClipVisionConfig};
use std::path::Path;

/// What files of `DataParallel` have before every name.
const PARALLEL: &str = "module.";
/// Before the names of the image tower.
const IMAGES: &str = "visual.";
/// Channels of an attention head of the text towers, and of the image towers but that of ViT-H.
const HEAD: usize = 64;
/// Width of ViT-H's image tower, and channels of its heads.
const HUGE: (usize, usize) = (1280, 80);

/// Dimensions, which the shapes of the weights tell.
pub fn towers(tensors: &[Placed<'_>]) -> Result<Towers, String> {
    let shape = |name: &str| {
        let found = tensors.iter().find(|(_, tensor)| plain(&tensor.name) == name);
        found
            .map(|(_, tensor)| tensor.shape.as_slice())
            .ok_or_else(|| format!("there is no `{name}`"))
    };
    let matrix = |name: &str| match shape(name)? {
        [a, b] => Ok((*a, *b)),
        other => Err(format!("`{name}` is {other:?}; it must have two axes")),
    };
    let layers = |before: &str| {
        let ending = ".attn.in_proj_weight";
        let names = tensors.iter().map(|(_, tensor)| plain(&tensor.name));
        names
            .filter(|name| name.starts_with(before) && name.ends_with(ending))
            .count()
    };
    let (vocabulary, width) = matrix("token_embedding.weight")?;
    let text = ClipConfig {
        vocabulary,
        positions: matrix("positional_embedding")?.0,
        width,
        inner: matrix("transformer.resblocks.0.mlp.c_fc.weight")?.0,
        layers: layers("transformer.resblocks."),
        heads: (width / HEAD).max(1),
        projection: Some(matrix("text_projection")?.1),
        activation: ClipActivation::Gelu,
        epsilon: 1e-5,
        end: EndToken::Largest,
    };
    let kernel = "visual.conv1.weight";
    let [wide, 3, patch, _] = *shape(kernel)? else {
        return Err(format!(
            "`{kernel}` is {:?}; it must be [channels, 3, patch, patch]",
            shape(kernel)?
        ));
    };
    let patches = matrix("visual.positional_embedding")?.0.saturating_sub(1);
    let head = if wide == HUGE.0 { HUGE.1 } else { HEAD };
    let vision = ClipVisionConfig {
        image: patches.isqrt() * patch,
        patch,
        width: wide,
        inner: matrix("visual.transformer.resblocks.0.mlp.c_fc.weight")?.0,
        layers: layers("visual.transformer.resblocks."),
        heads: (wide / head).max(1),
        projection: Some(matrix("visual.proj")?.1),
        activation: ClipActivation::Gelu,
        epsilon: 1e-5,
    };
    Ok(Towers { text, vision })
}

/// The final projections, as `[out, in]`: bytes by name.
pub struct Turned(Vec<(&'static str, Vec<u8>)>);

/// Names of the final projections, there and in transformers.
const PROJECTIONS: [(&str, &str); 2] = [
    ("text_projection", "text_projection.weight"),
    ("visual.proj", "visual_projection.weight"),
];

impl Turned {
    /// Of the projections among `tensors`.
    pub fn of(tensors: &[Placed<'_>]) -> Self {
        let projections = PROJECTIONS.iter().filter_map(|(name, _)| {
            let (_, tensor) = tensors.iter().find(|(_, tensor)| plain(&tensor.name) == *name)?;
            Some((*name, turned(tensor)?))
        });
        Self(projections.collect())
    }
}

/// The bytes of a matrix with its axes in the other order.
fn turned(tensor: &StoredTensor<'_>) -> Option<Vec<u8>> {
    let [rows, columns] = *tensor.shape.as_slice() else {
        return None;
    };
    let size = tensor.bytes.len().checked_div(rows * columns)?;
    let mut bytes = Vec::with_capacity(tensor.bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * size;
            bytes.extend_from_slice(tensor.bytes.get(at..at + size)?);
        }
    }
    Some(bytes)
}

/// The tensors with transformers' names.
pub fn renamed<'t>(tensors: Vec<Placed<'t>>, turned: &'t Turned) -> Vec<Placed<'t>> {
    tensors
        .into_iter()
        .flat_map(|(path, tensor)| of_transformers(path, tensor, turned))
        .collect()
}

fn plain(name: &str) -> &str {
    name.strip_prefix(PARALLEL).unwrap_or(name)
}

fn of_transformers<'t>(path: &'t Path, tensor: StoredTensor<'t>, turned: &'t Turned) -> Vec<Placed<'t>> {
    let name = plain(&tensor.name).to_owned();
    if let Some((_, new)) = PROJECTIONS.iter().find(|(old, _)| *old == name) {
        let bytes = turned
            .0
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, bytes)| bytes.as_slice());
        let shape = tensor.shape.iter().rev().copied().collect();
        return vec![(
            path,
            StoredTensor {
                name: (*new).into(),
                shape,
                bytes: bytes.unwrap_or(tensor.bytes),
                ..tensor
            },
        )];
    }
    let (tower, rest) = match name.strip_prefix(IMAGES) {
        Some(rest) => ("vision_model.", rest),
        None => ("text_model.", name.as_str()),
    };
    let one = |name: String| {
        vec![(
            path,
            StoredTensor {
                name,
                ..tensor.clone()
            },
        )]
    };
    let Some(block) = rest.strip_prefix("transformer.resblocks.") else {
        return match outside_blocks(tower, rest) {
            Some(renamed) => one(renamed),
            // A buffer that older versions save; and what is the same in both.
            None if rest == "attn_mask" => Vec::new(),
            None => one(name),
        };
    };
    let Some((index, part)) = block.split_once('.') else {
        return one(name);
    };
    let before = format!("{tower}encoder.layers.{index}.");
    if let Some(ending) = part.strip_prefix("attn.in_proj_") {
        return thirds(path, &tensor, &before, ending);
    }
    let pairs = [
        ("ln_1.", "layer_norm1."),
        ("ln_2.", "layer_norm2."),
        ("attn.out_proj.", "self_attn.out_proj."),
        ("mlp.c_fc.", "mlp.fc1."),
        ("mlp.c_proj.", "mlp.fc2."),
    ];
    let renamed = pairs
        .iter()
        .find_map(|(old, new)| Some(format!("{before}{new}{}", part.strip_prefix(old)?)));
    one(renamed.unwrap_or(name))
}

fn outside_blocks(tower: &str, rest: &str) -> Option<String> {
    let renamed = match (tower, rest) {
        ("text_model.", "token_embedding.weight") => "embeddings.token_embedding.weight".into(),
        (_, "positional_embedding") => "embeddings.position_embedding.weight".into(),
        ("vision_model.", "class_embedding") => "embeddings.class_embedding".into(),
        ("vision_model.", "conv1.weight") => "embeddings.patch_embedding.weight".into(),
        _ => {
            let pairs = [
                ("ln_final.", "final_layer_norm."),
                ("ln_pre.", "pre_layrnorm."),
                ("ln_post.", "post_layernorm."),
            ];
            pairs
                .iter()
                .find_map(|(old, new)| Some(format!("{new}{}", rest.strip_prefix(old)?)))?
        }
    };
    Some(format!("{tower}{renamed}"))
}

/// The projections of queries, keys and values, which lie one below the other.
fn thirds<'t>(path: &'t Path, tensor: &StoredTensor<'t>, before: &str, ending: &str) -> Vec<Placed<'t>> {
    let mut shape = tensor.shape.clone();
    let third = tensor.bytes.len() / 3;
    match shape.first_mut() {
        Some(rows) if rows.is_multiple_of(3) && third > 0 => *rows /= 3,
        _ => return vec![(path, tensor.clone())],
    }
    let parts = ["q_proj", "k_proj", "v_proj"]
        .iter()
        .zip(tensor.bytes.chunks_exact(third));
    parts
        .map(|(part, bytes)| {
            let name = format!("{before}self_attn.{part}.{ending}");
            let tensor = StoredTensor {
                name,
                shape: shape.clone(),
                bytes,
                dtype: tensor.dtype,
            };
            (path, tensor)
        })
        .collect()
}
