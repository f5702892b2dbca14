//! Pixels as networks read them: resized to the shorter side, cropped to a square in the middle, normalised.
//!
//! Rewards differ in how they resize, and what they were published with is what they must be given: of the same image, the ways here
//! make pixels that differ by up to 0.3 in normalised units. Only what the crop keeps is computed.

mod float;
mod pillow;
mod separable;
mod taps;

use float::Float;
use flow_data::Image;
use flow_diffusers::first_position;
use pillow::Pillow;
use rayon::prelude::*;
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
        if let Some(at) = first_position(&image.pixels_chw, |value| !value.is_finite()) {
            return Err(format!(
                "pixel value {at} of the image is {}; the generation that made it went wrong",
                image.pixels_chw[at]
            ));
        }
        let plan = self.plan(image);
        let mut pixels = match self.resizing {
            Resizing::Pillow | Resizing::PillowTorchCrop => {
                let resized = pillow_planes(image, &plan);
                // The factor of transformers' `rescale`.
                let unit = |value: u8| (f64::from(value) * (1.0 / 255.0)) as f32;
                resized.into_iter().map(unit).collect()
            }
            Resizing::TensorBilinear => float_planes(image, &plan, Filter::Bilinear, |value| {
                (value.clamp(-1.0, 1.0) + 1.0) / 2.0
            }),
            Resizing::TensorBicubic => float_planes(image, &plan, Filter::Bicubic, |value| {
                f32::from(Image::value_to_u8(value)) / 255.0
            }),
        };
        for (colour, plane) in pixels.chunks_exact_mut(self.side * self.side).enumerate() {
            let (mean, std) = (self.mean[colour], self.std[colour]);
            plane.iter_mut().for_each(|value| *value = (*value - mean) / std);
        }
        Ok(pixels)
    }

    /// [`pixels`](Self::pixels) of several images, one after another, `[B, 3, side, side]`; they are made beside one another.
    ///
    /// # Errors
    /// The place of the first image of which there are none, with what is wrong with it.
    pub fn pixels_of_all(&self, images: &[&Image]) -> Result<Vec<f32>, (usize, String)> {
        let made: Vec<_> = images.par_iter().map(|image| self.pixels(image)).collect();
        let mut pixels = Vec::with_capacity(images.len() * COLOURS * self.side * self.side);
        for (index, made) in made.into_iter().enumerate() {
            pixels.extend(made.map_err(|problem| (index, problem))?);
        }
        Ok(pixels)
    }

    /// The image resized by Pillow's filter and cropped, as rows of 8-bit RGB: what [`pixels`](Self::pixels) normalises.
    ///
    /// # Errors
    /// As [`pixels`](Self::pixels), for an image without pixels.
    pub fn resized_rgb8(&self, image: &Image) -> Result<Vec<u8>, String> {
        if image.shape().is_empty() || self.side == 0 {
            return Err(format!("an image of {} has no pixels", image.shape()));
        }
        let planes = pillow_planes(image, &self.plan(image));
        let plane = self.side * self.side;
        Ok((0..COLOURS * plane)
            .map(|at| planes[(at % COLOURS) * plane + at / COLOURS])
            .collect())
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

/// `image` resized by Pillow's filter and cropped, `[3, side, side]` in 8 bits.
fn pillow_planes(image: &Image, plan: &Plan) -> Vec<u8> {
    separable::resize::<Pillow>(plan, Filter::Bicubic, |place, to| {
        let values = to.iter_mut().zip(row(image, place));
        values.for_each(|(to, value)| *to = Image::value_to_u8(*value));
    })
}

/// `image` in the units of `unit`, resized by torchvision's `filter` and cropped, `[3, side, side]`.
fn float_planes(image: &Image, plan: &Plan, filter: Filter, unit: impl Fn(f32) -> f32 + Sync) -> Vec<f32> {
    separable::resize::<Float>(plan, filter, |place, to| {
        let values = to.iter_mut().zip(row(image, place));
        values.for_each(|(to, value)| *to = unit(*value));
    })
}

/// A row of a colour; grey is every colour.
fn row(image: &Image, (colour, row): (usize, usize)) -> &[f32] {
    let start = (colour.min(image.channels - 1) * image.height + row) * image.width;
    &image.pixels_chw[start..start + image.width]
}
