//! A config that is not there, and the file that is probably meant.

use flow_config::Report;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders in which a bare name is looked for, too.
const FOLDERS: [&str; 2] = [".", "configs"];

/// Says in the report that a config could not be read which file is probably meant.
pub fn suggest(config: &Path, report: &mut Report) {
    let Some(nearest) = nearest(config) else { return };
    let nearest = nearest.display().to_string();
    if let Some(diagnostic) = report.diagnostics.first_mut() {
        diagnostic.help = Some(format!("did you mean `{nearest}`?"));
        diagnostic.nearest = Some(nearest);
    }
}

/// The TOML file with the nearest name, in the folder that was named or in those where configs are.
fn nearest(config: &Path) -> Option<PathBuf> {
    let name = config.file_name()?.to_str()?;
    let named = config.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folders = named.into_iter().chain(FOLDERS.map(Path::new));
    let files: Vec<PathBuf> = folders.flat_map(configs).collect();
    let names = files.iter().filter_map(|file| file.file_name()?.to_str());
    let with_ending = format!("{}.toml", name.trim_end_matches(".toml"));
    let found = flow_data::suggest::nearest(&with_ending, names)?.to_owned();
    files
        .into_iter()
        .find(|file| file.file_name().is_some_and(|name| *name == *found))
}

fn configs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_with_the_nearest_name_in_the_named_folder_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["digits-grpo.toml", "shapes-nft.toml", "digits-grop.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let meant = |name: &str| nearest(&folder.path().join(name));
        let there = Some(folder.path().join("digits-grpo.toml"));
        assert_eq!(meant("digits-grop.toml"), there);
        assert_eq!(meant("digits-grpo"), there);
        assert_eq!(meant("nothing-like-it-at-all.toml"), None);
    }
}
