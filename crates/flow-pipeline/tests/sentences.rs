//! What a sentence encoder's folder makes of texts: rows of the tokens, zeros behind them, and their mean.

use flow_attention::CpuAttention;
use flow_core::Backends;
use flow_core::device::ComputeDevice;
use flow_kernels::CpuKernels;
use flow_pipeline::{EncodedPrompt, SentenceEncoder};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The small BERT of the encoders' tests, with words for its tokens.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = Path::new("../flow-text-encoder/tests/fixtures/text/bert").join(name);
        fs::copy(from, folder.path().join(name)).unwrap();
    }
    let words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nthe\nword";
    fs::write(folder.path().join("vocab.txt"), words).unwrap();
    folder
}

fn encode(encoder: &SentenceEncoder, texts: &[&str], sizes: (usize, usize)) -> (Vec<EncodedPrompt>, usize) {
    let plan = Arc::new(Backends::new(
        Arc::new(CpuAttention),
        Arc::new(CpuKernels::default()),
    ));
    encoder
        .encode(texts, sizes, &ComputeDevice::cpu(), &plan)
        .unwrap()
}

#[test]
fn a_text_is_its_tokens_zeros_behind_them_and_their_mean_alike_in_every_batch() {
    let folder = folder();
    let encoder = SentenceEncoder::open(folder.path()).unwrap();
    assert_eq!((encoder.channels(), encoder.longest()), (24, 19));
    // With begin and end 4, 5, 2 and 9 tokens, of which 7 are kept.
    let texts = ["the word", "a b c", "", "a b c the word a b"];
    let (together, cut) = encode(&encoder, &texts, (7, 64));
    assert_eq!(cut, 1);
    for (prompt, tokens) in together.iter().zip([4, 5, 2, 7]) {
        assert_eq!((prompt.tokens, prompt.length, prompt.channels), (7, 7, 24));
        let rows: Vec<&[f32]> = prompt.text.chunks(24).collect();
        assert!(
            rows[tokens..]
                .iter()
                .all(|row| row.iter().all(|value| *value == 0.0))
        );
        assert!(
            rows[..tokens]
                .iter()
                .all(|row| row.iter().any(|value| *value != 0.0))
        );
        let pooled = prompt.pooled.as_ref().unwrap();
        for (channel, found) in pooled.iter().enumerate() {
            let sum: f64 = rows[..tokens].iter().map(|row| f64::from(row[channel])).sum();
            assert!((sum / tokens as f64 - f64::from(*found)).abs() < 1e-6);
        }
    }
    assert_ne!(together[0].pooled, together[1].pooled);
    let (one_by_one, _) = encode(&encoder, &texts, (7, 1));
    assert_eq!(one_by_one, together);
}

#[test]
fn a_tokenizer_of_another_model_is_refused_with_both_numbers() {
    let folder = folder();
    let words: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..60).map(|number| format!("w{number}")))
        .collect();
    fs::write(folder.path().join("vocab.txt"), words.join("\n")).unwrap();
    let refused = SentenceEncoder::open(folder.path()).unwrap_err().to_string();
    assert!(
        refused.contains("has 65 tokens") && refused.contains("rows for 50"),
        "{refused}"
    );
}
