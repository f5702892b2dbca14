//! Folders of diffusers from the Hugging Face hub, or from a mirror with the same interface.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod archive;
pub mod assets;
mod client;
mod connection;
mod download;
mod endpoint;
mod error;
mod fetch;
mod hash;
mod listing;
mod paths;
mod retries;
mod selection;
mod settings;
mod token;

pub use client::{Client, ClientError, HttpClient, Request, Response};
pub use endpoint::Endpoint;
pub use error::HubError;
pub use fetch::{Fetch, Fetched, Hub, Progress, Stage};
pub use hash::FileHash;
pub use listing::{Listing, RemoteFile};
pub use paths::relative_path;
pub use retries::Retries;
pub use settings::Settings;
pub use token::Token;
