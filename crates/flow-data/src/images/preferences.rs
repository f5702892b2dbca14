//! `kind = "preferences"`: pairs of pictures for one prompt each, of which one is liked better.

use super::pairs::{PairList, failed};
use super::settings::check_size;
use super::{Images, ImagesSettings};
use crate::dataset::{Dataset, PreferencePairs, TokenizedPrompts};
use crate::error::{DataError, PromptError};
use crate::held_out::{HeldOut, check_named_once, test_fraction};
use crate::prompt::Prompt;
use crate::prompt_list::{PROMPT_KEY, PromptList};
use crate::registry::{DatasetFactory, DatasetRegistry};
use flow_config::Rules;
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// The name by which a config asks for it.
const NAME: &str = "preferences";

/// Settings of [`Preferences`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreferencesSettings {
    /// A file `.jsonl` or `.csv`, relative to the config file, with a prompt and two pictures (PNG, JPEG, WebP) of the same size in each
    /// line: the one that is liked better, and the other. Paths of pictures start from the folder of the file.
    pub path: PathBuf,
    /// Key or column of the prompts.
    #[serde(default = "prompt_key")]
    pub prompt_key: String,
    /// Key or column of the pictures that are liked better.
    #[serde(default = "chosen_key")]
    pub chosen_key: String,
    /// Key or column of the pictures that are liked less.
    #[serde(default = "rejected_key")]
    pub rejected_key: String,
    /// A file of the prompts of evaluation, `.txt` with one a line, or `.jsonl` or `.csv` with `prompt_key`, relative to the config file.
    /// Without it some prompts of `path` are held out for evaluation, and their pairs not trained on.
    #[serde(default)]
    pub test_path: Option<PathBuf>,
    /// Share of the different prompts that is held out, rounded down: nothing of fewer than ten at 0.1. Not read where `test_path` or
    /// `test_count` is given.
    #[serde(default = "test_fraction")]
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub test_fraction: f64,
    /// Number of prompts that are held out, instead of a share.
    #[serde(default)]
    #[schemars(range(max = 1_000_000_000))]
    pub test_count: Option<usize>,
    /// Decides, with the texts, which prompts are held out.
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
    /// Make tokens of the prompts' words, for a model that learns to read them itself (`dit`, or `text.kind = "words"`): each different
    /// word is a token.
    #[serde(default)]
    pub words: bool,
    /// Folder of the encoded pictures, relative to the config file; without it `latent-cache` in `run.dir`. Read with `model.path`.
    #[serde(default)]
    pub cache: Option<PathBuf>,
}

fn prompt_key() -> String {
    PROMPT_KEY.to_owned()
}

fn chosen_key() -> String {
    "chosen".to_owned()
}

fn rejected_key() -> String {
    "rejected".to_owned()
}

impl PreferencesSettings {
    /// The pairs of `path`, a tenth of the prompts held out.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            prompt_key: prompt_key(),
            chosen_key: chosen_key(),
            rejected_key: rejected_key(),
            test_path: None,
            test_fraction: test_fraction(),
            test_count: None,
            seed: 0,
            width: None,
            height: None,
            grey: false,
            words: false,
            cache: None,
        }
    }

    /// What both pictures of all pairs are read with.
    fn of_pictures(&self) -> ImagesSettings {
        ImagesSettings {
            width: self.width,
            height: self.height,
            grey: self.grey,
            words: self.words,
            cache: self.cache.clone(),
            ..ImagesSettings::new(&self.path)
        }
    }
}

/// Pairs of pictures; see the module's description.
#[derive(Debug)]
pub struct Preferences {
    /// Both of each pair: the better one, then the worse one.
    pictures: Images,
}

impl Preferences {
    /// Adds the data set to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a data set of its name.
    pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
        let factory = DatasetFactory::new::<PreferencesSettings>(
            NAME,
            "Pairs of pictures (PNG, JPEG, WebP) of a list, one of each liked better: for `algorithm.kind = \"offline-dpo\"`.",
            |settings| settings.of_pictures().facts(),
            |settings| Ok(Arc::new(Self::read(&settings)?)),
        );
        registry.register(
            factory
                .with_rules(check)
                .with_paths(&["path", "test_path", "cache"]),
        )
    }

    /// Reads the list and looks at the beginning of each picture.
    ///
    /// # Errors
    /// [`DataError::Pictures`] with every line that is no pair, or for a split that leaves nothing on one side.
    pub fn read(settings: &PreferencesSettings) -> Result<Self, DataError> {
        let list = PairList::read(&settings.path, settings)?;
        let mut notes = list.notes.clone();
        let (train, test) = match &settings.test_path {
            Some(path) => {
                let test = PromptList::read(path, &settings.prompt_key).map_err(failed)?;
                let shared = list.prompts.shared_with(&test).len();
                if shared > 0 {
                    notes.push(format!(
                        "{shared} of {} prompts of `{}` are trained on, too: their scores say nothing of prompts that the model has \
                         not seen",
                        test.len(),
                        path.display()
                    ));
                }
                (list.prompts.clone(), Some(test))
            }
            None => {
                let held_out = HeldOut {
                    fraction: settings.test_fraction,
                    count: settings.test_count,
                    seed: settings.seed,
                };
                let split = held_out.split(&list.prompts, "prompts")?;
                split.map_or_else(
                    || (list.prompts.clone(), None),
                    |(train, test)| (train, Some(test)),
                )
            }
        };
        let tests = test.iter().flat_map(|test| test.entries()).map(|entry| {
            // Of these the prompts alone are read.
            super::list::Captioned {
                picture: PathBuf::new(),
                place: String::new(),
                entry: entry.clone(),
            }
        });
        let pictures = Images::of(
            list.pictures_of(&train),
            tests.collect(),
            &settings.of_pictures(),
            notes,
        )?;
        Ok(Self { pictures })
    }
}

/// Settings of which one is not read, or is missing.
fn check(settings: &PreferencesSettings, rules: &mut Rules<'_>, path: &str) {
    let given = (settings.test_path.is_some(), settings.test_count.is_some());
    check_named_once(given, "prompts", rules, path);
    check_size([settings.width, settings.height], rules, path);
}

impl Dataset for Preferences {
    fn name(&self) -> &str {
        NAME
    }

    fn prompts(&self) -> &[Prompt] {
        self.pictures.prompts()
    }

    fn is_held_out(&self, prompt: &Prompt) -> bool {
        self.pictures.is_held_out(prompt)
    }

    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        self.pictures.parse_prompt(text)
    }

    fn tokenized(&self) -> Option<&dyn TokenizedPrompts> {
        self.pictures.tokenized()
    }

    fn preferences(&self) -> Option<PreferencePairs<'_>> {
        Some(PreferencePairs {
            pictures: &self.pictures,
            images: self.pictures.captioned_images(),
        })
    }

    fn notes(&self) -> Vec<String> {
        self.pictures.notes()
    }

    fn held_out_prompts(&self) -> Vec<Prompt> {
        self.pictures.held_out_prompts()
    }
}
