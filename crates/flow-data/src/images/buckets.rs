//! Aspect-ratio buckets: sizes for pictures of many proportions, so that little of each is cropped.

use crate::error::DataError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pixels of a side at most.
const MOST_PIXELS: usize = 16_384;
/// Buckets at most: each one that has pictures is a set of kernels and recordings of its own.
const MOST_BUCKETS: usize = 1000;

/// Settings of [`Buckets`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BucketSettings {
    /// Sides of the sizes are multiples of this many pixels; it is a multiple of what the model reads as one token, 16.
    #[serde(default = "step")]
    #[schemars(range(min = 8, max = 1024))]
    pub step: usize,
    /// Shortest side in pixels; without it half the side of the square with the area of `model.width` by `model.height`.
    #[serde(default)]
    #[schemars(range(min = 8, max = 16_384))]
    pub min_side: Option<usize>,
    /// Longest side in pixels; without it twice the side of that square.
    #[serde(default)]
    #[schemars(range(min = 8, max = 16_384))]
    pub max_side: Option<usize>,
    /// The sizes themselves, each as width and height in pixels, instead of those that the other keys give.
    #[serde(default)]
    #[schemars(inner(inner(range(min = 8, max = 16_384))))]
    pub sizes: Option<Vec<[usize; 2]>>,
}

const fn step() -> usize {
    64
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self {
            step: step(),
            min_side: None,
            max_side: None,
            sizes: None,
        }
    }
}

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketSize {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
}

impl BucketSize {
    const fn area(self) -> usize {
        self.width * self.height
    }

    /// How far the proportions of `other` are from its own: 1 if they are the same, and as many times wider or narrower otherwise.
    fn distance(self, other: Self) -> f64 {
        // Products are exact, so that sizes of the same proportions have the same distance to the bit.
        let (own, theirs) = (self.width * other.height, other.width * self.height);
        own.max(theirs) as f64 / own.min(theirs) as f64
    }
}

/// Sizes that pictures are fitted to, each to the one whose proportions are nearest to its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets {
    sizes: Vec<BucketSize>,
}

impl Buckets {
    /// The buckets of `settings` for a model of `base` pixels, sorted by width, then by height.
    ///
    /// Without a list: of each width in steps, the greatest height in steps with no more pixels than `base` (at most the longest
    /// side), both ways round; and `base` itself. These are the sizes of kohya's trainers and of SDXL's training, for a base of
    /// whole steps.
    ///
    /// # Errors
    /// [`DataError::Pictures`] for an empty list, a side of no or too many pixels, a size that is listed twice, and limits that leave
    /// nothing or more than a thousand sizes.
    pub fn of(settings: &BucketSettings, base: BucketSize) -> Result<Self, DataError> {
        let mut sizes = match &settings.sizes {
            Some(listed) => listed_sizes(listed)?,
            None => generated(settings, base)?,
        };
        sizes.sort_unstable();
        if sizes.len() > MOST_BUCKETS {
            return Err(refused(format!(
                "`data.buckets` gives {} sizes; at most {MOST_BUCKETS} are taken, so take a larger `step`",
                sizes.len()
            )));
        }
        Ok(Self { sizes })
    }

    /// The sizes, sorted by width, then by height.
    pub fn sizes(&self) -> &[BucketSize] {
        &self.sizes
    }

    /// Number of the bucket whose proportions are nearest to a picture's, wider and narrower alike. Of several with the same proportions
    /// it is the largest that the picture need not be enlarged for, or else the smallest.
    pub fn nearest(&self, picture: BucketSize) -> usize {
        let mut best = 0;
        for (number, size) in self.sizes.iter().enumerate().skip(1) {
            let (found, known) = (size.distance(picture), self.sizes[best].distance(picture));
            let is_better = if found == known {
                let is_covered =
                    |size: &BucketSize| size.width <= picture.width && size.height <= picture.height;
                let (covered, best) = (is_covered(size), &self.sizes[best]);
                match (covered, is_covered(best)) {
                    (true, true) => size.area() > best.area(),
                    (false, false) => size.area() < best.area(),
                    (covered, _) => covered,
                }
            } else {
                found < known
            };
            if is_better {
                best = number;
            }
        }
        best
    }
}

fn refused(problem: String) -> DataError {
    DataError::Pictures { problem }
}

fn listed_sizes(listed: &[[usize; 2]]) -> Result<Vec<BucketSize>, DataError> {
    if listed.is_empty() {
        return Err(refused(
            "`data.buckets.sizes` is empty; list sizes as `[[1024, 1024], [832, 1216]]`, or remove it: sizes are made then".into(),
        ));
    }
    let mut sizes: Vec<BucketSize> = Vec::with_capacity(listed.len());
    for &[width, height] in listed {
        if [width, height]
            .iter()
            .any(|side| !(1..=MOST_PIXELS).contains(side))
        {
            return Err(refused(format!(
                "`data.buckets.sizes` has [{width}, {height}]; sides are 1 to {MOST_PIXELS} pixels"
            )));
        }
        let size = BucketSize { width, height };
        if sizes.contains(&size) {
            return Err(refused(format!(
                "`data.buckets.sizes` has [{width}, {height}] twice; remove one of them"
            )));
        }
        sizes.push(size);
    }
    Ok(sizes)
}

fn generated(settings: &BucketSettings, base: BucketSize) -> Result<Vec<BucketSize>, DataError> {
    let step = settings.step.max(1);
    let side = (base.area() as f64).sqrt();
    let min_side = settings.min_side.unwrap_or((side / 2.0) as usize);
    let max_side = settings
        .max_side
        .unwrap_or((side * 2.0) as usize)
        .min(MOST_PIXELS);
    let shortest = min_side.div_ceil(step).max(1) * step;
    let longest = max_side / step * step;
    if shortest > longest {
        return Err(refused(format!(
            "`data.buckets` leaves no size: no multiple of `step` = {step} lies between `min_side` = {min_side} and `max_side` = {max_side}"
        )));
    }
    let mut sizes = vec![base];
    for width in (shortest..=longest).step_by(step) {
        let height = (base.area() / width / step * step).min(longest);
        if height < shortest {
            continue;
        }
        for (width, height) in [(width, height), (height, width)] {
            let size = BucketSize { width, height };
            // The base stands for its proportions.
            if size.distance(base) > 1.0 && !sizes.contains(&size) {
                sizes.push(size);
            }
        }
    }
    Ok(sizes)
}
