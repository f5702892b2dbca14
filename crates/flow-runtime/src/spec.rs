//! What the table says about an option.

use crate::{OPTIONS, Rule};
use flow_config::DeviceKind;
use serde_json::Value as Json;
use std::fmt;

/// One option: a row of [`OPTIONS`].
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Dotted path: the runtime, then the path in its configuration, for instance `cubecl.streaming.policy`.
    pub path: &'static str,
    /// Type and allowed values.
    pub kind: Kind,
    /// What the runtime takes if nothing is said.
    pub default: DefaultValue,
    /// Features of the build without which nothing reads the option; all of them are needed.
    pub features: &'static [Feature],
    /// Devices whose runtime reads it.
    pub devices: &'static [DeviceKind],
    /// Rules on this option together with others, or with what the run does.
    pub conflicts: &'static [&'static Rule],
    /// What a value other than the default costs, in time, memory or files.
    pub cost: &'static str,
    /// What it does.
    pub doc: &'static str,
}

impl OptionSpec {
    /// The runtime that reads the option.
    pub const fn runtime(&self) -> Runtime {
        match self.path.as_bytes()[0] {
            b'b' => Runtime::Burn,
            _ => Runtime::Cubecl,
        }
    }

    /// The path inside the runtime's configuration, for instance `streaming.policy`.
    pub fn inner_path(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, inner)| inner)
    }
}

/// Whose configuration an option is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    /// `burn_std::config::BurnConfig`.
    Burn,
    /// `cubecl_runtime::config::CubeClRuntimeConfig`.
    Cubecl,
}

impl Runtime {
    /// First part of the paths of its options.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Burn => "burn",
            Self::Cubecl => "cubecl",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Burn => "Burn",
            Self::Cubecl => "CubeCL",
        })
    }
}

/// Something that is compiled into a build or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// CubeCL, the compute layer of Burn's devices other than `flex`: this crate's feature `cubecl`.
    Cubecl,
    /// CubeCL's caches on disk: this crate's feature `persistence`, which must go with Burn's.
    Persistence,
    /// Burn's device for NVIDIA GPUs.
    Cuda,
}

impl Feature {
    /// The feature of flow-train's build that brings it.
    pub const fn of_build(self) -> &'static str {
        match self {
            Self::Cubecl | Self::Cuda => "cuda",
            Self::Persistence => "kernel-cache",
        }
    }
}

/// Type and allowed values of an option. Ends of ranges are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number. A float without a fraction is taken for one, as JSON schema does.
    Integer {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A name of 1 to 100 characters out of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`, not only dots.
    Name,
    /// Path of a file, 1 to 4096 characters; relative ones start from [`Context::base`](crate::Context::base).
    File,
    /// One of these words, or `{ directory = "…" }` with a path as in [`Kind::File`].
    Place(&'static [&'static str]),
}

impl Kind {
    /// The type and what is allowed, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Bool => "true or false".into(),
            Self::Integer { min, max } => format!("integer from {min} to {max}"),
            Self::Choice(words) => quoted(words),
            Self::Name => "name of 1 to 100 letters, digits, `.`, `_`, `-`, not only dots".into(),
            Self::File => "path of a file, 1 to 4096 characters".into(),
            Self::Place(words) => format!("{}, {{ directory = \"…\" }}", quoted(words)),
        }
    }
}

/// Words in quotation marks, parted by commas.
pub(crate) fn quoted(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    words.join(", ")
}

/// A default as it stands in the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// No value.
    Unset,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(u64),
    /// A word.
    Word(&'static str),
}

impl DefaultValue {
    /// The default as JSON; no value is `null`.
    pub fn to_json(self) -> Json {
        match self {
            Self::Unset => Json::Null,
            Self::Bool(value) => value.into(),
            Self::Integer(value) => value.into(),
            Self::Word(value) => value.into(),
        }
    }
}

impl fmt::Display for DefaultValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => formatter.write_str("none"),
            other => other.to_json().fmt(formatter),
        }
    }
}

impl OptionSpec {
    /// The feature of flow-train's build with which something reads the option; none if every build does.
    pub fn build(&self) -> Option<&'static str> {
        // `kernel-cache` brings `cuda`.
        let stored = self.features.contains(&Feature::Persistence);
        let wanted = if stored {
            Some(&Feature::Persistence)
        } else {
            self.features.first()
        };
        wanted.map(|feature| feature.of_build())
    }
}

/// The option of this path.
pub fn find(path: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.path == path)
}
