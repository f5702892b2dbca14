//! What a pretraining learns from: images that are what the model makes, or pictures that were encoded to its latents.

use crate::algorithm::RecordKind;
use crate::error::TrainError;
use flow_data::{CaptionedImages, CaptionedPictures, DataError, Dataset, Picture, Prompt};
use flow_pipeline::{EncodedPictures, PictureSource, Size};
use flow_report::ContentHash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Captioned data in the model's own space. Every method is a function of its arguments alone.
pub trait Examples: Send + Sync {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sizes that they have: those of one batch are of one size.
    fn buckets(&self) -> usize {
        1
    }

    /// Number of the size of example `index`, which is there.
    fn bucket(&self, _index: u64) -> usize {
        0
    }

    /// The values of example `index`, in the order of the model of its size, and its true caption.
    ///
    /// # Errors
    /// If there is no such example, or it cannot be read.
    fn example(&self, index: u64) -> Result<(Vec<f32>, Prompt), TrainError>;

    /// A caption that is wrong on purpose; see [`CaptionedImages::noisy_prompt`].
    ///
    /// # Errors
    /// As [`CaptionedImages::noisy_prompt`].
    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, TrainError>;

    /// A hash of what the examples are, where a file may change between two starts.
    fn contents(&self) -> Option<String> {
        None
    }
}

/// Images as they are, for a model of pixels.
#[derive(Clone, Copy)]
pub struct PixelExamples<'a>(pub &'a dyn CaptionedImages);

impl Examples for PixelExamples<'_> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn example(&self, index: u64) -> Result<(Vec<f32>, Prompt), TrainError> {
        let example = self.0.example(index)?;
        Ok((example.image.pixels_chw, example.prompt))
    }

    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, TrainError> {
        Ok(self.0.noisy_prompt(prompt, fraction, seed, index)?)
    }
}

/// Encoded pictures of a data set, for a model of latents.
pub struct LatentExamples {
    dataset: Arc<dyn Dataset>,
    /// Which pictures of it.
    kind: RecordKind,
    encoded: EncodedPictures,
}

impl LatentExamples {
    /// Of a data set with [`CaptionedPictures`], all of which are `encoded`, in their order.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if it has none, or another number of them.
    pub fn new(dataset: Arc<dyn Dataset>, encoded: EncodedPictures) -> Result<Self, TrainError> {
        Self::of(dataset, RecordKind::Examples, encoded)
    }

    /// As [`new`](Self::new), of the pictures of which `kind` of records are made.
    pub(crate) fn of(
        dataset: Arc<dyn Dataset>,
        kind: RecordKind,
        encoded: EncodedPictures,
    ) -> Result<Self, TrainError> {
        let there = kind.pictures(&*dataset).map(CaptionedPictures::len);
        if there != Some(encoded.len()) {
            return Err(TrainError::setting(format!(
                "{} pictures are encoded, and `{}` has {}",
                encoded.len(),
                dataset.name(),
                there.unwrap_or(0)
            )));
        }
        Ok(Self {
            dataset,
            kind,
            encoded,
        })
    }

    /// The sizes that the pictures were fitted to.
    pub fn sizes(&self) -> &[Size] {
        self.encoded.buckets().sizes()
    }

    fn pictures(&self) -> &dyn CaptionedPictures {
        self.kind
            .pictures(&*self.dataset)
            .expect("it had some when this was made")
    }
}

impl Examples for LatentExamples {
    fn len(&self) -> u64 {
        self.encoded.len()
    }

    fn buckets(&self) -> usize {
        self.encoded.buckets().sizes().len()
    }

    fn bucket(&self, index: u64) -> usize {
        self.encoded.buckets().bucket(index)
    }

    fn example(&self, index: u64) -> Result<(Vec<f32>, Prompt), TrainError> {
        let caption = self.pictures().caption(index)?.clone();
        Ok((self.encoded.get(index)?, caption))
    }

    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, TrainError> {
        Ok(self.pictures().noisy_prompt(prompt, fraction, seed, index)?)
    }

    fn contents(&self) -> Option<String> {
        let mut text = self.encoded.contents().to_owned();
        for index in 0..self.len() {
            // One that is not there would have been missed before.
            let caption = self.pictures().caption(index).map_or("", |caption| &caption.text);
            text.push_str(&format!("\n{} {caption}", caption.len()));
        }
        Some(ContentHash::of(text.as_bytes()).to_string())
    }
}

/// The pictures of a data set as an autoencoder takes them; counts those that are enlarged.
pub(crate) struct FittedPictures<'a> {
    pub pictures: &'a dyn CaptionedPictures,
    pub enlarged: AtomicUsize,
}

impl PictureSource for FittedPictures<'_> {
    fn len(&self) -> u64 {
        self.pictures.len()
    }

    fn bytes(&self, index: u64) -> Result<Vec<u8>, String> {
        self.pictures
            .bytes(index)
            .map_err(|error: DataError| error.to_string())
    }

    fn values(&self, index: u64, bytes: &[u8], size: Size) -> Result<Vec<f32>, String> {
        let picture = Picture::decode(bytes).map_err(|error| match self.pictures.place(index) {
            Ok(place) => format!("the picture {place}: {error}"),
            Err(out_of_range) => out_of_range.to_string(),
        })?;
        if picture.is_smaller_than(size.width, size.height) {
            self.enlarged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(picture.fitted(size.width, size.height).to_image().pixels_chw)
    }
}
