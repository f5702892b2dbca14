//! ImageReward: its towers against PyTorch's, its scores against its parts put together by hand, and files of something else.

use crate::common::{Recorded, fixture, refused};
use burn::tensor::{Tensor, TensorData};
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_core::{Weights, cpu, tensors::plain};
use flow_data::Prompt;
use flow_models::weights::{StoredTensor, parse};
use flow_rewards::{Reward, RewardError, RewardSample};
use flow_rewards_models::pixels::{Preprocessor, Resizing};
use flow_rewards_models::{Computation, ImageReward, ImageRewardSettings};
use flow_text_encoder::weights::{Role, Wanted, load_tensors, open};
use flow_text_encoder::{BlipText, BlipTextConfig, BlipVision, BlipVisionConfig, TextEncoder, Tokens};
use flow_tokenizer::{Length, Tokenizer, TokenizerClass};
use std::collections::BTreeMap;
use std::fs;

const MODEL: &str = "imagereward/model.safetensors";

/// The towers of the fixture, with so many heads, and their weights.
struct Towers {
    vision: (BlipVision, Weights),
    text: (BlipText, Weights),
    computation: Computation,
}

impl Towers {
    fn open(heads: usize) -> Self {
        let vision = BlipVision::new(BlipVisionConfig {
            image: 32,
            patch: 8,
            width: 24,
            inner: 96,
            layers: 2,
            heads,
            epsilon: 1e-6,
        });
        let text = BlipText::new(BlipTextConfig {
            vocabulary: 120,
            positions: 40,
            width: 20,
            image_width: 24,
            inner: 80,
            layers: 2,
            heads,
            epsilon: 1e-12,
        });
        let computation = Computation::processor();
        let path = fixture(MODEL);
        let source = open(&path, None).unwrap();
        let load = |wanted: Wanted<'_>| {
            let tensors = source.files[0].parse().unwrap().tensors;
            let tensors = tensors
                .into_iter()
                .map(|tensor| (path.as_path(), tensor))
                .collect();
            load_tensors(wanted, &path, tensors, &BTreeMap::new(), &computation.device)
                .unwrap()
                .0
        };
        let of_images = load(Wanted {
            layout: vision.layout(),
            role: &|name| vision.role(name),
        });
        let of_texts = load(Wanted {
            layout: text.layout(),
            role: &|name| text.role(name),
        });
        Self {
            vision: (vision, of_images),
            text: (text, of_texts),
            computation,
        }
    }

    /// The tokens of images, and the row of each prompt's first token.
    fn run(&self, pixels: Vec<f32>, tokens: &Tokens) -> (Vec<f32>, Vec<f32>) {
        let plan = || self.computation.plan.clone();
        let data = TensorData::new(pixels, [tokens.batch(), 3, 32, 32]);
        let pixels = Tensor::<4>::from_data(data, self.computation.device.burn());
        let pass = InferencePass::new(&self.vision.1, plan());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let images = self.vision.0.encode(&exec, pixels).unwrap();
        let pass = InferencePass::new(&self.text.1, plan());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let read = self.text.0.encode(&exec, tokens, images.clone()).unwrap();
        let first = read.narrow(1, 0, 1);
        let host = |tensor: Tensor<3>| cpu::to_host(&plain(&tensor.into_dispatch()));
        (host(images), host(first))
    }
}

/// The tensors of a file by name.
fn tensors(file: &[u8]) -> BTreeMap<String, StoredTensor<'_>> {
    let all = parse(file).unwrap().tensors.into_iter();
    all.map(|tensor| (tensor.name.clone(), tensor)).collect()
}

/// The five layers one after another, in f64, and the score that they make.
fn head(model: &BTreeMap<String, StoredTensor<'_>>, row: &[f32]) -> (f64, f64) {
    let mut x: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
    for layer in [0, 2, 4, 6, 7] {
        let values = |part: &str| model[&format!("mlp.layers.{layer}.{part}")].to_f32().unwrap();
        let (weight, bias) = (values("weight"), values("bias"));
        let row = |(weights, bias): (&[f32], &f32)| {
            let products = weights.iter().zip(&x).map(|(weight, x)| f64::from(*weight) * x);
            products.sum::<f64>() + f64::from(*bias)
        };
        x = weight.chunks_exact(x.len()).zip(&bias).map(row).collect();
    }
    (x[0], (x[0] - 0.16717362830052426) / 1.0333394966054072)
}

fn assert_near(found: &[f32], wanted: &[f32], share: f32, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let most = wanted.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let off = found
        .iter()
        .zip(wanted)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(off <= share * most, "{what}: {off} of {most}");
}

#[test]
fn towers_and_layers_are_those_of_pytorch() {
    let file = fs::read(fixture("imagereward/io.safetensors")).unwrap();
    let recorded = tensors(&file);
    let integers = |name: &str| -> Vec<Vec<u32>> {
        let values = recorded[name].bytes.chunks_exact(8);
        let values: Vec<u32> = values
            .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as u32)
            .collect();
        values.chunks_exact(35).map(<[u32]>::to_vec).collect()
    };
    let mask = integers("in.attention_mask");
    assert!(mask.iter().flatten().any(|kept| *kept == 0), "some are padded");
    let mask = mask
        .iter()
        .map(|row| row.iter().map(|kept| *kept == 1).collect())
        .collect();
    let tokens = Tokens::with_mask(integers("in.input_ids"), mask).unwrap();
    let floats = |name: &str| recorded[name].to_f32().unwrap();
    let (images, first) = Towers::open(2).run(floats("in.pixel_values"), &tokens);
    assert_near(&images, &floats("image_embeds"), 1e-5, "images");
    assert_near(&first, &floats("text_cls"), 1e-5, "texts");
    let model = fs::read(fixture(MODEL)).unwrap();
    let model = tensors(&model);
    let scores: Vec<(f64, f64)> = first.chunks_exact(20).map(|row| head(&model, row)).collect();
    let of_layers: Vec<f32> = scores.iter().map(|(value, _)| *value as f32).collect();
    assert_near(&of_layers, &floats("mlp"), 1e-5, "layers");
    for ((_, score), wanted) in scores.iter().zip(floats("reward")) {
        assert!(
            (score - f64::from(wanted)).abs() <= 1e-4 * f64::from(wanted).abs(),
            "{score} for {wanted}"
        );
    }
}

/// A folder with a tokenizer of as many tokens as the fixture has, letters and pairs of letters among them.
fn tokenizer_folder(words: usize) -> tempfile::TempDir {
    let letters = || ('a'..='z').map(String::from);
    let specials = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\"", ".", "no", "##no",
    ]
    .map(str::to_owned);
    let all = specials
        .into_iter()
        .chain(letters())
        .chain(letters().map(|letter| format!("##{letter}")));
    let filler = (0..).map(|number| format!("word{number}"));
    let all: Vec<String> = all.chain(filler).take(words).collect();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("vocab.txt"), all.join("\n")).unwrap();
    folder
}

fn image_reward(change: impl FnOnce(&mut ImageRewardSettings)) -> Result<ImageReward, RewardError> {
    let folder = tokenizer_folder(118);
    let mut settings = ImageRewardSettings::new(fixture(MODEL), folder.path());
    change(&mut settings);
    ImageReward::new(&settings, &Computation::processor())
}

#[test]
fn a_score_is_what_towers_and_layers_make_of_pixels_and_tokens() {
    let recorded = Recorded::read();
    let folder = tokenizer_folder(118);
    let tokenizer = Tokenizer::open_as(folder.path(), TokenizerClass::Bert).unwrap();
    let texts: Vec<&str> = recorded
        .prompts
        .iter()
        .map(|prompt| prompt.text.as_str())
        .collect();
    let texts = &texts[..recorded.images.len()];
    let rows = tokenizer.encode(texts, Length::Exactly(35)).unwrap();
    let (ids, mask) = (0..rows.rows())
        .map(|row| (rows.row_ids(row).to_vec(), rows.row_mask(row).to_vec()))
        .unzip();
    let tokens = Tokens::with_mask(ids, mask).unwrap();
    let preprocessor = Preprocessor::clip(Resizing::PillowTorchCrop, 32);
    let pixels = recorded
        .images
        .iter()
        .flat_map(|image| preprocessor.pixels(image).unwrap());
    // Widths of the fixture are no multiples of 64, so the file alone says one head.
    let (_, first) = Towers::open(1).run(pixels.collect(), &tokens);
    let model = fs::read(fixture(MODEL)).unwrap();
    let model = tensors(&model);
    let wanted: Vec<f32> = first
        .chunks_exact(20)
        .map(|row| head(&model, row).1 as f32)
        .collect();
    let found = image_reward(|_| {}).unwrap().score(&recorded.samples()).unwrap();
    assert_near(&found, &wanted, 1e-5, "scores");
    assert!(found.windows(2).any(|pair| pair[0] != pair[1]));
}

#[test]
fn a_score_depends_on_its_image_and_its_prompt_and_not_on_the_batch() {
    let recorded = Recorded::read();
    let samples = recorded.samples();
    let bits = |reward: &ImageReward, samples: &[RewardSample<'_>]| -> Vec<u32> {
        reward
            .score(samples)
            .unwrap()
            .iter()
            .map(|score| score.to_bits())
            .collect()
    };
    let whole = bits(&image_reward(|_| {}).unwrap(), &samples);
    for batch_size in [1, 2, 3] {
        let reward = image_reward(|settings| settings.batch_size = batch_size).unwrap();
        assert_eq!(bits(&reward, &samples), whole, "{batch_size}");
    }
    // A prompt of 35 tokens beside short ones: whatever is hidden, the short ones keep their scores.
    let reward = image_reward(|_| {}).unwrap();
    let long = Prompt::free(0, "no ".repeat(50));
    let mut mixed = samples.clone();
    mixed[0].prompt = &long;
    let of_mixed = bits(&reward, &mixed);
    assert_eq!(of_mixed[1..], whole[1..]);
    assert_ne!(of_mixed[0], whole[0]);
    // Beyond 35 tokens a prompt is cut.
    let longer = Prompt::free(0, "no ".repeat(60));
    mixed[0].prompt = &longer;
    assert_eq!(bits(&reward, &mixed), of_mixed);
    let mut other = samples.clone();
    other[1].image = samples[2].image;
    assert_ne!(bits(&reward, &other)[1], whole[1]);
}

#[test]
fn the_published_network_has_so_many_values() {
    let vision = BlipVision::new(BlipVisionConfig {
        image: 224,
        patch: 16,
        width: 1024,
        inner: 4096,
        layers: 24,
        heads: 16,
        epsilon: 1e-6,
    });
    // timm's `vit_large_patch16_224` without its classifier.
    assert_eq!(vision.layout().count_values(|_| true), 303_301_632);
    let text = BlipText::new(BlipTextConfig {
        vocabulary: 30_524,
        positions: 512,
        width: 768,
        image_width: 1024,
        inner: 3072,
        layers: 12,
        heads: 12,
        epsilon: 1e-12,
    });
    // bert-base-uncased without pooler has 108,891,648: two tokens more, no types of tokens, and cross attention in 12 layers.
    let cross = 2 * (768 * 768 + 768) + 2 * (1024 * 768 + 768) + 2 * 768;
    assert_eq!(
        text.layout().count_values(|_| true),
        108_891_648 + 2 * 768 - 2 * 768 + 12 * cross
    );
    for (name, of_images, of_texts) in [
        ("blip.visual_encoder.norm.weight", true, false),
        ("blip.text_encoder.embeddings.word_embeddings.weight", false, true),
        ("blip.text_encoder.embeddings.position_ids", false, false),
        ("mlp.layers.0.weight", false, false),
    ] {
        let plain = Role::Weight(name.trim_start_matches("blip.").to_owned());
        assert_eq!(
            (vision.role(name) == plain, text.role(name) == plain),
            (of_images, of_texts),
            "{name}"
        );
    }
}

#[test]
fn files_and_tokenizers_of_something_else_are_refused() {
    refused(
        image_reward(|settings| settings.path = "no/such/ImageReward.pt".into()),
        &[
            "reward `imagereward`",
            "no/such/ImageReward.pt",
            "flow-train fetch",
        ],
    );
    refused(
        image_reward(|settings| settings.path = fixture("clip")),
        &["is a folder", "ImageReward.pt"],
    );
    refused(
        image_reward(|settings| settings.path = fixture("aesthetic.pth")),
        &[
            "holds no ImageReward",
            "blip.visual_encoder.patch_embed.proj.weight",
        ],
    );
    refused(
        image_reward(|settings| settings.tokenizer = fixture("clip")),
        &["bert-base-uncased", "vocab.txt"],
    );
    let large = tokenizer_folder(121);
    refused(
        image_reward(|settings| settings.tokenizer = large.path().to_owned()),
        &["has 121 tokens", "120", "another model"],
    );
    refused(
        image_reward(|settings| settings.batch_size = 0),
        &["`batch_size`"],
    );
}
