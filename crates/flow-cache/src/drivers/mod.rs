//! The places of a model that a cache can answer for: blocks of a stack, attention layers, whole velocities.

mod guidance;
mod layers;
mod magnitudes;
mod signals;
mod stack;
mod velocity;

pub use guidance::GuidanceCache;
pub use layers::{LayerCache, LayerPolicy};
pub use magnitudes::MagnitudeRatios;
pub use signals::{SignalChanges, fit_polynomial};
pub use stack::{StackCache, StackPolicy, StackProbe, StackShape};
pub use velocity::{VelocityCache, VelocityPolicy};
