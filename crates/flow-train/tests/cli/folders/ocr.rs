//! `configs/sd35-ocr.toml`, Flow-GRPO's OCR task, as it stands in the repository and with its own prompts, on the small folder of SD3. Its
//! images show nothing that can be read; what is tested is that all parts of the job go together.

use super::{on_policy, place};
use crate::support::Place;

const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/sd35-ocr.toml");

/// What makes a job of a published model one of seconds on a processor.
pub(super) const SMALL: [&str; 23] = [
    "model.path=model",
    "model.width=48",
    "model.height=64",
    "text={ kind = \"encoders\", tokens = 16 }",
    "device.kind=cpu",
    "device.dtype=f32",
    "acceleration.shared=[{ name = \"fused_kernels\", params = { mode = \"full\" } }]",
    "lora.rank=4",
    "lora.alpha=8.0",
    "run.dir=runs",
    "run.steps=1",
    "sampling.prompts_per_step=2",
    "sampling.group_size=4",
    "sampling.micro_batch=4",
    "optimizer.gradient_accumulation=0",
    "scheduler.steps=3",
    "evaluation.every=1",
    "evaluation.prompts=2",
    "evaluation.images_per_prompt=1",
    "evaluation.steps=3",
    "evaluation.grid={ rows = 2, columns = 1 }",
    "checkpoints.every=1",
    "logging.html_report=false",
];

/// An iteration of the job with the reader that `reward` sets.
fn train(at: &Place, reward: &str) {
    let mut arguments = vec!["train", JOB];
    arguments.extend(SMALL.iter().flat_map(|value| ["--set", *value]));
    arguments.extend(["--set", reward]);
    let outcome = at.run(&arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    on_policy(at, "runs/sd35-ocr/metrics.jsonl", 1);
    let metrics = at.text("runs/sd35-ocr/metrics.jsonl");
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let scores: Vec<f64> = records
        .filter_map(|record| record["reward/ocr"].as_f64())
        .collect();
    // Before the iteration, in it and after it.
    assert_eq!(scores.len(), 3, "{metrics}");
    assert!(
        scores.iter().all(|score| (0.0..=1.0).contains(score)),
        "{scores:?}"
    );
}

#[test]
fn the_ocr_job_of_sd35_trains_a_small_folder_on_its_own_prompts() {
    let networks = concat!(env!("CARGO_MANIFEST_DIR"), "/../flow-rewards-ocr/tests/fixtures");
    train(
        &place("sd3"),
        &format!("rewards=[{{ kind = \"ocr\", path = \"{networks}\" }}]"),
    );
}

#[test]
fn the_ocr_job_of_sd35_trains_with_pp_ocr_itself_and_its_pinned_files() {
    let Some(folder) = std::env::var_os("FLOW_TRAIN_OCR_MODELS") else {
        test_support::skipped("FLOW_TRAIN_OCR_MODELS names no folder with PP-OCR's ONNX files");
        return;
    };
    let folder = std::path::absolute(folder).unwrap();
    train(&place("sd3"), &format!("rewards.0.path={}", folder.display()));
}
