//! Tokenizers of CLIP, T5, UMT5 and Qwen2, from the folders that diffusers writes.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod added;
mod assemble;
mod batch;
mod charsmap;
mod class;
mod clean;
mod config;
mod entities;
mod error;
mod files;
pub mod pipelines;
mod tokenizer;
mod vocabulary;

pub use batch::{Batch, Cut, Length};
pub use class::{CLASS_NAMES, TokenizerClass};
pub use clean::clean_for_wan;
pub use error::TokenizerError;
pub use tokenizer::{LONGEST_TEXT, Side, Tokenizer};
