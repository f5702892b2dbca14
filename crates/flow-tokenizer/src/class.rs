//! The classes of tokenizers, as transformers calls them.

/// How a text becomes tokens. One class has many vocabularies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenizerClass {
    /// Byte-level BPE of lower-cased text, between a begin and an end token (CLIP-L, OpenCLIP bigG).
    Clip,
    /// Unigram pieces of sentencepiece, with an end token (T5, UMT5).
    T5,
    /// Byte-level BPE, without begin or end (Qwen2, Qwen2.5, Qwen2.5-VL).
    Qwen2,
    /// Pieces of words (WordPiece) between a begin and an end token (BERT, which rewards read).
    Bert,
}

/// Every name by which `model_index.json` and `tokenizer_config.json` call a class that is read here.
pub const CLASS_NAMES: [&str; 8] = [
    "CLIPTokenizer",
    "CLIPTokenizerFast",
    "T5Tokenizer",
    "T5TokenizerFast",
    "Qwen2Tokenizer",
    "Qwen2TokenizerFast",
    "BertTokenizer",
    "BertTokenizerFast",
];

impl TokenizerClass {
    /// The class that `name` means, as `model_index.json` and `tokenizer_config.json` write it.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.strip_suffix("Fast").unwrap_or(name) {
            "CLIPTokenizer" => Some(Self::Clip),
            "T5Tokenizer" => Some(Self::T5),
            "Qwen2Tokenizer" => Some(Self::Qwen2),
            "BertTokenizer" => Some(Self::Bert),
            _ => None,
        }
    }

    /// Its name in transformers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clip => "CLIPTokenizer",
            Self::T5 => "T5Tokenizer",
            Self::Qwen2 => "Qwen2Tokenizer",
            Self::Bert => "BertTokenizer",
        }
    }

    /// The special tokens that the class has where no file names others.
    pub(crate) fn defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Clip => &[
                ("bos_token", "<|startoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            Self::T5 => &[
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
            ],
            Self::Qwen2 => &[
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            Self::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
        }
    }
}
