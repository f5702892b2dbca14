//! Rewards that are scored outside of the process: by servers over HTTP, and by programs that are fed by lines of JSON.
//!
//! | name | kind | who scores |
//! |---|---|---|
//! | `remote` | pointwise or group-wise | servers with Flow-Factory's JSON protocol: `GET /health`, `POST /compute` |
//! | `vlm-judge` | pointwise, or by pairs | a vision language model on servers with OpenAI's protocol: `POST /chat/completions` |
//! | `geneval` | pointwise | GenEval's rules, on what detectors on servers find: `GET /health`, `POST /detect` |
//! | `command` | pointwise | a program of the user's: one JSON object a line in, one out |
//!
//! All are strict: an answer that is not exactly one finite number for each sample is an error, never a score.
//! What may pass (no connection, a server that ends, a program that crashes, a time-out) is tried again; scores depend neither on
//! which server or process was asked nor on the number of threads.
//!
//! ```
//! use flow_rewards::RewardRegistry;
//! use std::path::Path;
//!
//! let mut registry = RewardRegistry::with_built_in()?;
//! flow_rewards_remote::register(&mut registry)?;
//! let params = serde_json::json!({ "servers": ["http://localhost:8000"] });
//! let reward = registry.build("remote", params.as_object().ok_or("a table")?, Path::new("."))?;
//! assert!(reward.takes_videos());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod command;
mod geneval;
mod http;
mod in_order;
mod picture;
mod remote;
mod score;
mod vlm_judge;
mod waits;

pub use command::{CommandReward, CommandSettings};
pub use geneval::{GenEval, GenEvalMode, GenEvalSettings};
pub use remote::{RemoteReward, RemoteSettings};
pub use vlm_judge::{BadAnswers, VlmJudge, VlmJudgeMode, VlmJudgeSettings};

use flow_registry::NameTaken;
use flow_rewards::RewardRegistry;

/// Adds the rewards of this crate to a registry.
///
/// # Errors
/// [`NameTaken`] if there is a reward of the name `remote`, `vlm-judge`, `geneval` or `command`.
pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
    RemoteReward::register(registry)?;
    VlmJudge::register(registry)?;
    GenEval::register(registry)?;
    CommandReward::register(registry)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
