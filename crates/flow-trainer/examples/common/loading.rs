//! How long it takes to open weights: from files to the types in which a device keeps them.

use super::workload_options::Options;
use super::workloads::Workload;
use super::{Failure, Job, Origin, opening};
use burn::backend::TensorMetadata;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Prints a line of JSON for each time that the weights of `file` were opened; round 0 also opens the device, and may
/// read from the disk what later ones read from the system's cache.
///
/// # Errors
/// Files that do not fit the workload.
pub fn time(workload: &Workload, file: &Path, options: &Options) -> Result<(), Failure> {
    for round in 0..=options.repeats {
        let start = Instant::now();
        let job = Job::new(workload.clone(), Origin::File(file), options)?;
        // What an asynchronous device has not done yet is waited for.
        job.weights.host(job.trained.len() - 1);
        let seconds = start.elapsed().as_secs_f64();
        let bytes: usize = (job.weights.stored().iter())
            .map(|value| value.shape().num_elements() * value.dtype().size())
            .sum();
        let (device, workload) = (job.device.clone(), job.workload.name);
        let taken = opening::peak_gib(&device);
        drop(job);
        device.release_unused();
        println!(
            "{}",
            json!({
                "program": "flow-train", "workload": workload, "part": "load", "device": device.name(), "round": round,
                "seconds": seconds, "stored_gib": bytes as f64 / (1u64 << 30) as f64, "peak_gib": taken,
            })
        );
    }
    Ok(())
}
