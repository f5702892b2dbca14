//! What several tests share: the fixtures that `fixtures/make.py` made, and how near is near.
#![allow(dead_code)]

use flow_data::{Image, Prompt};
use flow_models::weights::parse;
use flow_rewards::{Reward, RewardError, RewardSample};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

/// Pictures, prompts, and what PyTorch makes of them.
pub struct Recorded {
    pub images: Vec<Image>,
    pub prompts: Vec<Prompt>,
    pub floats: BTreeMap<String, Vec<f32>>,
    pub bytes: BTreeMap<String, Vec<u8>>,
}

impl Recorded {
    pub fn read() -> Self {
        let file = std::fs::read(fixture("io.safetensors")).unwrap();
        let text = std::fs::read(fixture("io.json")).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let prompts: Vec<String> = serde_json::from_value(text["prompts"].clone()).unwrap();
        let mut recorded = Self {
            images: Vec::new(),
            prompts: (0..)
                .zip(&prompts)
                .map(|(id, text)| Prompt::free(id, text))
                .collect(),
            floats: BTreeMap::new(),
            bytes: BTreeMap::new(),
        };
        let mut pictures = BTreeMap::new();
        for tensor in parse(&file).unwrap().tensors {
            let name = tensor.name.clone();
            if name.starts_with("picture.") {
                let image = Image::from_rgb8(tensor.shape[0], tensor.shape[1], tensor.bytes).unwrap();
                pictures.insert(name, image);
            } else if let Some(values) = tensor.to_f32() {
                recorded.floats.insert(name, values);
            } else {
                recorded.bytes.insert(name, tensor.bytes.to_vec());
            }
        }
        recorded.images = pictures.into_values().collect();
        recorded
    }

    pub fn samples(&self) -> Vec<RewardSample<'_>> {
        let pairs = self.images.iter().zip(&self.prompts);
        pairs
            .map(|(image, prompt)| RewardSample {
                image,
                frames: &[],
                prompt,
            })
            .collect()
    }

    /// That the reward's scores are the recorded ones, to 1e-4 of each or of a hundredth.
    pub fn scores_are(&self, reward: &dyn Reward, name: &str) {
        let found = reward.score(&self.samples()).unwrap();
        let wanted = &self.floats[name];
        assert_eq!(found.len(), wanted.len(), "{name}");
        for (found, wanted) in found.iter().zip(wanted) {
            let off = (found - wanted).abs();
            assert!(
                off <= 1e-4 * wanted.abs().max(1e-2),
                "{name}: {found} for {wanted}"
            );
        }
    }
}

/// That building failed, and in which words.
pub fn refused<T>(result: Result<T, RewardError>, words: &[&str]) {
    let error = result.err().expect("this is refused").to_string();
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

/// A folder with copies of the files of the CLIP of the fixtures.
pub fn copy_of_clip() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_clip_to(folder.path());
    folder
}

/// Puts copies of them into a folder.
pub fn copy_clip_to(folder: &Path) {
    for entry in std::fs::read_dir(fixture("clip")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
}
