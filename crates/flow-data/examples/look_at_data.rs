//! Prints a few examples of both data sets as text, and what a prompt parses to.
//!
//! Run with `cargo run --release -p flow-data --example look_at_data`.

use flow_data::{Dataset, Digits, Image, Shapes, ShapesSettings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let digits = Digits::new()?;
    let shapes = Shapes::new(ShapesSettings::default())?;
    for dataset in [&digits as &dyn Dataset, &shapes] {
        let (Some(images), Some(tokens)) = (dataset.captioned_images(), dataset.tokenized()) else {
            continue;
        };
        println!(
            "{}: {} images of {}, {} prompts to train on, {} held out, {} tokens",
            dataset.name(),
            images.len(),
            images.image_shape(),
            dataset.train_prompts().len(),
            dataset.held_out_prompts().len(),
            tokens.vocabulary().len(),
        );
        for index in [3, 14] {
            let example = images.example(index)?;
            println!(
                "\nexample {index}: \"{}\" {:?}",
                example.prompt.text, example.prompt.tokens
            );
            print_image(&example.image);
        }
        println!();
    }
    let prompt = shapes.parse_prompt("a blue square, left")?;
    println!(
        "\"a blue square, left\" is prompt {}: {:?}",
        prompt.id, prompt.spec
    );
    if let Err(error) = digits.parse_prompt("blod 7") {
        println!("{error}");
    }
    Ok(())
}

/// One character per pixel, by the brightest channel.
fn print_image(image: &Image) {
    let ramp: Vec<char> = " .:-=+*#%@".chars().collect();
    for row in 0..image.height {
        let line: String = (0..image.width)
            .map(|column| {
                let value = (0..image.channels)
                    .map(|c| image.at(c, row, column))
                    .fold(-1.0, f32::max);
                ramp[((value + 1.0) / 2.0 * (ramp.len() - 1) as f32).round() as usize]
            })
            .collect();
        println!("{line}");
    }
}
