//! A hub with a small pipeline, and a folder to fetch it into.

// Each test program uses some of it.
#![allow(dead_code)]

use flow_hub::{Fetch, Fetched, HttpClient, Hub, HubError, Progress, Retries, Settings, Token};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use test_support::hub_server::{HubServer, REPOSITORY};

pub const WEIGHTS: &str = "transformer/diffusion_pytorch_model.safetensors";
pub const WEIGHTS_BYTES: usize = 700_001;
pub const INDEX: &str = r#"{"_class_name": "SomePipeline", "transformer": ["diffusers", "SomeTransformer"], "vae": [null, null]}"#;
pub const CONFIG: &str = r#"{"_class_name": "SomeTransformer"}"#;
pub const ATTEMPTS: u32 = 3;

/// Content that is the same at no two places, and longer than what is read at once.
pub fn weights() -> Vec<u8> {
    (0..WEIGHTS_BYTES as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8)
        .collect()
}

/// Paths, contents, and whether they are files of Git LFS.
pub fn pipeline() -> Vec<(&'static str, Vec<u8>, bool)> {
    vec![
        ("README.md", b"# A model".to_vec(), false),
        ("model_index.json", INDEX.into(), false),
        ("single-file.safetensors", weights(), true),
        ("transformer/config.json", CONFIG.into(), false),
        ("transformer/diffusion_pytorch_model.bin", weights(), true),
        (
            "transformer/diffusion_pytorch_model.fp16.safetensors",
            b"halves".to_vec(),
            true,
        ),
        (WEIGHTS, weights(), true),
        ("vae/config.json", b"{}".to_vec(), false),
    ]
}

pub struct Place {
    pub server: HubServer,
    pub endpoint: String,
    pub token: Option<&'static str>,
    pub repository: &'static str,
    folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let pipeline = pipeline();
        let files: Vec<(&str, &[u8], bool)> = pipeline
            .iter()
            .map(|(path, content, is_lfs)| (*path, content.as_slice(), *is_lfs))
            .collect();
        Self::with(&files)
    }

    pub fn with(files: &[(&str, &[u8], bool)]) -> Self {
        let server = HubServer::start(files);
        Self {
            endpoint: server.endpoint.clone(),
            server,
            token: None,
            repository: REPOSITORY,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn hub(&self) -> Hub<HttpClient> {
        let mut settings = Settings::new(&self.endpoint).unwrap();
        settings.token = self.token.map(|token| Token::new(token).unwrap());
        settings.retries = Retries {
            attempts: ATTEMPTS,
            first_wait: Duration::from_millis(1),
            longest_wait: Duration::from_millis(1),
        };
        Hub::new(HttpClient::direct(), settings)
    }

    pub fn fetch(&self) -> Result<Fetched, HubError> {
        self.fetch_with(None, None)
    }

    pub fn fetch_with(&self, revision: Option<&str>, variant: Option<&str>) -> Result<Fetched, HubError> {
        self.hub().fetch(&self.wanted(revision, variant), &mut |_| {})
    }

    pub fn fetch_told(&self, progress: &mut dyn FnMut(&Progress<'_>)) -> Result<Fetched, HubError> {
        self.hub().fetch(&self.wanted(None, None), progress)
    }

    fn wanted<'a>(&'a self, revision: Option<&'a str>, variant: Option<&'a str>) -> Fetch<'a> {
        Fetch {
            repository: self.repository,
            revision,
            variant,
            folder: self.folder.path(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// All files in the folder, sorted.
    pub fn files(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, out: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, out);
                } else {
                    out.push(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
                }
            }
        }
        let mut out = Vec::new();
        walk(self.folder.path(), self.folder.path(), &mut out);
        out.sort();
        out
    }
}

#[track_caller]
pub fn expect(error: &HubError, parts: &[&str]) {
    let words = error.to_string();
    for part in parts {
        assert!(words.contains(part), "`{part}` is not in: {words}");
    }
}
