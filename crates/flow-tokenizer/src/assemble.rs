//! Tokenizers of the tokenizers crate, built as transformers 5.24's classes build them: of a file only the vocabulary is taken,
//! and the class says how a text is normalised and cut (`models/clip/tokenization_clip.py`, `models/t5/tokenization_t5.py`,
//! `models/qwen2/tokenization_qwen2.py`, `models/bert/tokenization_bert.py`).

use crate::added::Token;
use crate::charsmap;
use crate::config::Config;
use crate::files::problem;
use crate::vocabulary::{Vocabulary, misplaced};
use crate::{TokenizerClass, TokenizerError};
use ahash::AHashMap;
use std::path::Path;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{BertNormalizer, Lowercase, NFC, Sequence as Normalizers};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior, Tokenizer};

/// How CLIP's text is cut; what is between the matches is dropped.
const CLIP_PATTERN: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
/// How Qwen's text is cut.
const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The id of T5's unknown token, whatever a file says.
const T5_UNKNOWN: usize = 2;

/// Builds the tokenizer of `class`. `path` is the file that the vocabulary is from.
pub(crate) fn tokenizer(
    class: TokenizerClass,
    vocabulary: Vocabulary,
    config: &Config,
    path: &Path,
) -> Result<Tokenizer, TokenizerError> {
    let refused = |error: tokenizers::Error| problem(path, &format!("it makes no tokenizer: {error}"));
    let mut tokenizer = match vocabulary {
        Vocabulary::Bpe { ids, merges } => {
            let ids: AHashMap<String, u32> = ids.into_iter().collect();
            check_words(class, &ids, config).map_err(|what| problem(path, &what))?;
            bpe(class, ids, merges, config).map_err(refused)?
        }
        Vocabulary::Unigram { pieces, charsmap } => {
            if let Some((piece, score)) = pieces.iter().find(|(_, score)| !score.is_finite()) {
                return Err(problem(
                    path,
                    &format!("the piece `{piece}` has the score {score}; scores are finite"),
                ));
            }
            let model = Unigram::from(pieces, Some(T5_UNKNOWN), false).map_err(refused)?;
            let mut tokenizer = Tokenizer::new(model);
            if let Some(table) = charsmap {
                let normalizer = charsmap::normalizer(&table)
                    .map_err(|what| problem(path, &format!("its `precompiled_charsmap` {what}")))?;
                tokenizer.with_normalizer(Some(normalizer)).map_err(refused)?;
            }
            tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![
                WhitespaceSplit.into(),
                Metaspace::new('▁', PrependScheme::Always, true).into(),
            ])));
            tokenizer
        }
        Vocabulary::WordPiece { ids } => {
            let unknown = config.named("unk_token").unwrap_or_default();
            if !ids.contains_key(unknown) {
                let what = format!(
                    "the vocabulary has no `{unknown}`, which is the unknown token; it is cut off or of another model"
                );
                return Err(problem(path, &what));
            }
            let ids: AHashMap<String, u32> = ids.into_iter().collect();
            let model = WordPiece::builder().vocab(ids).unk_token(unknown.to_owned());
            let mut tokenizer = Tokenizer::new(model.build().map_err(refused)?);
            let normalizer = BertNormalizer::new(
                true,
                config.splits_chinese,
                config.strip_accents,
                config.lowercase,
            );
            tokenizer.with_normalizer(Some(normalizer)).map_err(refused)?;
            tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
            tokenizer
        }
    };
    add(&mut tokenizer, config, path)?;
    tokenizer.set_encode_special_tokens(config.split_special_tokens);
    Ok(tokenizer)
}

fn bpe(
    class: TokenizerClass,
    ids: AHashMap<String, u32>,
    merges: Vec<(String, String)>,
    config: &Config,
) -> tokenizers::Result<Tokenizer> {
    let builder = BPE::builder().vocab_and_merges(ids, merges);
    if class == TokenizerClass::Clip {
        let unknown = config.named("unk_token").unwrap_or_default().to_owned();
        let model = builder
            .end_of_word_suffix("</w>".into())
            .unk_token(unknown)
            .fuse_unk(false)
            .build()?;
        let mut tokenizer = Tokenizer::new(model);
        let spaces = Replace::new(ReplacePattern::Regex(r"\s+".into()), " ")?;
        tokenizer.with_normalizer(Some(NormalizerWrapper::from(Normalizers::new(vec![
            NFC.into(),
            spaces.into(),
            Lowercase.into(),
        ]))))?;
        let split = Split::new(
            SplitPattern::Regex(CLIP_PATTERN.into()),
            SplitDelimiterBehavior::Removed,
            true,
        )?;
        tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![
            split.into(),
            ByteLevel::new(false, true, true).into(),
        ])));
        return Ok(tokenizer);
    }
    let mut tokenizer = Tokenizer::new(builder.build()?);
    tokenizer.with_normalizer(Some(NFC))?;
    let split = Split::new(
        SplitPattern::Regex(QWEN_PATTERN.into()),
        SplitDelimiterBehavior::Isolated,
        false,
    )?;
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![
        split.into(),
        ByteLevel::new(false, true, false).into(),
    ])));
    Ok(tokenizer)
}

/// Refuses a vocabulary that would drop a part of a text without a word.
fn check_words(class: TokenizerClass, ids: &AHashMap<String, u32>, config: &Config) -> Result<(), String> {
    if class == TokenizerClass::Clip {
        let unknown = config.named("unk_token").unwrap_or_default();
        if !ids.contains_key(unknown) {
            return Err(format!(
                "the vocabulary has no `{unknown}`, which is the unknown token; it is cut off or of another model"
            ));
        }
        return Ok(());
    }
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let missing = bytes
        .into_iter()
        .find(|letter| !ids.contains_key(letter.encode_utf8(&mut [0; 4]) as &str));
    match missing {
        Some(letter) => Err(format!(
            "the vocabulary lacks the byte `{letter}`, and without it parts of texts would be lost; it is cut off or of \
             another model"
        )),
        None => Ok(()),
    }
}

/// Adds the tokens beside the vocabulary, in the order of their ids, and checks that they have them.
fn add(tokenizer: &mut Tokenizer, config: &Config, path: &Path) -> Result<(), TokenizerError> {
    let refused =
        |error: tokenizers::Error| problem(path, &format!("its added tokens cannot be used: {error}"));
    let tokens = config.placed.values().chain(&config.further).map(Token::build);
    tokenizer.add_tokens(tokens).map_err(refused)?;
    if let Some((id, content, got)) = misplaced(&config.placed, |content| tokenizer.token_to_id(content)) {
        return Err(problem(
            path,
            &format!(
                "with this vocabulary the token `{content}` has the id {got}, and the folder's other files say {id}: they are of \
                 different models, or the vocabulary is cut off. Download the folder again"
            ),
        ));
    }
    Ok(())
}
