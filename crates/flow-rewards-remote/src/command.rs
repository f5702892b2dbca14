//! `command`: scores of a program of the user's, in any language.
//!
//! The program is started once and fed by one JSON object a line: `{"id":0,"prompt":"…","metadata":{…},"image":"/…/0.png"}`, of a
//! video with its frames beside it (`"frames":["/…/0.png",…]`). It answers each with one line: `{"id":0,"reward":0.5}`, or
//! `{"id":0,"error":"…"}`. It ends when its standard input does.
//! Images are PNG files in a folder that only this user can read; a file is there until its line is answered, the folder until
//! the reward is dropped.

mod answer;
mod pool;
mod process;
mod settings;

pub use settings::CommandSettings;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};
use serde::Serialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::in_order::in_order;
use crate::picture::{images, png};
use crate::waits::{Waits, number_of};
use pool::Pool;
use process::{Fault, Program};

const NAME: &str = "command";

/// One line of the program's standard input.
#[derive(Serialize)]
struct Request<'a> {
    id: u64,
    prompt: &'a str,
    metadata: &'a Map<String, Value>,
    image: &'a Path,
    #[serde(skip_serializing_if = "<[PathBuf]>::is_empty")]
    frames: &'a [PathBuf],
}

/// The files of one sample, which are removed with it.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            // What cannot be removed now goes with the folder.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Scores of a program; see the module's description.
#[derive(Debug)]
pub struct CommandReward {
    settings: CommandSettings,
    pool: Pool,
    waits: Waits,
    next_id: AtomicU64,
    // Behind the pool: a folder goes after the processes that read it.
    folder: TempDir,
}

impl CommandReward {
    /// The reward with these settings; the program runs in `base`. It is not started yet.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a value outside its range; [`RewardError::Workers`] if there is no place for temporary files.
    pub fn new(settings: CommandSettings, base: &Path) -> Result<Self, RewardError> {
        if let Some(problem) = settings.problem() {
            return Err(RewardError::Params {
                reward: NAME.to_owned(),
                problem,
            });
        }
        let no_folder = |error: std::io::Error| RewardError::Workers {
            problem: format!("there is no place for the images of the reward `{NAME}`: {error}"),
        };
        // The program runs elsewhere, so a relative path would lead elsewhere.
        let temporary = std::path::absolute(std::env::temp_dir()).map_err(no_folder)?;
        let folder = private_folder(temporary);
        let program = Program {
            command: settings.command.clone(),
            base: base.to_owned(),
            timeout: Duration::from_secs_f64(settings.timeout_s),
            start_timeout: Duration::from_secs_f64(settings.start_timeout_s),
        };
        Ok(Self {
            pool: Pool::new(program, settings.processes),
            waits: Waits::new(settings.backoff_s),
            next_id: AtomicU64::new(0),
            folder: folder.map_err(no_folder)?,
            settings,
        })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        let reward = RewardFactory::new::<CommandSettings>(
            NAME,
            "The scores of a program in any language, fed by lines of JSON and PNG files.",
            RewardKind::Pointwise,
            |context, settings| Ok(Arc::new(Self::new(settings, context.base)?)),
        );
        registry.register(reward)
    }

    /// Writes the images of a sample.
    fn write(&self, id: u64, index: usize, sample: &RewardSample<'_>) -> Result<Files, RewardError> {
        let mut files = Files(Vec::new());
        for (frame, image) in images(sample).iter().enumerate() {
            let file = png(index, sample, image)?;
            let name = if sample.frames.is_empty() {
                format!("{id}.png")
            } else {
                format!("{id}-{frame}.png")
            };
            let path = self.folder.path().join(name);
            files.0.push(path.clone());
            std::fs::write(&path, file).map_err(|error| RewardError::Sample {
                index,
                problem: format!("its image cannot be written to {}: {error}", path.display()),
            })?;
        }
        Ok(files)
    }

    fn score_one(&self, index: usize, sample: &RewardSample<'_>) -> Result<f32, RewardError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let files = self.write(id, index, sample)?;
        let request = Request {
            id,
            prompt: &sample.prompt.text,
            metadata: &sample.prompt.metadata,
            image: &files.0[0],
            frames: if sample.frames.is_empty() { &[] } else { &files.0 },
        };
        let failed = |problem: String| RewardError::Sample { index, problem };
        let mut line = serde_json::to_vec(&request)
            .map_err(|error| failed(format!("its line cannot be written as JSON: {error}")))?;
        line.push(b'\n');
        let mut attempt = 0;
        loop {
            let mut lease = self.pool.take();
            let fault = match lease.ask(&line).and_then(|answered| answer::score(&answered, id)) {
                Ok(score) => return Ok(score),
                Err(fault) => fault,
            };
            let last_lines = lease.end();
            drop(lease);
            attempt += 1;
            let (what, is_final) = match fault {
                Fault::Passing(what) => (what, attempt > self.settings.retries),
                Fault::Lasting(what) => (what, true),
            };
            if is_final {
                let attempts = if attempt == 1 { "attempt" } else { "attempts" };
                return Err(failed(format!(
                    "no score after {attempt} {attempts}: `{}` {what}{last_lines}",
                    self.settings.command.join(" ")
                )));
            }
            std::thread::sleep(self.waits.before(attempt, number_of(&line)));
        }
    }
}

impl Reward for CommandReward {
    fn name(&self) -> &str {
        NAME
    }

    fn takes_videos(&self) -> bool {
        true
    }

    /// Asks all processes at once.
    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        in_order(samples.len(), self.settings.processes, |index| {
            self.score_one(index, &samples[index])
        })
    }
}

/// A folder in `parent` that only this user can read.
fn private_folder(parent: PathBuf) -> std::io::Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("flow-train-reward-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        folder.permissions(std::fs::Permissions::from_mode(0o700));
    }
    folder.tempdir_in(parent)
}
