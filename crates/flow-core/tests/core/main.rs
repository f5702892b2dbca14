//! What users of `flow-core` rely on, in one binary so that Burn is linked once.

mod capture;
mod concurrency;
mod engines;
mod layered;
mod layout;
mod model;
mod operations;
mod parameters;
mod places;
mod regions;
mod support;
mod trajectories;
mod versions;
