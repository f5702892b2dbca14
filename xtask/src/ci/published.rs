//! What needs published models: PP-OCR's own files for the tests, and the words job as it stands in the repository, cut short.

use crate::pip;
use crate::process::{run as run_command, set_path};
use crate::terminal::say;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The reader's package, and where it goes, with its version.
const PACKAGE: &str = "xtask/ocr-models.txt";
const FOLDER: &str = "rapidocr-3.10.0";

/// What the tests call the folder of the reader's files.
const OCR_MODELS: &str = "FLOW_TRAIN_OCR_MODELS";

const JOB: &str = "configs/words-grpo.toml";

/// The models of the job, below the target folder.
const MODELS: &str = "words-models";

/// The autoencoder's two halves, and where a checkout may have them beside it. They are on GitHub, which not every machine reaches that
/// reaches PyPI. `fetch` takes what is there, if its hash is right.
const HALVES: [&str; 2] = ["taesd3_decoder.safetensors", "taesd3_encoder.safetensors"];
const BESIDE: &str = "../shared/fixtures/autoencoders";

/// Certificates that the system trusts, those of its network's proxy among them.
const TRUSTED: (&str, &str) = ("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt");

/// A job of seconds: few words, few pictures.
const SHORT: [&str; 8] = [
    "data.words=80",
    "sampling.prompts_per_step=2",
    "sampling.group_size=4",
    "sampling.micro_batch=8",
    "optimizer.gradient_accumulation=0",
    "evaluation.prompts=8",
    "evaluation.images_per_prompt=3",
    "evaluation.grid={ rows = 2, columns = 2 }",
];

/// What the second half of the job is told.
const RESUMED: [&str; 2] = ["--resume", "latest"];

/// Least reward before training: the weights read 0.74 over all held-out words and 0.77 over those of `SHORT`, where weights of 1,800 steps
/// of pretraining read 0.55, and pictures of other words about 0.1.
const LEAST_READ: f64 = 0.6;

/// The variable that names PP-OCR's files to the tests, if they can be had.
pub(super) fn reader(workspace: &Workspace) -> Result<(&'static str, PathBuf)> {
    let place = pip::fetched(workspace, "python3", PACKAGE, FOLDER)?;
    Ok((OCR_MODELS, place.join("rapidocr").join("models")))
}

/// The words job for an iteration, and for another one that goes on. Gives the reason if its models cannot be had, which is no failure
/// of ours.
pub(super) fn words_job(workspace: &Workspace) -> Result<Option<String>> {
    let release = workspace.release_folder()?;
    let models = release.parent().unwrap_or(&release).join(MODELS);
    take_autoencoder(workspace, &models.join("taesd3"))?;
    let program = workspace.program()?;
    let mut fetch = Command::new(&program);
    fetch.args(["fetch", "words", "--quiet", "--out"]).arg(&models);
    let (variable, file) = TRUSTED;
    if std::env::var_os(variable).is_none() && Path::new(file).is_file() {
        fetch.env(variable, file);
    }
    if let Err(error) = run_command(&mut fetch) {
        return Ok(Some(format!("its models cannot be fetched: {error:#}")));
    }
    let folder = tempfile::tempdir()?;
    for (steps, resume) in [("run.steps=1", &RESUMED[..0]), ("run.steps=2", &RESUMED[..])] {
        let mut train = Command::new(&program);
        train
            .current_dir(workspace.root())
            .args(["train", JOB, "--quiet", "--set", steps]);
        train.args(settings(folder.path(), &models)).args(resume);
        run_command(&mut train)?;
    }
    expect_read(&folder.path().join("words-grpo"))?;
    Ok(None)
}

/// Copies the autoencoder from beside the checkout, if it is there.
fn take_autoencoder(workspace: &Workspace, to: &Path) -> Result<()> {
    for half in HALVES {
        let (from, to_file) = (workspace.root().join(BESIDE).join(half), to.join(half));
        if from.is_file() && !to_file.exists() {
            fs::create_dir_all(to)?;
            fs::copy(&from, &to_file).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}

/// `--set` before each of the job's settings.
fn settings(runs: &Path, models: &Path) -> Vec<String> {
    let mut values = vec![
        set_path("run.dir", runs),
        set_path("model.autoencoder", &models.join("taesd3")),
        set_path("text.path", &models.join("minilm")),
    ];
    for reward in ["rewards.0", "eval_rewards.0", "eval_rewards.1"] {
        values.push(set_path(&format!("{reward}.path"), &models.join("ocr")));
    }
    values.extend(SHORT.map(str::to_owned));
    values
        .into_iter()
        .flat_map(|value| ["--set".to_owned(), value])
        .collect()
}

/// The run reads what it should before training, and its ratios were exactly 1.
fn expect_read(run: &Path) -> Result<()> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl"))?;
    let mut read = None;
    for line in metrics.lines() {
        let record: Value = serde_json::from_str(line)?;
        if record["kind"] == "eval" && record["step"] == 0 {
            read = record["reward/read"].as_f64();
        }
    }
    let read = read.context("the words job has no evaluation before its first iteration")?;
    if read < LEAST_READ {
        bail!(
            "the words job reads {read:.3} of its held-out words before training, not {LEAST_READ} at least"
        );
    }
    let summary: Value = serde_json::from_str(&fs::read_to_string(run.join("summary.json"))?)?;
    if summary["audit"]["result"] != "exact" {
        bail!(
            "the words job's ratios are not exactly 1 before the first optimizer step: {}",
            summary["audit"]
        );
    }
    say!("held-out words are read at {read:.3} before training");
    Ok(())
}
