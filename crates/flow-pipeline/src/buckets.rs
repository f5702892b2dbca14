//! Which size each picture is fitted to.

use crate::Size;

/// Sizes, and the one that each of some pictures is fitted to: buckets of pictures that are alike in their proportions, or a single size
/// for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureBuckets {
    sizes: Vec<Size>,
    of_picture: Vec<usize>,
}

impl PictureBuckets {
    /// One size for `pictures` pictures.
    pub fn single(size: Size, pictures: u64) -> Self {
        Self {
            sizes: vec![size],
            of_picture: vec![0; pictures as usize],
        }
    }

    /// The sizes that pictures have, `wanted[picture]`, in the order of their first pictures.
    pub fn of(wanted: impl IntoIterator<Item = Size>) -> Self {
        let mut sizes: Vec<Size> = Vec::new();
        let of_picture = wanted.into_iter().map(|size| {
            let known = sizes.iter().position(|known| *known == size);
            known.unwrap_or_else(|| {
                sizes.push(size);
                sizes.len() - 1
            })
        });
        let of_picture = of_picture.collect();
        Self { sizes, of_picture }
    }

    /// The sizes, each with a picture at least unless there is but one.
    pub fn sizes(&self) -> &[Size] {
        &self.sizes
    }

    /// Number of pictures.
    pub fn len(&self) -> u64 {
        self.of_picture.len() as u64
    }

    /// Whether there is no picture.
    pub fn is_empty(&self) -> bool {
        self.of_picture.is_empty()
    }

    /// Number of the size of picture `index`.
    ///
    /// # Panics
    /// If there is no such picture.
    pub fn bucket(&self, index: u64) -> usize {
        self.of_picture[index as usize]
    }

    /// How many pictures each size has.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.sizes.len()];
        for bucket in &self.of_picture {
            counts[*bucket] += 1;
        }
        counts
    }
}
