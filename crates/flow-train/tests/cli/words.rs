//! A small model in the latents of a TAESD that reads a BERT, on pictures of words: `pretrain`, `train`, `sample`.

use crate::support::{Place, contains};
use flow_models::StoredDtype;
use flow_models::weights::save_tensors;
use std::collections::BTreeMap;
use std::fs;

const CONFIG: &str = r#"config_version = 1

[run]
name = "words"
steps = 2
seed = 3

[model]
architecture = "mmdit"
autoencoder = "taesd"
weights = "words.safetensors"

[model.mmdit]
sample_size = 4
latent_height = 2
latent_width = 5
patch_size = 1
in_channels = 4
out_channels = 4
num_layers = 2
num_attention_heads = 2
attention_head_dim = 8
caption_projection_dim = 16
joint_attention_dim = 24
pooled_projection_dim = 24
pos_embed_max_size = 5
dual_attention_layers = []

[text]
kind = "bert"
path = "bert"
tokens = 12

[data]
kind = "words"
width = 40
height = 16
words = 40
images = 30

[pretrain]
steps = 3
batch = 4
warmup = 1
label_noise = 0.4
output = "words.safetensors"

[[rewards]]
kind = "jpeg-compressibility"

[scheduler]
steps = 3

[sampling]
prompts_per_step = 2
group_size = 2
micro_batch = 4

[optimizer]
learning_rate = 1e-3

[evaluation]
every = 2
prompts = 2
images_per_prompt = 2
grid = { rows = 2, columns = 2 }
"#;

/// Channels of the TAESD inside, and of its latents.
const WIDTH: usize = 4;
const LATENT: usize = 4;

/// One half of a TAESD with small weights: convolutions by place, channels in and out, and whether they have a bias; places of blocks.
fn half(place: &Place, name: &str, convolutions: &[(usize, [usize; 2], bool)], blocks: &[usize]) {
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: String, [input, output]: [usize; 2], has_bias: bool| {
        shapes.push((format!("{name}.weight"), vec![output, input, 3, 3]));
        if has_bias {
            shapes.push((format!("{name}.bias"), vec![output]));
        }
    };
    for (at, channels, has_bias) in convolutions {
        add(at.to_string(), *channels, *has_bias);
    }
    for at in blocks {
        for index in [0, 2, 4] {
            add(format!("{at}.conv.{index}"), [WIDTH; 2], true);
        }
    }
    let keyed = shapes.iter().enumerate();
    let keyed = keyed.map(|(key, (name, shape))| (name.clone(), shape.clone(), key));
    let values = |key: usize| -> Vec<f32> {
        let count = shapes[key].1.iter().product::<usize>();
        (0..count).map(|at| 0.2 * ((7 * at + key) as f32).sin()).collect()
    };
    let path = place.path("taesd").join(name);
    save_tensors(
        keyed.collect(),
        &values,
        &path,
        StoredDtype::F32,
        &BTreeMap::new(),
    )
    .unwrap();
}

/// With a TAESD, the BERT of the encoders' tests with a vocabulary of letters, and the config.
pub fn place() -> Place {
    let place = Place::bare();
    fs::create_dir_all(place.path("taesd")).unwrap();
    let inner = [WIDTH; 2];
    let (first, last) = ((0, [3, WIDTH], true), (14, [WIDTH, LATENT], true));
    let steps = [(2, inner, false), (6, inner, false), (10, inner, false)];
    let encoder = [&[first][..], &steps[..], &[last][..]].concat();
    half(
        &place,
        "small_encoder.safetensors",
        &encoder,
        &[1, 3, 4, 5, 7, 8, 9, 11, 12, 13],
    );
    let (first, last) = ((1, [LATENT, WIDTH], true), (19, [WIDTH, 3], true));
    let steps = [(7, inner, false), (12, inner, false), (17, inner, false)];
    let decoder = [&[first][..], &steps[..], &[last][..]].concat();
    half(
        &place,
        "small_decoder.safetensors",
        &decoder,
        &[3, 4, 5, 8, 9, 10, 13, 14, 15, 18],
    );
    fs::create_dir_all(place.path("bert")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = format!("../flow-text-encoder/tests/fixtures/text/bert/{name}");
        fs::copy(from, place.path("bert").join(name)).unwrap();
    }
    let mut words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "word", "\""]
        .map(str::to_owned)
        .to_vec();
    words.extend(('a'..='z').map(String::from));
    fs::write(place.path("bert/vocab.txt"), words.join("\n")).unwrap();
    fs::write(place.path("words.toml"), CONFIG).unwrap();
    place
}

#[test]
fn a_model_is_pretrained_on_words_in_latents_trained_and_asked_for_any_word() {
    let place = place();
    place.succeed(&["pretrain", "words.toml", "--quiet"]);
    let first = place.bytes("words.safetensors");
    place.succeed(&["pretrain", "words.toml", "--quiet", "--on-exists", "overwrite"]);
    assert!(place.bytes("words.safetensors") == first, "the same bytes again");
    place.succeed(&["train", "words.toml", "--quiet"]);
    let report = place.text("runs/words/metrics.jsonl");
    assert!(report.lines().count() >= 2, "{report}");
    let sample = |word: &str, out: &str| {
        place.succeed(&[
            "sample",
            "words.toml",
            "--prompt",
            word,
            "-n",
            "1",
            "--seed",
            "1",
            "--out",
            out,
        ]);
        place.bytes(out)
    };
    // Of the list, or not: the encoder reads any.
    for (word, out) in [("river", "a.png"), ("the word \"t i d e\"", "b.png")] {
        assert!(sample(word, out).starts_with(b"\x89PNG"), "{word}");
    }
    contains(
        &place.fail(2, &["sample", "words.toml", "--prompt", "riverside"]),
        &["the word has 9 letters"],
    );
}

#[test]
fn sizes_and_channels_that_do_not_fit_are_refused_with_the_numbers_that_do() {
    let place = place();
    let refused = |set: &str, parts: &[&str]| {
        let said = place.fail(2, &["pretrain", "words.toml", "--set", set]);
        contains(&said, parts);
    };
    refused("model.mmdit.latent_width=4", &["its columns to 5"]);
    refused(
        "model.mmdit.pooled_projection_dim=32",
        &["24 channels", "pooled text of 32"],
    );
    refused("text.tokens=21", &["text.tokens", "reads at most 19"]);
    refused("text.path=nowhere", &["nowhere", "text.path"]);
    refused("model.autoencoder=bert", &["bert", "config.json"]);
    fs::remove_file(place.path("taesd/small_decoder.safetensors")).unwrap();
    refused("run.seed=4", &["taesd", "decoder.safetensors"]);
}

#[test]
fn check_and_plan_hold_autoencoder_and_encoder_against_the_model_and_count_their_memory() {
    let place = place();
    // There are no weights yet; the table is there to look at all the same.
    let check = place.run(&["check", "words.toml"]);
    let rows = [
        "autoencoder",
        "AutoencoderTiny, ",
        "text_encoder",
        "BertModel, ",
        "decoding",
    ];
    contains(&check.stdout, &rows);
    let json = place.run(&["check", "words.toml", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let parts = json["memory"]["parts"].as_array().unwrap();
    let autoencoder = parts.iter().find(|part| part["part"] == "autoencoder").unwrap();
    // Per half ten blocks of three convolutions and three steps without bias; its first and its last convolution.
    let inner = 10 * 3 * (9 * WIDTH * WIDTH + WIDTH) + 3 * 9 * WIDTH * WIDTH;
    let outer = |[input, output]: [usize; 2]| 9 * input * output + output;
    let ends = [[3, WIDTH], [WIDTH, LATENT], [LATENT, WIDTH], [WIDTH, 3]].map(outer);
    let values = 2 * inner + ends.iter().sum::<usize>();
    assert_eq!(autoencoder["bytes"].as_f64(), Some(4.0 * values as f64));
    for command in [
        &["plan", "words.toml"][..],
        &["check", "words.toml", "--device", "rtx4090"],
    ] {
        let refused = |set: &[&str], parts: &[&str]| {
            contains(&place.fail(2, &[command, set].concat()), parts);
        };
        refused(
            &["--set", "model.mmdit.joint_attention_dim=32"],
            &["24 channels", "joint_attention_dim"],
        );
        refused(&["--set", "text.tokens=21"], &["text.tokens", "reads at most 19"]);
        let channels = ["model.mmdit.in_channels=8", "model.mmdit.out_channels=8"];
        let channels = ["--set", channels[0], "--set", channels[1]];
        refused(&channels, &["have 4 channels, the model's 8"]);
    }
    let plan = ["plan", "words.toml", "--set", "model.mmdit.latent_width=4"];
    contains(&place.fail(2, &plan), &["its columns to 5"]);
    let weights = place.path("bert/model.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    contains(&place.fail(2, &["plan", "words.toml"]), &["model.safetensors"]);
    fs::remove_file(&weights).unwrap();
    contains(&place.fail(2, &["plan", "words.toml"]), &["bert"]);
}
