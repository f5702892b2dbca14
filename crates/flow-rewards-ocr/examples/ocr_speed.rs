//! Times the OCR reward: `ocr_speed FOLDER IMAGES REPEATS` prints a line of JSON with images a second, where FOLDER has PP-OCR's ONNX
//! files. The picture is the sign of the tests. `cargo xtask bench rewards --ocr FOLDER` runs it.

use flow_data::{Image, Prompt};
use flow_rewards::{Reward, RewardSample};
use flow_rewards_ocr::{OcrReward, OcrSettings};
use serde_json::json;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, images, repeats] = arguments.as_slice() else {
        return Err("three arguments: the folder of the ONNX files, images a call, repeats".into());
    };
    let (count, repeats): (usize, usize) = (images.parse()?, repeats.parse()?);
    if count == 0 || repeats == 0 {
        return Err("images and repeats must be at least 1".into());
    }
    let begun = Instant::now();
    let reward = OcrReward::new(OcrSettings::new(folder))?;
    let load_s = begun.elapsed().as_secs_f64();
    let sign = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sign.png");
    let rgb = image::open(sign)?.to_rgb8();
    let image = Image::from_rgb8(rgb.height() as usize, rgb.width() as usize, rgb.as_raw())?;
    let prompt = Prompt::free(0, "a shop sign that says \"Spring Sale Collection 2024\"");
    let sample = RewardSample {
        image: &image,
        frames: &[],
        prompt: &prompt,
    };
    let samples = vec![sample; count];
    // What is made at the first call does not count.
    reward.score(&samples[..1])?;
    let mut images_per_s = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let begun = Instant::now();
        reward.score(&samples)?;
        images_per_s.push(count as f64 / begun.elapsed().as_secs_f64());
    }
    let found = json!({
        "reward": "ocr", "values": 0, "images": count, "side": image.width, "load_s": load_s, "images_per_s": images_per_s,
    });
    println!("{found}");
    Ok(())
}
