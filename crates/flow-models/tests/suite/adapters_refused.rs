//! LoRA files that cannot be the adapter of a model: each is refused by what is wrong with it, and nothing is changed.

use crate::common::lora_files::*;
use crate::common::*;
use flow_core::device::ComputeDevice;
use flow_core::{FlowModel, ParamLayout, Weights};
use flow_models::lora::AdapterFile;
use flow_models::{
    AdapterLayout, Dit, Position, StoredDtype, add_lora, export_adapters, load_adapters, load_into,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

#[test]
fn what_is_no_plain_adapter_on_the_unchanged_weights_is_refused_with_its_key() {
    let oracle = Oracle::new("sd3-lora");
    let (tensors, _) = read(&oracle.file("pytorch_lora_weights.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    renamed(&tensors, &at("adapter_model.safetensors"), None, |name| {
        name.replace(
            "transformer.transformer_blocks",
            "base_model.model.transformer_blocks",
        )
    });
    let read_with = |changes: &[(&str, Value)]| {
        fs::write(at("adapter_config.json"), peft_config(changes).to_string()).unwrap();
        AdapterFile::read(&*oracle.model, folder.path()).map_err(|error| error.to_string())
    };
    for right in [
        json!(true),
        json!(false),
        json!("gaussian"),
        json!("eva"),
        json!(null),
    ] {
        read_with(&[("init_lora_weights", right)]).unwrap();
    }
    read_with(&[("some_new_key", json!(null)), ("another", json!({}))]).unwrap();
    for (key, value) in [
        ("init_lora_weights", json!("pissa")),
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!("orthogonal")),
        ("peft_type", json!("ADALORA")),
        ("use_dora", json!(true)),
        ("use_qalora", json!(true)),
        ("lora_bias", json!(true)),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["proj_out"])),
        ("layer_replication", json!([[0, 2]])),
        ("target_parameters", json!(["w"])),
        ("alora_invocation_tokens", json!([1, 2])),
        ("loftq_config", json!({ "loftq_bits": 4 })),
        ("some_new_key", json!(1)),
        ("alpha_pattern", json!({ "to_.*": 8 })),
        ("lora_alpha", json!("six")),
        ("r", json!(0)),
    ] {
        let error = read_with(&[(key, value.clone())]).unwrap_err();
        assert!(error.contains(key), "{key} {value}: {error}");
    }
    let error = read_with(&[("init_lora_weights", json!("pissa"))]).unwrap_err();
    assert!(
        error.contains("path_initial_model_for_weight_conversion"),
        "{error}"
    );
    // Scale and rank against the tensors.
    let error = read_with(&[("r", json!(4)), ("lora_alpha", json!(4))]).unwrap_err();
    assert!(
        error.contains("says rank 4") && error.contains("have rank 3"),
        "{error}"
    );
    for alpha in [json!(-6), json!(0), json!(1e300)] {
        let error = read_with(&[("lora_alpha", alpha)]).unwrap_err();
        assert!(error.contains("must be a finite number above 0"), "{error}");
    }
    fs::remove_file(at("adapter_config.json")).unwrap();
    let error = AdapterFile::read(&*oracle.model, folder.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("its scale is not known"), "{error}");
}

#[test]
fn tensors_that_cannot_be_used_are_named() {
    let oracle = Oracle::new("sd3-lora");
    let (tensors, _) = read(&oracle.file("pytorch_lora_weights.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lora.safetensors");
    let layer = "transformer.transformer_blocks.0.attn.to_q";
    let key = |ending: &str| format!("{layer}.{ending}");
    let refused = |change: &dyn Fn(&mut Tensors)| {
        let mut changed = tensors.clone();
        change(&mut changed);
        renamed(&changed, &path, None, str::to_owned);
        AdapterFile::read(&*oracle.model, &path).unwrap_err().to_string()
    };
    let nan = |it: &mut Tensors| it.get_mut(&key("lora_B.weight")).unwrap().1[3 * 4 + 1] = f32::NAN;
    let error = refused(&nan);
    assert!(
        error.contains("to_q.lora_B.weight` holds NaN at [4, 1]"),
        "{error}"
    );
    let error = refused(&|it| drop(it.remove(&key("lora_A.weight"))));
    assert!(error.contains("to_q` lacks its factor A"), "{error}");
    let error = refused(&|it| it.get_mut(&key("lora_A.weight")).unwrap().0 = vec![32, 3]);
    assert!(
        error.contains("for this model they are [rank, 32] and [32, rank]"),
        "{error}"
    );
    let error = refused(&|it| drop(it.insert(key("alpha"), (vec![], vec![f32::NAN]))));
    assert!(error.contains("has alpha NaN"), "{error}");
    for (name, what) in [
        (key("lora_magnitude_vector"), "DoRA"),
        ("lora_unet_x.hada_w1_a".into(), "LoHa"),
        (
            "text_encoder.layers.0.q.lora_A.weight".into(),
            "adapt a text encoder",
        ),
        (
            "transformer.transformer_blocks.0.attn.to_qq.lora_A.weight".into(),
            "(it has `transformer_blocks.0.attn.to_q`)",
        ),
        (
            "transformer_blocks.0.attn.to_q.bias".into(),
            "is no tensor of an adapter",
        ),
        (key("lora_A.other.weight"), "two tensors for one factor"),
    ] {
        let error = refused(&|it| drop(it.insert(name.clone(), (vec![1], vec![1.0]))));
        assert!(error.contains(what), "{name}: {error}");
    }
    // Another model's file: each kind of problem once, and an end.
    let error = AdapterFile::read(&*oracle.model, &fixture("wan-lora/kohya.safetensors")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.lines().count() < 30 && error.contains("the model has no linear layer"),
        "{error}"
    );
    let model_file = oracle.file("diffusion_pytorch_model.safetensors");
    assert!(AdapterFile::read(&*oracle.model, &model_file).is_err());
    let mut base = oracle.base.clone();
    let error = load_into(&mut base, &oracle.file("pytorch_lora_weights.safetensors")).unwrap_err();
    assert!(error.to_string().contains("`model.adapter`"), "{error}");
}

#[test]
fn adapters_of_another_rank_or_scale_are_refused_and_change_nothing() {
    let device = ComputeDevice::cpu();
    let model = Dit::new(&small_dit(Position::Rope), &device).unwrap();
    let with = |rank, alpha| {
        let mut layout: ParamLayout = (**model.layout()).clone();
        add_lora(
            &model,
            &mut layout,
            &["to_q".to_owned(), "ff.net.2".to_owned()],
            rank,
            alpha,
        )
        .unwrap();
        noisy_weights(&Arc::new(layout), &device)
    };
    let folder = tempfile::tempdir().unwrap();
    let peft = [AdapterLayout::Peft];
    export_adapters(
        &model,
        &with(3, 4.5),
        folder.path(),
        &peft,
        StoredDtype::F32,
        &BTreeMap::new(),
    )
    .unwrap();
    let refused = |rank, alpha| {
        let mut other = with(rank, alpha);
        let before = host_values(&other);
        let error = load_adapters(&model, &mut other, folder.path()).unwrap_err();
        assert_eq!(host_values(&other), before);
        error.to_string()
    };
    let message = refused(3, 9.0);
    assert!(
        message.contains("made with alpha 4.5") && message.contains("set `lora.alpha = 4.5`"),
        "{message}"
    );
    let message = refused(2, 4.5);
    assert!(
        message.contains("has rank 3, the model's adapter 2; set `lora.rank = 3`"),
        "{message}"
    );
    let message = refused(4, 6.0);
    assert!(message.contains("set `lora.rank = 3`"), "{message}");

    // A model without an adapter where the file has one; and one with more, which begin at zero.
    let layout = |targets: &[&str]| {
        let mut layout: ParamLayout = (**model.layout()).clone();
        let targets: Vec<String> = targets.iter().map(|it| (*it).to_owned()).collect();
        add_lora(&model, &mut layout, &targets, 3, 4.5).unwrap();
        Weights::init(Arc::new(layout), 1, &device)
    };
    let error = load_adapters(&model, &mut layout(&["to_q"]), folder.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("ff.net.2` has no adapter in the model"), "{error}");
    let mut more = layout(&["*"]);
    load_adapters(&model, &mut more, folder.path()).unwrap();
    let zero = more
        .layout()
        .position("transformer_blocks.0.attn.to_k.lora_B.weight")
        .unwrap();
    assert!(more.host(zero).iter().all(|value| *value == 0.0));
}
