//! How large the models of a folder are that a run has in memory beside the transformer. Nothing of their weights is read.

use crate::{Pipeline, PipelineError};
use flow_autoencoder::{Autoencoder, config_of};
use flow_core::device::ComputeDevice;
use flow_core::{LatentShape, ParamLayout};
use flow_text_encoder::AnyTextEncoder;
use std::collections::BTreeMap;

/// A model of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSize {
    /// Its component: `text_encoder_3`.
    pub name: String,
    /// Its class: `T5EncoderModel`.
    pub class: String,
    /// Weights of it that are computed with, by its `config.json`.
    pub values: usize,
    /// Bytes of its files that are read, by their headers.
    pub file_bytes: usize,
    /// Its files: several are shards.
    pub files: usize,
    /// Values that the linear layers of its largest block give for one token: about what is there beside the weights while it computes.
    pub block_outputs: usize,
}

/// What an autoencoder decodes at once, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// Pictures or videos that are to be decoded.
    pub samples: usize,
    /// Bytes of a value that passes between its layers.
    pub bytes_of_value: usize,
    /// Whether one picture is decoded after the other, as on the processor.
    pub one_by_one: bool,
}

impl Pipeline {
    /// The text encoders, in the order in which they are loaded.
    ///
    /// # Errors
    /// [`PipelineError::Encoder`] for a `config.json` that is not read; [`PipelineError::Folder`].
    pub fn text_encoder_sizes(&self) -> Result<Vec<ModelSize>, PipelineError> {
        let parts = self.family().parts().iter();
        let encoders = parts.filter(|part| part.name.starts_with("text_encoder"));
        let present = encoders.filter(|part| self.find(part.name).is_some());
        present
            .map(|part| {
                let encoder = AnyTextEncoder::open(&self.part(part.name))?;
                self.size_of(part.name, encoder.encoder().layout())
            })
            .collect()
    }

    /// The autoencoder.
    ///
    /// # Errors
    /// [`PipelineError::Autoencoder`] for a `config.json` that is not read; [`PipelineError::Folder`].
    pub fn autoencoder_size(&self) -> Result<ModelSize, PipelineError> {
        let config = config_of(&self.part("vae"))?;
        let autoencoder = Autoencoder::new(&config, &ComputeDevice::cpu())?;
        self.size_of("vae", autoencoder.layout())
    }

    /// About how many bytes the autoencoder takes while it decodes latents of shape `latent`, beside its weights
    /// ([`decoding_bytes`](flow_autoencoder::AutoencoderConfig::decoding_bytes)).
    ///
    /// # Errors
    /// [`PipelineError::Autoencoder`].
    pub fn decoding_bytes(&self, latent: LatentShape, decoding: Decoding) -> Result<usize, PipelineError> {
        let config = config_of(&self.part("vae"))?;
        let Decoding {
            samples,
            bytes_of_value,
            one_by_one,
        } = decoding;
        Ok(config.decoding_bytes(latent, samples, bytes_of_value, one_by_one))
    }

    fn size_of(&self, name: &str, layout: &ParamLayout) -> Result<ModelSize, PipelineError> {
        let component = self.folder().component(name)?;
        let files = component.weight_files(self.variant())?;
        let tensors = flow_diffusers::Tensors::open(&files)?;
        Ok(ModelSize {
            name: name.to_owned(),
            class: component.class.clone(),
            values: layout.count_values(|_| true),
            block_outputs: block_outputs(layout),
            file_bytes: tensors.bytes(),
            files: files.files.len(),
        })
    }
}

/// Outputs of the matrices of one block, of the block that has most: those whose names begin alike up to a number.
fn block_outputs(layout: &ParamLayout) -> usize {
    let mut blocks: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in layout.specs() {
        let numbered = spec.name.match_indices('.').map(|(at, _)| &spec.name[..at]);
        let mut numbered = numbered.filter(|start| {
            start
                .rsplit('.')
                .next()
                .is_some_and(|part| part.parse::<usize>().is_ok())
        });
        if let (Some(block), [outputs, _]) = (numbered.next(), spec.shape.as_slice()) {
            *blocks.entry(block).or_default() += outputs;
        }
    }
    blocks.into_values().max().unwrap_or(0)
}
