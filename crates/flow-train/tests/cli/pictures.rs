//! Pictures and the latents of a diffusers folder: `encode`, `decode`, and pretraining on captioned pictures.

mod buckets;
mod records;

use crate::support::{Place, contains};
use flow_data::Picture;
use flow_models::StoredDtype;
use flow_models::weights::{parse, save_tensors};
use flow_report::{Tile, Video};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A place with the small pipeline `name` in its folder `model`, and pictures of odd sizes in `pictures`.
fn place(name: &str) -> Place {
    let place = Place::bare();
    let folder = test_support::pipeline_folder(name);
    copy(folder.path(), &place.path("model"));
    fs::create_dir_all(place.path("pictures")).unwrap();
    for (number, (width, height)) in [(70, 51), (48, 64), (33, 90)].into_iter().enumerate() {
        picture(
            &place.path(format!("pictures/{number}.png")),
            width,
            height,
            number,
        );
    }
    place
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}

/// A PNG of waves.
fn picture(path: &Path, width: usize, height: usize, phase: usize) {
    let value = |index: usize| {
        let (channel, row, column) = (index / (width * height), index / width % height, index % width);
        ((row + 2 * column) as f32 * 0.11 + (channel + phase) as f32).sin()
    };
    let pixels = (0..3 * width * height).map(value).collect();
    let tile = Tile::new(3, height, width, pixels).unwrap();
    fs::write(path, tile.picture(1).unwrap().png).unwrap();
}

/// Shape and values of a tensor of a file; none if it has none of that name.
fn tensor(place: &Place, file: &str, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
    let bytes = place.bytes(file);
    let parsed = parse(&bytes).unwrap();
    let found = parsed.tensors.iter().find(|tensor| tensor.name == name)?;
    Some((found.shape.clone(), found.to_f32().unwrap()))
}

fn save(place: &Place, file: &str, tensors: &[(&str, &[usize], &[f32])]) {
    let named = tensors.iter().enumerate();
    let named = named.map(|(key, (name, shape, _))| (name.to_string(), shape.to_vec(), key));
    let values = |key: usize| tensors[key].2.to_vec();
    save_tensors(
        named.collect(),
        &values,
        &place.path(file),
        StoredDtype::F32,
        &BTreeMap::new(),
    )
    .unwrap();
}

/// Largest difference of the picture in `file` to values in 0 to 1, channels first, in 255ths.
fn off(place: &Place, file: &str, unit_chw: &[f32]) -> f32 {
    let read = Picture::read(&place.path(file)).unwrap();
    let plane = read.width() * read.height();
    assert_eq!(unit_chw.len(), 3 * plane);
    let wanted = (0..3 * plane).map(|index| unit_chw[index % 3 * plane + index / 3] * 255.0);
    let pairs = read.rgb8().iter().zip(wanted);
    pairs.fold(0.0, |most, (found, wanted)| {
        (f32::from(*found) - wanted).abs().max(most)
    })
}

#[test]
fn decode_makes_the_pictures_that_diffusers_makes_of_the_same_latents() {
    let place = place("sd3");
    // What the pipeline of diffusers had after its last step, and what it made of it.
    let (_, latents) = tensor(&place, "model/oracle.safetensors", "latents.4").unwrap();
    let (_, image) = tensor(&place, "model/oracle.safetensors", "image").unwrap();
    save(
        &place,
        "two.safetensors",
        &[("latents", &[2, 16, 8, 6], &latents)],
    );
    let said = place.succeed(&["decode", "model", "two.safetensors"]);
    contains(&said, &["two-001.png", "two-002.png"]);
    for (file, wanted) in ["two-001.png", "two-002.png"]
        .iter()
        .zip(image.chunks(3 * 64 * 48))
    {
        let off = off(&place, file, wanted);
        assert!(off <= 0.7, "{file}: off by {off} of 255");
    }
    // Nothing is written over: the next free names, or what was asked for.
    let again = place.succeed(&["decode", "model", "two.safetensors"]);
    contains(&again, &["two-2-001.png", "two-2-002.png"]);
    let taken = place.fail(2, &["decode", "model", "two.safetensors", "--out", "two.png"]);
    contains(&taken, &["two-001.png is there already", "--on-exists"]);
    let other = ["decode", "model", "two.safetensors", "--out", "two.jpg"];
    contains(
        &place.fail(2, &other),
        &["pictures are written as PNG", "two.png"],
    );
}

#[test]
fn encode_writes_the_latents_of_fitted_pictures_whatever_else_is_encoded() {
    for name in ["sd3", "flux-dev", "qwen-image", "wan"] {
        let place = place(name);
        let base = ["encode", "model", "--size", "48x64"];
        let all = place.succeed(&[&base[..], &["pictures", "--out", "all.safetensors"]].concat());
        contains(&all, &["all.safetensors"]);
        let (shape, values) = tensor(&place, "all.safetensors", "latents").unwrap();
        let sides: &[usize] = match name {
            "wan" => &[3, 16, 1, 8, 6],
            _ => &[3, 16, 8, 6],
        };
        assert_eq!(shape, sides, "{name}");
        assert!(values.iter().all(|value| value.is_finite()));
        // A picture that is fitted already is the same as the one that is fitted here.
        let read = Picture::read(&place.path("pictures/0.png"))
            .unwrap()
            .fitted(48, 64);
        let image = read.to_image();
        let tile = Tile::new(3, 64, 48, image.pixels_chw).unwrap();
        fs::write(place.path("fitted.png"), tile.picture(1).unwrap().png).unwrap();
        place.succeed(&[&base[..], &["fitted.png"]].concat());
        let (_, alone) = tensor(&place, "latents.safetensors", "latents").unwrap();
        assert_eq!(
            alone,
            values[..alone.len()],
            "{name}: a picture does not see the others"
        );
        // There, and back.
        let back = place.succeed(&["decode", "model", "all.safetensors", "--out", "back.png"]);
        contains(&back, &["back-003.png"]);
        let picture = Picture::read(&place.path("back-003.png")).unwrap();
        assert_eq!((picture.width(), picture.height()), (48, 64));
    }
}

#[test]
fn frames_become_a_video_that_comes_back_as_one() {
    let place = place("wan");
    for number in 3..5 {
        picture(&place.path(format!("pictures/{number}.png")), 48, 32, number);
    }
    let base = ["encode", "model", "--size", "48x32", "pictures", "--video"];
    place.succeed(&base);
    let (shape, _) = tensor(&place, "latents.safetensors", "latents").unwrap();
    assert_eq!(shape, [1, 16, 2, 4, 6]);
    place.succeed(&["decode", "model", "latents.safetensors"]);
    let video = place.bytes("latents.png");
    // The chunk of an animated PNG that counts its frames.
    let at = video.windows(4).position(|name| name == b"acTL").unwrap() + 4;
    assert_eq!(video[at..at + 4], 5u32.to_be_bytes());
    place.succeed(&["decode", "model", "latents.safetensors", "--out", "moving.gif"]);
    assert!(place.bytes("moving.gif").starts_with(b"GIF89a"));
    // One frame is a picture, and no GIF.
    let still: Vec<f32> = (0..16 * 4 * 6).map(|index| (index as f32 * 0.3).sin()).collect();
    save(
        &place,
        "still.safetensors",
        &[("latents", &[1, 16, 1, 4, 6], &still)],
    );
    let refused = place.fail(2, &["decode", "model", "still.safetensors", "--out", "still.gif"]);
    contains(&refused, &["GIF is for videos", "still.png"]);
    fs::remove_file(place.path("pictures/4.png")).unwrap();
    contains(&place.fail(2, &base), &["nearest: 1 or 5"]);
    // An animation is no frame.
    let moving = Video::new(2, 8, 8, vec![0; 2 * 8 * 8 * 3], 8.0).unwrap();
    moving.write(&place.path("moving.png")).unwrap();
    let refused = place.fail(2, &["encode", "model", "moving.png", "--size", "48x32"]);
    contains(&refused, &["moving.png", "animation"]);
}

#[test]
fn prompts_are_encoded_for_text_kind_file() {
    let place = place("sd3");
    fs::write(place.path("prompts.txt"), "a red cube\na cat\n").unwrap();
    let base = [
        "encode",
        "model",
        "--prompts",
        "prompts.txt",
        "--set",
        "text.tokens=16",
        "--size",
        "48x64",
    ];
    place.succeed(&[&base[..], &["--out", "text.safetensors"]].concat());
    let shape = |name| tensor(&place, "text.safetensors", name).map(|(shape, _)| shape);
    let (text, pooled) = (
        shape("prompt_embeds").unwrap(),
        shape("pooled_prompt_embeds").unwrap(),
    );
    assert_eq!((text[0], text[1], pooled[0]), (2, 77 + 16, 2));
    assert_eq!(shape("negative_prompt_embeds").unwrap()[0], 1);
    assert!(shape("latents").is_none());
    // The file serves a run with these prompts, and no other.
    let config = "config_version = 1\n[model]\npath = \"model\"\nwidth = 48\nheight = 64\n[data]\nkind = \"prompts\"\n\
                  path = \"prompts.txt\"\n[text]\nkind = \"file\"\npath = \"text.safetensors\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\n";
    fs::write(place.path("file.toml"), config).unwrap();
    place.succeed(&["check", "file.toml"]);
    fs::write(place.path("prompts.txt"), "a red cube\na dog\n").unwrap();
    contains(&place.fail(2, &["check", "file.toml"]), &["a cat", "a dog"]);
}

#[test]
fn what_cannot_be_encoded_or_decoded_is_said_before_anything_is_written() {
    let place = place("sd3");
    contains(
        &place.fail(2, &["encode", "model"]),
        &["nothing to encode", "--prompts"],
    );
    let size = |size: &str| place.fail(2, &["encode", "model", "pictures", "--size", size]);
    contains(&size("50x64"), &["50 x 64", "nearest: 48 or 64"]);
    let missing = place.fail(2, &["encode", "model", "pictures/9.png", "--size", "48x64"]);
    contains(&missing, &["pictures/9.png", "no such file"]);
    let no_folder = place.fail(2, &["encode", "tiny.toml", "pictures"]);
    contains(&no_folder, &["model.path"]);
    save(
        &place,
        "other.safetensors",
        &[("latent", &[1, 16, 2, 2], &[0.0; 64])],
    );
    let named = place.fail(2, &["decode", "model", "other.safetensors"]);
    contains(&named, &["no tensor `latents`", "it has: latent"]);
    save(
        &place,
        "four.safetensors",
        &[("latents", &[1, 4, 2, 2], &[0.0; 16])],
    );
    contains(
        &place.fail(2, &["decode", "model", "four.safetensors"]),
        &["4 channels", "have 16"],
    );
    // Latents of another pipeline have as many channels and mean something else.
    test_support::write_pipeline_folder("flux-dev", &place.path("other"));
    let size = ["--size", "48x64", "--out", "of_sd3.safetensors"];
    place.succeed(&[&["encode", "model", "pictures"], &size[..]].concat());
    contains(
        &place.fail(2, &["decode", "other", "of_sd3.safetensors"]),
        &[
            "of_sd3.safetensors",
            "are of a `StableDiffusion3Pipeline`",
            "is a `FluxPipeline`",
            "the folder that they were encoded with",
        ],
    );
    let mut values = vec![0.0; 64];
    values[5] = f32::NAN;
    save(&place, "nan.safetensors", &[("latents", &[1, 16, 2, 2], &values)]);
    contains(
        &place.fail(2, &["decode", "model", "nan.safetensors"]),
        &["[0, 1, 0, 1]", "not finite"],
    );
    assert!(
        !place
            .files()
            .iter()
            .any(|file| file.ends_with("latents.safetensors"))
    );
}

/// Pretraining on the pictures of `pictures`.
const PRETRAINING: &str = r#"config_version = 1

[run]
name = "pictures"

[model]
path = "model"
width = 48
height = 64
frames = 1
finetune = "lora"

[lora]
rank = 2

[data]
kind = "images"
path = "pictures"

[text]
kind = "encoders"
tokens = 16

[pretrain]
steps = 3
batch = 2
warmup = 1
learning_rate = 1e-2
ema_decay = 0.0
output = "lora.safetensors"
"#;

fn captions(place: &Place) {
    for (number, text) in ["a red cube", "a cat", "ein Würfel"].iter().enumerate() {
        fs::write(place.path(format!("pictures/{number}.txt")), text).unwrap();
    }
    fs::write(place.path("pictures.toml"), PRETRAINING).unwrap();
}

/// The tensors of a file, without its header, which may name other places.
fn values(place: &Place, file: &str) -> Vec<u8> {
    let bytes = place.bytes(file);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn a_lora_is_tuned_to_captioned_pictures_goes_on_and_is_used() {
    let place = place("sd3");
    captions(&place);
    let pretrain = |more: &[&str]| {
        let outcome = place.run(&[&["pretrain", "pictures.toml"], more].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:#?}");
        format!("{}{}", outcome.stdout, outcome.stderr)
    };
    let first = pretrain(&[]);
    contains(
        &first,
        &[
            "pictures: 3 encoded, 0 found encoded in",
            "prompts: 4 encoded",
            "lora.safetensors",
        ],
    );
    // The same again: nothing is encoded, and the same comes of it.
    let again = pretrain(&["--set", "pretrain.output=again.safetensors"]);
    contains(&again, &["pictures: 0 encoded, 3 found encoded in"]);
    assert!(values(&place, "lora.safetensors") == values(&place, "again.safetensors"));
    // A changed picture is encoded anew, the others are not; another size is another latent.
    picture(&place.path("pictures/1.png"), 48, 64, 7);
    let changed = pretrain(&["--set", "pretrain.output=changed.safetensors"]);
    contains(&changed, &["pictures: 1 encoded, 2 found encoded in"]);
    assert!(values(&place, "lora.safetensors") != values(&place, "changed.safetensors"));
    // It is a LoRA as `load_lora_weights` reads it, and `sample` and a run do.
    let bytes = place.bytes("lora.safetensors");
    let parsed = parse(&bytes).unwrap();
    assert!(
        parsed
            .tensors
            .iter()
            .all(|tensor| tensor.name.starts_with("transformer.") && tensor.name.contains(".lora_"))
    );
    let sample = |out: &str, more: &[&str]| {
        let base = [
            "sample", "model", "--prompt", "a cat", "-n", "1", "--steps", "2", "--size", "48x64",
        ];
        let rest = ["--set", "text.tokens=16", "--out", out];
        place.succeed(&[&base[..], &rest, more].concat());
        place.bytes(out)
    };
    assert!(sample("plain.png", &[]) != sample("tuned.png", &["--lora", "lora.safetensors"]));
}

#[test]
fn all_weights_of_a_folder_are_tuned_and_take_the_place_of_its_own() {
    for name in ["flux-dev", "qwen-image", "wan"] {
        let place = place(name);
        captions(&place);
        let set = [
            "--set",
            "model.finetune=full",
            "--set",
            "pretrain.output=all.safetensors",
        ];
        let said = place.run(&[&["pretrain", "pictures.toml"], &set[..]].concat());
        assert_eq!(said.code, Some(0), "{name}: {said:#?}");
        let sample = |out: &str, more: &[&str]| {
            let base = [
                "sample", "model", "--prompt", "a cat", "-n", "1", "--steps", "2", "--size", "48x64",
            ];
            let rest = ["--set", "text.tokens=16", "--set", "model.frames=1", "--out", out];
            place.succeed(&[&base[..], &rest, more].concat());
            place.bytes(out)
        };
        let tuned = sample("tuned.png", &["--weights", "all.safetensors"]);
        assert!(sample("plain.png", &[]) != tuned, "{name}: another model");
    }
}

#[test]
fn a_small_model_learns_pixels_and_words_of_captioned_pictures() {
    let place = place("sd3");
    captions(&place);
    let config = r#"config_version = 1

[model.dit]
hidden = 16
layers = 1
heads = 2
latent_channels = 3
height = 8
width = 12
patch = 2
conditioning = { kind = "tokens", vocabulary = 8, max_tokens = 3 }

[data]
kind = "images"
path = "pictures"
width = 12
height = 8
words = true

[pretrain]
steps = 2
batch = 3
warmup = 1
output = "pixels.safetensors"
"#;
    fs::write(place.path("pixels.toml"), config).unwrap();
    place.succeed(&["check", "pixels.toml", "--for", "pretrain"]);
    place.succeed(&["pretrain", "pixels.toml"]);
    place.succeed(&[
        "sample",
        "pixels.toml",
        "--weights",
        "pixels.safetensors",
        "--prompt",
        "A red cat",
        "-n",
        "1",
    ]);
    let unknown = place.fail(
        2,
        &[
            "sample",
            "pixels.toml",
            "--weights",
            "pixels.safetensors",
            "--prompt",
            "a cta",
        ],
    );
    contains(&unknown, &["cta", "did you mean \"cat\"?"]);
    // What does not go together is said before the work.
    let check = |more: &[&str]| {
        place.fail(
            2,
            &[&["check", "pixels.toml", "--for", "pretrain"], more].concat(),
        )
    };
    contains(&check(&["--set", "data.words=false"]), &["data.words = true"]);
    contains(&check(&["--set", "data.width=10"]), &["3x8x12", "3x8x10"]);
    fs::remove_file(place.path("pictures/1.txt")).unwrap();
    contains(&check(&[]), &["pictures", "1 of 3", "`1.png`", "no `1.txt`"]);
    let no_size = config.replace("width = 12\nheight = 8\nwords", "words");
    fs::write(place.path("pixels.toml"), no_size).unwrap();
    contains(&check(&[]), &["data.width", "is missing"]);
}

#[test]
fn pretraining_of_a_folder_says_what_it_lacks() {
    let place = place("wan");
    captions(&place);
    let fail = |more: &[&str]| place.fail(2, &[&["pretrain", "pictures.toml"], more].concat());
    contains(&fail(&["--set", "model.frames=5"]), &["model.frames = 1"]);
    let digits = ["--set", "data={ kind = \"digits\" }"];
    contains(&fail(&digits), &["data.kind = \"images\""]);
    let check = ["check", "pictures.toml", "--for", "pretrain"];
    contains(
        &place.fail(2, &[&check[..], &digits].concat()),
        &["data.kind = \"images\""],
    );
    place.succeed(&[&check[..], &["--set", "model.frames=1"]].concat());
    // A picture that is cut off, by its name.
    let bytes = place.bytes("pictures/2.png");
    fs::write(place.path("pictures/2.png"), &bytes[..bytes.len() / 2]).unwrap();
    contains(&fail(&[]), &["pictures/2.png", "damaged or cut off"]);
}
