//! `[run]`: what the run is called, where it writes, how long it goes on.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[run]`: name, directory, seed and length of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Name of the run; also the name of its directory below `dir`, so none of / \ : * ? " < > | and no control character in it, and
    /// neither `.` nor `-` first.
    #[schemars(length(min = 1, max = 200))]
    pub name: String,
    /// Seed of every random stream of the run: prompts, initial noise, SDE noise, shuffles. TOML integers end
    /// at 2^63 - 1.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// Directory that holds the run directories. A path in a config file starts from the file's folder, one given by `--set`
    /// from the working directory, and so does the default.
    #[serde(serialize_with = "crate::path_text::path")]
    pub dir: PathBuf,
    /// Number of RL iterations (rollout, rewards, update); Flow-Factory calls them epochs.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub steps: usize,
    /// What to do when the run directory exists already.
    pub on_exists: OnExists,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            name: "run".into(),
            seed: 0,
            dir: "runs".into(),
            steps: 100,
            on_exists: OnExists::Error,
        }
    }
}

/// What to do when the run directory exists already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnExists {
    /// Stop with an error that names the other choices.
    #[default]
    Error,
    /// Go on from the latest checkpoint in it.
    Resume,
    /// Move it aside to `NAME.replaced-1` and start anew; nothing is deleted.
    Overwrite,
    /// Write to the next free name: `name-2`, `name-3` and so on.
    New,
}
