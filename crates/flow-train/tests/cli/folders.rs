//! Diffusers folders: a folder and a list of prompts are enough to train, in latents, with the folder's own encoders.

mod checkpoints;
mod ocr;
mod published;
mod sizes;

use crate::support::{Place, contains};
use std::fs;

/// What every run of these tests has in common. The folder is small, and its pictures are of 48 by 64 pixels.
const CONFIG: &str = r#"config_version = 1

[run]
name = "folder"
steps = 2
seed = 3

[model]
path = "model"
width = 48
height = 64

[data]
kind = "prompts"
path = "prompts.txt"
test_count = 2

[text]
kind = "encoders"
tokens = 16

[[rewards]]
kind = "jpeg-compressibility"

[scheduler]
steps = 3

[sampling]
prompts_per_step = 2
group_size = 2
micro_batch = 2

[optimizer]
learning_rate = 1e-3

[evaluation]
every = 2
prompts = 2
images_per_prompt = 1

[checkpoints]
every = 1
"#;

const PROMPTS: &str = "a red cube\na cat and a dog\nein Würfel aus Glas\n蓝色的汽车\na lighthouse at night\n";

const LORA: [&str; 6] = [
    "--set",
    "model.finetune=lora",
    "--set",
    "lora.rank=2",
    "--set",
    "lora.targets=[\"to_q\", \"to_v\"]",
];

/// A place with the small pipeline `name` in its folder `model`.
fn place(name: &str) -> Place {
    let place = Place::bare();
    test_support::write_pipeline_folder(name, &place.path("model"));
    fs::write(place.path("folder.toml"), CONFIG).unwrap();
    fs::write(place.path("prompts.txt"), PROMPTS).unwrap();
    place
}

fn train(place: &Place, more: &[&str]) -> String {
    let outcome = place.run(&[&["train", "folder.toml"], more].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    format!("{}{}", outcome.stdout, outcome.stderr)
}

/// Every iteration's ratios were exactly 1.
fn on_policy(place: &Place, metrics: &str, iterations: usize) {
    let metrics = place.text(metrics);
    let exact = metrics.matches("\"on_policy/max_ratio_deviation\":0.0").count();
    assert_eq!(exact, iterations, "{metrics}");
}

#[test]
fn a_folder_of_sd3_and_a_list_of_prompts_train_a_lora_that_goes_on_and_is_used_again() {
    let place = place("sd3");
    let said = train(&place, &LORA);
    contains(
        &said,
        &["prompts: 6 encoded, 0 found encoded in", "weights/adapter"],
    );
    on_policy(&place, "runs/folder/metrics.jsonl", 2);
    assert!(
        place
            .path("runs/folder/weights/adapter/pytorch_lora_weights.safetensors")
            .is_file()
    );
    assert!(!place.files().iter().any(|file| file.ends_with(".tmp")));

    // The same again: nothing is encoded any more, and the bytes are the same.
    let again = train(&place, &[&LORA[..], &["--set", "run.name=again"]].concat());
    contains(&again, &["prompts: 0 encoded, 6 found encoded in"]);
    let metrics = place.text("runs/folder/metrics.jsonl");
    assert_eq!(metrics, place.text("runs/again/metrics.jsonl"));

    // In two parts.
    let parts = [&LORA[..], &["--set", "run.name=parts"]].concat();
    train(&place, &[&parts[..], &["--set", "run.steps=1"]].concat());
    train(&place, &[&parts[..], &["--resume", "latest"]].concat());
    assert!(
        adapter(&place, "parts") == adapter(&place, "folder"),
        "other weights"
    );

    // Any text may be sampled, whether it is in the list or not.
    let sample = place.succeed(&[
        "sample",
        "folder.toml",
        "--weights",
        "runs/folder/weights/adapter",
        "--prompt",
        "a red cube",
        "--prompt",
        "a green pyramid",
        "-n",
        "1",
        "--each",
    ]);
    contains(&sample, &["sample.png", "a green pyramid: jpeg-compressibility"]);
    let picture = place.bytes("sample-prompt-002-sample-001.png");
    let side = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
    assert_eq!((side(16), side(20)), (48, 64));
}

/// The values of the trained adapter of a run, without the header, which names the run.
fn adapter(place: &Place, run: &str) -> Vec<u8> {
    let bytes = place.bytes(&format!(
        "runs/{run}/weights/adapter/pytorch_lora_weights.safetensors"
    ));
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn check_lists_what_a_published_folder_takes_of_a_device() {
    let place = place("sd3");
    let lora = [&["check", "folder.toml"], &LORA[..]].concat();
    let table = place.succeed(&lora);
    contains(
        &table,
        &[
            "mmdit, ",
            "values, frozen, in f32",
            "adapters",
            "values, trained, in f32",
            "two moments of",
            "text_encoder_3",
            "T5EncoderModel, ",
            "vae",
            "AutoencoderKL, ",
            "decoding",
            "activations",
            "a micro-batch of 2 in f32",
            "at its start, while prompts are encoded",
            "in an update",
            "the device has",
        ],
    );
    let gpu = [
        "--set",
        "device={ kind = \"cuda\", dtype = \"bf16\" }",
        "--device",
        "rtx4090",
    ];
    contains(
        &place.succeed(&[&lora[..], &gpu].concat()),
        &["values, frozen, in bf16", "NVIDIA GeForce RTX 4090", "24"],
    );
    // Numbers of the parts that are there in an update add up to what it takes.
    let json = place.succeed(&[&lora[..], &["--format", "json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let parts = json["memory"]["parts"].as_array().unwrap();
    for phase in ["encoding", "rollout", "update"] {
        let there = |part: &&serde_json::Value| part["when"].as_array().unwrap().contains(&phase.into());
        let bytes = |part: &serde_json::Value| part["bytes"].as_f64().unwrap();
        let (encoders, others): (Vec<_>, Vec<_>) = (parts.iter().filter(there))
            .partition(|part| part["part"].as_str().unwrap().starts_with("text_encoder"));
        let largest = encoders.into_iter().map(bytes).fold(0.0, f64::max);
        let sum = largest + others.into_iter().map(bytes).sum::<f64>();
        assert_eq!(json["memory"]["phases"][phase].as_f64(), Some(sum), "{phase}");
    }
    // What does not fit is refused with the parts that are surely there, and the table is there to look at.
    let little = [&lora[..], &["--memory-gib", "0.0001"]].concat();
    let refused = place.run(&little);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    contains(
        &refused.stderr,
        &["memory::too-much", "needs at least", "autoencoder"],
    );
    contains(&refused.stdout, &["T5EncoderModel"]);
}

#[test]
fn a_folder_of_flux_trains_all_weights_under_the_scale_that_it_embeds() {
    let place = place("flux-dev");
    train(&place, &[]);
    on_policy(&place, "runs/folder/metrics.jsonl", 2);
    // Another scale is another policy.
    train(
        &place,
        &[
            "--set",
            "sampling.embedded_guidance_scale=1.5",
            "--set",
            "run.name=other",
        ],
    );
    assert_ne!(
        place.text("runs/folder/metrics.jsonl"),
        place.text("runs/other/metrics.jsonl")
    );
    // So is a second branch, which embeds the scale, too.
    let branches = ["--set", "sampling.guidance_scale=2", "--set", "run.name=branches"];
    train(&place, &branches);
    on_policy(&place, "runs/branches/metrics.jsonl", 2);
    assert_ne!(
        place.text("runs/folder/metrics.jsonl"),
        place.text("runs/branches/metrics.jsonl")
    );
    // What was trained is a transformer of the pipeline again.
    let eval = place.succeed(&["eval", "folder.toml", "--weights", "runs/folder/weights"]);
    contains(&eval, &["jpeg-compressibility: "]);
}

#[test]
fn a_folder_of_qwen_image_trains_a_lora_on_texts_of_different_lengths_under_its_own_guidance() {
    let place = place("qwen-image");
    // Four samples of two prompts in a batch, whose texts have different lengths, and the empty one a third.
    let batch = ["--set", "sampling.micro_batch=4"];
    let said = train(&place, &[&LORA[..], &batch].concat());
    contains(&said, &["prompts: 6 encoded, 0 found encoded in"]);
    on_policy(&place, "runs/folder/metrics.jsonl", 2);

    // From the cache, where no padding lies, the bytes are the same.
    let again = train(
        &place,
        &[&LORA[..], &batch, &["--set", "run.name=again"]].concat(),
    );
    contains(&again, &["prompts: 0 encoded, 6 found encoded in"]);
    let metrics = place.text("runs/folder/metrics.jsonl");
    assert_eq!(metrics, place.text("runs/again/metrics.jsonl"));

    // What is kept of a text between batches is of its row's length.
    let reuse = ["--set", "acceleration.shared=[{ name = \"exact_reuse\" }]"];
    let reuse = [&LORA[..], &reuse, &["--set", "run.name=reuse"]].concat();
    train(&place, &reuse);
    on_policy(&place, "runs/reuse/metrics.jsonl", 2);

    // Guidance that is told nothing of the negative prompt is another policy.
    let plain = ["--set", "sampling.guidance_scale=1", "--set", "run.name=plain"];
    train(&place, &[&LORA[..], &batch, &plain].concat());
    on_policy(&place, "runs/plain/metrics.jsonl", 2);
    assert_ne!(metrics, place.text("runs/plain/metrics.jsonl"));
    let sample = place.succeed(&[
        "sample",
        "folder.toml",
        "--weights",
        "runs/folder/weights/adapter",
        "--prompt",
        "a green pyramid",
        "-n",
        "1",
    ]);
    contains(&sample, &["sample.png"]);
}

#[test]
fn a_folder_of_wan_trains_on_videos_and_on_single_frames() {
    let place = place("wan");
    let video = [&LORA[..], &["--set", "model.frames=5", "--set", "run.name=video"]].concat();
    train(&place, &video);
    on_policy(&place, "runs/video/metrics.jsonl", 2);
    train(&place, &[&LORA[..], &["--set", "model.frames=1"]].concat());
    on_policy(&place, "runs/folder/metrics.jsonl", 2);
    // Frames of a video stand side by side.
    let width = |run: &str| {
        let picture = place.bytes(&format!("runs/{run}/images/eval-step-000002.png"));
        u32::from_be_bytes(picture[16..20].try_into().unwrap())
    };
    assert!(width("video") > 5 * 48 && width("folder") < width("video"));
}

#[test]
fn a_folder_decides_where_the_config_is_silent_and_is_held_against_it() {
    let place = place("sd3");
    let plan = place.succeed(&["check", "folder.toml"]);
    contains(&plan, &["folder.toml"]);
    // Its scheduler's shift, its guidance and its last noise level.
    let explained = place.run(&["plan", "folder.toml"]);
    assert_eq!(explained.code, Some(0), "{explained:#?}");
    let other = place.fail(2, &["check", "folder.toml", "--set", "model.architecture=flux"]);
    contains(&other, &["model.architecture", "mmdit", "model_index.json"]);
    let size = place.fail(2, &["check", "folder.toml", "--set", "model.width=50"]);
    contains(
        &size,
        &["the width must be a multiple of 16 pixels; nearest: 48 or 64"],
    );
}

#[test]
fn what_is_wrong_with_a_folder_or_its_prompts_is_said_with_what_to_do() {
    let place = place("sd3");
    let weights = place.path("model/vae/diffusion_pytorch_model.safetensors");
    fs::rename(&weights, place.path("elsewhere")).unwrap();
    let no_weights = place.fail(2, &["check", "folder.toml"]);
    contains(&no_weights, &["model/vae", "the weights were not downloaded"]);
    fs::rename(place.path("elsewhere"), &weights).unwrap();
    let hub = [
        "check",
        "folder.toml",
        "--set",
        "model.path=stabilityai/stable-diffusion-3.5-medium",
    ];
    contains(
        &place.fail(2, &hub),
        &["model.path", "flow-train fetch stabilityai/"],
    );
    // A folder in the place of a config: a repository's name, and a part of a pipeline.
    let hub = ["sample", "Qwen/Qwen-Image", "--prompt", "a"];
    contains(&place.fail(2, &hub), &["flow-train fetch", "Qwen/Qwen"]);
    let part = ["sample", "model/vae", "--prompt", "a"];
    contains(
        &place.fail(2, &part),
        &["a diffusers folder", "AutoencoderKL", "Name the folder around it"],
    );
    fs::write(place.path("prompts.txt"), "only one\n").unwrap();
    let one = place.fail(2, &["check", "folder.toml", "--set", "data.test_count=1"]);
    contains(&one, &["prompts.txt", "data.test_path"]);
    let none = place.fail(2, &["check", "folder.toml", "--set", "data.path=none.txt"]);
    contains(&none, &["none.txt"]);
    // What is no fault is a note.
    fs::write(place.path("prompts.txt"), format!("{PROMPTS}a cat and a dog\n")).unwrap();
    let dry = place.run(&["train", "folder.toml", "--dry-run"]);
    contains(&dry.stderr, &["1 prompt(s) are there more than once", "(line 6)"]);
    let said = train(&place, &["--set", "run.steps=1"]);
    contains(&said, &["1 prompt(s) are there more than once", "(line 6)"]);
}

#[test]
fn a_folder_alone_makes_pictures_with_its_own_scheduler_and_defaults() {
    for name in ["sd3", "flux-dev", "qwen-image"] {
        let place = place(name);
        let sample = |out: &str, size: &str, more: &[&str]| {
            let base = [
                "sample",
                "model",
                "--prompt",
                "a red cube",
                "--prompt",
                "a cat",
                "-n",
                "1",
                "--out",
                out,
            ];
            let size = ["--size", size, "--set", "text.tokens=16"];
            place.succeed(&[&base[..], &size[..], more].concat());
            place.bytes(out)
        };
        let two = ["--steps", "2"];
        let first = sample("a.png", "48x64", &two);
        assert!(first == sample("b.png", "48x64", &two), "{name}: the same seed");
        let other = |what: &str, more: &[&str]| {
            let out = format!("{}.png", what.replace(' ', "-"));
            assert!(
                first != sample(&out, "48x64", &[&two[..], more].concat()),
                "{name}: another {what}"
            );
        };
        other("seed", &["--seed", "9"]);
        other("guidance", &["--guidance", "2"]);
        // A negative prompt that nobody reads, and a prompt of which only a part is read.
        let unread = ["--guidance", "1", "--negative-prompt", "blurry"];
        let long = "a cat and a dog, ".repeat(20);
        let base = [
            "sample",
            "model",
            "--prompt",
            long.as_str(),
            "-n",
            "1",
            "--size",
            "48x64",
            "--out",
            "unread.png",
        ];
        let set = ["--set", "text.tokens=16", "--steps", "1"];
        let outcome = place.run(&[&base[..], &set, &unread].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:#?}");
        let said = [
            "the negative prompt is not read",
            "1 of 2 are longer than their encoder reads (`text.tokens` is 16)",
        ];
        contains(&outcome.stderr, &said);
        assert!(first != sample("size.png", "64x48", &two));
    }
    let place = place("wan");
    let set = [
        "--set",
        "model.frames=5",
        "--set",
        "text.tokens=16",
        "--steps",
        "3",
    ];
    place.succeed(
        &[
            &[
                "sample", "model", "--prompt", "a", "-n", "1", "--size", "48x32", "--each",
            ][..],
            &set,
        ]
        .concat(),
    );
    let video = place.bytes("sample-prompt-001-sample-001.png");
    // The chunk of an animated PNG that counts its frames.
    let at = video
        .windows(4)
        .position(|name| name == b"acTL")
        .expect("it moves")
        + 4;
    assert_eq!(video[at..at + 4], 5u32.to_be_bytes());
    // As GIF: five images, each behind a block that says how long it is shown.
    let base = [
        "sample", "model", "--prompt", "a", "-n", "1", "--size", "48x32", "--each", "--gif",
    ];
    place.succeed(&[&base[..], &["--out", "moving.png"], &set].concat());
    let video = place.bytes("moving-prompt-001-sample-001.gif");
    assert!(video.starts_with(b"GIF89a"));
    let shown = video.windows(3).filter(|bytes| *bytes == [0x21, 0xf9, 4]).count();
    assert_eq!(shown, 5);
    let still = place.fail(2, &[&base[..], &set, &["--set", "model.frames=1"]].concat());
    contains(&still, &["`--gif` is for videos", "model.frames"]);
    let wrong = place.fail(2, &["sample", "model", "--prompt", "a", "--size", "48"]);
    contains(&wrong, &["`48` is no size", "1024x768"]);
}

#[test]
fn flux_dev_has_a_second_branch_beside_the_scale_that_it_embeds_where_it_is_asked_for() {
    let at = place("flux-dev");
    let base = ["--prompt", "a red cube", "-n", "1", "--steps", "2"];
    let small = ["--size", "48x64", "--set", "text.tokens=16"];
    let sample = |out: &str, more: &[&str]| {
        let named = ["sample", "model", "--out", out];
        let outcome = at.run(&[&named[..], &base, &small, more].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:#?}");
        (at.bytes(out), outcome.stderr)
    };
    let (plain, _) = sample("plain.png", &[]);
    let branch = ["--true-cfg", "9", "--negative-prompt", "a cat"];
    let (guided, said) = sample("guided.png", &branch);
    assert!(!said.contains("negative prompt"), "{said}");
    let empty = sample("empty.png", &["--true-cfg", "9"]).0;
    let embedded = sample("embedded.png", &[&branch[..], &["--guidance", "1.5"]].concat()).0;
    let weaker = ["--true-cfg", "3", "--negative-prompt", "a cat"];
    let weaker = sample("weaker.png", &weaker).0;
    for (other, what) in [
        (&plain, "no second branch"),
        (&empty, "another negative prompt"),
        (&embedded, "another embedded scale"),
        (&weaker, "another scale"),
    ] {
        assert!(guided != *other, "{what}");
    }
    // A scale of 1 is no second branch.
    let unread = ["--true-cfg", "1", "--negative-prompt", "a cat"];
    let (one, said) = sample("one.png", &unread);
    assert!(one == plain);
    contains(&said, &["the negative prompt is not read", "`--true-cfg`"]);

    let of_config = [&["sample", "folder.toml"], &base[..], &branch].concat();
    contains(
        &at.fail(2, &of_config),
        &["--true-cfg 9", "--guidance 9", "sampling.embedded_guidance_scale"],
    );
    for wrong in ["101", "NaN", "much"] {
        let scale = ["sample", "model", "--prompt", "a", "--true-cfg", wrong];
        contains(&at.fail(2, &scale), &[wrong, "from 0 to 100"]);
    }
    let at = place("sd3");
    let no_embedding = [&["sample", "model"], &base[..], &small, &branch].concat();
    contains(
        &at.fail(2, &no_embedding),
        &["embeds no guidance scale", "pass `--guidance 9`"],
    );
}

/// The bytes of a safetensors file behind its header, which names the run.
fn values(bytes: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    &bytes[8 + header..]
}

#[test]
fn every_folder_trains_in_full_and_as_a_lora_goes_on_to_the_same_bytes_and_is_loaded_again() {
    const FULL: [&str; 2] = ["--set", "optimizer.learning_rate=1e-4"];
    let exports = [
        (&LORA[..], "weights/adapter", "pytorch_lora_weights.safetensors"),
        (&FULL[..], "weights", "final.safetensors"),
    ];
    for name in test_support::PIPELINES {
        let place = place(name);
        let frames: &[&str] = if name == "wan" {
            &["--set", "model.frames=5"]
        } else {
            &[]
        };
        for (number, (keys, folder, file)) in exports.into_iter().enumerate() {
            let (whole, parts) = (
                format!("run.name=whole-{number}"),
                format!("run.name=parts-{number}"),
            );
            let run = |name: &str, more: &[&str]| {
                train(&place, &[keys, frames, &["--set", name], more].concat());
            };
            run(&whole, &[]);
            on_policy(&place, &format!("runs/whole-{number}/metrics.jsonl"), 2);
            run(&parts, &["--set", "run.steps=1"]);
            run(&parts, &["--resume", "latest"]);
            let export = |run: &str| place.bytes(&format!("runs/{run}-{number}/{folder}/{file}"));
            assert!(
                values(&export("whole")) == values(&export("parts")),
                "{name}: other weights in {folder}"
            );
            let weights = format!("runs/whole-{number}/{folder}");
            let eval = ["eval", "folder.toml", "--weights", &weights];
            contains(
                &place.succeed(&[&eval[..], frames].concat()),
                &["jpeg-compressibility: "],
            );
        }
        // The LoRA goes onto the pipeline as it is, and shows.
        let size = [
            "--size",
            "48x64",
            "--steps",
            "2",
            "--set",
            "text.tokens=16",
            "-n",
            "1",
        ];
        let sample = |out: &str, more: &[&str]| {
            let base = ["sample", "model", "--prompt", "a red cube", "--out", out];
            place.succeed(&[&base[..], &size, frames, more].concat());
            place.bytes(out)
        };
        let lora = "runs/whole-0/weights/adapter/pytorch_lora_weights.safetensors";
        assert!(
            sample("plain.png", &[]) != sample("lora.png", &["--lora", lora]),
            "{name}"
        );
        // And the transformer that was trained as a whole takes the place of the folder's own.
        let of_config = |out: &str, weights: &[&str]| {
            let base = [
                "sample",
                "folder.toml",
                "--prompt",
                "a red cube",
                "-n",
                "1",
                "--out",
                out,
            ];
            place.succeed(&[&base[..], frames, weights].concat());
            place.bytes(out)
        };
        let full = ["--weights", "runs/whole-1/weights"];
        assert!(
            of_config("own.png", &[]) != of_config("full.png", &full),
            "{name}"
        );
    }
}
