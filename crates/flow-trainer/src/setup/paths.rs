//! Where a relative path starts, in the words of every message about a file that is not there.

use std::path::Path;

/// What to do about a path that is not there and reads like the name of a repository: `stabilityai/stable-diffusion-3.5-medium`.
pub(super) fn hub_help(path: &Path) -> Option<String> {
    // A path of the command line is there with the working directory before it.
    let here = std::env::current_dir().unwrap_or_default();
    let path = path.strip_prefix(here).unwrap_or(path);
    let parts: Vec<_> = path.components().collect();
    let is_name = path.is_relative()
        && parts.len() == 2
        && parts
            .iter()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
        && path.extension().is_none_or(|ending| ending != "safetensors");
    is_name.then(|| {
        format!(
            "Nothing is downloaded here; if it is the name of a repository, `flow-train fetch {}` makes a folder of it: name that folder",
            path.display()
        )
    })
}

/// Of a path on the command line; `here` is the working directory.
pub fn start_on_command_line(here: &Path) -> String {
    format!(
        "a relative path on the command line starts from the working directory, `{}`",
        here.display()
    )
}

/// Of a path of the config, as whoever read the config gives it: relative if a file says it, which lies in the folder `base`,
/// and absolute if the command line does.
pub fn start_in_config(path: &Path, base: &Path) -> String {
    if path.is_relative() {
        let folder = std::path::absolute(base);
        let folder = folder.as_deref().unwrap_or(base);
        // `configs/.` is `configs`.
        let folder: std::path::PathBuf = folder.components().collect();
        return format!(
            "a relative path in a config starts from the config's folder, `{}`",
            folder.display()
        );
    }
    match std::env::current_dir() {
        Ok(here) if path.starts_with(&here) => start_on_command_line(&here),
        _ => "the path is absolute".into(),
    }
}
