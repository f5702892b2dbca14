//! Trains the two classifiers that come with the crate, and writes their weight files.
//!
//! `cargo run --release -p flow-rewards --example train_classifier [FOLDER]`; without a folder, into the crate's
//! `assets`.
//! The files are the same, bit for bit, on every run.

use std::path::PathBuf;
use std::time::Instant;

use flow_data::Digits;
use flow_rewards::classifier::{ClassifierTraining, train_classifier};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from("crates/flow-rewards/assets"));
    std::fs::create_dir_all(&folder)?;
    let digits = Digits::new()?;
    let trainings = [
        ("digits-classifier.safetensors", ClassifierTraining::default()),
        ("digits-judge.safetensors", ClassifierTraining::judge()),
    ];
    for (file, settings) in trainings {
        let started = Instant::now();
        let (classifier, report) = train_classifier(&settings, &digits)?;
        let path = folder.join(file);
        classifier.save(&path)?;
        println!(
            "{}: {} bytes, {} updates in {:.1} s; accuracy {:.4} on training images, {:.4} on {} validation images, \
             {:.4} on the same with noise",
            path.display(),
            std::fs::metadata(&path)?.len(),
            report.steps,
            started.elapsed().as_secs_f64(),
            report.train_accuracy,
            report.val_accuracy,
            report.val_images,
            report.noisy_val_accuracy,
        );
    }
    Ok(())
}
