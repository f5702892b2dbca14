//! A tokenizer of a folder.

use crate::assemble;
use crate::batch::{Batch, Cut, Length};
use crate::class::CLASS_NAMES;
use crate::config::{self, Config};
use crate::files::problem;
use crate::vocabulary::{self, TokenizerFile};
use crate::{TokenizerClass, TokenizerError};
use flow_registry::nearest;
use std::path::Path;

/// Bytes of the longest text that is taken. Beyond it the search for a pattern could give up and tokens would be wrong; no model
/// reads a hundredth of it.
pub const LONGEST_TEXT: usize = 1 << 18;

/// An end of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The front.
    Left,
    /// The end.
    Right,
}

/// Makes tokens of texts.
#[derive(Debug)]
pub struct Tokenizer {
    class: TokenizerClass,
    inner: tokenizers::Tokenizer,
    begin: Option<u32>,
    end: Option<u32>,
    pad: u32,
    most: Option<usize>,
    padding_side: Side,
    truncation_side: Side,
}

/// The tokens of one text, cut to length but not padded.
struct Row {
    ids: Vec<u32>,
    cut: Option<Cut>,
}

impl Tokenizer {
    /// Reads the tokenizer of `folder`, of the class that its `tokenizer_config.json` names.
    ///
    /// A folder as the hub has it (`vocab.json` and `merges.txt`) and one as transformers 5 saves it (`tokenizer.json`) will do.
    ///
    /// # Errors
    /// [`TokenizerError`], which says what is missing or damaged and how to mend it.
    pub fn open(folder: &Path) -> Result<Self, TokenizerError> {
        Self::read(folder, None)
    }

    /// Reads the tokenizer of `folder` as one of `class`, which is what a pipeline's `model_index.json` is for: transformers 5
    /// no longer names the class of every tokenizer.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_as(folder: &Path, class: TokenizerClass) -> Result<Self, TokenizerError> {
        Self::read(folder, Some(class))
    }

    fn read(folder: &Path, class: Option<TokenizerClass>) -> Result<Self, TokenizerError> {
        if !folder.is_dir() {
            let problem = if folder.exists() {
                "it is a file; name the folder it is in"
            } else {
                "there is no such folder"
            };
            return Err(TokenizerError::Folder {
                folder: folder.to_owned(),
                problem: problem.into(),
            });
        }
        if folder.join("model_index.json").exists() {
            return Err(TokenizerError::Folder {
                folder: folder.to_owned(),
                problem:
                    "it is that of a whole pipeline; name a folder of a tokenizer in it, such as `tokenizer`"
                        .into(),
            });
        }
        let object = config::read_object(folder)?;
        let tokenizer_file = TokenizerFile::read(folder)?;
        let class = match class {
            Some(class) => class,
            None => class_of(folder, &object, tokenizer_file.as_ref())?,
        };
        let config = Config::read(folder, object, class, tokenizer_file.as_ref())?;
        let (vocabulary, path) = vocabulary::read(folder, class, tokenizer_file)?;
        let inner = assemble::tokenizer(class, vocabulary, &config, &path)?;
        let id = |name: &str| {
            let content = config.named(name).ok_or_else(|| {
                problem(
                    &folder.join("tokenizer_config.json"),
                    &format!("`{name}` is null, and a row needs one"),
                )
            })?;
            inner.token_to_id(content).ok_or_else(|| {
                problem(
                    &path,
                    &format!("the vocabulary has no `{content}`, which is the {name}"),
                )
            })
        };
        let (begin, end) = match class {
            TokenizerClass::Clip => (Some(id("bos_token")?), Some(id("eos_token")?)),
            TokenizerClass::T5 => (None, Some(id("eos_token")?)),
            TokenizerClass::Qwen2 => (None, None),
            TokenizerClass::Bert => (Some(id("cls_token")?), Some(id("sep_token")?)),
        };
        Ok(Self {
            class,
            begin,
            end,
            pad: id("pad_token")?,
            most: config.most,
            padding_side: config.padding_side,
            truncation_side: config.truncation_side,
            inner,
        })
    }

    /// How texts become tokens.
    pub fn class(&self) -> TokenizerClass {
        self.class
    }

    /// The id that fills up rows. It may be an ordinary word: OpenCLIP bigG pads with "!", which is 0.
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// The token before each text.
    pub fn begin_id(&self) -> Option<u32> {
        self.begin
    }

    /// The token behind each text.
    pub fn end_id(&self) -> Option<u32> {
        self.end
    }

    /// One more than the largest id: the fewest rows that an embedding needs.
    pub fn vocabulary_size(&self) -> usize {
        let ids = self.inner.get_vocab(true).into_values();
        ids.max().map_or(0, |largest| largest as usize + 1)
    }

    /// The longest row that the model was made for, `model_max_length`.
    pub fn longest_row(&self) -> Option<usize> {
        self.most
    }

    /// Where padding goes.
    pub fn padding_side(&self) -> Side {
        self.padding_side
    }

    /// The id of a token as the vocabulary writes it, such as `<|im_start|>`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// All tokens of `text` with begin and end, neither cut nor padded.
    ///
    /// # Errors
    /// [`TokenizerError::Text`] for more than [`LONGEST_TEXT`] bytes.
    pub fn encode_one(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.row(text, usize::MAX)?.ids)
    }

    /// The rows of `texts`. Cutting keeps begin and end.
    ///
    /// # Errors
    /// [`TokenizerError::Length`] for rows too short for begin and end; [`TokenizerError::Text`] for more than
    /// [`LONGEST_TEXT`] bytes.
    pub fn encode(&self, texts: &[impl AsRef<str>], length: Length) -> Result<Batch, TokenizerError> {
        let (Length::Exactly(most) | Length::LongestUpTo(most)) = length;
        if most < self.specials() {
            return Err(TokenizerError::Length {
                length: most,
                problem: format!(
                    "begin and end of a text alone are {}; at least that many are needed",
                    self.specials()
                ),
            });
        }
        let rows = texts
            .iter()
            .map(|text| self.row(text.as_ref(), most))
            .collect::<Result<Vec<_>, _>>()?;
        let length = match length {
            Length::Exactly(length) => length,
            Length::LongestUpTo(_) => rows.iter().map(|row| row.ids.len()).max().unwrap_or(0),
        };
        let mut batch = Batch {
            length,
            ..Batch::default()
        };
        for row in rows {
            let padding = length - row.ids.len();
            let (before, behind) = match self.padding_side {
                Side::Left => (padding, 0),
                Side::Right => (0, padding),
            };
            let fill = |target: &mut Batch, count: usize| {
                target.ids.extend(std::iter::repeat_n(self.pad, count));
                target.mask.extend(std::iter::repeat_n(false, count));
            };
            fill(&mut batch, before);
            batch.mask.extend(std::iter::repeat_n(true, row.ids.len()));
            batch.ids.extend(row.ids);
            fill(&mut batch, behind);
            batch.cut.push(row.cut);
        }
        Ok(batch)
    }

    /// How many tokens are put around each text.
    fn specials(&self) -> usize {
        usize::from(self.begin.is_some()) + usize::from(self.end.is_some())
    }

    /// One text, cut to `most` tokens, begin and end included.
    fn row(&self, text: &str, most: usize) -> Result<Row, TokenizerError> {
        let refused = |problem: String| TokenizerError::Text {
            beginning: text.chars().take(40).collect(),
            problem,
        };
        if text.len() > LONGEST_TEXT {
            return Err(refused(format!(
                "it has {} bytes, and a prompt has at most {LONGEST_TEXT}; if this is a file of prompts, give them one by one",
                text.len()
            )));
        }
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|error| refused(error.to_string()))?;
        let room = most.saturating_sub(self.specials());
        let all = encoding.get_ids();
        let too_many = all.len().saturating_sub(room);
        let (kept, cut) = match self.truncation_side {
            _ if too_many == 0 => (all, None),
            Side::Right => (
                &all[..room],
                encoding.get_offsets().get(room).map(|(start, _)| *start),
            ),
            Side::Left => (
                &all[too_many..],
                encoding.get_offsets().get(too_many - 1).map(|(_, end)| *end),
            ),
        };
        let ids = self.begin.into_iter().chain(kept.iter().copied()).chain(self.end);
        Ok(Row {
            ids: ids.collect(),
            cut: cut.map(|at| Cut { tokens: too_many, at }),
        })
    }
}

/// The class that the folder names, or the one that its vocabulary looks like.
fn class_of(
    folder: &Path,
    object: &serde_json::Map<String, serde_json::Value>,
    tokenizer_file: Option<&TokenizerFile>,
) -> Result<TokenizerClass, TokenizerError> {
    let name = object.get("tokenizer_class").and_then(serde_json::Value::as_str);
    if let Some(class) = name.and_then(TokenizerClass::from_name) {
        return Ok(class);
    }
    // Classes that stand for any vocabulary, of transformers 5 and 4.
    let says_nothing = matches!(name, None | Some("TokenizersBackend" | "PreTrainedTokenizerFast"));
    match (says_nothing, tokenizer_file) {
        (true, Some(file)) => Ok(file.likely_class()),
        (true, None) => Err(TokenizerError::Folder {
            folder: folder.to_owned(),
            problem: format!(
                "it has neither a `tokenizer.json` nor a `tokenizer_config.json` that names a class ({}); name the folder of \
                 one tokenizer, such as `tokenizer` of a diffusers folder, or download it again",
                CLASS_NAMES.join(", ")
            ),
        }),
        (false, _) => {
            let name = name.unwrap_or_default();
            let hint = nearest(name, CLASS_NAMES)
                .map(|it| format!("; the nearest is `{it}`"))
                .unwrap_or_default();
            Err(problem(
                &folder.join("tokenizer_config.json"),
                &format!(
                    "tokenizers of the class `{name}` are not read; those that are: {}{hint}",
                    CLASS_NAMES.join(", ")
                ),
            ))
        }
    }
}
