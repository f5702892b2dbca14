//! Settings of `kind = "images"`, and what of them does not go together.

use super::buckets::BucketSettings;
use crate::held_out::{check_named_once, test_fraction};
use flow_config::codes::{RULE_IMAGE_SHAPE, RULE_UNUSED};
use flow_config::{DataFacts, ImageFacts, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Settings of [`Images`](super::Images).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImagesSettings {
    /// Pictures (PNG, JPEG, WebP) with captions, relative to the config file: a folder with `metadata.jsonl` or `metadata.csv`, whose
    /// keys are `file_name` and `text` (the imagefolder of Hugging Face); a folder in which each picture has a text file of its name
    /// (`a.png`, `a.txt`); or a file `.jsonl` or `.csv` with `image` and `caption`.
    pub path: PathBuf,
    /// Key or column of the pictures' paths, which start from the folder of the file that has it.
    #[serde(default)]
    pub image_key: Option<String>,
    /// Key or column of the captions.
    #[serde(default)]
    pub caption_key: Option<String>,
    /// Pictures of evaluation, written as `path` is; only their captions are read. Without it some captions of `path` are held out for
    /// evaluation, and their pictures not trained on.
    #[serde(default)]
    pub test_path: Option<PathBuf>,
    /// Share of the different captions that is held out, rounded down: nothing of fewer than ten at 0.1. Not read where `test_path` or
    /// `test_count` is given.
    #[serde(default = "test_fraction")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub test_fraction: f64,
    /// Number of captions that are held out, instead of a share.
    #[serde(default)]
    #[schemars(range(max = 1_000_000_000))]
    pub test_count: Option<usize>,
    /// Decides, with the texts, which captions are held out.
    #[serde(default)]
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// Width in pixels that pictures are fitted to, for a model of pixels. With `model.path` it is `model.width`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_384))]
    pub width: Option<usize>,
    /// Height in pixels, as `width`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_384))]
    pub height: Option<usize>,
    /// Make pictures grey for a model of pixels: one channel instead of three.
    #[serde(default)]
    pub grey: bool,
    /// Make tokens of the captions' words, for a model that learns to read them itself (`dit`, or `text.kind = "words"`): each
    /// different word is a token.
    #[serde(default)]
    pub words: bool,
    /// Folder of the encoded pictures, relative to the config file; without it `latent-cache` in `run.dir`. Read with `model.path`.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// Fit each picture to one of several sizes of about as many pixels as `model.width` by `model.height`, the one whose proportions are
    /// nearest to its own, when `pretrain` encodes it; `{}` takes the defaults. Batches hold one size. Read with `model.path`.
    #[serde(default)]
    pub buckets: Option<BucketSettings>,
}

impl ImagesSettings {
    /// The pictures of `path`, a tenth of the captions held out.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            image_key: None,
            caption_key: None,
            test_path: None,
            test_fraction: test_fraction(),
            test_count: None,
            seed: 0,
            width: None,
            height: None,
            grey: false,
            words: false,
            cache: None,
            buckets: None,
        }
    }

    pub(super) fn channels(&self) -> usize {
        if self.grey { 1 } else { 3 }
    }

    /// What is known of the pictures before they are read. Of those that are not square a model's own size is compared when it is
    /// built.
    pub(super) fn facts(&self) -> DataFacts {
        let square = self.width.filter(|width| Some(*width) == self.height);
        DataFacts {
            images: square.map(|size| ImageFacts {
                size,
                channels: self.channels(),
            }),
            prompts: None,
        }
    }
}

/// Settings of which one is not read, or is missing.
pub(super) fn check(settings: &ImagesSettings, rules: &mut Rules<'_>, path: &str) {
    let key = |name: &str| format!("{path}.{name}");
    let given = (settings.test_path.is_some(), settings.test_count.is_some());
    check_named_once(given, "pictures", rules, path);
    check_size([settings.width, settings.height], rules, path);
    if rules.config().model.path.is_some() {
        check_buckets(settings, rules, path);
    } else if settings.buckets.is_some() {
        let buckets = key("buckets");
        let message = format!("a model of pixels takes pictures of one size, so `{buckets}` is not read");
        rules
            .warning(RULE_UNUSED, &[&buckets, "model.path"], message)
            .help("remove it, or set `model.path` to a diffusers folder");
    }
}

/// Width and height that pictures are fitted to: of a model of pixels both are given, of a diffusers folder neither.
pub(super) fn check_size([width, height]: [Option<usize>; 2], rules: &mut Rules<'_>, path: &str) {
    let of_folder = rules.config().model.path.is_some();
    let keys = ["width", "height"].map(|name| format!("{path}.{name}"));
    let kind = format!("{path}.kind");
    for (name, value) in keys.iter().zip([width, height]) {
        if of_folder && value.is_some() {
            let message = format!(
                "pictures are fitted to the size of the model of `model.path`, so `{name}` is not read"
            );
            rules
                .warning(RULE_UNUSED, &[name, "model.path"], message)
                .help("set `model.width` and `model.height`");
        }
        if !of_folder && value.is_none() {
            let message = format!("`{name}` is missing: a model of pixels takes pictures of one size");
            rules
                .error(RULE_IMAGE_SHAPE, &[name, &kind], message)
                .help(format!(
                    "set `{}` and `{}` to the model's, or `model.path` to a diffusers folder",
                    keys[0], keys[1]
                ));
        }
    }
}

/// Keys of buckets that a list makes idle.
fn check_buckets(settings: &ImagesSettings, rules: &mut Rules<'_>, path: &str) {
    let Some(buckets) = &settings.buckets else {
        return;
    };
    let limits = [("min_side", buckets.min_side), ("max_side", buckets.max_side)];
    for (name, _) in limits.into_iter().filter(|(_, value)| value.is_some()) {
        if buckets.sizes.is_some() {
            let (idle, list) = (format!("{path}.buckets.{name}"), format!("{path}.buckets.sizes"));
            rules
                .warning(
                    RULE_UNUSED,
                    &[&idle, &list],
                    format!("`{list}` gives the sizes, so `{idle}` is not read"),
                )
                .help("remove one of them");
        }
    }
}
