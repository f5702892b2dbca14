//! What is named that is no pipeline's folder is told by what it looks like, and names of the hub are looked up.

mod common;

use common::*;
use flow_diffusers::safetensors::StoredDtype;
use flow_diffusers::{PipelineFolder, Repository, cache_folder, locate};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

fn refused(path: &Path) -> String {
    PipelineFolder::open(path).unwrap_err().to_string()
}

#[test]
fn a_lora_is_named_so_in_every_layout() {
    for (file, names) in [
        (
            "pytorch_lora_weights.safetensors",
            ["transformer.blocks.0.attn.to_q.lora_A.weight", "a.lora_B.weight"],
        ),
        (
            "anything.safetensors",
            [
                "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight",
                "b.alpha",
            ],
        ),
        (
            "adapter_model.safetensors",
            ["base_model.model.to_q.lora_A.weight", "c.lora_B.weight"],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        tensors(&folder.path().join(file), StoredDtype::F32, &names);
        for path in [folder.path().to_owned(), folder.path().join(file)] {
            expect(&refused(&path), &["is a LoRA", "Name the folder of the model"]);
        }
    }
}

#[test]
fn the_folder_of_one_component_names_the_folder_around_it() {
    let folder = pipeline("flux-dev");
    let around = folder.path().canonicalize().unwrap();
    let around = around.to_string_lossy();
    for (inner, what) in [
        ("transformer", "one model alone (a FluxTransformer2DModel)"),
        ("text_encoder", "one model alone (a CLIPTextModel)"),
        (
            "vae/diffusion_pytorch_model.safetensors",
            "a file of weights alone",
        ),
        ("scheduler", "the folder of a scheduler alone"),
        ("tokenizer", "the folder of a tokenizer alone"),
    ] {
        expect(
            &refused(&folder.path().join(inner)),
            &[what, &format!("Name the folder around it: `{around}`")],
        );
    }
    let alone = tempfile::tempdir().unwrap();
    copy(&folder.path().join("transformer"), alone.path());
    expect(
        &refused(alone.path()),
        &["a FluxTransformer2DModel", "Download the whole pipeline"],
    );
}

#[test]
fn whole_models_in_one_file_are_named_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, what) in [
        (
            "double_blocks.0.img_attn.qkv.weight",
            "a FLUX model in a single file",
        ),
        (
            "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight",
            "a Stable Diffusion 3 model in a single file",
        ),
        ("blocks.0.self_attn.q.weight", "a Wan model in a single file"),
        (
            "model.diffusion_model.input_blocks.0.weight",
            "a model in a single file",
        ),
    ] {
        let path = folder.path().join("model-of-someone.safetensors");
        tensors(&path, StoredDtype::F32, &[name]);
        for path in [path.as_path(), folder.path()] {
            expect(&refused(path), &[what, "from_single_file"]);
        }
    }
    for (name, what) in [
        ("x.ckpt", "a pickle"),
        ("x.gguf", "GGUF"),
        ("x.txt", "a file of another kind"),
        ("nothing", "not there"),
    ] {
        let path = folder.path().join(name);
        if name != "nothing" {
            fs::write(&path, "text").unwrap();
        }
        expect(&refused(&path), &[what]);
    }
}

#[test]
fn folders_above_below_and_unfinished_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    expect(&refused(folder.path()), &["an empty folder"]);
    fs::write(folder.path().join("notes.md"), "text").unwrap();
    expect(&refused(folder.path()), &["a folder of another kind"]);
    fs::create_dir_all(folder.path().join("transformer")).unwrap();
    expect(
        &refused(folder.path()),
        &["a download was not finished", "Download it again"],
    );
    copy(&fixture("wan"), &folder.path().join("Wan2.1"));
    expect(
        &refused(folder.path()),
        &["a folder around folders of pipelines", "Wan2.1`"],
    );
}

/// A cache with one repository that has one snapshot.
fn cache() -> (tempfile::TempDir, PathBuf) {
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("models--Qwen--Qwen-Image");
    let snapshot = repository.join("snapshots/75e0b4be04f60ec59a75f475837eced720f823b6");
    copy(&fixture("qwenimage"), &snapshot);
    fs::create_dir_all(repository.join("refs/pr")).unwrap();
    for name in ["main", "pr/3"] {
        fs::write(
            repository.join("refs").join(name),
            "75e0b4be04f60ec59a75f475837eced720f823b6",
        )
        .unwrap();
    }
    fs::create_dir_all(repository.join("blobs")).unwrap();
    (cache, snapshot)
}

#[test]
fn a_name_of_the_hub_stands_for_its_snapshot_in_the_cache() {
    let (cache, snapshot) = cache();
    let find = |name, revision| locate(name, revision, Some(cache.path()));
    assert_eq!(find("Qwen/Qwen-Image", None).unwrap(), snapshot);
    assert_eq!(find("Qwen/Qwen-Image", Some("pr/3")).unwrap(), snapshot);
    assert_eq!(
        find(
            "Qwen/Qwen-Image",
            Some("75e0b4be04f60ec59a75f475837eced720f823b6")
        )
        .unwrap(),
        snapshot
    );
    assert!(PipelineFolder::open(&snapshot).is_ok());
    // A folder that is there counts before the hub.
    let here = snapshot.to_string_lossy().into_owned();
    assert_eq!(find(&here, None).unwrap(), snapshot);
    let words = refused(&cache.path().join("models--Qwen--Qwen-Image"));
    expect(&words, &["a repository in the hub's cache", "snapshots"]);
}

#[test]
fn a_name_that_is_not_in_the_cache_says_the_command_that_downloads_it() {
    let (cache, _) = cache();
    let find = |name, revision| {
        locate(name, revision, Some(cache.path()))
            .unwrap_err()
            .to_string()
    };
    expect(
        &find("black-forest-labs/FLUX.1-dev", None),
        &["not in the cache", "hf download black-forest-labs/FLUX.1-dev"],
    );
    expect(
        &find("Qwen/Qwen-Image", Some("v2")),
        &[
            "not its revision `v2`",
            "there are `main`",
            "hf download Qwen/Qwen-Image --revision v2",
        ],
    );
    expect(
        &find("Qwen/Qwen-Image", Some("../../../etc")),
        &["not its revision"],
    );
    expect(
        &find("no-such-folder", None),
        &["no file or folder `no-such-folder`"],
    );
    expect(&find("~/models/flux", None), &["`~` is expanded by shells only"]);
    let blobs = cache.path().join("models--Qwen--Qwen-Image/blobs");
    fs::write(blobs.join("abc.incomplete"), "").unwrap();
    expect(
        &find("Qwen/Qwen-Image", Some("v2")),
        &["a download was interrupted"],
    );
    let words = locate("Qwen/Qwen-Image", None, None).unwrap_err().to_string();
    expect(&words, &["hf download Qwen/Qwen-Image --local-dir FOLDER"]);
    expect(
        &refused(Path::new("Qwen/Qwen-Image")),
        &["flow-train fetch Qwen/Qwen-Image"],
    );
}

#[test]
fn names_of_repositories_are_told_from_paths() {
    for name in [
        "Qwen/Qwen-Image",
        "stabilityai/stable-diffusion-3.5-medium",
        "a/b_c",
    ] {
        assert_eq!(
            Repository::parse(name).map(|it| it.to_string()).as_deref(),
            Some(name)
        );
    }
    for name in [
        "models",
        "./models/flux",
        "a/b/c",
        "/a/b",
        "a/",
        "../b",
        "a/..",
        "a b/c",
        "-a/b",
        "a/b.",
        "é/b",
    ] {
        assert_eq!(Repository::parse(name), None, "{name}");
    }
}

#[test]
fn the_cache_is_where_huggingface_hub_has_it() {
    let with = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, OsString)> = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        cache_folder(&|name| {
            pairs
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        })
    };
    let at = |path: &str| Some(PathBuf::from(path));
    assert_eq!(with(&[]), None);
    assert_eq!(with(&[("HOME", "h")]), at("h/.cache/huggingface/hub"));
    assert_eq!(
        with(&[("HOME", "h"), ("XDG_CACHE_HOME", "x")]),
        at("x/huggingface/hub")
    );
    assert_eq!(with(&[("HOME", "h"), ("HF_HOME", "hf")]), at("hf/hub"));
    assert_eq!(with(&[("HF_HUB_CACHE", "c"), ("HF_HOME", "hf")]), at("c"));
    assert_eq!(with(&[("HF_HUB_CACHE", ""), ("HF_HOME", "hf")]), at("hf/hub"));
}
