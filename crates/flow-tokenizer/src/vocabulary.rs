//! Vocabularies: `tokenizer.json`, or `vocab.json` with `merges.txt`, or `vocab.txt`.

use crate::added::Token;
use crate::files::{self, problem};
use crate::{TokenizerClass, TokenizerError};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const TOKENIZER_FILE: &str = "tokenizer.json";
const VOCABULARY_FILE: &str = "vocab.json";
const MERGES_FILE: &str = "merges.txt";
const WORDS_FILE: &str = "vocab.txt";
/// Before pieces of words that do not begin one.
const WITHIN_A_WORD: &str = "##";

/// The part of `tokenizer.json` that is used: the class says the rest.
#[derive(Deserialize)]
pub(crate) struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<PlacedToken>,
    #[serde(default)]
    normalizer: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct PlacedToken {
    id: u32,
    #[serde(flatten)]
    token: Token,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    vocab: Words,
    #[serde(default)]
    merges: Option<Vec<Merge>>,
}

/// Ids by word (BPE), or words with logarithms of probabilities in the order of ids (unigram).
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Ids(HashMap<String, u32>),
    Scores(Vec<(String, f64)>),
}

/// Two parts that become one: older files have them in one text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl TokenizerFile {
    /// Reads `tokenizer.json` of `folder`, if it is there.
    pub fn read(folder: &Path) -> Result<Option<Self>, TokenizerError> {
        files::json(&folder.join(TOKENIZER_FILE))
    }

    /// Its added tokens, by id.
    pub fn added(&self) -> Vec<(u32, Token)> {
        let tokens = self.added_tokens.iter();
        tokens.map(|it| (it.id, it.token.clone())).collect()
    }

    /// The class whose vocabularies look like this one.
    pub fn likely_class(&self) -> TokenizerClass {
        match &self.model.vocab {
            Words::Scores(_) => TokenizerClass::T5,
            Words::Ids(_) if self.model.end_of_word_suffix.as_deref() == Some("</w>") => TokenizerClass::Clip,
            Words::Ids(_) if self.is_word_pieces() => TokenizerClass::Bert,
            Words::Ids(_) => TokenizerClass::Qwen2,
        }
    }
}

impl TokenizerFile {
    /// Whether its words are BERT's pieces.
    fn is_word_pieces(&self) -> bool {
        let prefix = self.model.continuing_subword_prefix.as_deref();
        prefix == Some(WITHIN_A_WORD) && self.model.merges.is_none()
    }
}

/// What a class is made of.
pub(crate) enum Vocabulary {
    /// Byte-pair encoding.
    Bpe {
        ids: HashMap<String, u32>,
        merges: Vec<(String, String)>,
    },
    /// Pieces with the logarithms of their probabilities, and sentencepiece's table of replacements as base64.
    Unigram {
        pieces: Vec<(String, f64)>,
        charsmap: Option<String>,
    },
    /// Words, and pieces of words that begin with `##`.
    WordPiece { ids: HashMap<String, u32> },
}

/// The vocabulary of `class` in `folder`, and the file it was read from.
pub(crate) fn read(
    folder: &Path,
    class: TokenizerClass,
    tokenizer_file: Option<TokenizerFile>,
) -> Result<(Vocabulary, PathBuf), TokenizerError> {
    let path = folder.join(TOKENIZER_FILE);
    match (tokenizer_file, class) {
        (Some(file), TokenizerClass::T5) => {
            let Words::Scores(pieces) = file.model.vocab else {
                return Err(problem(
                    &path,
                    "it is a vocabulary of BPE, and T5's are of the unigram kind; this is the tokenizer of another model",
                ));
            };
            let charsmap = file.normalizer.as_ref().and_then(charsmap);
            Ok((Vocabulary::Unigram { pieces, charsmap }, path))
        }
        (Some(file), TokenizerClass::Bert) => {
            if !file.is_word_pieces() {
                return Err(problem(
                    &path,
                    "it is no vocabulary of WordPiece, which BERT's are; this is the tokenizer of another model",
                ));
            }
            match file.model.vocab {
                Words::Ids(ids) => Ok((Vocabulary::WordPiece { ids }, path)),
                Words::Scores(_) => Err(problem(&path, "its words have scores, and BERT's have none")),
            }
        }
        (Some(file), _) => {
            let (Words::Ids(ids), Some(merges)) = (file.model.vocab, file.model.merges) else {
                return Err(problem(
                    &path,
                    &format!(
                        "it has no merges of BPE, which {} needs; this is the tokenizer of another model",
                        class.name()
                    ),
                ));
            };
            let merges = merges
                .into_iter()
                .enumerate()
                .map(|(rank, merge)| match merge {
                    Merge::Pair(left, right) => Ok((left, right)),
                    Merge::Line(line) => two_parts(&line).ok_or(rank),
                })
                .collect::<Result<Vec<_>, _>>()
                .map_err(|rank| problem(&path, &format!("merge {} has not two parts", rank + 1)))?;
            check_merges(&path, &ids, &merges, |rank| format!("merge {}", rank + 1))?;
            Ok((Vocabulary::Bpe { ids, merges }, path))
        }
        (None, TokenizerClass::T5) => Err(no_tokenizer_file(folder)),
        (None, TokenizerClass::Bert) => word_list(folder),
        (None, _) => two_files(folder, class),
    }
}

/// `vocab.txt`, as the hub has it for BERT: a word a line, of which the number is the id.
fn word_list(folder: &Path) -> Result<(Vocabulary, PathBuf), TokenizerError> {
    let path = folder.join(WORDS_FILE);
    let text = files::text(&path)?.ok_or_else(|| TokenizerError::Folder {
        folder: folder.to_owned(),
        problem: format!(
            "a {} is read from `{TOKENIZER_FILE}` or from `{WORDS_FILE}`, and neither is there; download the folder again, one of \
             them included",
            TokenizerClass::Bert.name()
        ),
    })?;
    let words = text.lines().map(|line| line.trim_end().to_owned());
    let ids: HashMap<String, u32> = words.zip(0..).collect();
    Ok((Vocabulary::WordPiece { ids }, path))
}

/// The table of sentencepiece in the normalizer of a file, alone or in a sequence.
fn charsmap(normalizer: &Value) -> Option<String> {
    let steps = match normalizer.get("normalizers") {
        Some(Value::Array(steps)) => steps.iter().collect(),
        _ => vec![normalizer],
    };
    let table = steps
        .into_iter()
        .find_map(|step| step.get("precompiled_charsmap"));
    table.and_then(Value::as_str).map(str::to_owned)
}

fn no_tokenizer_file(folder: &Path) -> TokenizerError {
    let hint = if folder.join("spiece.model").is_file() {
        "`spiece.model` alone is not read: in Python, `T5TokenizerFast.from_pretrained(FOLDER).save_pretrained(FOLDER)` \
         writes `tokenizer.json` beside it"
    } else {
        "download the folder again, `tokenizer.json` included"
    };
    TokenizerError::Folder {
        folder: folder.to_owned(),
        problem: format!("a T5 tokenizer is read from `{TOKENIZER_FILE}`, which is not there; {hint}"),
    }
}

/// `vocab.json` and `merges.txt`, as the hub has them for CLIP and Qwen.
fn two_files(folder: &Path, class: TokenizerClass) -> Result<(Vocabulary, PathBuf), TokenizerError> {
    let (vocabulary, list) = (folder.join(VOCABULARY_FILE), folder.join(MERGES_FILE));
    let ids: Option<HashMap<String, u32>> = files::json(&vocabulary)?;
    let (ids, text) = match (ids, files::text(&list)?) {
        (Some(ids), Some(text)) => (ids, text),
        (ids, text) => {
            let missing: Vec<String> = [(ids.is_none(), VOCABULARY_FILE), (text.is_none(), MERGES_FILE)]
                .into_iter()
                .filter(|(missing, _)| *missing)
                .map(|(_, name)| format!("`{name}`"))
                .collect();
            return Err(TokenizerError::Folder {
                folder: folder.to_owned(),
                problem: format!(
                    "a {} is read from `{TOKENIZER_FILE}`, or from `{VOCABULARY_FILE}` and `{MERGES_FILE}`; there is no \
                     `{TOKENIZER_FILE}` and no {}. Download the folder again, these files included",
                    class.name(),
                    missing.join(" and no ")
                ),
            });
        }
    };
    let mut merges = Vec::new();
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // The first line says the version of the format; editors leave empty ones at the end.
        if line.starts_with("#version") || line.is_empty() {
            continue;
        }
        let merge = two_parts(line).ok_or_else(|| {
            problem(
                &list,
                &format!(
                    "line {} is `{line}`, and a merge is two parts with one space between",
                    index + 1
                ),
            )
        })?;
        merges.push(merge);
        lines.push(index + 1);
    }
    check_merges(&list, &ids, &merges, |rank| format!("line {}", lines[rank]))?;
    Ok((Vocabulary::Bpe { ids, merges }, vocabulary))
}

fn two_parts(line: &str) -> Option<(String, String)> {
    let (left, right) = line.split_once(' ')?;
    let whole = !left.is_empty() && !right.is_empty() && !right.contains(' ');
    whole.then(|| (left.to_owned(), right.to_owned()))
}

/// Every merge makes a word of the vocabulary out of two others; the two files of a folder may not be of one model.
fn check_merges(
    path: &Path,
    ids: &HashMap<String, u32>,
    merges: &[(String, String)],
    place: impl Fn(usize) -> String,
) -> Result<(), TokenizerError> {
    for (rank, (left, right)) in merges.iter().enumerate() {
        let joined = format!("{left}{right}");
        if let Some(word) = [left, right, &joined]
            .into_iter()
            .find(|word| !ids.contains_key(*word))
        {
            return Err(problem(
                path,
                &format!(
                    "{} joins `{left}` and `{right}`, and the vocabulary has no `{word}`: merges and vocabulary are of \
                     different models, or one is cut off. Download both again",
                    place(rank)
                ),
            ));
        }
    }
    Ok(())
}

/// The first added token whose id is not the one that the tokenizers crate gives it: where the files have it, what it is,
/// and the other id.
pub(crate) fn misplaced(
    placed: &BTreeMap<u32, Token>,
    id_of: impl Fn(&str) -> Option<u32>,
) -> Option<(u32, &str, u32)> {
    placed.iter().find_map(|(id, token)| {
        let got = id_of(&token.content)?;
        (got != *id).then_some((*id, token.content.as_str(), got))
    })
}
