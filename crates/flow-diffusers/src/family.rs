//! The pipelines whose folders are read, and what each needs in its folder (diffusers 0.42.1, `pipelines/*/pipeline_*.py`).

/// A kind of pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Stable Diffusion 3 and 3.5.
    StableDiffusion3,
    /// FLUX.1.
    Flux,
    /// Qwen-Image.
    QwenImage,
    /// Wan 2.1, text to video.
    Wan,
}

/// A component that a pipeline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its key in `model_index.json`, and the name of its folder.
    pub name: &'static str,
    /// The classes that are read.
    pub classes: &'static [&'static str],
    /// Whether `[null, null]` is allowed.
    pub may_be_absent: bool,
}

const fn part(name: &'static str, classes: &'static [&'static str]) -> Part {
    Part {
        name,
        classes,
        may_be_absent: false,
    }
}

const fn optional(name: &'static str, classes: &'static [&'static str]) -> Part {
    Part {
        name,
        classes,
        may_be_absent: true,
    }
}

const CLIP_TOKENIZER: &[&str] = &["CLIPTokenizer", "CLIPTokenizerFast"];
const T5_TOKENIZER: &[&str] = &["T5TokenizerFast", "T5Tokenizer"];
const PROJECTED: &[&str] = &["CLIPTextModelWithProjection"];
const EULER: &[&str] = &["FlowMatchEulerDiscreteScheduler"];

const STABLE_DIFFUSION_3: &[Part] = &[
    part("tokenizer", CLIP_TOKENIZER),
    part("text_encoder", PROJECTED),
    part("tokenizer_2", CLIP_TOKENIZER),
    part("text_encoder_2", PROJECTED),
    optional("tokenizer_3", T5_TOKENIZER),
    optional("text_encoder_3", &["T5EncoderModel"]),
    part("transformer", &["SD3Transformer2DModel"]),
    part("vae", &["AutoencoderKL"]),
    part("scheduler", EULER),
];

const FLUX: &[Part] = &[
    part("tokenizer", CLIP_TOKENIZER),
    part("text_encoder", &["CLIPTextModel"]),
    part("tokenizer_2", T5_TOKENIZER),
    part("text_encoder_2", &["T5EncoderModel"]),
    part("transformer", &["FluxTransformer2DModel"]),
    part("vae", &["AutoencoderKL"]),
    part("scheduler", EULER),
];

const QWEN_IMAGE: &[Part] = &[
    part("tokenizer", &["Qwen2Tokenizer", "Qwen2TokenizerFast"]),
    part("text_encoder", &["Qwen2_5_VLForConditionalGeneration"]),
    part("transformer", &["QwenImageTransformer2DModel"]),
    part("vae", &["AutoencoderKLQwenImage"]),
    part("scheduler", EULER),
];

const WAN: &[Part] = &[
    part("tokenizer", T5_TOKENIZER),
    part("text_encoder", &["UMT5EncoderModel"]),
    part("transformer", &["WanTransformer3DModel"]),
    part("vae", &["AutoencoderKLWan"]),
    part(
        "scheduler",
        &["UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"],
    ),
];

impl Family {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::StableDiffusion3, Self::Flux, Self::QwenImage, Self::Wan];

    /// The family of a pipeline's class, as `model_index.json` writes it.
    pub fn from_class(class: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.class() == class)
    }

    /// The class in diffusers.
    pub fn class(self) -> &'static str {
        match self {
            Self::StableDiffusion3 => "StableDiffusion3Pipeline",
            Self::Flux => "FluxPipeline",
            Self::QwenImage => "QwenImagePipeline",
            Self::Wan => "WanPipeline",
        }
    }

    /// The components it is made of.
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::StableDiffusion3 => STABLE_DIFFUSION_3,
            Self::Flux => FLUX,
            Self::QwenImage => QWEN_IMAGE,
            Self::Wan => WAN,
        }
    }
}
