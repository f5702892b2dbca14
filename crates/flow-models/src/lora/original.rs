//! The names that linear layers have in the programs that published a model, which LoRA files of `kohya-ss` and of
//! `ai-toolkit` use.

use std::collections::BTreeMap;

/// A linear layer of the original program: one of ours, or several stacked on each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalLayer {
    /// Its name there, dotted.
    pub name: String,
    /// Our layers whose outputs make up its own, in that order.
    pub parts: Vec<OriginalPart>,
}

/// One of our layers within an [`OriginalLayer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalPart {
    /// Our name.
    pub layer: String,
    /// Whether the two halves of its outputs have changed places there: shift before scale.
    pub has_swapped_halves: bool,
}

impl OriginalLayer {
    /// `name` there for `layer` here.
    pub(crate) fn one(name: String, layer: String) -> Self {
        Self {
            name,
            parts: vec![OriginalPart::plain(layer)],
        }
    }

    /// As [`Self::one`], of a layer that gives a scale and a shift, which stand the other way round there.
    pub(crate) fn swapped(name: String, layer: String) -> Self {
        let mut one = Self::one(name, layer);
        one.parts[0].has_swapped_halves = true;
        one
    }

    /// `name` there for several layers here.
    pub(crate) fn stacked(name: String, layers: impl IntoIterator<Item = String>) -> Self {
        Self {
            name,
            parts: layers.into_iter().map(OriginalPart::plain).collect(),
        }
    }
}

impl OriginalPart {
    fn plain(layer: String) -> Self {
        Self {
            layer,
            has_swapped_halves: false,
        }
    }
}

/// Layers by every name that a file may use for them.
pub(super) struct LayerNames {
    dotted: BTreeMap<String, OriginalLayer>,
    /// The same with `_` for every dot, as in files of `kohya-ss`.
    joined: BTreeMap<String, OriginalLayer>,
}

impl LayerNames {
    /// Names of `layers`, ours, and of `original` ones made of them.
    pub fn new(layers: &[String], original: Vec<OriginalLayer>) -> Self {
        let ours = layers
            .iter()
            .map(|layer| OriginalLayer::one(layer.clone(), layer.clone()));
        let dotted: BTreeMap<String, OriginalLayer> = original
            .into_iter()
            .chain(ours)
            .map(|layer| (layer.name.clone(), layer))
            .collect();
        let joined = dotted
            .iter()
            .map(|(name, layer)| (name.replace('.', "_"), layer.clone()))
            .collect();
        Self { dotted, joined }
    }

    /// The layer that a file calls `name`, behind any of the prefixes in use.
    pub fn find(&self, name: &str) -> Option<&OriginalLayer> {
        let mut rest = name;
        loop {
            if let Some(layer) = self.dotted.get(rest) {
                return Some(layer);
            }
            if let Some(joined) = JOINED_PREFIXES.iter().find_map(|it| rest.strip_prefix(it)) {
                return self.joined.get(joined);
            }
            rest = DOTTED_PREFIXES.iter().find_map(|it| rest.strip_prefix(it))?;
        }
    }

    /// Every dotted name, for suggestions.
    pub fn dotted(&self) -> impl Iterator<Item = &str> {
        self.dotted.keys().map(String::as_str)
    }
}

/// What stands before a layer's name: `peft`, diffusers, ComfyUI and `ai-toolkit`, single-file checkpoints.
pub(super) const DOTTED_PREFIXES: [&str; 5] = [
    super::peft::PREFIX,
    "transformer.",
    "model.diffusion_model.",
    "diffusion_model.",
    "model.",
];

/// What stands before a layer's name with `_` for dots: `kohya-ss`, OneTrainer, LyCORIS.
pub(super) const JOINED_PREFIXES: [&str; 3] = ["lora_unet_", "lora_transformer_", "lycoris_"];
