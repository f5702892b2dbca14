//! Images of a data set that were encoded to a model's latents, in memory.

use super::Examples;
use crate::error::TrainError;
use flow_core::tensors::plain;
use flow_core::{LatentShape, cpu};
use flow_data::{CaptionedImages, DataError, Example, Prompt};
use flow_pipeline::{PictureEncoder, Size};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Pixels that are encoded at once; one image at least.
const PIXELS: usize = 1 << 17;

/// Encoded images with their captions, for a model of latents: of 40,000 latents of 512 values 82 MB.
pub struct EncodedImages<'a> {
    images: &'a dyn CaptionedImages,
    captions: Vec<Prompt>,
    latents: Vec<f32>,
    /// Of a latent.
    values: usize,
}

impl<'a> EncodedImages<'a> {
    /// Of all `images`, in batches that depend on their size alone, so that the same image has the same bits at every start. `on_image` is
    /// called with the number of images that are encoded.
    ///
    /// # Errors
    /// If an image cannot be made, or `encoder` gives no latents of shape `latent`.
    pub fn encode(
        images: &'a dyn CaptionedImages,
        encoder: &PictureEncoder,
        latent: LatentShape,
        on_image: &mut dyn FnMut(u64),
    ) -> Result<Self, TrainError> {
        let shape = images.image_shape();
        let size = Size::picture(shape.width, shape.height);
        let at_once = (PIXELS / (shape.width * shape.height).max(1)).max(1) as u64;
        let mut all = Self {
            images,
            captions: Vec::new(),
            latents: Vec::new(),
            values: latent.values(),
        };
        let mut first = 0;
        while first < images.len() {
            let batch = first..(first + at_once).min(images.len());
            let made: Vec<Example> = batch
                .clone()
                .into_par_iter()
                .map(|index| images.example(index))
                .collect::<Result<_, DataError>>()?;
            let pixels = made.iter().flat_map(|example| &example.image.pixels_chw);
            let latents = encoder.encode(pixels.copied().collect(), size)?;
            let latents = cpu::to_host(&plain(&latents.into_dispatch()));
            if latents.len() != made.len() * all.values {
                return Err(TrainError::setting(format!(
                    "the autoencoder makes latents of {} values of images of {shape}, and the model's have {}",
                    latents.len() / made.len().max(1),
                    all.values
                )));
            }
            all.latents.extend(latents);
            all.captions
                .extend(made.into_iter().map(|example| example.prompt));
            first = batch.end;
            on_image(first);
        }
        Ok(all)
    }
}

impl Examples for EncodedImages<'_> {
    fn len(&self) -> u64 {
        self.captions.len() as u64
    }

    fn example(&self, index: u64) -> Result<(Vec<f32>, Prompt), TrainError> {
        let place = usize::try_from(index).ok();
        let caption = place.and_then(|place| Some((place, self.captions.get(place)?)));
        let Some((place, caption)) = caption else {
            // The data set says how many there are.
            let example = self.images.example(index)?;
            return Err(TrainError::setting(format!(
                "the image \"{}\" was not encoded",
                example.prompt.text
            )));
        };
        let latent = &self.latents[place * self.values..(place + 1) * self.values];
        Ok((latent.to_vec(), caption.clone()))
    }

    fn noisy_prompt(
        &self,
        prompt: &Prompt,
        fraction: f32,
        seed: u64,
        index: u64,
    ) -> Result<Prompt, TrainError> {
        Ok(self.images.noisy_prompt(prompt, fraction, seed, index)?)
    }
}
