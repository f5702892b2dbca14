//! Weights and adapters: what they say of their model, what a run leaves, and how it is found again.

use crate::support::{Place, contains};
use std::fs;
use std::path::Path;

const LORA: [&str; 6] = [
    "--set",
    "model.finetune=lora",
    "--set",
    "lora.rank=3",
    "--set",
    "run.steps=4",
];

/// The score of the only reward in the output of `eval`.
fn score(output: &str) -> f64 {
    let line = output
        .lines()
        .find(|line| line.starts_with("digit-classifier: "))
        .unwrap();
    line.split([' ', ',']).nth(1).unwrap().parse().unwrap()
}

/// The values of a safetensors file, without its header.
fn values(place: &Place, name: &str) -> Vec<u8> {
    let bytes = place.bytes(name);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn an_adapter_is_exported_found_again_and_trained_on() {
    let place = Place::new();
    let all = [
        "--set",
        "lora.export=[\"diffusers\", \"peft\", \"kohya\", \"merged\"]",
    ];
    let out = place.succeed(&[&["train", "tiny.toml"], &LORA[..], &all].concat());
    contains(&out, &["weights/adapter", "weights/merged.safetensors"]);
    for file in [
        "adapter/adapter_model.safetensors",
        "adapter/adapter_config.json",
        "adapter/pytorch_lora_weights.safetensors",
        "adapter/lora_kohya.safetensors",
        "merged.safetensors",
        "config.json",
        "diffusion_pytorch_model.safetensors.index.json",
    ] {
        assert!(
            place.path(format!("runs/tiny/weights/{file}")).is_file(),
            "{file}"
        );
    }
    let eval = |more: &[&str]| place.succeed(&[&["eval", "tiny.toml"], more].concat());
    // The adapter says that there are adapters, their rank and their scale.
    let adapter = eval(&["--weights", "runs/tiny/weights/adapter"]);
    for same in ["pytorch_lora_weights.safetensors", "lora_kohya.safetensors"] {
        let path = format!("runs/tiny/weights/adapter/{same}");
        assert!(
            (score(&eval(&["--weights", &path])) - score(&adapter)).abs() <= 2e-4,
            "{same}"
        );
    }
    for merged in [
        "runs/tiny/weights/merged.safetensors",
        "runs/tiny/weights",
        "runs/tiny",
    ] {
        // Four decimals are printed, and merging rounds once.
        assert!(
            (score(&eval(&["--weights", merged])) - score(&adapter)).abs() <= 2e-4,
            "{merged}"
        );
    }
    assert_ne!(
        score(&adapter),
        score(&eval(&[])),
        "four iterations change something"
    );
    assert_eq!(
        eval(&["--set", "model.adapter=runs/tiny/weights/adapter"]),
        adapter
    );

    // A run that begins from it begins at it: what so small a rate moves is lost in rounding.
    let from = [
        "train",
        "tiny.toml",
        "--set",
        "model.adapter=runs/tiny/weights/adapter",
        "--set",
        "run.name=on",
        "--set",
        "run.steps=1",
        "--set",
        "optimizer.learning_rate=1e-30",
    ];
    place.succeed(&from);
    let file = |run: &str| format!("runs/{run}/weights/adapter/adapter_model.safetensors");
    assert_eq!(values(&place, &file("on")), values(&place, &file("tiny")));

    let refused = |more: &[&str]| {
        place.fail(
            2,
            &[
                &[
                    "check",
                    "tiny.toml",
                    "--set",
                    "model.adapter=runs/tiny/weights/adapter",
                ],
                more,
            ]
            .concat(),
        )
    };
    contains(
        &refused(&["--set", "lora.rank=4"]),
        &["files::other-model", "lora.rank", "3"],
    );
    contains(
        &refused(&["--set", "lora.alpha=1"]),
        &["files::other-model", "lora.alpha"],
    );
    contains(&refused(&["--set", "model.finetune=full"]), &["model.finetune"]);
    contains(
        &refused(&["--set", "lora.targets=[\"attn.to_q\"]"]),
        &["has no adapter in the model"],
    );
    let swapped = [
        "check",
        "tiny.toml",
        "--set",
        "model.weights=runs/tiny/weights/adapter",
    ];
    contains(
        &place.fail(2, &swapped),
        &["holds adapters (LoRA)", "model.adapter"],
    );
}

#[test]
fn the_whole_model_is_written_of_a_run_of_adapters_when_it_is_asked_for() {
    let place = Place::new();
    let train = [&["train", "tiny.toml"], &LORA[..]].concat();
    let out = place.succeed(&train);
    assert!(
        out.contains("weights/adapter") && !out.contains("merged"),
        "{out}"
    );
    let models = |place: &Place| {
        let files = place.files().into_iter();
        let files = files.filter(|file| file.starts_with("runs/tiny/weights/"));
        files.filter(|file| !file.contains("/adapter/")).count()
    };
    assert_eq!(models(&place), 0, "{:?}", place.files());
    // The run's folder and that of its weights stand for the adapter.
    let eval = |weights: &str| place.succeed(&["eval", "tiny.toml", "--weights", weights]);
    let adapter = eval("runs/tiny/weights/adapter");
    assert_eq!(eval("runs/tiny"), adapter);
    assert_eq!(eval("runs/tiny/weights"), adapter);
    // A finished run writes it later.
    let merged = [
        "--set",
        "lora.export=[\"diffusers\", \"merged\"]",
        "--resume",
        "latest",
    ];
    place.succeed(&[&train[..], &merged].concat());
    assert!(place.path("runs/tiny/weights/config.json").is_file());
    let merged = eval("runs/tiny/weights/merged.safetensors");
    assert!((score(&merged) - score(&adapter)).abs() <= 2e-4);
}

#[test]
fn weights_decide_where_the_config_is_silent_and_contradictions_are_named() {
    let place = Place::new();
    let whole = place.succeed(&["eval", "tiny.toml"]);
    place.edit(|text| {
        let start = text.find("[model.dit]").unwrap();
        let end = text.find("[data]").unwrap();
        format!("{}{}", &text[..start], &text[end..])
    });
    assert_eq!(place.succeed(&["eval", "tiny.toml"]), whole);
    let check = |set: &str| place.fail(2, &["check", "tiny.toml", "--set", set]);
    contains(
        &check("model.dit.position=rope"),
        &[
            "files::other-model",
            "`model.dit.position` is \"rope\", and \"sincos\"",
            "tiny.safetensors",
        ],
    );
    contains(
        &check("model.dit.heads=4"),
        &["files::other-model", "model.dit.heads"],
    );
    contains(
        &check("model.architecture=wan"),
        &["files::other-model", "model.architecture"],
    );
}

#[test]
fn a_value_that_is_not_finite_is_found_by_check() {
    let place = Place::new();
    let mut bytes = place.bytes("tiny.safetensors");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(place.path("tiny.safetensors"), bytes).unwrap();
    for command in ["check", "eval", "train"] {
        contains(
            &place.fail(2, &[command, "tiny.toml"]),
            &["not finite", "NaN at ["],
        );
    }
}

#[test]
fn what_is_given_as_weights_and_is_none_is_explained() {
    let place = Place::new();
    place.succeed(&["train", "tiny.toml", "--quiet"]);
    let eval = |weights: &str| place.fail(2, &["eval", "tiny.toml", "--weights", weights]);
    contains(
        &eval("runs/tiny/weights/finall.safetensors"),
        &["which `--weights` names", "did you mean", "final.safetensors"],
    );
    contains(&eval("nothing/here"), &["starts from the working directory"]);
    let checkpoint = fs::read_dir(place.path("runs/tiny/checkpoints"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let checkpoint = checkpoint.path();
    let name = Path::new("runs/tiny/checkpoints").join(checkpoint.file_name().unwrap());
    contains(
        &eval(name.to_str().unwrap()),
        &["is a checkpoint", "train --resume"],
    );
    fs::remove_dir_all(place.path("runs/tiny/weights")).unwrap();
    contains(&eval("runs/tiny"), &["no weights yet", "--resume"]);
    let hub = [
        "check",
        "tiny.toml",
        "--set",
        "model.weights=stabilityai/stable-diffusion-3.5-medium",
    ];
    contains(
        &place.fail(2, &hub),
        &["othing is downloaded here", "flow-train fetch stabilityai/"],
    );
}
