//! What was probably meant by a name or a path that is not there.

use flow_config::Report;
use flow_trainer::setup::PipelineFolders;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders in which the bare name of a config is looked for, too.
const FOLDERS: [&str; 2] = [".", "configs"];

/// `; did you mean …?` with the name that is nearest to what was written; nothing if none is near.
pub fn did_you_mean<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    match flow_config::nearest(written, names) {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None => String::new(),
    }
}

/// As [`did_you_mean`], of a path: what `fits` in its folder and has the nearest name.
pub fn path_in_words(path: &Path, fits: impl Fn(&Path) -> bool) -> String {
    match beside(path, fits) {
        Some(nearest) => format!("; did you mean `{}`?", nearest.display()),
        None => String::new(),
    }
}

/// What lies in the folder of `path`, `fits`, and has the nearest name.
pub fn beside(path: &Path, fits: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let written = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let there: Vec<PathBuf> = entries(folder.unwrap_or(Path::new(".")), fits);
    let names = there.iter().filter_map(|path| path.file_name()?.to_str());
    let nearest = flow_config::nearest(written, names)?;
    Some(path.with_file_name(nearest))
}

/// Whether the path ends in `.ending`.
pub fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

/// Says in the report that a config could not be read which file is probably meant, or what is missing to a diffusers folder, which
/// may stand in a config's place: the one around it, or the command that downloads it.
pub fn suggest_config(config: &Path, folders: &PipelineFolders, report: &mut Report) {
    let Some(diagnostic) = report.diagnostics.first_mut() else {
        return;
    };
    if let Some(nearest) = nearest_config(config).filter(|_| !config.is_dir()) {
        let nearest = nearest.display().to_string();
        diagnostic.help = Some(format!("did you mean `{nearest}`?"));
        diagnostic.nearest = Some(nearest);
        return;
    }
    if !has_ending(config, "toml")
        && let Err(error) = folders.open(config, None)
    {
        diagnostic.help = Some(format!("a diffusers folder can stand here, too; {error}"));
    }
}

/// The TOML file with the nearest name, in the folder that was named or in those where configs are.
pub fn nearest_config(config: &Path) -> Option<PathBuf> {
    let name = config.file_name()?.to_str()?;
    let named = config.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folders = named.into_iter().chain(FOLDERS.map(Path::new));
    let files: Vec<PathBuf> = folders
        .flat_map(|folder| entries(folder, |path| has_ending(path, "toml")))
        .map(|path| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path))
        .collect();
    // Without the ending, which makes any two short names alike.
    let stems = files.iter().filter_map(|file| file.file_stem()?.to_str());
    let found = flow_registry::nearest(name.trim_end_matches(".toml"), stems)?.to_owned();
    files
        .into_iter()
        .find(|file| file.file_stem().is_some_and(|stem| *stem == *found))
}

/// What is in a folder and `fits`, sorted.
fn entries(folder: &Path, fits: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| fits(path))
        .collect();
    paths.sort();
    paths
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
        let meant = |name: &str| nearest_config(&folder.path().join(name));
        let there = Some(folder.path().join("digits-grpo.toml"));
        assert_eq!(meant("digits-grop.toml"), there);
        assert_eq!(meant("digits-grpo"), there);
        assert_eq!(meant("nothing-like-it-at-all.toml"), None);
        let text = |name: &str| beside(&folder.path().join(name), |path| has_ending(path, "txt"));
        assert_eq!(text("digits-grpo"), Some(folder.path().join("digits-grop.txt")));
        assert_eq!(text("shapes-nft.toml"), None);
    }
}
