//! Jobs whose weights are not in the repository.

use super::{Half, Options, compare_weights};
use crate::workspace::Workspace;
use std::fs;
use std::path::Path;

fn options(only: Option<Half>, job: &str) -> Options {
    Options {
        only,
        jobs: vec![job.to_owned()],
        seeds: vec![1],
        set: Vec::new(),
    }
}

#[test]
fn a_job_without_committed_weights_goes_on_to_its_runs_unless_weights_alone_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("configs")).unwrap();
    let text = "config_version = 1\n[model]\nweights = \"../runs/moe.safetensors\"\n[pretrain]\noutput = \
                \"../runs/moe.safetensors\"\n";
    fs::write(folder.path().join("configs/moe.toml"), text).unwrap();
    let workspace = Workspace::at(folder.path());
    // It is not started.
    let program = Path::new("no-such-program");
    compare_weights(&workspace, program, &options(None, "moe")).unwrap();
    let error = compare_weights(&workspace, program, &options(Some(Half::Weights), "moe")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no config of moe in `configs/` starts from weights in `assets/`"),
        "{error}"
    );
}
