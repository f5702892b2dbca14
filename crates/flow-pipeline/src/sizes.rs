//! How large the models are that a run has in memory beside the one that is trained, of a pipeline's folder or of folders of their own.
//! Nothing of their weights is read.

use crate::{Pipeline, PipelineError};
use flow_autoencoder::{Autoencoder, AutoencoderConfig, AutoencoderFolder, config_of};
use flow_core::device::ComputeDevice;
use flow_core::{LatentShape, ParamLayout};
use flow_models::ModelError;
use flow_models::weights::FileMap;
use flow_text_encoder::AnyTextEncoder;
use std::collections::BTreeMap;

/// A model that is not trained.
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

impl ModelSize {
    /// Of the autoencoder in a folder without a pipeline around it.
    ///
    /// # Errors
    /// [`PipelineError::Autoencoder`] for settings that do not fit each other and files that are not there; [`PipelineError::Model`] for
    /// damaged ones.
    pub fn of_autoencoder(folder: &AutoencoderFolder) -> Result<Self, PipelineError> {
        let config = folder.config();
        let autoencoder = Autoencoder::new(config, &ComputeDevice::cpu())?;
        let names = ("autoencoder", config.class_name());
        Ok(Self::of_files(
            names,
            autoencoder.layout(),
            &folder.weight_files()?,
        )?)
    }

    /// Of a model with `layout`, called by component and class, whose weights are in `files`.
    pub(crate) fn of_files(
        names: (&str, &str),
        layout: &ParamLayout,
        files: &[FileMap],
    ) -> Result<Self, ModelError> {
        let mut file_bytes = 0;
        for file in files {
            let tensors = file.parse()?.tensors;
            file_bytes += tensors.iter().map(|tensor| tensor.bytes.len()).sum::<usize>();
        }
        Ok(Self::new(names, layout, (files.len(), file_bytes)))
    }

    fn new((name, class): (&str, &str), layout: &ParamLayout, (files, file_bytes): (usize, usize)) -> Self {
        Self {
            name: name.to_owned(),
            class: class.to_owned(),
            values: layout.count_values(|_| true),
            file_bytes,
            files,
            block_outputs: block_outputs(layout),
        }
    }
}

impl Decoding {
    /// About how many bytes the autoencoder of `config` takes while it decodes latents of shape `latent`, beside its weights
    /// ([`decoding_bytes`](AutoencoderConfig::decoding_bytes)).
    pub fn bytes(self, config: &AutoencoderConfig, latent: LatentShape) -> usize {
        config.decoding_bytes(latent, self.samples, self.bytes_of_value, self.one_by_one)
    }
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
        let autoencoder = Autoencoder::new(&self.autoencoder_config()?, &ComputeDevice::cpu())?;
        self.size_of("vae", autoencoder.layout())
    }

    /// The settings of the autoencoder.
    ///
    /// # Errors
    /// [`PipelineError::Autoencoder`].
    pub fn autoencoder_config(&self) -> Result<AutoencoderConfig, PipelineError> {
        Ok(config_of(&self.part("vae"))?)
    }

    fn size_of(&self, name: &str, layout: &ParamLayout) -> Result<ModelSize, PipelineError> {
        let component = self.folder().component(name)?;
        let files = component.weight_files(self.variant())?;
        let tensors = flow_diffusers::Tensors::open(&files)?;
        let of_files = (files.files.len(), tensors.bytes());
        Ok(ModelSize::new((name, &component.class), layout, of_files))
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
