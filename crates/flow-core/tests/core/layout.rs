//! Layouts: names, positions, and what is said about wrong ones.

use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::{CoreError, Handle, Init, ParamKind, ParamLayout, Weights};
use std::sync::Arc;

fn layout() -> (ParamLayout, Handle<2>) {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    let query = {
        let mut blocks = builder.under("blocks");
        let mut block = blocks.under(0);
        let query = block
            .under("attn")
            .param("to_q.weight", [5, 3], Init::XavierUniform);
        block.under("attn").param("to_q.bias", [5], Init::Zeros);
        query
    };
    builder.buffer("pos_embed", [7, 3], Init::Normal(0.02));
    (layout, query)
}

#[test]
fn names_follow_the_structure_and_positions_the_order_of_declaration() {
    let (layout, query) = layout();
    let names: Vec<&str> = layout.specs().iter().map(|spec| &*spec.name).collect();
    assert_eq!(
        names,
        [
            "blocks.0.attn.to_q.weight",
            "blocks.0.attn.to_q.bias",
            "pos_embed"
        ]
    );
    for (position, name) in names.iter().enumerate() {
        assert_eq!(layout.position(name).unwrap(), position);
    }
    assert_eq!(query.index(), 0);
    let decays: Vec<bool> = layout.specs().iter().map(|spec| spec.decays).collect();
    assert_eq!(decays, [true, false, false], "biases and tables do not decay");
    assert_eq!(layout.count_values(|spec| spec.kind == ParamKind::Base), 20);
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    let error = layout().0.position("blocks.0.attn.to_q.wieght").unwrap_err();
    let message = error.to_string();
    assert!(message.contains("`blocks.0.attn.to_q.wieght`"), "{message}");
    assert!(
        message.contains("nearest name is `blocks.0.attn.to_q.weight`"),
        "{message}"
    );
    // The whole name counts, not its beginning alone.
    let error = layout().0.position("block.0.attn.to_q.bias").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no weight `block.0.attn.to_q.bias`; the nearest name is `blocks.0.attn.to_q.bias`"
    );
    let error = layout().0.position("zzz").unwrap_err();
    assert_eq!(error.to_string(), "there is no weight `zzz`");
}

#[test]
fn a_second_adapter_of_one_weight_is_an_error_that_names_it() {
    let (mut layout, query) = layout();
    layout.add_adapter(query, 2, 4.0).unwrap();
    let adapter = layout.adapter(query).unwrap();
    assert_eq!(adapter.scale, 2.0);
    let [down, up] = [adapter.down, adapter.up].map(|handle| &layout.specs()[handle.index()]);
    assert_eq!(
        (&*down.name, &*down.shape),
        ("blocks.0.attn.to_q.lora_A.weight", &[2, 3][..])
    );
    assert_eq!(
        (&*up.name, &*up.shape),
        ("blocks.0.attn.to_q.lora_B.weight", &[5, 2][..])
    );
    let error = layout.add_adapter(query, 8, 8.0).unwrap_err();
    assert!(
        matches!(&error, CoreError::Duplicate(name) if name == "blocks.0.attn.to_q.lora_A.weight"),
        "{error}"
    );
    assert_eq!(
        (layout.len(), layout.adapter(query)),
        (5, Some(adapter)),
        "the layout is as before"
    );
}

#[test]
#[should_panic(expected = "declares each weight once")]
fn a_model_that_declares_a_weight_twice_is_a_bug() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.param("scale", [2], Init::Ones);
    builder.param("scale", [2], Init::Ones);
}

#[test]
fn a_value_of_another_shape_is_refused_and_the_old_one_stays() {
    let mut weights = Weights::init(Arc::new(layout().0), 1, &ComputeDevice::cpu());
    let before = weights.host(1);
    let error = weights
        .set(1, ComputeDevice::cpu().plain(vec![0.0; 6], &[6]))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "weight `blocks.0.attn.to_q.bias` has shape [5], got [6]"
    );
    assert_eq!(weights.host(1), before);
}

#[test]
fn initial_values_depend_on_seed_and_name_but_not_on_the_other_weights() {
    let mut alone = ParamLayout::default();
    LayoutBuilder::new(&mut alone).param("blocks.0.attn.to_q.weight", [5, 3], Init::XavierUniform);
    let device = ComputeDevice::cpu();
    let (alone, full) = (Arc::new(alone), Arc::new(layout().0));
    let first = Weights::init(alone.clone(), 3, &device).host(0);
    assert_eq!(first, Weights::init(full, 3, &device).host(0));
    assert_ne!(first, Weights::init(alone, 4, &device).host(0));
    let limit = (6.0f32 / 8.0).sqrt();
    assert!(first.iter().all(|value| value.abs() <= limit));
}
