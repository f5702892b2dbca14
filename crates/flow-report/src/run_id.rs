//! Which run something belongs to.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The name that a run has for life: 128 bits, drawn when it begins, in `run.json` and in each of its checkpoints.
///
/// Names and places of files do not say what they belong to; this does. It enters nothing that is computed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    /// A new one, which no other run has.
    pub fn draw() -> Self {
        // The operating system's random keys alone would do; time, process and host are for systems where they do not.
        let random = RandomState::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&random.build_hasher().finish().to_le_bytes())
            .update(&now.as_nanos().to_le_bytes())
            .update(&std::process::id().to_le_bytes())
            .update(crate::environment::host_name().as_bytes());
        let mut text = hasher.finalize().to_hex().to_string();
        text.truncate(32);
        Self(text)
    }

    /// The first 8 digits, to tell two runs apart by eye.
    pub fn short(&self) -> &str {
        self.0.get(..8).unwrap_or(&self.0)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The run that a checkpoint is of. It stands in the checkpoint's `meta` under `run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStamp {
    /// Which run.
    pub id: RunId,
    /// What it was called when the checkpoint was written.
    pub name: String,
    /// When its first process began, RFC 3339 UTC.
    pub started_at: String,
}

impl RunStamp {
    /// The stamp in a checkpoint's `meta`; none in checkpoints from before there were stamps.
    pub fn of(meta: &serde_json::Value) -> Option<Self> {
        serde_json::from_value(meta.get("run")?.clone()).ok()
    }
}

/// For people: `digits-grpo (1f0c8a2b, begun 2026-01-01T00:00:00Z)`.
impl fmt::Display for RunStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, begun {})",
            self.name,
            self.id.short(),
            self.started_at
        )
    }
}
