//! Images as plain numbers: channel-major `f32` in [-1, 1], the range that the models generate.

use std::fmt;

use crate::error::DataError;

/// Channels, height and width of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ImageShape {
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageShape {
    /// Number of values: channels × height × width.
    pub fn len(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Whether there is no value at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for ImageShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.channels, self.height, self.width)
    }
}

/// One image.
///
/// Values are nominally in [-1, 1]; a generated image may leave that range, and the conversions clamp.
/// With one channel, -1 is black (no ink) and 1 is white; with three, each channel is an sRGB value scaled from
/// [0, 1] to [-1, 1].
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Values in the order channel, row, column.
    pub pixels_chw: Vec<f32>,
}

impl Image {
    /// An image from its values in the order channel, row, column.
    ///
    /// # Errors
    /// [`DataError::PixelCount`] if the number of values is not `shape.len()`.
    pub fn new(shape: ImageShape, pixels_chw: Vec<f32>) -> Result<Self, DataError> {
        if pixels_chw.len() != shape.len() {
            return Err(DataError::PixelCount {
                shape,
                found: pixels_chw.len(),
            });
        }
        let ImageShape {
            channels,
            height,
            width,
        } = shape;
        Ok(Self {
            channels,
            height,
            width,
            pixels_chw,
        })
    }

    /// An image with one value everywhere.
    pub fn filled(shape: ImageShape, value: f32) -> Self {
        let ImageShape {
            channels,
            height,
            width,
        } = shape;
        Self {
            channels,
            height,
            width,
            pixels_chw: vec![value; shape.len()],
        }
    }

    /// The shape.
    pub fn shape(&self) -> ImageShape {
        ImageShape {
            channels: self.channels,
            height: self.height,
            width: self.width,
        }
    }

    /// The value at a place.
    ///
    /// # Panics
    /// If the place is outside the image, as indexing does.
    pub fn at(&self, channel: usize, row: usize, column: usize) -> f32 {
        self.pixels_chw[(channel * self.height + row) * self.width + column]
    }

    /// Whether every value is a finite number.
    pub fn is_finite(&self) -> bool {
        self.pixels_chw.iter().all(|value| value.is_finite())
    }

    /// The image as interleaved 8-bit RGB, row by row; grey is repeated on the three channels.
    ///
    /// Values are clamped to [-1, 1] and rounded to the nearest of 0 to 255; a NaN becomes 0.
    /// The length is `height * width * 3`.
    pub fn to_rgb8(&self) -> Vec<u8> {
        let plane = self.height * self.width;
        let mut rgb = Vec::with_capacity(plane * 3);
        for pixel in 0..plane {
            for channel in 0..3 {
                // With an unusual number of channels, the last one stands in for those that are missing.
                let channel = channel.min(self.channels.saturating_sub(1));
                rgb.push(
                    self.pixels_chw
                        .get(channel * plane + pixel)
                        .map_or(0, |&value| Self::value_to_u8(value)),
                );
            }
        }
        rgb
    }

    /// A value as 8 bits: clamped to [-1, 1] and rounded to the nearest of 0 to 255, halves up; a NaN becomes 0.
    #[inline]
    pub fn value_to_u8(value: f32) -> u8 {
        // Beside this number, numbers are 1 apart, so that adding it rounds to a whole one, which stands in the lowest bits. Processors do
        // that for several values at once, which they do not with `round` and `as`.
        const WHOLE: f32 = (1u32 << 23) as f32;
        // A NaN is not above -1.
        let above = if value > -1.0 { value } else { -1.0 };
        let scaled = (above.min(1.0) + 1.0) * 127.5;
        let whole = scaled + WHOLE;
        // Halves went to the even number.
        let is_half_below = scaled - (whole - WHOLE) == 0.5;
        whole.to_bits() as u8 + u8::from(is_half_below)
    }

    /// The inverse of [`Image::to_rgb8`]: a three-channel image from interleaved 8-bit RGB.
    ///
    /// # Errors
    /// [`DataError::PixelCount`] if `rgb` does not hold `height * width * 3` bytes.
    pub fn from_rgb8(height: usize, width: usize, rgb: &[u8]) -> Result<Self, DataError> {
        let shape = ImageShape {
            channels: 3,
            height,
            width,
        };
        if rgb.len() != shape.len() {
            return Err(DataError::PixelCount {
                shape,
                found: rgb.len(),
            });
        }
        let plane = height * width;
        let pixels_chw = (0..3 * plane)
            .map(|i| f32::from(rgb[(i % plane) * 3 + i / plane]) / 127.5 - 1.0)
            .collect();
        Ok(Self {
            channels: 3,
            height,
            width,
            pixels_chw,
        })
    }

    /// Every pixel repeated `factor` times in both directions; a factor of 0 counts as 1.
    pub fn upscale_nearest(&self, factor: usize) -> Self {
        let factor = factor.max(1);
        let (height, width) = (self.height * factor, self.width * factor);
        let mut pixels_chw = Vec::with_capacity(self.channels * height * width);
        for channel in 0..self.channels {
            for row in 0..height {
                for column in 0..width {
                    pixels_chw.push(self.at(channel, row / factor, column / factor));
                }
            }
        }
        Self {
            channels: self.channels,
            height,
            width,
            pixels_chw,
        }
    }

    /// Images of one shape in one row.
    ///
    /// # Panics
    /// If there are none, or they differ in channels or height.
    pub fn side_by_side(images: &[&Self]) -> Self {
        let (channels, height) = (images[0].channels, images[0].height);
        let same = |image: &&Self| (image.channels, image.height) == (channels, height);
        assert!(images.iter().all(same), "images in one row have one height");
        let mut pixels_chw = Vec::with_capacity(images.iter().map(|image| image.pixels_chw.len()).sum());
        for row in 0..channels * height {
            for image in images {
                pixels_chw.extend_from_slice(&image.pixels_chw[row * image.width..(row + 1) * image.width]);
            }
        }
        Self {
            channels,
            height,
            width: images.iter().map(|image| image.width).sum(),
            pixels_chw,
        }
    }

    /// The inverse of [`Image::upscale_nearest`]: each pixel is the mean of a square of `factor` by `factor`.
    ///
    /// `None` unless `factor` is at least 1 and divides height and width.
    pub fn downscale_mean(&self, factor: usize) -> Option<Self> {
        if factor == 0 || !self.height.is_multiple_of(factor) || !self.width.is_multiple_of(factor) {
            return None;
        }
        let (height, width) = (self.height / factor, self.width / factor);
        let mut pixels_chw = Vec::with_capacity(self.channels * height * width);
        for channel in 0..self.channels {
            for row in 0..height {
                for column in 0..width {
                    let square = (0..factor * factor).map(|i| {
                        f64::from(self.at(channel, row * factor + i / factor, column * factor + i % factor))
                    });
                    pixels_chw.push((square.sum::<f64>() / (factor * factor) as f64) as f32);
                }
            }
        }
        Some(Self {
            channels: self.channels,
            height,
            width,
            pixels_chw,
        })
    }
}
