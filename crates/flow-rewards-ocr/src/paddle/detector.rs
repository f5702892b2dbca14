//! The detector: from a picture to boxes of text, by differentiable binarization (Liao et al. 2019, arXiv 1911.08947).
//!
//! Source of sizes, normalisation and thresholds: PaddleOCR 2.9, which Flow-GRPO's reward calls with its defaults:
//! `tools/infer/predict_det.py` (`det_limit_side_len` 960, `det_limit_type` "max"; mean and standard deviation of ImageNet, applied
//! to blue, green, red), `ppocr/postprocess/db_postprocess.py` (`det_db_thresh` 0.3, `det_db_box_thresh` 0.6,
//! `det_db_unclip_ratio` 1.5, at most 1000 boxes, no dilation).

use std::sync::Arc;

use rten::ThreadPool;

use super::boxes::{self, Quadrilateral};
use super::network::Network;
use super::pixels::Pixels;

/// Longer side of what the network sees, at most.
const MAX_SIDE: usize = 960;
/// Sides are multiples of the network's stride.
const STRIDE: usize = 32;
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

/// A detection network.
#[derive(Debug)]
pub(super) struct Detector {
    network: Network,
}

impl Detector {
    /// The detector of a network; looks at an empty picture to see that it is one.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(network: Network, thread: &Arc<ThreadPool>) -> Result<Self, String> {
        let sides = [2 * STRIDE, 3 * STRIDE];
        let detector = Self { network };
        detector
            .map(sides, vec![0.0; 3 * sides[0] * sides[1]], thread)
            .map_err(|problem| format!("it is no detector: {problem}"))?;
        Ok(detector)
    }

    /// Boxes of text in reading order, each from the upper left corner to the right around.
    ///
    /// # Errors
    /// If the network fails.
    pub fn boxes(&self, pixels: &Pixels, thread: &Arc<ThreadPool>) -> Result<Vec<Quadrilateral>, String> {
        let [height, width] = sides(pixels.height, pixels.width);
        let mut values = vec![0.0; 3 * height * width];
        pixels
            .resized(height, width)
            .normalised_into(MEAN, STD, width, &mut values);
        let map = self.map([height, width], values, thread)?;
        let scale = [
            pixels.width as f64 / width as f64,
            pixels.height as f64 / height as f64,
        ];
        let found = boxes::of_map(&map, width);
        let placed = found
            .iter()
            .filter_map(|found| boxes::placed(found, scale, [pixels.width, pixels.height]));
        Ok(boxes::in_reading_order(placed.collect()))
    }

    /// Of each pixel, the probability that it belongs to text.
    fn map(
        &self,
        [height, width]: [usize; 2],
        values: Vec<f32>,
        thread: &Arc<ThreadPool>,
    ) -> Result<Vec<f32>, String> {
        let (shape, map) = self.network.run::<4>([1, 3, height, width], values, thread)?;
        if shape != [1, 1, height, width] || map.iter().any(|value| !(0.0..=1.0).contains(value)) {
            return Err(format!(
                "for a picture of {height}×{width} it gives {shape:?}, and not a map of probabilities of that size"
            ));
        }
        Ok(map)
    }
}

/// Height and width that the network sees: not enlarged, rounded to the stride, half to even as Python's `round`.
fn sides(height: usize, width: usize) -> [usize; 2] {
    let longer = height.max(width);
    let ratio = if longer > MAX_SIDE {
        MAX_SIDE as f64 / longer as f64
    } else {
        1.0
    };
    [height, width].map(|side| {
        let scaled = (side as f64 * ratio).floor() / STRIDE as f64;
        (scaled.round_ties_even() as usize).max(1) * STRIDE
    })
}

#[cfg(test)]
mod tests {
    use super::sides;

    #[test]
    fn sides_are_multiples_of_the_stride_and_at_most_960() {
        // Python: max(round(int(side * ratio) / 32) * 32, 32).
        assert_eq!(sides(512, 512), [512, 512]);
        assert_eq!(sides(48, 80), [64, 64]);
        assert_eq!(sides(1, 500), [32, 512]);
        assert_eq!(sides(1024, 768), [960, 704]);
        assert_eq!(sides(2000, 1000), [960, 480]);
    }
}
