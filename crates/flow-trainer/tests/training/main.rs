//! Losses, optimizer, audit, resume and guards of the training loop, on a model small enough to run in moments.

mod accelerators;
mod after_window;
mod branching;
mod distillation;
mod exploration;
mod fake_score;
mod frozen;
mod group_losses;
mod guards;
mod guidance;
mod losses;
mod networks;
mod on_policy;
mod optimizer;
mod outcome;
mod paths;
mod pretraining;
mod ranks;
mod records;
mod resume;
mod storage;
mod support;
mod text;
mod watch;
