//! Folders and files that are no networks of rewards, in words for people; and files that would run something.

use crate::common::{copy_of_clip, fixture, refused};
use flow_rewards_models::{
    Aesthetic, AestheticSettings, ClipScore, ClipScoreSettings, Computation, HpsV2, HpsV2Settings,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn clip_score(folder: &Path) -> Result<ClipScore, flow_rewards::RewardError> {
    ClipScore::new(&ClipScoreSettings::new(folder), &Computation::processor())
}

fn aesthetic(head: &Path) -> Result<Aesthetic, flow_rewards::RewardError> {
    let settings = AestheticSettings::new(fixture("clip"), head);
    Aesthetic::new(&settings, &Computation::processor())
}

/// Changes a file of JSON.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn a_folder_that_is_not_there_or_of_something_else_says_so() {
    refused(
        clip_score(Path::new("no/such/clip")),
        &["reward `clip-score`", "no/such/clip", "flow-train fetch"],
    );
    let folder = copy_of_clip();
    let config = folder.path().join("config.json");
    edit(&config, |config| config["model_type"] = json!("siglip"));
    refused(
        clip_score(folder.path()),
        &["config.json", "model_type", "siglip"],
    );

    let folder = copy_of_clip();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), "x").unwrap();
    refused(clip_score(folder.path()), &["*.safetensors", "save_pretrained"]);

    let folder = copy_of_clip();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    fs::write(folder.path().join("model.safetensors"), pointer).unwrap();
    refused(clip_score(folder.path()), &["model.safetensors", "git lfs"]);

    let folder = copy_of_clip();
    fs::remove_file(folder.path().join("vocab.json")).unwrap();
    refused(
        clip_score(folder.path()),
        &["`tokenizer` may name another folder"],
    );
}

#[test]
fn a_network_that_was_made_for_other_pixels_or_towers_is_refused() {
    let folder = copy_of_clip();
    let processor = folder.path().join("preprocessor_config.json");
    edit(&processor, |config| {
        config["size"] = json!({ "shortest_edge": 31 })
    });
    refused(
        clip_score(folder.path()),
        &["preprocessor_config.json", "`size` is 31", "32"],
    );
    let folder = copy_of_clip();
    let config = folder.path().join("config.json");
    edit(&config, |config| {
        config["vision_config"]["num_hidden_layers"] = json!(3)
    });
    refused(
        clip_score(folder.path()),
        &["vision_model.encoder.layers.2", "missing"],
    );
    // Mean and standard deviation are read.
    let folder = copy_of_clip();
    let processor = folder.path().join("preprocessor_config.json");
    edit(&processor, |config| config["image_mean"] = json!([0.5, 0.5]));
    refused(clip_score(folder.path()), &["`image_mean`", "three numbers"]);
}

#[test]
fn a_head_for_another_clip_or_that_is_none_is_refused() {
    refused(
        aesthetic(Path::new("head.pth")),
        &["reward `aesthetic`", "head.pth"],
    );
    refused(
        aesthetic(&fixture("io.safetensors")),
        &["layers.7.weight", "missing"],
    );
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("head.pth");
    fs::write(&page, "<!DOCTYPE html><html>Access is restricted</html>").unwrap();
    refused(aesthetic(&page), &["web page", "accept"]);
    // CLIP's own weights as a head.
    refused(
        HpsV2::new(
            &HpsV2Settings::new(fixture("aesthetic.pth"), fixture("clip")),
            &Computation::processor(),
        ),
        &["open_clip", "token_embedding.weight"],
    );
    let alone = HpsV2Settings {
        tokenizer: None,
        ..HpsV2Settings::new(fixture("hpsv2.pt"), "")
    };
    refused(
        HpsV2::new(&alone, &Computation::processor()),
        &["`tokenizer`", "is missing"],
    );
}

/// The bytes of the head's file with one text in its place for another of the same length.
fn changed(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = fs::read(fixture("aesthetic.pth")).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn a_pickle_that_names_anything_but_tensors_is_refused_and_nothing_of_it_is_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("head.pth");
    fs::write(
        &file,
        changed(b"ctorch._utils\n_rebuild_tensor_v2\n", b"cposix\nsystem\n"),
    )
    .unwrap();
    refused(
        aesthetic(&file),
        &["`posix.system`", "not run", "weights_only=True"],
    );
    // An opcode for calls, in the place of the one that makes a dictionary.
    fs::write(&file, changed(b"}q\x00(", b"iq\x00(")).unwrap();
    refused(aesthetic(&file), &["opcode 0x69"]);
}

#[test]
fn a_compressed_entry_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("head.pth");
    let mut bytes = fs::read(fixture("aesthetic.pth")).unwrap();
    // The method of the first entry in the directory: deflated.
    let header = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    bytes[header + 10] = 8;
    fs::write(&file, bytes).unwrap();
    refused(
        aesthetic(&file),
        &["`aesthetic/data.pkl`", "compressed", "weights_only=True"],
    );
}

#[test]
fn two_entries_of_one_name_are_refused_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("head.pth");
    let mut bytes = fs::read(fixture("aesthetic.pth")).unwrap();
    // The last place of the name is in the directory.
    let name = b"aesthetic/data/1";
    let mut places = bytes.windows(name.len());
    let at = places.rposition(|part| part == name).unwrap();
    bytes[at + name.len() - 1] = b'0';
    fs::write(&file, bytes).unwrap();
    refused(aesthetic(&file), &["two entries called `aesthetic/data/0`"]);
}

#[test]
fn a_file_that_is_cut_off_or_damaged_anywhere_is_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("head.pth");
    let whole = fs::read(fixture("aesthetic.pth")).unwrap();
    for length in (0..whole.len()).step_by(397) {
        fs::write(&file, &whole[..length]).unwrap();
        assert!(aesthetic(&file).is_err(), "cut off at {length}");
    }
    // A byte of the pickle and of the directory changed: an error, or the same tensors from a byte that says nothing.
    let end = whole.len();
    let places = (60..900).step_by(13).chain((end - 900..end).step_by(17));
    for at in places {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&file, &bytes).unwrap();
        let _ = aesthetic(&file);
    }
}
