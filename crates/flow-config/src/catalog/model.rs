//! What other parts need to know of an architecture before it is built.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PluginKind;

/// An architecture's description. Its dimensions stand in the table of `[model]` that has its name.
#[derive(Clone)]
pub struct ModelKind {
    /// What every plug-in has.
    pub plugin: PluginKind,
    /// What it is called in sentences, such as "the DiT".
    pub noun: &'static str,
    /// Whether it reads encoded text, and not the tokens of prompts.
    pub reads_text: bool,
    /// Whether its own rules compare its latents with the images of `[data]`.
    pub checks_images: bool,
    /// The two dimensions that decide most about its size.
    pub size_keys: [&'static str; 2],
}

impl ModelKind {
    /// An architecture whose dimensions are a `P`, which reads encoded text.
    pub fn new<P>(name: &str, summary: &str, noun: &'static str, size_keys: [&'static str; 2]) -> Self
    where
        P: Serialize + DeserializeOwned + JsonSchema + 'static,
    {
        Self {
            plugin: PluginKind::new::<P>(name, summary),
            noun,
            reads_text: true,
            checks_images: false,
            size_keys,
        }
    }
}

impl fmt::Debug for ModelKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plugin.fmt(formatter)
    }
}
