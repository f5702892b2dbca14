//! Pixels as networks read them: resized to the shorter side, cropped to a square in the middle, normalised.
//!
//! Rewards differ in how they resize, and what they were published with is what they must be given: of the same image, the ways here
//! make pixels that differ by up to 0.3 in normalised units. Only what the crop keeps is computed.

mod float;
mod pillow;
mod taps;

use flow_data::Image;
use std::ops::Range;
use taps::Filter;

/// Colours of an image.
const COLOURS: usize = 3;
/// Mean of each colour that OpenAI's and LAION's CLIPs were trained with (transformers 5.24.0, `OPENAI_CLIP_MEAN`).
pub const CLIP_MEAN: [f32; COLOURS] = [0.48145466, 0.4578275, 0.40821073];
/// Standard deviation of each colour (transformers 5.24.0, `OPENAI_CLIP_STD`).
pub const CLIP_STD: [f32; COLOURS] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// How an image is resized and cropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resizing {
    /// Pillow's bicubic filter on 8-bit values, as transformers' `CLIPImageProcessor` without torchvision: PickScore, the aesthetic score.
    Pillow,
    /// The same, cropped as torchvision does, where an odd rest is rounded to even: ImageReward.
    PillowTorchCrop,
    /// torchvision's bilinear filter with antialiasing on floating-point values: flow_grpo's CLIPScore.
    TensorBilinear,
    /// torchvision's bicubic filter with antialiasing on values of 8 bits as floating-point ones: HPSv2.
    TensorBicubic,
}

/// Makes pixels of images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preprocessor {
    /// How images are resized.
    pub resizing: Resizing,
    /// Side of the square, in pixels.
    pub side: usize,
    /// Mean of each colour in 0 to 1, which is taken off.
    pub mean: [f32; COLOURS],
    /// Standard deviation of each colour, by which the rest is divided.
    pub std: [f32; COLOURS],
}

/// An image's size before and after resizing, and what is kept of it.
struct Plan {
    rows: (usize, usize),
    columns: (usize, usize),
    kept_rows: Range<usize>,
    kept_columns: Range<usize>,
}

impl Preprocessor {
    /// CLIP's, of images of `side` pixels.
    pub fn clip(resizing: Resizing, side: usize) -> Self {
        Self {
            resizing,
            side,
            mean: CLIP_MEAN,
            std: CLIP_STD,
        }
    }

    /// Pixels of `image`, `[3, side, side]`, normalised. Grey is repeated on the three colours; values are clamped to `[-1, 1]` first.
    ///
    /// # Errors
    /// A sentence about an image without pixels, or with values that are not finite.
    pub fn pixels(&self, image: &Image) -> Result<Vec<f32>, String> {
        if image.shape().is_empty() || self.side == 0 {
            return Err(format!("an image of {} has no pixels", image.shape()));
        }
        if let Some(at) = image.pixels_chw.iter().position(|value| !value.is_finite()) {
            return Err(format!(
                "pixel value {at} of the image is {}; the generation that made it went wrong",
                image.pixels_chw[at]
            ));
        }
        let plan = self.plan(image);
        let unit = match self.resizing {
            Resizing::Pillow | Resizing::PillowTorchCrop => {
                let resized = pillow::bicubic(&image.to_rgb8(), &plan);
                planes(&resized, self.side)
            }
            Resizing::TensorBilinear => float::resize(&unit_planes(image), &plan, Filter::Bilinear),
            Resizing::TensorBicubic => {
                let bytes = image.to_rgb8();
                let planes: Vec<f32> = (0..COLOURS)
                    .flat_map(|colour| bytes.iter().skip(colour).step_by(COLOURS))
                    .map(|value| f32::from(*value) / 255.0)
                    .collect();
                float::resize(&planes, &plan, Filter::Bicubic)
            }
        };
        let plane = self.side * self.side;
        let normalised = unit.iter().enumerate();
        Ok(normalised
            .map(|(at, value)| (value - self.mean[at / plane]) / self.std[at / plane])
            .collect())
    }

    /// The image resized by Pillow's filter and cropped, as rows of 8-bit RGB: what [`pixels`](Self::pixels) normalises.
    ///
    /// # Errors
    /// As [`pixels`](Self::pixels), for an image without pixels.
    pub fn resized_rgb8(&self, image: &Image) -> Result<Vec<u8>, String> {
        if image.shape().is_empty() || self.side == 0 {
            return Err(format!("an image of {} has no pixels", image.shape()));
        }
        Ok(pillow::bicubic(&image.to_rgb8(), &self.plan(image)))
    }

    fn plan(&self, image: &Image) -> Plan {
        let (height, width, side) = (image.height, image.width, self.side);
        // `int(side * long / short)` in Python, for transformers and torchvision alike.
        let longer = |long: usize, short: usize| (side as u128 * long as u128 / short as u128) as usize;
        let (rows, columns) = match height < width {
            true => (side, longer(width, height)),
            false => (longer(height, width), side),
        };
        let kept = |size: usize| {
            let rest = size - side;
            let first = match self.resizing {
                Resizing::Pillow => rest / 2,
                // Python's `round`: half to even.
                _ => rest / 2 + usize::from(rest % 4 == 3),
            };
            first..first + side
        };
        Plan {
            rows: (height, rows),
            columns: (width, columns),
            kept_rows: kept(rows),
            kept_columns: kept(columns),
        }
    }
}

/// 8-bit RGB as planes of values in 0 to 1.
fn planes(rgb: &[u8], side: usize) -> Vec<f32> {
    let plane = side * side;
    // The factor of transformers' `rescale`.
    let unit = |value: u8| (f64::from(value) * (1.0 / 255.0)) as f32;
    (0..COLOURS * plane)
        .map(|at| unit(rgb[(at % plane) * COLOURS + at / plane]))
        .collect()
}

/// An image's three planes of values in 0 to 1, without rounding to 8 bits.
fn unit_planes(image: &Image) -> Vec<f32> {
    let plane = image.height * image.width;
    (0..COLOURS)
        .flat_map(|colour| {
            let colour = colour.min(image.channels - 1);
            &image.pixels_chw[colour * plane..(colour + 1) * plane]
        })
        .map(|value| (value.clamp(-1.0, 1.0) + 1.0) / 2.0)
        .collect()
}
