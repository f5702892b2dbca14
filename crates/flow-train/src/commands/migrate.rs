//! `migrate`: an older config, brought up to date.

use super::nearest;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Prints the new text, or writes it with `write`; says on standard error what was changed.
pub fn run(config: &Path, write: bool) -> Result<(), Failure> {
    let name = config.display();
    let read = flow_config::read_file(config);
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let old = text.map_err(|error| {
        let nearest = nearest::nearest_config(config).filter(|_| !config.exists());
        let hint = nearest.map_or("check the path".into(), |path| {
            format!("did you mean `{}`?", path.display())
        });
        Failure::Input(format!("cannot read the config {name}: {error}; {hint}"))
    })?;
    let (new, changes) = match flow_config::migrate(&old) {
        Ok(migrated) => migrated,
        Err(report) => return Err(Failure::Config(Box::new(report))),
    };
    for change in &changes {
        let mark = if change.needs_attention { "look at " } else { "" };
        let keys = match (change.from.as_str(), change.to.as_str()) {
            ("", to) => format!("`{to}`"),
            (from, "") => format!("`{from}`"),
            (from, to) if from == to => format!("`{to}`"),
            (from, to) => format!("`{from}` -> `{to}`"),
        };
        terminal::note(&format!("{mark}{keys}: {}", change.note));
    }
    if new == old {
        let text = format!("{name} is up to date; there is nothing to do");
        // What reads standard output expects a config there.
        if write || terminal::stdout_is_terminal() {
            return terminal::line(&text);
        }
        terminal::note(&text);
    }
    if !write {
        return terminal::print(&new);
    }
    let kept = beside(config)?;
    fs::copy(config, &kept).map_err(|error| {
        Failure::Run(format!(
            "cannot keep the old config as {}: {error}",
            kept.display()
        ))
    })?;
    flow_report::atomic_write(config, "config", |out| out.write_all(new.as_bytes())).or_failed()?;
    terminal::line(&format!(
        "{name} is up to date; the old one is {}",
        kept.display()
    ))
}

/// A free name beside the config for the old one.
fn beside(config: &Path) -> Result<PathBuf, Failure> {
    let mut name: OsString = config.as_os_str().to_owned();
    name.push(".old");
    let path = PathBuf::from(name);
    if path.symlink_metadata().is_ok() {
        let text = format!(
            "{} is there already; move it away, so that it is not lost",
            path.display()
        );
        return Err(Failure::Input(text));
    }
    Ok(path)
}
