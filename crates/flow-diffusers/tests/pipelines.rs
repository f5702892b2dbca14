//! Pipelines' folders of diffusers are read, and what is wrong with one is said at once.

mod common;

use common::*;
use flow_diffusers::safetensors::StoredDtype;
use flow_diffusers::{
    DynamicShift, Family, FlowMatchEuler, Kind, PipelineFolder, Scheduler, ShiftKind, UniPc,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// What `check` says of the folder of the pipeline `name` after a change.
fn refused(name: &str, change: impl FnOnce(&Path)) -> String {
    let folder = pipeline(name);
    change(folder.path());
    let opened = PipelineFolder::open(folder.path()).unwrap();
    opened.check(None).unwrap_err().to_string()
}

#[test]
fn the_folders_of_five_pipelines_are_whole() {
    let families = [
        Family::StableDiffusion3,
        Family::Flux,
        Family::Flux,
        Family::QwenImage,
        Family::Wan,
    ];
    for (name, family) in PIPELINES.into_iter().zip(families) {
        let folder = pipeline(name);
        let opened = PipelineFolder::open(folder.path()).unwrap();
        assert_eq!(opened.check(None).unwrap(), family, "{name}");
        assert_eq!(opened.class(), family.class());
        assert_eq!(opened.version(), Some("0.42.1"));
        for component in opened.components() {
            if component.kind() == Kind::Model {
                component.config().unwrap();
                assert_eq!(component.tensors(None).unwrap().len(), 2);
            }
        }
        // The index may be named itself.
        assert!(PipelineFolder::open(&folder.path().join("model_index.json")).is_ok());
    }
}

#[test]
fn components_that_are_left_out_are_told_from_those_that_are_not_there() {
    let folder = pipeline("sd3");
    let opened = PipelineFolder::open(folder.path()).unwrap();
    assert!(opened.is_left_out("image_encoder"));
    assert!(!opened.is_left_out("transformer") && !opened.is_left_out("nothing"));
    let names: Vec<&str> = opened.components().map(|it| it.name.as_str()).collect();
    assert_eq!(names.len(), 9);
    assert_eq!(
        opened.component("text_encoder_3").unwrap().class,
        "T5EncoderModel"
    );
    expect(
        &opened.component("image_encoder").unwrap_err().to_string(),
        &["leaves the component `image_encoder` out"],
    );
    expect(
        &opened.component("text_encoder_4").unwrap_err().to_string(),
        &["no component `text_encoder_4`", "the nearest is `text_encoder"],
    );
}

#[test]
fn stable_diffusion_3_may_come_without_t5_and_its_tokenizer_but_not_without_one_of_them() {
    let leave_out = |at: &Path, names: &[&str]| {
        edit(&at.join("model_index.json"), |index| {
            for name in names {
                index[*name] = json!([null, null]);
            }
        });
    };
    let folder = pipeline("sd3");
    leave_out(folder.path(), &["text_encoder_3", "tokenizer_3"]);
    fs::remove_dir_all(folder.path().join("text_encoder_3")).unwrap();
    let opened = PipelineFolder::open(folder.path()).unwrap();
    assert_eq!(opened.check(None).unwrap(), Family::StableDiffusion3);
    assert!(opened.find("text_encoder_3").is_none());
    let words = refused("sd3", |at| leave_out(at, &["text_encoder_3"]));
    expect(
        &words,
        &[
            "`tokenizer_3` and no `text_encoder_3`",
            "both are needed, or neither",
        ],
    );
    let words = refused("sd3", |at| leave_out(at, &["text_encoder_2"]));
    expect(
        &words,
        &["has no `text_encoder_2`, which is a CLIPTextModelWithProjection"],
    );
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    let words = refused("flux-dev", |at| {
        fs::remove_dir_all(at.join("vae")).unwrap();
        fs::remove_file(at.join("text_encoder/model.safetensors")).unwrap();
        fs::remove_file(at.join("transformer/config.json")).unwrap();
        fs::remove_file(at.join("scheduler/scheduler_config.json")).unwrap();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9787\n";
        fs::write(at.join("text_encoder_2/model.safetensors"), pointer).unwrap();
    });
    expect(
        &words,
        &[
            "the FluxPipeline in `",
            "vae`: there is no such folder",
            "text_encoder`: it has no `*.safetensors`",
            "there is no `config.json`, which a FluxTransformer2DModel needs",
            "scheduler_config.json`: there is no such file",
            "text_encoder_2/model.safetensors`: it is a pointer of Git LFS",
        ],
    );
    assert_eq!(words.lines().count(), 6, "{words}");
}

#[test]
fn components_of_another_class_are_refused() {
    let words = refused("wan", |at| {
        edit(&at.join("model_index.json"), |index| {
            index["text_encoder"][1] = json!("T5EncoderModel");
        });
    });
    expect(
        &words,
        &["`text_encoder` is a T5EncoderModel, and what is read is a UMT5EncoderModel"],
    );
    let words = refused("sd3", |at| {
        let flux = fixture("flux-dev/transformer/config.json");
        fs::copy(flux, at.join("transformer/config.json")).unwrap();
    });
    expect(
        &words,
        &[
            "the config of a FluxTransformer2DModel",
            "says that transformer is a SD3Transformer2DModel",
            "mixed",
        ],
    );
}

#[test]
fn pipelines_that_are_not_read_are_named_with_those_that_are() {
    let class = |class: &str| {
        refused("flux-dev", |at| {
            edit(&at.join("model_index.json"), |index| {
                index["_class_name"] = json!(class)
            });
        })
    };
    expect(
        &class("StableDiffusionXLPipeline"),
        &["`StableDiffusionXLPipeline`", "`FluxPipeline`", "`WanPipeline`"],
    );
    expect(&class("FluxImg2ImgPipeline"), &["the nearest is `FluxPipeline`"]);
    let words = refused("wan", |at| {
        edit(&at.join("model_index.json"), |index| {
            index["transformer_2"] = json!(["diffusers", "WanTransformer3DModel"]);
            index["expand_timesteps"] = json!(true);
        });
    });
    expect(
        &words,
        &["two transformers", "Wan 2.2", "`expand_timesteps` is true"],
    );
}

#[test]
fn a_damaged_index_is_refused() {
    let open = |text: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model_index.json"), text).unwrap();
        PipelineFolder::open(folder.path()).unwrap_err().to_string()
    };
    expect(
        &open(b"{\"_class_name\": \"Flu"),
        &["its JSON cannot be read", "cut off"],
    );
    expect(&open(b""), &["it is empty"]);
    expect(&open(b"{}"), &["no `_class_name`"]);
    expect(
        &open(b"{\"_class_name\": \"FluxPipeline\", \"../vae\": [\"a\", \"b\"]}"),
        &["`../vae` is no name of a folder"],
    );
    expect(&open(b"\xff"), &["byte 0 is no UTF-8"]);
    let with_mark = [b"\xef\xbb\xbf".as_slice(), b"{\"_class_name\": \"FluxPipeline\"}"].concat();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model_index.json"), with_mark).unwrap();
    assert_eq!(
        PipelineFolder::open(folder.path()).unwrap().class(),
        "FluxPipeline"
    );
}

#[test]
fn schedulers_are_read_with_the_defaults_of_diffusers() {
    let of = |name: &str| PipelineFolder::open(&fixture(name)).unwrap().scheduler().unwrap();
    let euler = |shift, dynamic, shift_terminal| {
        Scheduler::FlowMatchEuler(FlowMatchEuler {
            num_train_timesteps: 1000,
            shift,
            dynamic,
            shift_terminal,
        })
    };
    let dynamic = |max_shift, max_image_seq_len| DynamicShift {
        base_shift: 0.5,
        max_shift,
        base_image_seq_len: 256,
        max_image_seq_len,
        kind: ShiftKind::Exponential,
    };
    assert_eq!(of("sd3"), euler(3.0, None, None));
    assert_eq!(of("flux-dev"), euler(3.0, Some(dynamic(1.15, 4096)), None));
    assert_eq!(of("flux-schnell"), euler(1.0, None, None));
    assert_eq!(of("qwenimage"), euler(1.0, Some(dynamic(0.9, 8192)), Some(0.02)));
    let unipc = UniPc {
        num_train_timesteps: 1000,
        flow_shift: 3.0,
        solver_order: 2,
        second_bh: true,
        lower_order_final: true,
        disable_corrector: vec![],
    };
    assert_eq!(of("wan"), Scheduler::UniPc(unipc));
    // The line of diffusers' `calculate_shift`, at 1024 × 1024 pixels.
    assert!((dynamic(1.15, 4096).mu(4096) - 1.15).abs() < 1e-12);
    assert!((dynamic(0.9, 8192).mu(4096) - 0.6935).abs() < 1e-4);
    assert!(dynamic(1.15, 4096).mu(8192) > 1.8);
}

#[test]
fn schedules_that_are_not_computed_are_refused_by_key() {
    let with = |name: &str, key: &str, value: Value| {
        refused(name, |at| {
            edit(&at.join("scheduler/scheduler_config.json"), |config| {
                config[key] = value
            });
        })
    };
    for (name, key, value) in [
        ("flux-dev", "use_karras_sigmas", json!(true)),
        ("qwenimage", "invert_sigmas", json!(true)),
        ("qwenimage", "time_shift_type", json!("cubic")),
        ("qwenimage", "shift_terminal", json!(2)),
        ("flux-dev", "max_image_seq_len", json!(256)),
        ("sd3", "shift", json!(0)),
        ("sd3", "shift", json!("three")),
        ("sd3", "num_train_timesteps", json!(-1)),
        ("wan", "prediction_type", json!("epsilon")),
        ("wan", "use_flow_sigmas", json!(false)),
        ("wan", "solver_order", json!(4)),
        ("wan", "solver_type", json!("midpoint")),
        ("wan", "disable_corrector", json!("all")),
    ] {
        let written = value.to_string();
        let words = with(name, key, value);
        let words = words.replace(".0:", ":");
        expect(
            &words,
            &["scheduler_config.json", &format!("`{key}` is {written}")],
        );
    }
    let words = refused("sd3", |at| {
        edit(&at.join("model_index.json"), |index| {
            index["scheduler"][1] = json!("DDIMScheduler")
        });
    });
    expect(
        &words,
        &[
            "`scheduler` is a DDIMScheduler",
            "FlowMatchEulerDiscreteScheduler",
        ],
    );
}

#[test]
fn a_variant_is_taken_where_it_is_and_refused_where_it_is_nowhere() {
    let folder = pipeline("flux-dev");
    let encoder = folder.path().join("text_encoder_2");
    weights(&encoder.join("model.fp16.safetensors"), StoredDtype::F16);
    let opened = PipelineFolder::open(folder.path()).unwrap();
    opened.check(Some("fp16")).unwrap();
    let dtype = |name: &str, variant| {
        let component = opened.component(name).unwrap();
        component.tensors(variant).unwrap().usual_dtype()
    };
    assert_eq!(dtype("text_encoder_2", Some("fp16")), Some(StoredDtype::F16));
    assert_eq!(dtype("text_encoder_2", None), Some(StoredDtype::F32));
    assert_eq!(dtype("vae", Some("fp16")), Some(StoredDtype::F32));
    let words = opened.check(Some("bf16")).unwrap_err().to_string();
    expect(&words, &["no component has a variant `bf16`; there are `fp16`"]);
    // A component that has the variant alone needs it to be named.
    fs::remove_file(encoder.join("model.safetensors")).unwrap();
    let words = opened.check(None).unwrap_err().to_string();
    expect(
        &words,
        &[
            "weights of the variant `fp16`",
            "name the variant, as by `--set model.variant=fp16`",
        ],
    );
}
