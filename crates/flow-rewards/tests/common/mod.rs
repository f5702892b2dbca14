//! What several test files share.
#![allow(dead_code, reason = "every test file uses a part of it")]

use flow_data::{Dataset, Digits, Image, Prompt, Shapes, ShapesSettings};
use flow_rewards::RewardSample;
use flow_rng::{Purpose, Stream};

pub fn digits() -> Digits {
    Digits::new().unwrap()
}

pub fn shapes() -> Shapes {
    Shapes::new(ShapesSettings::default()).unwrap()
}

pub fn digit_prompt(text: &str) -> Prompt {
    digits().parse_prompt(text).unwrap()
}

pub fn scene_prompt(text: &str) -> Prompt {
    shapes().parse_prompt(text).unwrap()
}

pub fn sample<'a>(image: &'a Image, prompt: &'a Prompt) -> RewardSample<'a> {
    RewardSample {
        image,
        frames: &[],
        prompt,
    }
}

/// The image with normal noise added.
pub fn noisy(image: &Image, deviation: f32, seed: u64) -> Image {
    let mut stream = Stream::new(seed, Purpose::Test).at(0, 0);
    let mut image = image.clone();
    image
        .pixels_chw
        .iter_mut()
        .for_each(|value| *value += deviation * stream.normal() as f32);
    image
}
