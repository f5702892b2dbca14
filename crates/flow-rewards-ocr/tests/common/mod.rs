//! What the tests share: pictures, and samples of them.
#![allow(dead_code, reason = "each test takes what it needs")]

use flow_data::{Image, ImageShape, Prompt};
use flow_rewards::{Reward, RewardError, RewardSample};
use std::path::PathBuf;

/// A file of `tests/fixtures`; `make.py` there wrote it.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A picture of `tests/fixtures`.
pub fn picture(name: &str) -> Image {
    let rgb = image::open(fixture(name)).unwrap().to_rgb8();
    Image::from_rgb8(rgb.height() as usize, rgb.width() as usize, rgb.as_raw()).unwrap()
}

/// A grey image.
pub fn grey(height: usize, width: usize) -> Image {
    let shape = ImageShape {
        channels: 1,
        height,
        width,
    };
    Image::filled(shape, 0.0)
}

/// Paints a rectangle from `[top, left]` of `[height, width]` in a colour, each channel -1 or 1.
pub fn paint(image: &mut Image, [top, left]: [usize; 2], [height, width]: [usize; 2], colour: [f32; 3]) {
    for (channel, value) in colour.into_iter().enumerate() {
        for row in top..top + height {
            let first = (channel * image.height + row) * image.width + left;
            image.pixels_chw[first..first + width].fill(value);
        }
    }
}

/// The scores of images, each with its prompt.
pub fn scores(reward: &dyn Reward, images: &[(&Image, &Prompt)]) -> Result<Vec<f32>, RewardError> {
    let sample = |&(image, prompt): &(_, _)| RewardSample {
        image,
        frames: &[],
        prompt,
    };
    let samples: Vec<RewardSample<'_>> = images.iter().map(sample).collect();
    reward.score(&samples)
}
