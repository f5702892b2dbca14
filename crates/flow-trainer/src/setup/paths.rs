//! Where a relative path starts, in the words of every message about a file that is not there.

use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_a_path_was_resolved_from_is_named() {
        let here = std::env::current_dir().expect("a working directory");
        let shown = |path: &Path| format!("`{}`", path.display());
        let of_config = start_in_config(Path::new("a.safetensors"), Path::new("configs"));
        assert!(
            of_config.contains("the config's folder") && of_config.ends_with(&shown(&here.join("configs")))
        );
        let beside = start_in_config(Path::new("a.safetensors"), Path::new("."));
        assert!(beside.ends_with(&shown(&here)), "{beside}");
        let given = start_in_config(&here.join("a.safetensors"), Path::new("configs"));
        assert!(given.contains("the working directory") && given.ends_with(&shown(&here)));
        let elsewhere = start_in_config(Path::new("/no/such/a.safetensors"), Path::new("configs"));
        assert_eq!(elsewhere, "the path is absolute");
    }
}
