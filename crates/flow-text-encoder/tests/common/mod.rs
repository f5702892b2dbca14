//! What several tests share: a plan on the processor, recorded tensors and tokens, and how near is near.
#![allow(dead_code)]

use burn::tensor::Tensor;
use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::{InferencePass, Stage};
use flow_core::{AttentionBackend, Backends, CallContext, Exec, Weights, cpu, tensors::plain};
use flow_kernels::CpuKernels;
use flow_models::weights::parse;
use flow_text_encoder::{ClipOutput, ClipText, Padding, T5Encoder, TextEncoder, Tokens, load};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bounds of the fixtures' README: `max |a - b| <= bound · max |b|`.
pub const OF_CLIP_AND_QWEN: f32 = 1e-5;
pub const OF_T5: f32 = 5e-5;

/// Folders of the networks that the recordings in `text` are of: encoders of the small pipelines.
pub const CLIP_L: &str = "pipelines/sd3/text_encoder";
pub const CLIP_L_PLAIN: &str = "pipelines/flux-dev/text_encoder";
pub const CLIP_G: &str = "pipelines/sd3/text_encoder_2";
pub const T5: &str = "pipelines/flux-dev/text_encoder_2";
pub const UMT5: &str = "pipelines/wan/text_encoder";
pub const QWEN: &str = "pipelines/qwen-image/text_encoder";
/// The config of [`CLIP_L`] with its end token in the place of the legacy one; the weights are the same.
pub const CLIP_L_END: &str = "text/clip-l-eos";

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

/// Shape and values of the f32 tensors of a file, and of its integers.
pub struct Recorded {
    pub floats: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    pub ints: BTreeMap<String, (Vec<usize>, Vec<i64>)>,
}

impl Recorded {
    pub fn read(path: &str) -> Self {
        let bytes = std::fs::read(fixture(path)).unwrap();
        let (mut floats, mut ints) = (BTreeMap::new(), BTreeMap::new());
        for tensor in parse(&bytes).unwrap().tensors {
            match tensor.to_f32() {
                Some(values) => drop(floats.insert(tensor.name, (tensor.shape, values))),
                None => {
                    let values = tensor
                        .bytes
                        .as_chunks::<8>()
                        .0
                        .iter()
                        .map(|bytes| i64::from_le_bytes(*bytes));
                    ints.insert(tensor.name, (tensor.shape, values.collect()));
                }
            }
        }
        Self { floats, ints }
    }

    fn rows(&self, name: &str) -> impl Iterator<Item = &[i64]> {
        let (shape, values) = &self.ints[name];
        values.chunks(shape[1])
    }

    /// `in.input_ids`, and `in.attention_mask` if there is one.
    pub fn tokens(&self) -> Tokens {
        let ids = self
            .rows("in.input_ids")
            .map(|row| row.iter().map(|id| *id as u32).collect())
            .collect();
        if !self.ints.contains_key("in.attention_mask") {
            return Tokens::new(ids).unwrap();
        }
        let mask = self
            .rows("in.attention_mask")
            .map(|row| row.iter().map(|kept| *kept != 0).collect());
        Tokens::with_mask(ids, mask.collect()).unwrap()
    }
}

/// Values on the host.
pub fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    cpu::to_host(&plain(&tensor.clone().into_dispatch()))
}

/// That `found` is the recorded tensor `name`, within `bound` of its largest value; of rows of `width` those alone of which `at`
/// holds.
pub fn is_near(found: &[f32], recorded: &Recorded, name: &str, bound: f32, at: impl Fn(usize) -> bool) {
    let (shape, wanted) = &recorded.floats[name];
    assert_eq!(found.len(), wanted.len(), "{name}: number of values");
    let width = *shape.last().unwrap();
    let largest = wanted.iter().fold(0.0f32, |top, value| top.max(value.abs()));
    let off = (found.iter().zip(wanted).enumerate())
        .filter(|(index, _)| at(index / width))
        .map(|(_, (a, b))| (a - b).abs())
        .fold(0.0f32, f32::max);
    assert!(
        found.iter().all(|value| value.is_finite()),
        "{name}: all values are finite"
    );
    assert!(
        off <= bound * largest,
        "{name}: off by {:e} of its largest value",
        off / largest
    );
}

pub fn near<const D: usize>(found: &Tensor<D>, recorded: &Recorded, name: &str, bound: f32) {
    assert_eq!(found.dims().to_vec(), recorded.floats[name].0, "{name}: shape");
    is_near(&host(found), recorded, name, bound, |_| true);
}

pub fn plan_of(attention: Arc<dyn AttentionBackend>) -> Arc<Backends> {
    Arc::new(Backends::new(attention, Arc::new(CpuKernels::default())))
}

pub fn plan() -> Arc<Backends> {
    plan_of(Arc::new(CpuAttention))
}

/// The encoder's weights, of which all are read.
pub fn weights(encoder: &dyn TextEncoder, folder: &str) -> Weights {
    load(encoder, &fixture(folder), None, &ComputeDevice::cpu())
        .unwrap()
        .0
}

pub fn exec<'w>(weights: &'w Weights, plan: &Arc<Backends>) -> Exec<'w> {
    InferencePass::new(weights, plan.clone()).exec(CallContext::single(Stage::Rollout))
}

pub fn clip(folder: &str, tokens: &Tokens) -> ClipOutput {
    let encoder = ClipText::open(&fixture(folder)).unwrap();
    let weights = weights(&encoder, if folder == CLIP_L_END { CLIP_L } else { folder });
    encoder.encode(&exec(&weights, &plan()), tokens).unwrap()
}

pub fn t5(folder: &str, tokens: &Tokens, padding: Padding, plan: &Arc<Backends>) -> Tensor<3> {
    let encoder = T5Encoder::open(&fixture(folder)).unwrap();
    let weights = weights(&encoder, folder);
    encoder.encode(&exec(&weights, plan), tokens, padding).unwrap()
}

fn numbers(value: &Value) -> Vec<Vec<u64>> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The tokens that transformers' tokenizer `tokenizer` of a pipeline gave for its `kind` of prompts (`prompt`, `negative`).
pub fn tokens(pipeline: &str, kind: &str, tokenizer: &str) -> Tokens {
    let text = std::fs::read(fixture(&format!("pipelines/{pipeline}/tokens.json"))).unwrap();
    let all: Value = serde_json::from_slice(&text).unwrap();
    let of_tokenizer = &all[kind][tokenizer];
    let ids = numbers(&of_tokenizer["ids"]).into_iter();
    let ids = ids
        .map(|row| row.into_iter().map(|id| id as u32).collect())
        .collect();
    match of_tokenizer.get("mask") {
        None => Tokens::new(ids).unwrap(),
        Some(mask) => {
            let mask = numbers(mask)
                .into_iter()
                .map(|row| row.into_iter().map(|kept| kept != 0).collect());
            Tokens::with_mask(ids, mask.collect()).unwrap()
        }
    }
}
