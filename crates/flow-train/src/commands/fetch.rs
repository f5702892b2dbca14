//! `fetch`: a model from the hub, as a folder, or a set of files that are known beforehand.

use crate::arguments::FetchArguments;
use crate::failure::{Failure, OrFailure};
use crate::progress::{Transfer, size};
use crate::{command_line, terminal};
use flow_hub::{Fetch, HttpClient, Hub, HubError, Settings, Stage};
use std::path::{Path, PathBuf};

/// Downloads what is missing, and says where it is.
pub fn run(arguments: &FetchArguments, quiet: bool) -> Result<(), Failure> {
    if let Some(set) = super::fetch_known::named(&arguments.repository) {
        return super::fetch_known::run(arguments, set, quiet);
    }
    let settings = Settings::from_variables(&|name| std::env::var_os(name)).or_bad_input()?;
    let folder = folder(arguments)?;
    let wanted = Fetch {
        repository: &arguments.repository,
        revision: Some(&arguments.revision),
        variant: arguments.variant.as_deref(),
        folder: &folder,
    };
    let hub = Hub::new(client()?, settings);
    let mut transfer = Transfer::new(quiet);
    let fetched = hub.fetch(&wanted, &mut |progress| {
        let what = in_words(progress.stage);
        transfer.show(what, progress.file, progress.done_bytes, progress.all_bytes);
    });
    drop(transfer);
    let fetched = fetched.map_err(|error| failure(&error))?;
    let present = match fetched.present_files {
        0 => String::new(),
        count => format!(", {count} of which were there"),
    };
    terminal::line(&format!(
        "{}: {} files, {}{present}; commit {}",
        command_line::quoted(folder.as_os_str()),
        fetched.files.len(),
        size(fetched.size_bytes),
        fetched.commit
    ))
}

/// The client of all downloads: the proxy and the authorities that the environment names.
pub(super) fn client() -> Result<HttpClient, Failure> {
    HttpClient::of_environment(&|name| std::env::var(name).ok()).or_bad_input()
}

/// The folder of `--out`, or the repository's name in the working directory.
fn folder(arguments: &FetchArguments) -> Result<PathBuf, Failure> {
    let name = arguments.repository.rsplit('/').next().unwrap_or_default();
    // Whether it is the name of a repository, the hub's crate says.
    Ok(out_folder(arguments)?.unwrap_or_else(|| PathBuf::from(name)))
}

/// What is being done with a file.
pub(super) fn in_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Comparing => "comparing",
        Stage::Downloading => "fetching",
    }
}

/// The folder of `--out`, if it is given.
pub(super) fn out_folder(arguments: &FetchArguments) -> Result<Option<PathBuf>, Failure> {
    let Some(out) = &arguments.out else {
        return Ok(None);
    };
    // A file that stands in the way is said before the hub is asked.
    let in_the_way = out.ancestors().find(|above| above.symlink_metadata().is_ok());
    match in_the_way {
        Some(above) if !above.is_dir() => Err(Failure::Input(format!(
            "`--out`: {} is no folder, and one is needed there; name another",
            Path::display(above)
        ))),
        _ => Ok(Some(out.clone())),
    }
}

/// What the user named wrongly is bad input; the rest failed.
pub(super) fn failure(error: &HubError) -> Failure {
    let text = error.to_string();
    match error {
        HubError::Name { .. }
        | HubError::NoRepository { .. }
        | HubError::NoRevision { .. }
        | HubError::NotAllowed { .. }
        | HubError::Weights { .. }
        | HubError::Exists { .. } => Failure::Input(text),
        _ => Failure::Run(text),
    }
}
