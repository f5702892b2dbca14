//! Pictures as PP-OCR's networks take them: 8 bits, blue, green, red, which is the order of OpenCV.

use flow_data::Image;

/// Bytes in the order row, column, channel (blue, green, red).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pixels {
    pub height: usize,
    pub width: usize,
    pub bgr: Vec<u8>,
}

impl Pixels {
    /// An image's: values clamped to [-1, 1] and rounded to 0 to 255, grey on all channels.
    pub fn of(image: &Image) -> Self {
        let mut bgr = image.to_rgb8();
        bgr.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
        Self {
            height: image.height,
            width: image.width,
            bgr,
        }
    }

    /// In another size, as OpenCV's `resize` with `INTER_LINEAR`: pixel centres are at halves, edges are repeated, and there is no
    /// low-pass filter before a picture becomes smaller. In f32, so that bytes may differ from OpenCV's fixed point by 1.
    pub fn resized(&self, height: usize, width: usize) -> Self {
        let rows = samples(self.height, height);
        let columns = samples(self.width, width);
        let mut bgr = Vec::with_capacity(height * width * 3);
        for row in &rows {
            for column in &columns {
                for channel in 0..3 {
                    let at = |y: usize, x: usize| f32::from(self.bgr[(y * self.width + x) * 3 + channel]);
                    let between = |y| {
                        let (left, right) = (at(y, column.low), at(y, column.high));
                        left + (right - left) * column.weight
                    };
                    let (above, below) = (between(row.low), between(row.high));
                    bgr.push((above + (below - above) * row.weight).round() as u8);
                }
            }
        }
        Self { height, width, bgr }
    }

    /// What lies in a quadrilateral, upright, as PaddleOCR's `get_rotate_crop_image`: of the longer ones of opposite sides in size,
    /// cubic interpolation (Keys 1981, a = -0.75), edges repeated; and turned to the left by a right angle if it is 1.5 times as
    /// high as wide.
    ///
    /// The corners, as `[x, y]`, are upper left, upper right, lower right, lower left. In place of PaddleOCR's perspective the map
    /// is bilinear between the corners: for a parallelogram, and a text box is a rectangle up to rounding, both are the same.
    pub fn cut_out(&self, corners: &[[f32; 2]; 4]) -> Self {
        let [upper_left, upper_right, lower_right, lower_left] = *corners;
        let length = |a: [f32; 2], b: [f32; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
        let width = length(upper_left, upper_right).max(length(lower_right, lower_left)) as usize;
        let height = length(upper_left, lower_left).max(length(upper_right, lower_right)) as usize;
        let (width, height) = (width.max(1), height.max(1));
        let mut bgr = Vec::with_capacity(width * height * 3);
        for row in 0..height {
            let down = row as f32 / height as f32;
            for column in 0..width {
                let right = column as f32 / width as f32;
                let between = |axis: usize| {
                    let above = upper_left[axis] + (upper_right[axis] - upper_left[axis]) * right;
                    let below = lower_left[axis] + (lower_right[axis] - lower_left[axis]) * right;
                    above + (below - above) * down
                };
                bgr.extend(self.cubic(between(0), between(1)));
            }
        }
        let line = Self { height, width, bgr };
        if height as f32 >= 1.5 * width as f32 {
            line.turned_left()
        } else {
            line
        }
    }

    fn turned_left(&self) -> Self {
        let mut bgr = Vec::with_capacity(self.bgr.len());
        for column in (0..self.width).rev() {
            for row in 0..self.height {
                let first = (row * self.width + column) * 3;
                bgr.extend_from_slice(&self.bgr[first..first + 3]);
            }
        }
        Self {
            height: self.width,
            width: self.height,
            bgr,
        }
    }

    /// The colour at a place between pixels.
    fn cubic(&self, x: f32, y: f32) -> [u8; 3] {
        let (columns, x_weights) = taps(x, self.width);
        let (rows, y_weights) = taps(y, self.height);
        std::array::from_fn(|channel| {
            let mut sum = 0.0;
            for (row, y_weight) in rows.iter().zip(y_weights) {
                let mut of_row = 0.0;
                for (column, x_weight) in columns.iter().zip(x_weights) {
                    of_row += f32::from(self.bgr[(row * self.width + column) * 3 + channel]) * x_weight;
                }
                sum += of_row * y_weight;
            }
            sum.round().clamp(0.0, 255.0) as u8
        })
    }

    /// Values in the order channel, row, column: `(value / 255 - mean) / std`.
    pub fn normalised_into(&self, mean: [f32; 3], std: [f32; 3], width: usize, values: &mut [f32]) {
        for channel in 0..3 {
            for row in 0..self.height {
                for column in 0..self.width {
                    let byte = self.bgr[(row * self.width + column) * 3 + channel];
                    values[(channel * self.height + row) * width + column] =
                        (f32::from(byte) / 255.0 - mean[channel]) / std[channel];
                }
            }
        }
    }
}

/// Two neighbours and the weight of the second.
struct Sample {
    low: usize,
    high: usize,
    weight: f32,
}

fn samples(from: usize, to: usize) -> Vec<Sample> {
    let scale = from as f64 / to as f64;
    let sample = |index: usize| {
        let place = ((index as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
        let low = place.floor() as usize;
        Sample {
            low,
            high: (low + 1).min(from - 1),
            weight: (place - low as f64) as f32,
        }
    };
    (0..to).map(sample).collect()
}

/// Four neighbours along an axis of `length` pixels and their weights.
fn taps(place: f32, length: usize) -> ([usize; 4], [f32; 4]) {
    const A: f32 = -0.75;
    let floor = place.floor();
    let t = place - floor;
    let near = |d: f32| ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0;
    let far = |d: f32| ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A;
    let last = length as i64 - 1;
    let neighbours = std::array::from_fn(|index| (floor as i64 + index as i64 - 1).clamp(0, last) as usize);
    (neighbours, [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A picture that OpenCV wrote, or reads; see `tests/fixtures/make.py`.
    fn fixture(name: &str) -> Pixels {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name);
        let rgb = image::open(path).unwrap().to_rgb8();
        let (width, height) = (rgb.width() as usize, rgb.height() as usize);
        let image = Image::from_rgb8(height, width, rgb.as_raw()).unwrap();
        Pixels::of(&image)
    }

    fn largest_difference(found: &Pixels, wanted: &Pixels) -> u8 {
        assert_eq!((found.height, found.width), (wanted.height, wanted.width));
        let pairs = found.bgr.iter().zip(&wanted.bgr);
        pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap()
    }

    #[test]
    fn another_size_is_that_of_opencv_up_to_its_rounding() {
        let picture = fixture("picture.png");
        for (width, height) in [(77, 48), (16, 9), (37, 64)] {
            let wanted = fixture(&format!("picture-{width}x{height}.png"));
            let difference = largest_difference(&picture.resized(height, width), &wanted);
            assert!(difference <= 1, "{width}×{height}: {difference}");
        }
        assert_eq!(picture.resized(23, 37), picture);
    }

    #[test]
    fn what_lies_in_a_turned_box_is_that_of_opencv() {
        let corners = [[6.0, 3.0], [30.0, 9.0], [27.5, 19.0], [3.5, 13.0]];
        let found = fixture("picture.png").cut_out(&corners);
        // OpenCV rounds places to 1/32 of a pixel; the picture's red jumps from 255 to 0 here and there.
        let wanted = fixture("picture-box.png");
        let pairs = found.bgr.iter().zip(&wanted.bgr);
        let sum: u32 = pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
        let mean = f64::from(sum) / found.bgr.len() as f64;
        assert!(mean < 1.0 && largest_difference(&found, &wanted) <= 12, "{mean}");
    }

    #[test]
    fn an_upright_line_is_turned_to_the_left() {
        // Blue rises from top to bottom, green is that of the column. The right column becomes the first row.
        let picture = Pixels {
            height: 6,
            width: 2,
            bgr: (0..6_u8)
                .flat_map(|row| [row * 40, 0, 9, row * 40, 1, 9])
                .collect(),
        };
        let line = picture.cut_out(&[[0.0, 0.0], [2.0, 0.0], [2.0, 6.0], [0.0, 6.0]]);
        assert_eq!((line.height, line.width), (2, 6));
        let blue =
            |row: usize| -> Vec<u8> { (0..6).map(|column| line.bgr[(row * 6 + column) * 3]).collect() };
        assert_eq!(blue(0), [0, 40, 80, 120, 160, 200]);
        let green = |row: usize| line.bgr[row * 18 + 1];
        assert_eq!((green(0), green(1)), (1, 0));
    }
}
