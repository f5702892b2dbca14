//! A temporary folder with a tiny config, and the command run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A model of two layers that iterates in milliseconds. Its sizes are no powers of two on purpose, where they may be.
pub const CONFIG: &str = r#"# A run for tests.
config_version = 1

[run]
name = "tiny"
steps = 2
seed = 5

[model]
weights = "tiny.safetensors"

[model.dit]
hidden = 16
layers = 2
heads = 2
conditioning = { kind = "tokens", vocabulary = 15, max_tokens = 2 }

[data]
kind = "digits"

[pretrain]
steps = 3
batch = 5
warmup = 1
output = "tiny.safetensors"

[pretrain.classifier]
enabled = false

[[rewards]]
kind = "digit-classifier"
weights = "built-in"

[scheduler]
steps = 4

[sampling]
prompts_per_step = 3
group_size = 4
micro_batch = 6

[optimizer]
learning_rate = 1e-2

[evaluation]
every = 1
prompts = 3
images_per_prompt = 2

[checkpoints]
every = 1
keep = 3
"#;

/// A folder for one test.
pub struct Place {
    folder: TempDir,
}

/// What a command left.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    /// With the config `tiny.toml` and no weights.
    pub fn bare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tiny.toml"), CONFIG).unwrap();
        Self { folder }
    }

    /// With the config and the weights that it starts from.
    pub fn new() -> Self {
        let place = Self::bare();
        place.succeed(&["pretrain", "tiny.toml", "--quiet"]);
        place
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap()
    }

    /// Writes `tiny.toml` anew, changed.
    pub fn edit(&self, change: impl FnOnce(String) -> String) {
        std::fs::write(self.path("tiny.toml"), change(CONFIG.to_owned())).unwrap();
    }

    /// The command, ready to start.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flow-train"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).output().unwrap())
    }

    /// Runs what must work and gives its standard output.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:#?}");
        outcome.stdout
    }

    /// Runs what must fail with `code` and gives its standard error.
    pub fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {outcome:#?}");
        outcome.stderr
    }

    /// Every file below the folder, sorted, relative.
    pub fn files(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, out: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, out);
                } else {
                    out.push(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
                }
            }
        }
        let mut out = Vec::new();
        walk(self.folder.path(), self.folder.path(), &mut out);
        out.sort();
        out
    }
}

impl Outcome {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Asserts that `text` contains each of `parts`, which a message may break into lines.
#[track_caller]
pub fn contains(text: &str, parts: &[&str]) {
    // A message and its help, each in one line.
    let joined = text.replace("\n  │ ", " ").replace("\n        ", " ");
    for part in parts {
        assert!(
            text.contains(part) || joined.contains(part),
            "{part:?} is not in:\n{text}"
        );
    }
}
