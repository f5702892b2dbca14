//! Flow-Factory's models: which of them flow-train has, and what adapters are put on by default. From its registry of
//! adapters (`models/registry.py` at commit a0b2bc5), the adapters' `default_target_modules`, and the newer names of its
//! arguments.

use crate::convert::is_one_of;
use crate::draft::Draft;
use crate::yaml::Node;

/// A model of Flow-Factory, as far as flow-train tells models apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Stable Diffusion 3 and 3.5: `mmdit`.
    Sd3(Option<Sd3>),
    /// FLUX.1: `flux`.
    Flux(Flux),
    /// Qwen-Image, text to image: `qwen-image`.
    Qwen,
    /// Wan 2.1, text to video: `wan`.
    Wan(Option<Wan>),
    /// One that flow-train does not have.
    Other(Other),
}

/// The published checkpoints of Stable Diffusion 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sd3 {
    Medium3,
    Medium35,
    Large35,
}

/// The published checkpoints of FLUX.1, text to image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flux {
    /// It is told a guidance scale. A checkpoint that is not known is taken for one of it.
    Dev,
    /// It is told none.
    Schnell,
}

/// The published checkpoints of Wan 2.1, text to video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wan {
    Small,
    Large,
}

/// A model that flow-train does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Other {
    /// How people call it; empty if it is none of Flow-Factory's own.
    pub name: &'static str,
    /// What a model of text to image or video does not do either, such as ", which is conditioned on an image".
    pub beyond: &'static str,
}

const ON_IMAGES: &str = ", and none that is conditioned on images";
const ON_VIDEOS: &str = ", and none that is conditioned on videos";
const SOUND: &str = ", and none that makes sound";

/// Names of Flow-Factory's `model_type` that flow-train has no architecture for.
const OTHERS: [(&str, &str, &str); 19] = [
    ("flux1-kontext", "FLUX.1 Kontext", ON_IMAGES),
    ("flux2", "FLUX.2", ""),
    ("flux2-klein", "FLUX.2 klein", ""),
    ("qwen-image-2.1", "Qwen-Image 2.1", ""),
    ("qwen-image-edit-plus", "Qwen-Image-Edit", ON_IMAGES),
    ("qwenimage-edit", "Qwen-Image-Edit", ON_IMAGES),
    ("z-image", "Z-Image", ""),
    ("wan2-i2v", "Wan image to video", ON_IMAGES),
    ("wan2-v2v", "Wan video to video", ON_VIDEOS),
    ("ltx2-t2av", "LTX-2", SOUND),
    ("ltx2-i2av", "LTX-2", SOUND),
    ("bagel", "Bagel", ""),
    ("sensenova", "SenseNova", ""),
    ("minimax-h3-t2va", "MiniMax-H3", SOUND),
    ("minimax-h3-fl2va", "MiniMax-H3", SOUND),
    ("minimax-h3-ref2va", "MiniMax-H3", SOUND),
    ("sana", "Sana", ""),
    ("hunyuan-video", "HunyuanVideo", ""),
    ("cogvideox", "CogVideoX", ""),
];

/// `model_type` as the tables above spell it.
fn spelled(node: &Node) -> String {
    node.text().unwrap_or_default().to_lowercase().replace('_', "-")
}

impl Family {
    /// The model that a config names. Left out, Flow-Factory takes FLUX.1.
    pub fn of(draft: &Draft<'_>) -> Self {
        let item = draft.peek("model.model_type");
        let kind = match item {
            Some(item) if !item.node.is_null() => spelled(item.node),
            _ => "flux1".to_owned(),
        };
        let path = draft.peek("model.model_name_or_path");
        let path = path.and_then(|item| item.node.text()).unwrap_or_default();
        let path = path.to_lowercase().replace(['_', ' '], "-");
        match kind.as_str() {
            "sd3" | "sd3-5" | "sd3.5" => Self::Sd3(Sd3::of(&path)),
            "flux1" if path.contains("kontext") => Self::Other(Other {
                name: "FLUX.1 Kontext",
                beyond: ON_IMAGES,
            }),
            "flux1" if path.contains("schnell") => Self::Flux(Flux::Schnell),
            "flux1" => Self::Flux(Flux::Dev),
            "qwen-image" | "qwenimage" => qwen(&path),
            "wan2-t2v" => wan(&path),
            kind => {
                let known = OTHERS.iter().find(|(theirs, ..)| *theirs == kind);
                let (_, name, beyond) = known.unwrap_or(&("", "", ""));
                Self::Other(Other { name, beyond })
            }
        }
    }

    /// The name of its architecture here.
    pub fn architecture(self) -> Option<&'static str> {
        match self {
            Self::Sd3(_) => Some("mmdit"),
            Self::Flux(_) => Some("flux"),
            Self::Qwen => Some("qwen-image"),
            Self::Wan(_) => Some("wan"),
            Self::Other(_) => None,
        }
    }

    /// How people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sd3(Some(Sd3::Medium3)) => "SD3 medium",
            Self::Sd3(Some(Sd3::Medium35)) => "SD3.5 medium",
            Self::Sd3(Some(Sd3::Large35)) => "SD3.5 large",
            Self::Sd3(None) => "SD3",
            Self::Flux(Flux::Dev) => "FLUX.1-dev",
            Self::Flux(Flux::Schnell) => "FLUX.1-schnell",
            Self::Qwen => "Qwen-Image",
            Self::Wan(Some(Wan::Small)) => "Wan 2.1 1.3B",
            Self::Wan(Some(Wan::Large)) => "Wan 2.1 14B",
            Self::Wan(None) => "Wan 2.1",
            Self::Other(other) => other.name,
        }
    }

    /// What `target_modules: default` stands for (`default_target_modules` of the adapter), as ends of dotted names.
    pub fn default_targets(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Sd3(_) => Some(&[
                "attn.add_q_proj",
                "attn.add_k_proj",
                "attn.add_v_proj",
                "attn.to_add_out",
                "attn.to_q",
                "attn.to_k",
                "attn.to_v",
                "attn.to_out.0",
            ]),
            Self::Flux(_) => Some(&[
                "attn.to_k",
                "attn.to_q",
                "attn.to_v",
                "attn.to_out.0",
                "attn.add_k_proj",
                "attn.add_q_proj",
                "attn.add_v_proj",
                "attn.to_add_out",
                "ff.net.0.proj",
                "ff.net.2",
                "ff_context.net.0.proj",
                "ff_context.net.2",
            ]),
            // Flow-Factory names `img_mlp.net.2.proj` and `txt_mlp.net.2.proj` too, which the model does not have.
            Self::Qwen => Some(&[
                "attn.to_k",
                "attn.to_q",
                "attn.to_v",
                "attn.to_out.0",
                "attn.add_q_proj",
                "attn.add_k_proj",
                "attn.add_v_proj",
                "attn.to_add_out",
                "img_mlp.net.0.proj",
                "txt_mlp.net.0.proj",
            ]),
            Self::Wan(_) => Some(&[
                "attn1.to_q",
                "attn1.to_k",
                "attn1.to_v",
                "attn1.to_out.0",
                "attn2.to_q",
                "attn2.to_k",
                "attn2.to_v",
                "attn2.to_out.0",
                "ffn.net.0.proj",
                "ffn.net.2",
            ]),
            Self::Other(_) => None,
        }
    }
}

impl Sd3 {
    fn of(path: &str) -> Option<Self> {
        let has = |part: &str| path.contains(part);
        let three_five = has("3.5") || has("3-5") || has("sd35");
        match (three_five, has("medium"), has("large")) {
            (true, true, false) => Some(Self::Medium35),
            (true, false, true) => Some(Self::Large35),
            (false, true, false) => Some(Self::Medium3),
            _ => None,
        }
    }
}

/// `qwen-image` is the adapter of Qwen-Image; checkpoints of the same name that edit or cut images are others.
fn qwen(path: &str) -> Family {
    let other = |name, beyond| Family::Other(Other { name, beyond });
    if path.contains("edit") {
        other("Qwen-Image-Edit", ON_IMAGES)
    } else if path.contains("layered") {
        other("Qwen-Image-Layered", ON_IMAGES)
    } else if path.contains("image-2.1") {
        other("Qwen-Image 2.1", "")
    } else {
        Family::Qwen
    }
}

/// `wan2_t2v` is the adapter of Wan 2.1 and of Wan 2.2, whose two transformers take turns.
fn wan(path: &str) -> Family {
    let has = |part: &str| path.contains(part);
    let other = |name, beyond| Family::Other(Other { name, beyond });
    if has("wan2.2") || has("wan22") || has("wan-2.2") || has("a14b") || has("ti2v") {
        let two = ", and none whose steps two transformers share";
        return match has("ti2v") {
            true => other("Wan 2.2 TI2V", ""),
            false => other("Wan 2.2", two),
        };
    }
    if has("i2v") || has("vace") || has("flf2v") {
        return other("Wan image to video", ON_IMAGES);
    }
    Family::Wan(match (has("1.3b"), has("14b")) {
        (true, false) => Some(Wan::Small),
        (false, true) => Some(Wan::Large),
        _ => None,
    })
}

/// Whether all weights are trained, as Flow-Factory does unless told otherwise.
pub(super) fn is_full(draft: &Draft<'_>) -> bool {
    draft
        .peek("model.finetune_type")
        .is_none_or(|item| item.node.is_null() || is_one_of(item.node, &["full"]))
}
