//! Keys that Flow-Factory's trainer and evaluation do not know and hand to the model's adapter (`hparams/abc.py`,
//! `models/**` at commit a0b2bc5), each with the adapters that read it. None of these models is here, so the keys
//! change nothing about what flow-train has.

use crate::rule::Rule;

const IMAGES: &str = "size of the images that a model is conditioned on; read by Flow-Factory's adapters of FLUX.1 Kontext, FLUX.2 \
                      and Qwen-Image-Edit alone";
const RESIZE: &str = "read by Flow-Factory's adapter of Qwen-Image-Edit alone";
const SECOND: &str = "guidance of Wan 2.2's second transformer";
const LTX: &str = "read by Flow-Factory's adapters of LTX-2 alone";

pub(super) const READ_BY_ADAPTERS: &[Rule] = &[
    Rule::new(
        "train.num_frames",
        "model.frames",
        crate::rule::Conversion::Joint(crate::rule::Join::Model),
        "frames of a video of Wan: one and a multiple of four more; left out, both take 81",
    ),
    Rule::detail("train.condition_image_size", IMAGES),
    Rule::detail("eval.condition_image_size", IMAGES),
    Rule::detail("train.auto_resize", RESIZE),
    Rule::detail("eval.auto_resize", RESIZE),
    Rule::detail("train.guidance_scale_2", SECOND),
    Rule::detail("eval.guidance_scale_2", SECOND),
    Rule::detail(
        "train.strength",
        "how much of a video is made anew; read by Flow-Factory's adapter of Wan video to video alone",
    ),
    Rule::detail("train.system_prompt", LTX),
    Rule::detail("eval.system_prompt", LTX),
    Rule::detail("train.prompt_enhancement_seed", LTX),
    Rule::detail("eval.prompt_enhancement_seed", LTX),
    Rule::detail("train.frame_rate", LTX),
    Rule::detail("eval.frame_rate", LTX),
    Rule::detail("train.stg_scale", LTX),
    Rule::detail("eval.stg_scale", LTX),
    Rule::detail("train.modality_scale", LTX),
    Rule::detail("eval.modality_scale", LTX),
    Rule::detail("train.guidance_rescale", LTX),
    Rule::detail("eval.guidance_rescale", LTX),
    Rule::detail("train.audio_stg_scale", LTX),
    Rule::detail("eval.audio_stg_scale", LTX),
    Rule::detail("train.audio_modality_scale", LTX),
    Rule::detail("eval.audio_modality_scale", LTX),
    Rule::detail("train.audio_guidance_scale", LTX),
    Rule::detail("eval.audio_guidance_scale", LTX),
    Rule::detail("train.audio_guidance_rescale", LTX),
    Rule::detail("eval.audio_guidance_rescale", LTX),
];
