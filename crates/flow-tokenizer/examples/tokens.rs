//! Prints the tokens of prompts: `cargo run --release -p flow-tokenizer --example tokens -- FOLDER PROMPT…`

use flow_tokenizer::{Length, Tokenizer};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/clip-l").into());
    let mut prompts: Vec<String> = arguments.collect();
    if prompts.is_empty() {
        prompts.push("a photo of a cat".into());
    }
    let tokenizer = Tokenizer::open(Path::new(&folder))?;
    let longest = tokenizer.longest_row().unwrap_or(1024);
    let batch = tokenizer.encode(&prompts, Length::LongestUpTo(longest))?;
    println!("{}, padded with {}", tokenizer.class().name(), tokenizer.pad_id());
    for (row, prompt) in prompts.iter().enumerate() {
        println!("{prompt}\n  {:?}", batch.row_ids(row));
        if let Some(cut) = batch.cut[row] {
            println!(
                "  {} tokens are left out, from here: {}",
                cut.tokens,
                &prompt[cut.at..]
            );
        }
    }
    Ok(())
}
