//! The host-side numerics of training against independent f64 references and the original implementation's outputs.

mod advantage;
mod config;
mod description;
mod ema;
mod exploration;
mod geometry;
mod scheduler;
mod scheduler_fixtures;
mod timesteps;
mod window;
