//! Runs on disk, pictures and what is said of a run: one program, for each is linked for longer than it is compiled.

mod checkpoints;
mod common;
mod contents;
mod events;
mod exploit;
mod metrics;
mod pictures;
mod report;
mod reward_regression;
mod run_directory;
mod statistics;
mod traces;
mod video;
