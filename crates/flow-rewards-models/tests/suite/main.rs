//! Reward models: one program, for each is linked for longer than it is compiled.

mod common;
mod image_reward;
mod layouts;
mod pixels;
mod refusals;
mod scores;
