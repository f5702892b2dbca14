//! `kind = "prompts"`: prompts of files, for models whose text encoders read any text.

use crate::dataset::{Dataset, FREE_PROMPT_ID};
use crate::error::{DataError, PromptError};
use crate::held_out::{check_named_once, test_fraction};
use crate::prompt::Prompt;
use crate::prompt_list::{PROMPT_KEY, PromptList, PromptListError, TestShare};
use crate::registry::{DatasetFactory, DatasetRegistry};
use flow_config::{DataFacts, Rules};
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of [`Prompts`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptsSettings {
    /// The file of prompts, relative to the config file: `.txt` with one a line, `.jsonl` with one JSON object a line, or a table
    /// (`.csv`, `.tsv`) whose first row names its columns. What an object or row has beside the prompt is its metadata, which
    /// rewards read. In UTF-8.
    pub path: PathBuf,
    /// Key or column of the prompts.
    #[serde(default = "prompt_key")]
    pub key: String,
    /// A file of the same kind with the prompts of evaluation, relative to the config file. Without it some of `path` are held
    /// out for evaluation and not trained on.
    #[serde(default)]
    pub test_path: Option<PathBuf>,
    /// Share of the prompts of `path` that is held out, at least one; not read where `test_path` or `test_count` is given.
    #[serde(default = "test_fraction")]
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub test_fraction: f64,
    /// Number of prompts of `path` that are held out, instead of a share.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub test_count: Option<usize>,
    /// Decides, with the texts, which prompts are held out.
    #[serde(default)]
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
}

fn prompt_key() -> String {
    PROMPT_KEY.to_owned()
}

impl PromptsSettings {
    /// The prompts of `path`, a tenth of them held out.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            key: prompt_key(),
            test_path: None,
            test_fraction: test_fraction(),
            test_count: None,
            seed: 0,
        }
    }
}

/// Prompts of files; see the module's description.
#[derive(Debug, Clone)]
pub struct Prompts {
    prompts: Vec<Prompt>,
    /// Of each prompt.
    entries: Vec<Entry>,
    notes: Vec<String>,
}

/// What is known of a prompt beside what everybody sees.
#[derive(Debug, Clone)]
struct Entry {
    is_held_out: bool,
    file: Arc<Path>,
    line: usize,
}

impl Prompts {
    /// Adds the data set to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a data set of its name.
    pub fn register(registry: &mut DatasetRegistry) -> Result<(), NameTaken> {
        let factory = DatasetFactory::new::<PromptsSettings>(
            "prompts",
            "Prompts of a file (.txt, .jsonl, .csv), for models that read encoded text; it has no images.",
            |_| DataFacts::default(),
            |settings| Ok(Arc::new(Self::read(&settings)?)),
        );
        registry.register(factory.with_rules(check).with_paths(&["path", "test_path"]))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`DataError::PromptsFile`] with every line that cannot be read, or for a split that leaves nothing on one side.
    pub fn read(settings: &PromptsSettings) -> Result<Self, DataError> {
        let failed = |error: PromptListError| DataError::PromptsFile {
            problem: error.to_string(),
        };
        let read = |path| PromptList::read(path, &settings.key).map_err(failed);
        let train = read(&settings.path)?;
        let mut notes: Vec<String> = noted(&train);
        let mut all: Vec<(Prompt, Entry)> = Vec::new();
        let mut add = |list: &PromptList, is_held_out: bool| {
            let file: Arc<Path> = list.path().into();
            let prompts = list.entries().iter().map(|entry| {
                let prompt = Prompt {
                    metadata: entry.metadata.clone(),
                    ..Prompt::free(entry.id, entry.text.clone())
                };
                let place = Entry {
                    is_held_out,
                    file: file.clone(),
                    line: entry.line,
                };
                (prompt, place)
            });
            all.extend(prompts);
        };
        match &settings.test_path {
            Some(path) => {
                let test = read(path)?;
                notes.extend(noted(&test));
                let shared = train.shared_with(&test).len();
                if shared > 0 {
                    notes.push(format!(
                        "{shared} of {} prompts of `{}` are trained on, too: their scores say nothing of prompts that the model \
                         has not seen",
                        test.len(),
                        path.display()
                    ));
                }
                add(&train, false);
                add(&test, true);
            }
            None => {
                let share = match settings.test_count {
                    Some(count) => TestShare::Count(count),
                    None => TestShare::Fraction(settings.test_fraction),
                };
                let (train, test) = train.split(share, settings.seed).map_err(|error| {
                    let problem = format!(
                        "{error}; name prompts of evaluation with `data.test_path`, or change `data.test_fraction` or \
                         `data.test_count`"
                    );
                    DataError::PromptsFile { problem }
                })?;
                add(&train, false);
                add(&test, true);
                // In the order of the file.
                all.sort_by_key(|(prompt, _)| prompt.id);
            }
        }
        for (id, (prompt, _)) in (0..).zip(&mut all) {
            prompt.id = id;
        }
        let (prompts, entries) = all.into_iter().unzip();
        Ok(Self {
            prompts,
            entries,
            notes,
        })
    }
}

/// What the owner of a file may want to know.
fn noted(list: &PromptList) -> Vec<String> {
    let note = |note: &crate::PromptNote| format!("`{}`: {note}", list.path().display());
    list.notes().iter().map(note).collect()
}

/// Settings of which one is not read.
fn check(settings: &PromptsSettings, rules: &mut Rules<'_>, path: &str) {
    let given = (settings.test_path.is_some(), settings.test_count.is_some());
    check_named_once(given, "prompts", rules, path);
}

impl Dataset for Prompts {
    fn name(&self) -> &str {
        "prompts"
    }

    fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    fn is_held_out(&self, prompt: &Prompt) -> bool {
        self.entries
            .get(prompt.id as usize)
            .is_some_and(|entry| entry.is_held_out)
    }

    fn parse_prompt(&self, text: &str) -> Result<Prompt, PromptError> {
        let listed = self.prompts.iter().find(|prompt| prompt.text == text);
        Ok(listed
            .cloned()
            .unwrap_or_else(|| Prompt::free(FREE_PROMPT_ID, text)))
    }

    fn place(&self, prompt: &Prompt) -> Option<String> {
        let entry = self.entries.get(prompt.id as usize)?;
        Some(format!("`{}`, line {}", entry.file.display(), entry.line))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
