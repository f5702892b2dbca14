//! Converts a Flow-Factory config: `cargo run --release -p flow-import --example import -- FILE`. The TOML goes to
//! standard output, the notes to standard error. Without a file it converts a small text.

use std::process::ExitCode;

const TEXT: &str = "\
model: {model_type: sd3-5, finetune_type: lora, lora_rank: 32}
train: {trainer_type: grpo, group_size: 24, learning_rate: 3.0e-4, max_epochs: 200}
rewards: {name: text, reward_model: ocr}
";

fn main() -> ExitCode {
    let text = match std::env::args().nth(1) {
        None => TEXT.to_owned(),
        Some(file) => match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{file} cannot be read: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    match flow_import::import(&text) {
        Ok(imported) => {
            for note in &imported.notes {
                eprintln!("{}{note}", if note.needs_attention { "! " } else { "  " });
            }
            print!("{}", imported.toml);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
