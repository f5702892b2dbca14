//! `import`: a Flow-Factory config as one of ours.

use crate::failure::{Failure, OrFailure};
use crate::terminal;
use std::fs;
use std::path::Path;

/// Prints the TOML, or writes it to a file that is not there yet; says on standard error what became of each key.
pub fn run(yaml: &Path, out: Option<&Path>) -> Result<(), Failure> {
    let name = yaml.display();
    let text = fs::read_to_string(yaml)
        .map_err(|error| Failure::Input(format!("cannot read {name}: {error}; check the path")))?;
    let imported = flow_import::import(&text).map_err(|error| Failure::Input(format!("{name}: {error}")))?;
    for note in &imported.notes {
        let mark = if note.needs_attention { "look at " } else { "" };
        terminal::note(&format!("{mark}{note}"));
    }
    let Some(out) = out else {
        return terminal::print(&imported.toml);
    };
    if out.symlink_metadata().is_ok() {
        return Err(Failure::Input(format!(
            "{} is there already; choose another name for `--out`",
            out.display()
        )));
    }
    flow_report::atomic_write(out, "config", |file| file.write_all(imported.toml.as_bytes())).or_failed()?;
    let attention = imported.notes.iter().filter(|note| note.needs_attention).count();
    terminal::line(&format!(
        "{}: {} keys looked at, {attention} need your eye",
        out.display(),
        imported.notes.len()
    ))
}
