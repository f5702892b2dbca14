//! Where a relative path starts, as messages about files that are not there say it.

use flow_trainer::setup::start_in_config;
use std::path::Path;

#[test]
fn the_folder_that_a_path_was_resolved_from_is_named() {
    let here = std::env::current_dir().expect("a working directory");
    let shown = |path: &Path| format!("`{}`", path.display());
    let of_config = start_in_config(Path::new("a.safetensors"), Path::new("configs"));
    assert!(of_config.contains("the config's folder") && of_config.ends_with(&shown(&here.join("configs"))));
    let beside = start_in_config(Path::new("a.safetensors"), Path::new("."));
    assert!(beside.ends_with(&shown(&here)), "{beside}");
    let given = start_in_config(&here.join("a.safetensors"), Path::new("configs"));
    assert!(given.contains("the working directory") && given.ends_with(&shown(&here)));
    let elsewhere = start_in_config(Path::new("/no/such/a.safetensors"), Path::new("configs"));
    assert_eq!(elsewhere, "the path is absolute");
}
