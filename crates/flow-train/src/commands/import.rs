//! `import`: a Flow-Factory config as one of ours.

use super::nearest;
use crate::arguments::ExistingFile;
use crate::failure::{Failure, OrFailure};
use crate::output::Output;
use crate::terminal;
use flow_train::Registries;
use std::path::Path;

/// Prints the TOML, or writes it to a file that is not there yet; says on standard error whether it can be trained here and
/// what changes the result, or with `all_notes` what became of each key.
pub fn run(yaml: &Path, out: Option<&Path>, on_exists: ExistingFile, all_notes: bool) -> Result<(), Failure> {
    let output = out.map(|path| Output::at(path, "--out", on_exists)).transpose()?;
    let name = yaml.display();
    let bytes = flow_config::read_file(yaml).map_err(|error| {
        let is_yaml = |path: &Path| nearest::has_ending(path, "yaml") || nearest::has_ending(path, "yml");
        let hint = nearest::path_in_words(yaml, is_yaml);
        Failure::Input(format!("cannot read {name}: {error}; check the path{hint}"))
    })?;
    let imported = flow_import::import_bytes(&bytes, &Registries::built_in().or_failed()?.catalog())
        .map_err(|error| Failure::Input(format!("{name}: {error}")))?;
    let notes = if all_notes {
        imported.all_notes()
    } else {
        format!("{}--all-notes says what became of each key\n", imported.summary())
    };
    terminal::note(notes.trim_end());
    let Some(output) = output else {
        return terminal::print(&imported.toml);
    };
    output.make_room_and_say()?;
    let out = output.path();
    flow_report::atomic_write(out, "config", |file| file.write_all(imported.toml.as_bytes())).or_failed()?;
    terminal::line(&format!("{}: {}", out.display(), imported.verdict))
}
