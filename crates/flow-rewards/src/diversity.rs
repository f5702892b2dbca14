//! `diversity-in-group`: how far an image is from the image of its group that is nearest to it.
//!
//! Source: GARDO (He et al. 2025, arXiv:2512.24138; flow_grpo, `stat_tracking.py`, 94e23ee): `1 - cos(f_i, f_j)` to the nearest other
//! member, with features `f` of a network. Here `f` are means of pixels over the cells of a grid, which need no network; the rewards of
//! pretrained networks have one with features of CLIP.

use std::sync::Arc;

use flow_data::Image;
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::RewardError;
use crate::registry::{RewardFactory, RewardRegistry};
use crate::reward::{Reward, RewardKind, RewardSample, check_finite};

const NAME: &str = "diversity-in-group";

/// For each row of features `1 - cos` to the nearest other one, 0 to 2: 0 for one that is there twice, and for one that is alone.
///
/// Sums are in f64, in the order of the features. A row of zeros has a cosine of 0 with every other.
pub fn diversity<R: AsRef<[f32]>>(features: &[R]) -> Vec<f32> {
    let nearest = |index: usize| {
        let others = features.iter().enumerate().filter(|(other, _)| *other != index);
        let distances = others.map(|(_, other)| distance(features[index].as_ref(), other.as_ref()));
        distances.reduce(f64::min).unwrap_or(0.0) as f32
    };
    (0..features.len()).map(nearest).collect()
}

/// `1 - cos`, exactly 0 for equal features.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    if a == b {
        return 0.0;
    }
    let product = |a: &[f32], b: &[f32]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let size = (product(a, a) * product(b, b)).sqrt();
    if size > 0.0 {
        (1.0 - product(a, b) / size).clamp(0.0, 2.0)
    } else {
        1.0
    }
}

/// Settings of [`DiversityInGroup`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiversityInGroupSettings {
    /// Images are compared by the mean pixels of `side` times `side` cells.
    #[serde(default = "usual_side")]
    #[schemars(range(min = 1, max = 256))]
    pub side: usize,
}

const fn usual_side() -> usize {
    8
}

impl Default for DiversityInGroupSettings {
    fn default() -> Self {
        Self { side: usual_side() }
    }
}

/// How far an image is from the nearest other one of its group; see the module's description.
#[derive(Debug, Clone)]
pub struct DiversityInGroup {
    settings: DiversityInGroupSettings,
}

impl DiversityInGroup {
    /// The reward with these settings.
    ///
    /// # Errors
    /// [`RewardError::Params`] for a side outside 1 to 256.
    pub fn new(settings: DiversityInGroupSettings) -> Result<Self, RewardError> {
        if !(1..=256).contains(&settings.side) {
            return Err(RewardError::Params {
                reward: NAME.to_owned(),
                problem: format!("`side`: {} is not from 1 to 256", settings.side).into(),
            });
        }
        Ok(Self { settings })
    }

    /// Adds the reward to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is a reward of its name.
    pub fn register(registry: &mut RewardRegistry) -> Result<(), NameTaken> {
        registry.register(RewardFactory::new::<DiversityInGroupSettings>(
            NAME,
            "How far an image is from the nearest other one of its group, by its pixels: 0 (the same) to 2.",
            RewardKind::Groupwise,
            |_, settings| Ok(Arc::new(Self::new(settings)?)),
        ))
    }
}

impl Reward for DiversityInGroup {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> RewardKind {
        RewardKind::Groupwise
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 2.0)
    }

    fn takes_videos(&self) -> bool {
        true
    }

    fn score(&self, samples: &[RewardSample<'_>]) -> Result<Vec<f32>, RewardError> {
        let features = samples.iter().enumerate().map(|(index, sample)| {
            let frames = match sample.frames {
                [] => std::slice::from_ref(sample.image),
                frames => frames,
            };
            let mut features = Vec::new();
            for frame in frames {
                let sample = RewardSample {
                    image: frame,
                    frames: &[],
                    prompt: sample.prompt,
                };
                check_finite(index, &sample)?;
                features.extend(cell_means(frame, self.settings.side));
            }
            Ok(features)
        });
        let features: Vec<Vec<f32>> = features.collect::<Result<_, RewardError>>()?;
        Ok(diversity(&features))
    }
}

/// Means over the cells of a grid, channel by channel, row by row, within [-1, 1]; cells of an image smaller than the grid share pixels.
fn cell_means(image: &Image, side: usize) -> Vec<f32> {
    let cell = |index: usize, pixels: usize| {
        let first = index * pixels / side;
        first..((index + 1) * pixels / side).max(first + 1).min(pixels)
    };
    let plane = image.height * image.width;
    let mut means = Vec::with_capacity(image.channels * side * side);
    for channel in 0..image.channels {
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            let (rows, columns) = (cell(row, image.height), cell(column, image.width));
            let count = rows.len() * columns.len();
            let lines = rows.map(|row| channel * plane + row * image.width);
            let sum: f64 = lines
                .flat_map(|line| &image.pixels_chw[line + columns.start..line + columns.end])
                .map(|value| f64::from(value.clamp(-1.0, 1.0)))
                .sum();
            means.push((sum / count.max(1) as f64) as f32);
        }
    }
    means
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_data::ImageShape;

    #[test]
    fn the_nearest_other_member_counts() {
        let features = [vec![1.0, 0.0], vec![0.0, 2.0], vec![3.0, 3.0], vec![0.0, 2.0]];
        let found = diversity(&features);
        let eighth = 1.0 - 0.5_f64.sqrt();
        for (found, expected) in found.iter().zip([eighth, 0.0, eighth, 0.0]) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-6,
                "{found} and {expected}"
            );
        }
        assert_eq!(diversity(&[vec![1.0, 0.0]]), [0.0]);
        assert_eq!(diversity::<Vec<f32>>(&[]), [0.0; 0]);
        assert_eq!(diversity(&[vec![0.0, 0.0], vec![1.0, 0.0]]), [1.0, 1.0]);
        assert_eq!(diversity(&[vec![1.0, 0.0], vec![-2.0, 0.0]]), [2.0, 2.0]);
    }

    #[test]
    fn cells_are_means_of_pixels_whatever_the_size_of_the_image() {
        let image = |height, width, values: Vec<f32>| {
            let shape = ImageShape {
                channels: 1,
                height,
                width,
            };
            Image::new(shape, values).expect("as many values")
        };
        let wide = image(2, 3, vec![0.5, 0.25, 0.75, -9.0, 1.0, 0.0]);
        assert_eq!(cell_means(&wide, 1), [0.25]);
        assert_eq!(cell_means(&wide, 2), [0.5, 0.5, -1.0, 0.5]);
        let small = image(1, 1, vec![0.5]);
        assert_eq!(cell_means(&small, 2), [0.5; 4]);
    }
}
