//! Scores a picture by the CLIP in a folder: `-- FOLDER "a red fox" picture.png`.

use flow_data::{Image, Prompt};
use flow_rewards::{Reward, RewardSample};
use flow_rewards_models::{ClipScore, ClipScoreSettings, Computation};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, text, picture] = arguments.as_slice() else {
        return Err("three arguments: the folder of a CLIP, a prompt, a picture (PNG or JPEG)".into());
    };
    let rgb = image::open(picture)?.to_rgb8();
    let (width, height) = (rgb.width() as usize, rgb.height() as usize);
    let image = Image::from_rgb8(height, width, rgb.as_raw())?;
    let reward = ClipScore::new(&ClipScoreSettings::new(folder), &Computation::processor())?;
    let sample = RewardSample {
        image: &image,
        frames: &[],
        prompt: &Prompt::free(0, text),
    };
    println!("{}", reward.score(&[sample])?[0]);
    Ok(())
}
