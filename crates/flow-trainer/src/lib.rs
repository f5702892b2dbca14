//! Reinforcement learning of flow-matching models: schedulers, advantages, losses, optimizer, loop, resume.
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod absent_file;
pub mod advantage;
pub mod algorithm;
pub mod audit;
pub mod branching;
pub mod conditions;
pub mod decoder;
pub mod description;
pub mod distributed;
pub mod ema;
pub mod encoded;
mod error;
pub mod exploration;
mod export;
mod frozen;
pub mod geometry;
pub mod geometry_history;
pub mod observer;
pub mod optimizer;
mod plugins;
pub mod policy;
pub mod pretrain;
pub mod records;
pub mod rollout;
mod sample;
pub mod scheduler;
pub mod sentences;
pub mod setup;
pub mod shards;
pub mod shared_checkpoint;
pub mod sizes;
mod state_of_ranks;
mod state_sections;
pub mod text;
pub mod timesteps;
pub mod trainer;
pub mod undone;
mod watch;

pub use absent_file::AbsentFile;
pub use error::TrainError;
pub use export::export;
pub use frozen::FrozenWeights;
pub use plugins::Plugins;
pub use sample::sample;
pub use trainer::Trainer;
