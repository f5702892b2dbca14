//! `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, as transformers 5.24 puts them together
//! (`tokenization_utils_base.py`, `_from_pretrained`).

use crate::added::Token;
use crate::files::{self, problem};
use crate::vocabulary::TokenizerFile;
use crate::{Side, TokenizerClass, TokenizerError};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The named special tokens of transformers.
const NAMED: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// transformers writes 1e30 for "no limit"; nothing longer than this is a limit.
const NO_LIMIT: f64 = 1e9;

const CONFIG: &str = "tokenizer_config.json";

/// What the small files of a folder say.
pub(crate) struct Config {
    /// Tokens that have an id of their own, by id.
    pub placed: BTreeMap<u32, Token>,
    /// Tokens that take the next id, unless the vocabulary has them.
    pub further: Vec<Token>,
    /// Named special tokens: `bos_token`, `eos_token`, `unk_token`, `pad_token` and so on.
    named: BTreeMap<String, String>,
    /// The longest row that the model was made for.
    pub most: Option<usize>,
    pub padding_side: Side,
    pub truncation_side: Side,
    /// BERT: whether upper case is taken away, and accents with it unless that is said apart.
    pub lowercase: bool,
    /// BERT: whether accents are taken away, if it is said.
    pub strip_accents: Option<bool>,
    /// BERT: whether each Chinese character is a word.
    pub splits_chinese: bool,
    /// Whether special tokens that a user types are text like any other.
    pub split_special_tokens: bool,
}

/// The content of `tokenizer_config.json`; empty if there is no such file.
pub(crate) fn read_object(folder: &Path) -> Result<Map<String, Value>, TokenizerError> {
    Ok(files::json(&folder.join(CONFIG))?.unwrap_or_default())
}

impl Config {
    /// Puts the files of `folder` together for `class`.
    pub fn read(
        folder: &Path,
        mut object: Map<String, Value>,
        class: TokenizerClass,
        tokenizer_file: Option<&TokenizerFile>,
    ) -> Result<Self, TokenizerError> {
        let path = folder.join(CONFIG);
        let mut placed = BTreeMap::new();
        match object.remove("added_tokens_decoder") {
            Some(decoder) => placed = decoded(decoder).map_err(|what| problem(&path, &what))?,
            None => older(folder, &mut object, tokenizer_file, &mut placed)?,
        }
        let named = named(&object, class);
        let known = |content: &str| placed.values().any(|token| token.content == content);
        let mut further: Vec<Token> = Vec::new();
        let named_values = NAMED.iter().filter_map(|name| match object.get(*name) {
            Some(value) => Token::read(value),
            None => named.get(*name).map(|content| Token::special(content)),
        });
        for token in named_values.chain(extra(&object)) {
            let twice = further.iter().any(|other| other.content == token.content);
            if !known(&token.content) && !twice {
                further.push(token);
            }
        }
        let side = |key: &str| match object.get(key).map(|side| side.as_str()) {
            None | Some(Some("right")) => Ok(Side::Right),
            Some(Some("left")) => Ok(Side::Left),
            Some(_) => Err(problem(
                &path,
                &format!(
                    "`{key}` is {}; it is \"left\" or \"right\"",
                    object.get(key).unwrap_or(&Value::Null)
                ),
            )),
        };
        Ok(Self {
            most: object
                .get("model_max_length")
                .and_then(Value::as_f64)
                .filter(|most| (1.0..NO_LIMIT).contains(most))
                .map(|most| most as usize),
            padding_side: side("padding_side")?,
            truncation_side: side("truncation_side")?,
            lowercase: object.get("do_lower_case") != Some(&Value::Bool(false)),
            strip_accents: object.get("strip_accents").and_then(Value::as_bool),
            splits_chinese: object.get("tokenize_chinese_chars") != Some(&Value::Bool(false)),
            split_special_tokens: object.get("split_special_tokens") == Some(&Value::Bool(true)),
            placed,
            further,
            named,
        })
    }

    /// The content of a named special token, such as `pad_token`.
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.get(name).map(String::as_str)
    }
}

/// `added_tokens_decoder`: from id, as a text, to token.
fn decoded(value: Value) -> Result<BTreeMap<u32, Token>, String> {
    let tokens: BTreeMap<String, Token> = serde_json::from_value(value)
        .map_err(|error| format!("`added_tokens_decoder` does not map ids to tokens: {error}"))?;
    tokens
        .into_iter()
        .map(|(id, token)| {
            let number = id.parse();
            number
                .map(|number| (number, token))
                .map_err(|_| format!("`added_tokens_decoder` has `{id}` where an id belongs"))
        })
        .collect()
}

/// Folders without `added_tokens_decoder`: older ones, whose specials are in files of their own, and those of transformers 5,
/// whose specials are in `tokenizer.json`.
fn older(
    folder: &Path,
    object: &mut Map<String, Value>,
    tokenizer_file: Option<&TokenizerFile>,
    placed: &mut BTreeMap<u32, Token>,
) -> Result<(), TokenizerError> {
    let map: Map<String, Value> = files::json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    object.extend(map);
    let added: BTreeMap<String, u32> = files::json(&folder.join("added_tokens.json"))?.unwrap_or_default();
    let mut specials: Vec<String> = NAMED
        .iter()
        .filter_map(|name| Token::read(object.get(*name)?))
        .map(|token| token.content)
        .collect();
    specials.extend(extra(object).into_iter().map(|token| token.content));
    for (content, id) in added {
        let special = specials.contains(&content);
        placed.insert(id, Token::plain(&content, special));
    }
    for (id, token) in tokenizer_file.map(TokenizerFile::added).unwrap_or_default() {
        placed.insert(id, token);
    }
    Ok(())
}

/// `extra_special_tokens`, which older files call `additional_special_tokens`.
fn extra(object: &Map<String, Value>) -> Vec<Token> {
    let list = |key: &str| match object.get(key) {
        Some(Value::Array(list)) => list.iter().filter_map(Token::read).collect(),
        Some(Value::Object(map)) => map.values().filter_map(Token::read).collect(),
        _ => Vec::new(),
    };
    let newer: Vec<Token> = list("extra_special_tokens");
    if newer.is_empty() {
        return list("additional_special_tokens");
    }
    newer
}

/// The named special tokens: what the files say, and the defaults of the class where they say nothing.
fn named(object: &Map<String, Value>, class: TokenizerClass) -> BTreeMap<String, String> {
    let mut named: BTreeMap<String, String> = class
        .defaults()
        .iter()
        .map(|(name, content)| ((*name).to_owned(), (*content).to_owned()))
        .collect();
    for name in NAMED {
        match object.get(name) {
            Some(Value::Null) => {
                named.remove(name);
            }
            Some(value) => {
                if let Some(token) = Token::read(value) {
                    named.insert(name.to_owned(), token.content);
                }
            }
            None => {}
        }
    }
    named
}
