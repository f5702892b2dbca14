//! Encoders against transformers 5.24.0: small random models in f32, with what PyTorch computes with them.

mod common;

use burn::backend::DispatchTensor;
use common::*;
use flow_attention::{CpuAttention, ReferenceAttention};
use flow_core::device::ComputeDevice;
use flow_core::exec::{Stage, TrainingPass};
use flow_core::ops::Stash;
use flow_core::stopped::caught;
use flow_core::{
    Attended, AttentionBackend, AttentionCall, AttentionCapability, CallContext, KeyValue, Refusal, Weights,
};
use flow_text_encoder::{
    ClipConfig, ClipText, Padding, QwenText, T5Encoder, TextEncoder, Tokens, clip::ClipActivation,
    clip::EndToken,
};
use std::sync::Arc;

#[test]
fn clips_hidden_states_and_pooled_embeddings_are_those_of_transformers() {
    for (name, folder, activation) in [
        ("clip-l", CLIP_L, ClipActivation::QuickGelu),
        ("clip-l-eos", CLIP_L_END, ClipActivation::QuickGelu),
        ("clip-l-plain", CLIP_L_PLAIN, ClipActivation::QuickGelu),
        ("clip-g", CLIP_G, ClipActivation::Gelu),
    ] {
        assert_eq!(
            ClipText::open(&fixture(folder)).unwrap().config().activation,
            activation
        );
        // Every prompt ends with the largest id.
        let of = if name == "clip-l-eos" { "clip-l" } else { name };
        let recorded = Recorded::read(&format!("text/{of}/io.safetensors"));
        let output = clip(folder, &recorded.tokens());
        let bound = OF_CLIP_AND_QWEN;
        near(&output.penultimate, &recorded, "hidden_states.penultimate", bound);
        near(
            &output.last,
            &recorded,
            "hidden_states.last_without_final_norm",
            bound,
        );
        near(&output.normed, &recorded, "last_hidden_state", bound);
        match &output.projected {
            Some(projected) => near(projected, &recorded, "text_embeds", bound),
            None => near(&output.pooled, &recorded, "pooler_output", bound),
        }
        assert_eq!(
            output.projected.is_some(),
            recorded.floats.contains_key("text_embeds"),
            "{name}"
        );
    }
}

#[test]
fn clip_pools_at_the_end_token_of_its_config_and_at_the_largest_id_where_that_is_2() {
    let folder = CLIP_L;
    let weights = weights(&ClipText::open(&fixture(folder)).unwrap(), folder);
    // The id 2 of the config is legacy: it is a token like any other, and the largest id is pooled, its first occurrence.
    let tokens = Tokens::new(vec![vec![812, 2, 7, 813, 813, 9, 813]]).unwrap();
    let pooled = |config: ClipConfig| {
        let output = ClipText::new(config)
            .encode(&exec(&weights, &plan()), &tokens)
            .unwrap();
        let (normed, pooled) = (host(&output.normed), host(&output.pooled));
        let row = normed.chunks(pooled.len()).position(|row| row == pooled);
        row.expect("the pooled embedding is a row of the last hidden state")
    };
    let legacy = ClipText::open(&fixture(folder)).unwrap().config().clone();
    assert_eq!(legacy.end, EndToken::Largest);
    assert_eq!(pooled(legacy.clone()), 3);
    let end = EndToken::Id(9);
    assert_eq!(pooled(ClipConfig { end, ..legacy }), 5);
}

#[test]
fn t5_and_umt5_are_those_of_transformers_with_and_without_a_mask() {
    for (name, folder) in [("t5", T5), ("umt5", UMT5)] {
        let recorded = Recorded::read(&format!("text/{name}/io.safetensors"));
        let tokens = recorded.tokens();
        for attention in [
            Arc::new(CpuAttention) as Arc<dyn AttentionBackend>,
            Arc::new(ReferenceAttention),
        ] {
            let plan = plan_of(attention);
            let attended = t5(folder, &tokens, Padding::Attended, &plan);
            near(&attended, &recorded, "out_without_mask", OF_T5);
            let masked = t5(folder, &tokens, Padding::Masked, &plan);
            let is_text = |row: usize| {
                tokens
                    .kept(row / tokens.length())
                    .contains(&(row % tokens.length()))
            };
            is_near(&host(&masked), &recorded, "out_with_mask", OF_T5, is_text);
        }
    }
}

#[test]
fn qwens_hidden_state_after_the_final_norm_is_that_of_transformers() {
    let encoder = QwenText::open(&fixture(QWEN)).unwrap();
    let weights = weights(&encoder, QWEN);
    let recorded = Recorded::read("text/qwen25vl/io.safetensors");
    let tokens = recorded.tokens();
    let last = encoder.encode(&exec(&weights, &plan()), &tokens).unwrap();
    let is_text = |row: usize| {
        tokens
            .kept(row / tokens.length())
            .contains(&(row % tokens.length()))
    };
    is_near(
        &host(&last),
        &recorded,
        "hidden_states.last",
        OF_CLIP_AND_QWEN,
        is_text,
    );
}

/// Attention of the processor that adds no bias to scores, like the portable kernels of GPUs.
#[derive(Debug)]
struct WithoutBias;

impl AttentionBackend for WithoutBias {
    fn name(&self) -> &str {
        "without-bias"
    }

    fn capability(&self) -> AttentionCapability {
        AttentionCapability::HOST
    }

    fn kernel(&self, call: &AttentionCall) -> Result<String, Refusal> {
        CpuAttention.kernel(call)
    }

    fn is_row_independent(&self) -> bool {
        true
    }

    fn attend(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        parts: &[KeyValue<'_>],
        call: &AttentionCall,
    ) -> Result<Attended, Refusal> {
        let call = AttentionCall {
            bias: None,
            ..call.clone()
        };
        CpuAttention.attend(stash, q, parts, &call)
    }
}

#[test]
fn where_a_backend_adds_no_bias_t5_is_computed_without_it_and_the_log_says_so() {
    for (name, folder) in [("t5", T5), ("umt5", UMT5)] {
        let recorded = Recorded::read(&format!("text/{name}/io.safetensors"));
        let tokens = recorded.tokens();
        let plan = plan_of(Arc::new(WithoutBias));
        near(
            &t5(folder, &tokens, Padding::Attended, &plan),
            &recorded,
            "out_without_mask",
            OF_T5,
        );
        let masked = t5(folder, &tokens, Padding::Masked, &plan);
        let is_text = |row: usize| {
            tokens
                .kept(row / tokens.length())
                .contains(&(row % tokens.length()))
        };
        is_near(&host(&masked), &recorded, "out_with_mask", OF_T5, is_text);
        let used: Vec<String> = plan
            .attention_log
            .since(0)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = "B 3, S 160, T 160, H 3, D 8, F32, biased: composed";
        assert!(used.iter().any(|used| used == expected), "{used:?}");
        assert!(used.iter().all(|used| used.ends_with("composed")), "{used:?}");
    }
}

#[test]
fn padding_before_a_prompt_changes_nothing_but_its_place() {
    let (prompt, padding) = (vec![481u32, 345, 198, 320, 260], 3);
    let alone = Tokens::with_mask(vec![prompt.clone()], vec![vec![true; 5]]).unwrap();
    let padded = [vec![480; padding], prompt].concat();
    let mask = [vec![false; padding], vec![true; 5]].concat();
    let padded = Tokens::with_mask(vec![padded], vec![mask]).unwrap();
    let qwen = QwenText::open(&fixture(QWEN)).unwrap();
    let of_qwen = weights(&qwen, QWEN);
    let umt5 = T5Encoder::open(&fixture(UMT5)).unwrap();
    let of_umt5 = weights(&umt5, UMT5);
    let encode = |tokens: &Tokens| {
        let plan = plan();
        [
            host(&qwen.encode(&exec(&of_qwen, &plan), tokens).unwrap()),
            host(
                &umt5
                    .encode(&exec(&of_umt5, &plan), tokens, Padding::Masked)
                    .unwrap(),
            ),
        ]
    };
    for (alone, padded) in encode(&alone).iter().zip(encode(&padded)) {
        let width = alone.len() / 5;
        let text = &padded[padding * width..];
        for (a, b) in alone.iter().zip(text) {
            assert!((a - b).abs() < 2e-5 * a.abs().max(1.0), "{a} and {b}");
        }
    }
}

#[test]
fn the_same_prompt_has_the_same_bits_in_any_batch() {
    let folder = T5;
    let tokens = Recorded::read("text/t5/io.safetensors").tokens();
    let all = host(&t5(folder, &tokens, Padding::Attended, &plan()));
    let of_one = all.len() / tokens.batch();
    for (row, ids) in tokens.ids().iter().enumerate() {
        let alone = t5(
            folder,
            &Tokens::new(vec![ids.clone()]).unwrap(),
            Padding::Attended,
            &plan(),
        );
        assert!(host(&alone) == all[row * of_one..][..of_one], "prompt {row}");
    }
}

#[test]
fn a_t5_whose_table_of_positions_is_trained_stops_with_the_reason() {
    let encoder = T5Encoder::open(&fixture(T5)).unwrap();
    let weights = weights(&encoder, T5);
    let tokens = Tokens::new(vec![vec![4, 39, 1]]).unwrap();
    let trained = |which: fn(&str) -> bool| -> Arc<[bool]> {
        encoder
            .layout()
            .specs()
            .iter()
            .map(|spec| which(&spec.name))
            .collect()
    };
    let run = |weights: &Weights, trained: Arc<[bool]>| {
        caught(|| {
            let pass = TrainingPass::new(weights, plan(), trained);
            let exec = pass.exec(CallContext::single(Stage::Training));
            let loss = encoder.encode(&exec, &tokens, Padding::Attended).unwrap().sum();
            pass.gradients(&loss)
                .iter()
                .filter(|gradient| gradient.is_some())
                .count()
        })
    };
    let of_attention = run(&weights, trained(|name| name.contains("SelfAttention.q")));
    assert_eq!(of_attention.expect("positions are frozen"), 2);
    let stopped = run(&weights, trained(|_| true)).expect_err("positions are trained");
    assert!(stopped.to_string().contains("no gradient to a bias"), "{stopped}");
}

#[test]
fn tokens_of_another_model_or_too_many_are_refused_with_the_reason() {
    let folder = CLIP_L;
    let encoder = ClipText::open(&fixture(folder)).unwrap();
    let weights = weights(&encoder, folder);
    let exec = exec(&weights, &plan());
    let error = |ids: Vec<Vec<u32>>| {
        let tokens = Tokens::new(ids).unwrap();
        encoder.encode(&exec, &tokens).expect_err("refused").to_string()
    };
    let beyond = error(vec![vec![812, 813], vec![812, 49407]]);
    assert!(
        beyond.contains("id 49407 at position 1 of prompt 1 is beyond the 814 rows"),
        "{beyond}"
    );
    let long = error(vec![vec![813; 78]]);
    assert!(
        long.contains("prompts have 78; this CLIP has positions for 77"),
        "{long}"
    );
    let ragged = Tokens::new(vec![vec![1, 2], vec![3]])
        .expect_err("refused")
        .to_string();
    assert!(ragged.contains("prompt 1 has 1, prompt 0 has 2"), "{ragged}");
    let none = Tokens::new(vec![vec![]]).expect_err("refused").to_string();
    assert!(none.contains("there are none"), "{none}");
    let mask = Tokens::with_mask(vec![vec![1, 2]], vec![vec![true]])
        .expect_err("refused")
        .to_string();
    assert!(
        mask.contains("the mask has 1 rows, the first of 1; the tokens are 1 rows of 2"),
        "{mask}"
    );
    let umt5 = T5Encoder::open(&fixture(UMT5)).unwrap();
    let of_umt5 = common::weights(&umt5, UMT5);
    let unmasked = Tokens::new(vec![vec![5, 1]]).unwrap();
    let unmasked = umt5.encode(&common::exec(&of_umt5, &plan()), &unmasked, Padding::Masked);
    assert!(
        unmasked
            .expect_err("refused")
            .to_string()
            .contains("have no mask")
    );
}

#[test]
fn a_clip_whose_end_token_is_not_in_a_prompt_is_refused() {
    let encoder = ClipText::open(&fixture(CLIP_L_END)).unwrap();
    let weights = weights(&encoder, CLIP_L);
    let tokens = Tokens::new(vec![vec![812, 813], vec![812, 5]]).unwrap();
    let error = encoder
        .encode(&exec(&weights, &plan()), &tokens)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("prompt 1 has no end token 813"), "{error}");
}

#[test]
fn weights_in_bf16_are_those_values_in_f32() {
    let folder = T5;
    let encoder = T5Encoder::open(&fixture(folder)).unwrap();
    let whole = weights(&encoder, folder);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    flow_models::save(&whole, &path, flow_models::StoredDtype::Bf16, &Default::default()).unwrap();
    let (narrow, _) =
        flow_text_encoder::load(&encoder, directory.path(), None, &ComputeDevice::cpu()).unwrap();
    for index in 0..encoder.layout().len() {
        for (narrow, whole) in narrow.host(index).iter().zip(whole.host(index)) {
            let bits = whole.to_bits();
            let nearest = f32::from_bits((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000);
            assert_eq!(narrow.to_bits(), nearest.to_bits());
        }
    }
}
