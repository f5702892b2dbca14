//! Scores a batch of digits on worker threads: real ones, faint ones and noise.
//!
//! Run with `cargo run --release -p flow-rewards --example score_batch`.

use flow_data::{CaptionedImages, Digits};
use flow_rewards::{NamedReward, RewardRegistry, RewardWorkers, Sample};
use flow_rng::{Purpose, Stream};
use serde_json::{Value, json};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let registry = RewardRegistry::with_built_in()?;
    println!("rewards:");
    for factory in registry.iter() {
        println!(
            "  {:22} {:?}: {}",
            factory.name(),
            factory.kind(),
            factory.summary()
        );
    }
    let build = |name: &str, params: Value| {
        let params = params.as_object().cloned().unwrap_or_default();
        registry.build(name, &params, Path::new("."))
    };
    let reads = build("digit-classifier", json!({ "weights": "built-in" }))?;
    let judge = build("digit-classifier", json!({ "weights": "judge" }))?;
    let rewards = vec![
        NamedReward {
            name: "reads".to_owned(),
            reward: reads,
        },
        NamedReward {
            name: "judge".to_owned(),
            reward: judge,
        },
        build("jpeg-compressibility", json!({ "quality": 95 }))?.into(),
    ];
    let workers = RewardWorkers::new(rewards, 2)?;

    let digits = Digits::new()?;
    let mut tickets = Vec::new();
    for (id, noise) in [0.0f32, 0.4, 0.8, 1.6].into_iter().enumerate() {
        let samples = (0..64u64).map(|index| {
            let example = digits.example(index)?;
            let mut stream = Stream::new(0, Purpose::Test).at(index, id as u32);
            let mut image = example.image;
            image
                .pixels_chw
                .iter_mut()
                .for_each(|value| *value += noise * stream.normal() as f32);
            Ok(Sample {
                frames: Vec::new(),
                image,
                prompt: example.prompt,
                group: index / 8,
            })
        });
        let samples: Vec<Sample> = samples.collect::<Result<_, flow_data::DataError>>()?;
        // The next batch is made while this one is scored.
        tickets.push((noise, workers.submit(samples, id as u64)?));
    }
    for (noise, ticket) in tickets {
        let batch = ticket.wait()?;
        println!("\nnoise {noise}, {:.2} ms", batch.wall_ms);
        for scores in &batch.rewards {
            println!("  {:22} {:8.3} ± {:.3}", scores.name, scores.mean, scores.std);
        }
    }
    Ok(())
}
