//! Prompts of several sizes: groups and micro-batches of one size, each with the model, the noise levels and the decoder of its size.

use super::{LORA, adapter, on_policy, place, train};
use crate::support::contains;
use std::fs;

const WIDE: [&str; 2] = ["--set", "sampling.sizes=[[80, 32]]"];
/// Two sizes, one after two others: whichever prompts are trained on, some have each.
const TWO: [&str; 2] = ["--set", "sampling.sizes=[[48, 64], [80, 32], [80, 32]]"];

#[test]
fn a_run_of_another_size_is_that_of_a_model_of_that_size() {
    for name in test_support::PIPELINES {
        let place = place(name);
        let frames: &[&str] = if name == "wan" {
            &["--set", "model.frames=1"]
        } else {
            &[]
        };
        // Fewer tokens: FLUX.1 and Qwen-Image shift their noise levels by them.
        train(
            &place,
            &[&LORA[..], &WIDE, frames, &["--set", "run.name=listed"]].concat(),
        );
        on_policy(&place, "runs/listed/metrics.jsonl", 2);
        let size = ["--set", "model.width=80", "--set", "model.height=32"];
        train(
            &place,
            &[&LORA[..], &size, frames, &["--set", "run.name=own"]].concat(),
        );
        assert_eq!(
            place.text("runs/listed/metrics.jsonl"),
            place.text("runs/own/metrics.jsonl"),
            "{name}"
        );
        assert!(
            adapter(&place, "listed") == adapter(&place, "own"),
            "{name}: other weights"
        );
    }
}

#[test]
fn prompts_of_two_sizes_train_go_on_to_the_same_bytes_and_are_sampled() {
    for name in test_support::PIPELINES {
        let place = place(name);
        let frames: &[&str] = if name == "wan" {
            &["--set", "model.frames=5"]
        } else {
            &[]
        };
        let run = |name: &str, more: &[&str]| {
            let name = format!("run.name={name}");
            train(
                &place,
                &[&LORA[..], &TWO, frames, &["--set", &name], more].concat(),
            );
        };
        run("whole", &[]);
        on_policy(&place, "runs/whole/metrics.jsonl", 2);
        run("parts", &["--set", "run.steps=1"]);
        run("parts", &["--resume", "latest"]);
        assert!(
            adapter(&place, "whole") == adapter(&place, "parts"),
            "{name}: other weights"
        );
        // Reuse of what is computed of a text does not mix the sizes.
        run(
            "reuse",
            &["--set", "acceleration.shared=[{ name = \"exact_reuse\" }]"],
        );
        on_policy(&place, "runs/reuse/metrics.jsonl", 2);
        // NFT's losses are at drawn times, whose noise is of the size of the picture.
        run("nft", &["--set", "algorithm={ kind = \"nft\" }"]);
        let other = ["--set", "run.name=other", "--set", "sampling.sizes=[]"];
        train(&place, &[&LORA[..], frames, &other].concat());
        assert!(
            adapter(&place, "whole") != adapter(&place, "other"),
            "{name}: sizes differ"
        );
    }
    let place = place("sd3");
    // The prompts of the file in their order take the sizes in turn.
    let base = [
        "sample",
        "folder.toml",
        "--prompt",
        "a red cube",
        "--prompt",
        "a cat and a dog",
        "-n",
        "1",
        "--each",
    ];
    place.succeed(&[&base[..], &TWO].concat());
    let sizes = [1, 2].map(|prompt| side(&place.bytes(&format!("sample-prompt-00{prompt}-sample-001.png"))));
    assert_eq!(sizes, [(48, 64), (80, 32)]);
}

/// Width and height in the header of a PNG.
fn side(picture: &[u8]) -> (u32, u32) {
    let number = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[test]
fn prompts_bring_their_own_sizes_and_what_does_not_fit_is_refused_before_the_run() {
    let place = place("flux-dev");
    let lines = [
        r#"{"prompt": "a red cube", "width": 80, "height": 32}"#,
        r#"{"prompt": "a cat", "width": 32, "height": 80}"#,
        r#"{"prompt": "a dog"}"#,
        r#"{"prompt": "a lighthouse", "width": 80, "height": 32}"#,
    ];
    fs::write(place.path("prompts.jsonl"), lines.join("\n")).unwrap();
    let own = [
        "--set",
        "data.path=prompts.jsonl",
        "--set",
        "sampling.sizes_of_prompts=true",
    ];
    train(&place, &[&LORA[..], &own].concat());
    on_policy(&place, "runs/folder/metrics.jsonl", 2);
    let prompts = [
        "--prompt",
        "a red cube",
        "--prompt",
        "a cat",
        "--prompt",
        "a dog",
        "-n",
        "1",
        "--each",
    ];
    place.succeed(&[&["sample", "folder.toml"], &prompts[..], &own].concat());
    let sizes =
        [1, 2, 3].map(|prompt| side(&place.bytes(&format!("sample-prompt-00{prompt}-sample-001.png"))));
    assert_eq!(sizes, [(80, 32), (32, 80), (48, 64)]);

    let fail = |more: &[&str]| place.fail(2, &[&["check", "folder.toml"], &LORA[..], more].concat());
    contains(
        &fail(&[&TWO[..], &["--set", "sampling.micro_batch=4"]].concat()),
        &[
            "`sampling.sizes`",
            "`sampling.micro_batch` (4) must divide `sampling.group_size` (2)",
        ],
    );
    contains(
        &fail(&["--set", "sampling.sizes=[[50, 64]]"]),
        &["`sampling.sizes`", "nearest: 48 or 64"],
    );
    let budget = ["--set", "checkpointing={ policy = \"budget\", peak_gib = 4 }"];
    contains(&fail(&[&TWO[..], &budget].concat()), &["plans for one size"]);
    fs::write(
        place.path("prompts.jsonl"),
        format!("{}\n{{\"prompt\": \"half\", \"width\": 32}}\n", lines.join("\n")),
    )
    .unwrap();
    contains(&fail(&own), &["\"half\"", "one side of its size"]);
}
