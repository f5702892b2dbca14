//! BERT against a forward pass in f64 that was written from the paper's formulas (`fixtures/text/bert`: random weights; the same
//! program gives the numbers that all-MiniLM-L6-v2's documentation shows for "This is an example sentence").

mod common;

use common::*;
use flow_core::device::ComputeDevice;
use flow_text_encoder::{BertText, TextEncoder, Tokens, load, mean_of_tokens};
use serde_json::json;

const FOLDER: &str = "text/bert";

#[test]
fn hidden_states_and_their_mean_are_those_of_the_formulas_whatever_the_padding() {
    let encoder = BertText::open(&fixture(FOLDER)).unwrap();
    let weights = weights(&encoder, FOLDER);
    let recorded = Recorded::read("text/bert/io.safetensors");
    let tokens = recorded.tokens();
    let encoded = encoder.encode(&exec(&weights, &plan()), &tokens).unwrap();
    let is_text = |row: usize| {
        tokens
            .kept(row / tokens.length())
            .contains(&(row % tokens.length()))
    };
    let bound = OF_CLIP_AND_QWEN;
    is_near(&host(&encoded), &recorded, "last_hidden_state", bound, is_text);
    let mean = mean_of_tokens(&encoded, &tokens).unwrap();
    is_near(&mean, &recorded, "mean", bound, |_| true);
    // A prompt without padding beside it: the second has 4 tokens.
    let alone = Tokens::with_mask(vec![tokens.ids()[1][..4].to_vec()], vec![vec![true; 4]]).unwrap();
    let encoded = encoder.encode(&exec(&weights, &plan()), &alone).unwrap();
    let width = encoder.config().width;
    for (a, b) in mean_of_tokens(&encoded, &alone)
        .unwrap()
        .iter()
        .zip(&mean[width..2 * width])
    {
        assert!((a - b).abs() < 2e-5, "{a} and {b}");
    }
}

#[test]
fn files_with_a_prefix_a_pooler_and_a_buffer_are_read_and_others_are_refused_by_name() {
    let encoder = BertText::open(&fixture(FOLDER)).unwrap();
    let (_, loaded) = load(&encoder, &fixture(FOLDER), None, &ComputeDevice::cpu()).unwrap();
    assert_eq!(loaded.ignored, ["pooler.dense.bias", "pooler.dense.weight"]);
    let name = "embeddings.LayerNorm.weight";
    assert_eq!(encoder.role(&format!("bert.{name}")), encoder.role(name));
    let folder = tempfile::tempdir().unwrap();
    let config = json!({ "model_type": "roberta", "vocab_size": 5 });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let refused = BertText::open(folder.path()).unwrap_err().to_string();
    assert!(
        refused.contains("`model_type` is \"roberta\"; allowed: \"bert\""),
        "{refused}"
    );
}

#[test]
fn the_layout_of_all_minilm_l6_has_its_number_of_weights() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12,
        "num_hidden_layers": 6, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let encoder = BertText::open(folder.path()).unwrap();
    // 22,713,216 in its file, of which the pooler has 147,840.
    assert_eq!(encoder.layout().count_values(|_| true), 22_565_376);
}
