//! Images as PNG: 8-bit RGB, values clamped to [-1, 1] and rounded to 0 to 255.

use flow_data::Image;
use flow_rewards::{RewardError, RewardSample, check_finite};
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// The images of a sample: the frames of a video, or the one image.
pub(crate) fn images<'a>(sample: &RewardSample<'a>) -> &'a [Image] {
    match sample.frames {
        [] => std::slice::from_ref(sample.image),
        frames => frames,
    }
}

/// An image of `sample`, which has the position `index`, as a PNG file. Grey is repeated on the three channels.
///
/// # Errors
/// [`RewardError::Sample`] for NaN, an infinity, and an image without pixels.
pub(crate) fn png(index: usize, sample: &RewardSample<'_>, image: &Image) -> Result<Vec<u8>, RewardError> {
    let alone = RewardSample {
        image,
        frames: &[],
        prompt: sample.prompt,
    };
    check_finite(index, &alone)?;
    let failed = |problem: String| RewardError::Sample { index, problem };
    let (Ok(width), Ok(height)) = (u32::try_from(image.width), u32::try_from(image.height)) else {
        return Err(failed(format!(
            "an image of {} is too large for PNG",
            image.shape()
        )));
    };
    if image.shape().is_empty() {
        return Err(failed(format!("an image of {} has no pixels", image.shape())));
    }
    let mut file = Vec::new();
    PngEncoder::new(&mut file)
        .write_image(&image.to_rgb8(), width, height, ExtendedColorType::Rgb8)
        .map_err(|error| failed(format!("cannot be encoded as PNG: {error}")))?;
    Ok(file)
}
