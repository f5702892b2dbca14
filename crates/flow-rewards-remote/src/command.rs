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

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flow_registry::NameTaken;
use flow_rewards::{Reward, RewardError, RewardFactory, RewardKind, RewardRegistry, RewardSample};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::in_order::in_order;
use crate::picture::{images, png};
use crate::waits::{Waits, number_of};
use pool::Pool;
use process::{Fault, Program};

const NAME: &str = "command";

/// Settings of [`CommandReward`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandSettings {
    /// The program and its arguments: `["python3", "scorer.py"]`. It runs in the folder of the config, and no shell reads the words.
    #[schemars(length(min = 1, max = 1000))]
    pub command: Vec<String>,
    /// Processes of the program, started when they are needed.
    #[serde(default = "usual_processes")]
    #[schemars(range(min = 1, max = 64))]
    pub processes: usize,
    /// Seconds that one answer may take.
    #[serde(default = "usual_timeout_s")]
    #[schemars(range(min = 0.01, max = 86_400.0))]
    pub timeout_s: f64,
    /// Seconds that the first answer of a process may take, in which a program loads its model.
    #[serde(default = "usual_start_timeout_s")]
    #[schemars(range(min = 0.01, max = 86_400.0))]
    pub start_timeout_s: f64,
    /// How often a sample is given to a new process after one crashed or did not answer in time.
    #[serde(default = "usual_retries")]
    #[schemars(range(max = 1000))]
    pub retries: u32,
    /// Seconds before the first retry, of which jitter takes up to half. The wait doubles with each retry, up to a minute.
    #[serde(default = "usual_backoff_s")]
    #[schemars(range(min = 0.0, max = 60.0))]
    pub backoff_s: f64,
}

const fn usual_processes() -> usize {
    1
}

const fn usual_timeout_s() -> f64 {
    60.0
}

const fn usual_start_timeout_s() -> f64 {
    600.0
}

const fn usual_retries() -> u32 {
    3
}

const fn usual_backoff_s() -> f64 {
    1.0
}

impl CommandSettings {
    /// This program with its arguments, and the usual rest.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            processes: usual_processes(),
            timeout_s: usual_timeout_s(),
            start_timeout_s: usual_start_timeout_s(),
            retries: usual_retries(),
            backoff_s: usual_backoff_s(),
        }
    }

    /// What is wrong with them, with the name of the parameter.
    fn problem(&self) -> Option<String> {
        let seconds = 0.01..=86_400.0;
        let times = [
            ("timeout_s", self.timeout_s),
            ("start_timeout_s", self.start_timeout_s),
        ];
        let wrong_time = times.iter().find(|(_, value)| !seconds.contains(value));
        if self.command.first().is_none_or(String::is_empty) {
            Some("`command`: there is no program; write [\"python3\", \"scorer.py\"]".to_owned())
        } else if !(1..=64).contains(&self.processes) {
            Some(format!("`processes`: {} is not from 1 to 64", self.processes))
        } else if let Some((name, value)) = wrong_time {
            Some(format!("`{name}`: {value} is not from 0.01 to 86400"))
        } else if self.retries > 1000 {
            Some(format!("`retries`: {} is more than 1000", self.retries))
        } else if !(0.0..=60.0).contains(&self.backoff_s) {
            Some(format!("`backoff_s`: {} is not from 0 to 60", self.backoff_s))
        } else {
            None
        }
    }
}

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
        let folder = tempfile::Builder::new().prefix("flow-train-reward-").tempdir_in(temporary);
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
