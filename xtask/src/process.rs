//! Running other programs, with words about what failed.

use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Cargo in the top folder. It is the one that runs this task, so toolchain and target folder are the same.
pub fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    command.current_dir(workspace.root()).args(arguments);
    command
}

/// The command in words.
pub fn words(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let arguments = command
        .get_args()
        .map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(program.into_owned())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command to its end; what it prints is seen.
pub fn run(command: &mut Command) -> Result<()> {
    let words = words(command);
    say!("$ {words}");
    let status = command
        .status()
        .with_context(|| format!("cannot start `{words}`"))?;
    if !status.success() {
        bail!("`{words}` failed: {status}");
    }
    Ok(())
}

/// Runs a command and gives what it wrote to standard output; its errors are seen.
pub fn output(command: &mut Command) -> Result<String> {
    let words = words(command);
    let done = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{words}`"))?;
    if !done.status.success() {
        bail!(
            "`{words}` failed: {}\n{}",
            done.status,
            String::from_utf8_lossy(&done.stdout)
        );
    }
    String::from_utf8(done.stdout).with_context(|| format!("`{words}` wrote bytes that are no text"))
}

/// Whether a program answers to `--version`.
pub fn exists(program: &str) -> bool {
    let quiet = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    quiet.is_ok_and(|status| status.success())
}

/// Does one step of a longer task, naming it and its wall time.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say!("\n=== {name}");
    let start = Instant::now();
    let result = work();
    let outcome = if result.is_ok() { "ok" } else { "FAILED" };
    say!("=== {name}: {outcome}, {:.1} s", start.elapsed().as_secs_f64());
    result.with_context(|| format!("step `{name}`"))
}
