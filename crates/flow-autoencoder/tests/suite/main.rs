//! Autoencoders and their parts: one program, for each is linked for longer than it is compiled.

mod causal;
mod common;
mod convolutions;
mod files;
mod kl;
mod layout;
mod pipelines;
mod tiny;
