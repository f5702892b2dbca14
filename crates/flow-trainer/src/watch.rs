//! Statistics of a rollout's images that tell of an exploited reward: diversity within a group, entropy, edge energy, saturation and
//! clipping.
//!
//! Of pixel values `x` in [-1, 1], channel values are `v = (x + 1) / 2`, and the brightness is `y = 0.299 r + 0.587 g + 0.114 b` (Rec.
//! ITU-R BT.601), or `v` of a grey image. Statistics of a video are means over its frames. Sums are in f64 in the order of the pixels,
//! one sample after another, so that they depend neither on threads nor on ranks.

use flow_data::Image;
use flow_rewards::Sample;
use std::collections::BTreeMap;

/// Rows and columns of the grid by which images are compared.
const CELLS: usize = 16;
/// Grey levels of the entropy's histogram.
const LEVELS: usize = 256;
/// Statistics of one sample; the cells stand behind them.
const STATISTICS: usize = 4;

/// Means over the images of a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageStatistics {
    /// The mean over groups of the mean distance of two images of the group: the root mean square difference of channel values, each
    /// the mean over a cell of a grid of 16 × 16 cells (of single pixels, where an image has no more), 0 to 1. None where all groups
    /// have a single image.
    pub diversity: Option<f64>,
    /// Shannon's entropy of the histogram of the brightness in 256 levels, in bits, 0 to 8: `-Σ p log2 p` (Shannon 1948, "A
    /// Mathematical Theory of Communication").
    pub entropy_bits: f64,
    /// The energy of the gradient, the mean of `(y[i, j + 1] - y[i, j])² + (y[i + 1, j] - y[i, j])²`, differences beyond the border
    /// being 0 (Subbarao, Choi and Nikzad 1993, "Focusing techniques").
    pub edge_energy: f64,
    /// The mean saturation of HSV, `(max - min) / max` of the three channels and 0 of black (Smith 1978, "Color gamut transform pairs").
    /// None of grey images.
    pub saturation: Option<f64>,
    /// The share of channel values at either end of their range, within half a level of 8 bits.
    pub clipped: f64,
}

/// The columns of some samples, for [`summarize`]: a value for each sample in each. All samples have images of one shape.
pub(crate) fn columns(samples: &[SampleStatistics]) -> Vec<Vec<f32>> {
    let count = samples.first().map_or(0, |sample| sample.0.len());
    let column = |index: usize| samples.iter().map(|sample| sample.0[index]).collect();
    (0..count).map(column).collect()
}

/// What one sample has: its statistics and its cells.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleStatistics(Vec<f32>);

impl SampleStatistics {
    /// Of an image or a video.
    pub(crate) fn of(sample: &Sample) -> Self {
        let frames = match sample.frames.as_slice() {
            [] => std::slice::from_ref(&sample.image),
            frames => frames,
        };
        let mut sums: Vec<f64> = Vec::new();
        for frame in frames {
            let of_frame = of_image(frame);
            sums.resize(of_frame.len(), 0.0);
            for (sum, value) in sums.iter_mut().zip(of_frame) {
                *sum += value;
            }
        }
        let mean = |sum: f64| (sum / frames.len() as f64) as f32;
        Self(sums.into_iter().map(mean).collect())
    }
}

/// The statistics of an image, and the cells of its channels.
fn of_image(image: &Image) -> Vec<f64> {
    let values: Vec<f64> = image
        .pixels_chw
        .iter()
        .map(|x| (f64::from(*x) + 1.0) / 2.0)
        .collect();
    let brightness = brightness(&values, image.channels);
    let half_level = 0.5 / (LEVELS - 1) as f64;
    let at_end = |value: &&f64| **value < half_level || **value >= 1.0 - half_level;
    let clipped = values.iter().filter(at_end).count() as f64 / values.len().max(1) as f64;
    let mut all = vec![
        entropy_bits(&brightness),
        edge_energy(&brightness, image.width),
        saturation(&values, image.channels).unwrap_or(f64::NAN),
        clipped,
    ];
    let plane = image.height * image.width;
    for channel in values.chunks_exact(plane.max(1)) {
        all.extend(cells(channel, image.height, image.width));
    }
    all
}

/// Brightness of each pixel; of a number of channels that is no colour, the mean of the channels.
fn brightness(values: &[f64], channels: usize) -> Vec<f64> {
    let plane = values.len() / channels.max(1);
    let pixel = |at: usize| match channels {
        3 => 0.299 * values[at] + 0.587 * values[plane + at] + 0.114 * values[2 * plane + at],
        _ => {
            (0..channels)
                .map(|channel| values[channel * plane + at])
                .sum::<f64>()
                / channels as f64
        }
    };
    (0..plane).map(pixel).collect()
}

fn entropy_bits(brightness: &[f64]) -> f64 {
    let mut histogram = [0_u64; LEVELS];
    for value in brightness {
        let level = (value * (LEVELS - 1) as f64)
            .round()
            .clamp(0.0, (LEVELS - 1) as f64);
        histogram[level as usize] += 1;
    }
    let all = brightness.len() as f64;
    let terms = histogram.iter().filter(|count| **count > 0).map(|count| {
        let share = *count as f64 / all;
        share * share.log2()
    });
    // 0 - x, so that a plain image has 0 and not -0.
    0.0 - terms.sum::<f64>()
}

fn edge_energy(brightness: &[f64], width: usize) -> f64 {
    let mut sum = 0.0;
    for (at, value) in brightness.iter().enumerate() {
        let right = brightness.get(at + 1).filter(|_| !(at + 1).is_multiple_of(width));
        let below = brightness.get(at + width);
        for neighbour in [right, below].into_iter().flatten() {
            sum += (neighbour - value) * (neighbour - value);
        }
    }
    sum / brightness.len().max(1) as f64
}

fn saturation(values: &[f64], channels: usize) -> Option<f64> {
    if channels != 3 {
        return None;
    }
    let plane = values.len() / 3;
    let of_pixel = |at: usize| {
        let [r, g, b] = [values[at], values[plane + at], values[2 * plane + at]];
        let (most, least) = (r.max(g).max(b), r.min(g).min(b));
        if most > 0.0 { (most - least) / most } else { 0.0 }
    };
    Some((0..plane).map(of_pixel).sum::<f64>() / plane.max(1) as f64)
}

/// The means of the cells of one channel, row by row.
fn cells(channel: &[f64], height: usize, width: usize) -> Vec<f64> {
    let (rows, columns) = (height.min(CELLS), width.min(CELLS));
    let mut cells = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let lines = row * height / rows..(row + 1) * height / rows;
            let places = column * width / columns..(column + 1) * width / columns;
            let count = lines.len() * places.len();
            let sum: f64 = lines
                .flat_map(|line| &channel[line * width..][places.clone()])
                .sum();
            cells.push(sum / count as f64);
        }
    }
    cells
}

/// The means over all samples of `columns`, whose groups are `groups`.
pub(crate) fn summarize(columns: &[Vec<f32>], groups: &[u64]) -> ImageStatistics {
    let mean = |column: usize| {
        let column = &columns[column];
        column.iter().map(|value| f64::from(*value)).sum::<f64>() / column.len().max(1) as f64
    };
    let saturation = mean(2);
    ImageStatistics {
        diversity: diversity(&columns[STATISTICS..], groups),
        entropy_bits: mean(0),
        edge_energy: mean(1),
        saturation: (!saturation.is_nan()).then_some(saturation),
        clipped: mean(3),
    }
}

fn diversity(cells: &[Vec<f32>], groups: &[u64]) -> Option<f64> {
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (sample, group) in groups.iter().enumerate() {
        members.entry(*group).or_default().push(sample);
    }
    let distance = |a: usize, b: usize| {
        let square = |cell: &Vec<f32>| (f64::from(cell[a]) - f64::from(cell[b])).powi(2);
        (cells.iter().map(square).sum::<f64>() / cells.len().max(1) as f64).sqrt()
    };
    let (mut sum, mut count) = (0.0, 0_u64);
    for members in members.values().filter(|members| members.len() > 1) {
        let (mut of_group, mut pairs) = (0.0, 0_u64);
        for (place, a) in members.iter().enumerate() {
            for b in &members[place + 1..] {
                of_group += distance(*a, *b);
                pairs += 1;
            }
        }
        sum += of_group / pairs as f64;
        count += 1;
    }
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_data::{ImageShape, Prompt};

    fn sample(
        channels: usize,
        height: usize,
        width: usize,
        value: impl Fn(usize, usize, usize) -> f32,
    ) -> Sample {
        let shape = ImageShape {
            channels,
            height,
            width,
        };
        let mut pixels = Vec::new();
        for channel in 0..channels {
            for row in 0..height {
                for column in 0..width {
                    pixels.push(value(channel, row, column));
                }
            }
        }
        Sample {
            image: Image::new(shape, pixels).expect("as many values as the shape has"),
            frames: Vec::new(),
            prompt: Prompt::free(0, "any".to_owned()),
            group: 0,
        }
    }

    fn of(samples: &[Sample], groups: &[u64]) -> ImageStatistics {
        let all: Vec<SampleStatistics> = samples.iter().map(SampleStatistics::of).collect();
        summarize(&columns(&all), groups)
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
    }

    #[test]
    fn a_plain_image_has_neither_entropy_nor_edges_nor_colour() {
        let grey = of(&[sample(3, 5, 7, |_, _, _| 0.1)], &[0]);
        assert_eq!(
            (grey.entropy_bits, grey.edge_energy, grey.saturation),
            (0.0, 0.0, Some(0.0))
        );
        assert_eq!((grey.clipped, grey.diversity), (0.0, None));
        let white = of(&[sample(1, 4, 4, |_, _, _| 1.0)], &[0]);
        assert_eq!((white.clipped, white.saturation), (1.0, None));
    }

    #[test]
    fn entropy_is_that_of_equally_frequent_levels() {
        // 4 levels of equal share have 2 bits, and half, quarter, quarter has 1.5.
        let four = of(&[sample(1, 4, 8, |_, row, _| [-1.0, -0.5, 0.2, 0.9][row])], &[0]);
        close(four.entropy_bits, 2.0);
        let three = of(&[sample(1, 4, 8, |_, row, _| [-1.0, -1.0, 0.2, 0.9][row])], &[0]);
        close(three.entropy_bits, 1.5);
        close(three.clipped, 0.5);
    }

    #[test]
    fn edges_are_the_squares_of_differences_to_the_right_and_below() {
        // A chequerboard of 0.25 and 0.75: every difference is 0.5; 3 × 4 to the right, 2 × 5 below, of 15 pixels.
        let board = sample(
            1,
            3,
            5,
            |_, row, column| if (row + column) % 2 == 0 { -0.5 } else { 0.5 },
        );
        close(of(&[board], &[0]).edge_energy, 0.25 * (12.0 + 10.0) / 15.0);
        // A ramp of brightness along the rows: 0.1 a pixel.
        let ramp = sample(3, 4, 6, |_, _, column| -0.8 + 0.2 * column as f32);
        close(of(&[ramp], &[0]).edge_energy, 0.01 * 20.0 / 24.0);
    }

    #[test]
    fn saturation_is_that_of_hsv() {
        // r, g, b = 1, 0.5, 0.25 and black, in equal shares.
        let half = sample(3, 2, 2, |channel, row, _| match row {
            0 => [1.0, 0.0, -0.5][channel],
            _ => -1.0,
        });
        close(of(&[half], &[0]).saturation.expect("colours"), 0.5 * 0.75);
    }

    #[test]
    fn diversity_is_the_mean_distance_within_groups_and_knows_no_other_group() {
        let plain = |value: f32| sample(3, 20, 33, move |_, _, _| value);
        // Brightness 0.5, 0.6 and 0.9: distances 0.1, 0.4, 0.3. The other group: 0.2. One has a single image.
        let samples = [0.0, 0.2, -0.4, 0.8, 0.0, 1.0].map(plain);
        let found = of(&samples, &[7, 7, 3, 7, 3, 9])
            .diversity
            .expect("two groups of several");
        close(found, ((0.1 + 0.4 + 0.3) / 3.0 + 0.2) / 2.0);
    }

    #[test]
    fn small_images_are_compared_by_pixels_and_large_ones_by_cells_that_cover_all() {
        let first = |at: usize| {
            sample(
                1,
                4,
                4,
                move |_, row, column| if 4 * row + column == at { 1.0 } else { -1.0 },
            )
        };
        let found = of(&[first(0), first(1)], &[0, 0]).diversity.expect("a pair");
        close(found, (2.0_f64 / 16.0).sqrt());
        // 33 columns are cells of 2 and of 3: each pixel counts in one cell.
        let image = |x: f32| {
            sample(
                1,
                18,
                33,
                move |_, row, column| if (row, column) == (17, 32) { x } else { 0.0 },
            )
        };
        let cells = cells(&(0..33).map(f64::from).collect::<Vec<_>>(), 1, 33);
        assert_eq!(cells.len(), 16);
        assert_eq!((cells[0], cells[15]), (0.5, 31.0));
        assert!(of(&[image(0.0), image(1.0)], &[0, 0]).diversity.expect("a pair") > 0.0);
    }

    #[test]
    fn a_video_has_the_means_of_its_frames() {
        let (dark, light) = (sample(3, 4, 4, |_, _, _| -1.0), sample(3, 4, 4, |_, _, _| 0.0));
        let mut video = dark.clone();
        video.frames = vec![dark.image.clone(), light.image.clone()];
        close(of(&[video.clone()], &[0]).clipped, 0.5);
        // The mean over time is 0.25 of brightness, and the dark image has 0.
        close(of(&[video, dark], &[0, 0]).diversity.expect("a pair"), 0.25);
    }
}
