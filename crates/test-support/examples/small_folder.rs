//! Writes the diffusers folder of a small pipeline of random weights, to try commands on that take a published model:
//! `cargo run --release --package test-support --example small_folder -- sd3 small-sd3`.

use std::path::Path;
use std::process::ExitCode;

use test_support::{PIPELINES, write_pipeline_folder};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = &arguments[..] else {
        eprintln!("usage: small_folder NAME FOLDER; names: {}", PIPELINES.join(", "));
        return ExitCode::from(2);
    };
    if !PIPELINES.contains(&name.as_str()) {
        eprintln!(
            "there is no small pipeline `{name}`; there are: {}",
            PIPELINES.join(", ")
        );
        return ExitCode::from(2);
    }
    if Path::new(folder).exists() {
        eprintln!("`{folder}` exists; name a folder that does not");
        return ExitCode::from(2);
    }
    write_pipeline_folder(name, Path::new(folder));
    println!("{folder}");
    ExitCode::SUCCESS
}
