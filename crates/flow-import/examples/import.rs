//! Converts a Flow-Factory config: `cargo run --release -p flow-import --example import -- FILE`. The TOML goes to
//! standard output, the verdict and the notes to standard error. Without a file it converts a small text; a folder gives
//! the verdict of every YAML below it, in a table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const TEXT: &str = "\
model: {model_type: sd3-5, finetune_type: lora, lora_rank: 32}
train: {trainer_type: grpo, group_size: 24, learning_rate: 3.0e-4, max_epochs: 200}
rewards: {name: text, reward_model: ocr}
";

fn main() -> ExitCode {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    if let Some(folder) = given.as_ref().filter(|path| path.is_dir()) {
        let mut files = Vec::new();
        yamls(folder, &mut files);
        files.sort();
        for file in files {
            let name = file.strip_prefix(folder).unwrap_or(&file).display();
            match std::fs::read(&file) {
                Ok(bytes) => match flow_import::import_bytes(&bytes, &test_catalog::CATALOG) {
                    Ok(imported) => println!("{name}\t{}", imported.verdict),
                    Err(error) => println!("{name}\trefused: {error}"),
                },
                Err(error) => println!("{name}\tunreadable: {error}"),
            }
        }
        return ExitCode::SUCCESS;
    }
    let bytes = match given {
        None => TEXT.as_bytes().to_vec(),
        Some(file) => match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("{} cannot be read: {error}", file.display());
                return ExitCode::FAILURE;
            }
        },
    };
    match flow_import::import_bytes(&bytes, &test_catalog::CATALOG) {
        Ok(imported) => {
            eprint!("{}", imported.summary());
            print!("{}", imported.toml);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn yamls(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            yamls(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}
