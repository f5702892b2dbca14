//! Running other programs, with words about what failed.

use crate::skips::Skips;
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Tasks of Cargo that compile.
const BUILDS: [&str; 5] = ["build", "check", "clippy", "doc", "test"];

/// Cargo in the top folder. It is the one that runs this task, so toolchain and target folder are the same.
pub fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    command.current_dir(workspace.root());
    match (workspace.build_config(), arguments) {
        (Some(config), [task, rest @ ..]) if BUILDS.contains(task) => {
            command.args([*task, "--config", config]).args(rest)
        }
        _ => command.args(arguments),
    };
    command
}

/// `KEY="TEXT"`, as `--set` takes a path.
pub fn set_path(key: &str, path: &Path) -> String {
    format!("{key}={}", toml::Value::from(path.to_string_lossy().into_owned()))
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

/// Builds and runs tests to their end; what is printed is seen, and what tests say that they left out is noted. Gives what the
/// compiler says of each crate that it warned of.
pub fn run_tests(command: &mut Command, skips: &mut Skips) -> Result<Vec<String>> {
    let words = words(command);
    say!("$ {words}");
    let mut running = command
        // Marks of colour would stand before the words that are looked for.
        .env("CARGO_TERM_COLOR", "never")
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{words}`"))?;
    let mut warnings = Vec::new();
    if let Some(errors) = running.stderr.take() {
        let mut errors = BufReader::new(errors);
        let mut line = Vec::new();
        while errors.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            eprint!("{text}");
            skips.hear(&text);
            if text.starts_with("warning: `") && text.contains("` (") {
                warnings.push(text.trim_end().to_owned());
            }
            line.clear();
        }
    }
    let status = running.wait()?;
    if !status.success() {
        bail!("`{words}` failed: {status}");
    }
    Ok(warnings)
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
