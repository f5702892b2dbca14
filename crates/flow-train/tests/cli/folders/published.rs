//! The configs of published models, as they stand in the repository and with their own prompts, on small folders of the same pipelines. What is
//! tested is that all their keys go together, and that what they train goes onto the pipeline.

use super::ocr::SMALL;
use super::{on_policy, place};

/// Each config with the small pipeline that it trains here.
const CONFIGS: [(&str, &str); 8] = [
    ("sd35-medium-grpo", "sd3"),
    ("sd35-medium-nft", "sd3"),
    ("flux1-dev-grpo", "flux-dev"),
    ("flux1-dev-nft", "flux-dev"),
    ("qwen-image-grpo", "qwen-image"),
    ("qwen-image-nft", "qwen-image"),
    ("wan21-1.3b-grpo", "wan"),
    ("wan21-1.3b-nft", "wan"),
];

/// The window of Qwen-Image's config names the first five steps.
const STEPS: &str = "scheduler.steps=6";

#[test]
fn the_configs_of_published_models_train_small_folders_and_their_loras_are_used() {
    for (config, pipeline) in CONFIGS {
        let at = place(pipeline);
        let path = format!("{}/../../configs/{config}.toml", env!("CARGO_MANIFEST_DIR"));
        let frames: &[&str] = match pipeline {
            "wan" => &["--set", "model.frames=5"],
            _ => &[],
        };
        let mut arguments = vec!["train", path.as_str()];
        let settings = SMALL.iter().copied().chain([STEPS]);
        arguments.extend(settings.flat_map(|setting| ["--set", setting]));
        arguments.extend(frames);
        at.succeed(&arguments);
        // DiffusionNFT has no ratios.
        if config.ends_with("-grpo") {
            on_policy(&at, &format!("runs/{config}/metrics.jsonl"), 1);
        }
        let sample = |out: &str, lora: &[&str]| {
            let base = [
                "sample",
                "model",
                "--prompt",
                "a red cube",
                "-n",
                "1",
                "--out",
                out,
            ];
            let size = ["--size", "48x64", "--steps", "2", "--set", "text.tokens=16"];
            at.succeed(&[&base[..], &size, frames, lora].concat());
            at.bytes(out)
        };
        let lora = format!("runs/{config}/weights/adapter/pytorch_lora_weights.safetensors");
        assert!(
            sample("plain.png", &[]) != sample("lora.png", &["--lora", &lora]),
            "{config}"
        );
    }
}
