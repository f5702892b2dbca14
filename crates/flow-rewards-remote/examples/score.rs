//! Scores five digits by a server or by a program.
//!
//! Run with `cargo run --release -p flow-rewards-remote --example score -- http://localhost:8000`, or with
//! `-- python3 crates/flow-rewards-remote/examples/reward_command.py`.

use flow_data::{CaptionedImages, Digits};
use flow_rewards::{Reward, RewardSample};
use flow_rewards_remote::{CommandReward, CommandSettings, RemoteReward, RemoteSettings};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let reward: Box<dyn Reward> = match arguments.first() {
        None => return Err("name the URL of a server, or a program with its arguments".into()),
        Some(url) if url.starts_with("http") => {
            let settings = RemoteSettings::new([url.as_str()]);
            Box::new(RemoteReward::new(settings, &|_| None)?)
        }
        Some(_) => Box::new(CommandReward::new(
            CommandSettings::new(arguments),
            Path::new("."),
        )?),
    };
    let digits = Digits::new()?;
    for index in 0..5 {
        let example = digits.example(index)?;
        let sample = RewardSample {
            image: &example.image,
            frames: &[],
            prompt: &example.prompt,
        };
        println!("{:.4}  {}", reward.score(&[sample])?[0], example.prompt.text);
    }
    Ok(())
}
