//! An architecture: a DiT whose dimensions follow from two numbers.

use flow_config::codes::RULE_IMAGE_SHAPE;
use flow_config::{ImageFacts, ModelKind, Rules};
use flow_core::LatentShape;
use flow_core::device::ComputeDevice;
use flow_core::model::Vocabulary;
use flow_models::{Architecture, Dit, DitConfig, ModelError, ModelFactory, ModelRegistry, Position};
use flow_registry::NameTaken;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const NAME: &str = "slim";
/// Pixels of a patch, and channels of a head for each of its pixels.
const PATCH: usize = 2;

/// `[model.slim]`: what a config says of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlimDimensions {
    /// Height and width of the grey images in pixels, an even number.
    #[schemars(range(min = 2, max = 1024), extend("multipleOf" = 2))]
    pub size: usize,
    /// Number of blocks; a block more makes the model four channels wider.
    #[schemars(range(min = 1, max = 64))]
    pub layers: usize,
    /// Words of the prompts, of which each has one.
    #[schemars(range(min = 3, max = 65_536))]
    pub words: usize,
}

impl Default for SlimDimensions {
    fn default() -> Self {
        Self {
            size: 8,
            layers: 2,
            words: 4,
        }
    }
}

impl SlimDimensions {
    fn dit(&self) -> DitConfig {
        DitConfig {
            latent: LatentShape {
                channels: 1,
                frames: 1,
                height: self.size,
                width: self.size,
            },
            patch: PATCH,
            hidden: 4 * (1 + self.layers),
            layers: self.layers,
            heads: 1,
            mlp_ratio: 4.0,
            vocabulary: Some(Vocabulary {
                size: self.words,
                length: 1,
            }),
            qk_norm: true,
            position: Position::Sincos,
            moe: None,
        }
    }
}

/// Its one rule: it makes the images that there are.
fn check(slim: &SlimDimensions, rules: &mut Rules<'_>, path: &str) {
    let images = rules.data_facts().and_then(|facts| facts.images);
    if let Some(ImageFacts { size, channels }) = images
        && (size, channels) != (slim.size, 1)
    {
        let key = format!("{path}.size");
        let message = format!(
            "`{key}` is {}, but the images of `[data]` are {channels}x{size}x{size}",
            slim.size
        );
        rules
            .error(RULE_IMAGE_SHAPE, &[&key, "data"], message)
            .help(format!("set `{key} = {size}`, or change `[data]`"));
    }
}

/// Adds the architecture.
///
/// # Errors
/// [`NameTaken`] if there is one of its name.
pub fn register(registry: &mut ModelRegistry) -> Result<(), NameTaken> {
    let kind = ModelKind {
        reads_text: false,
        checks_images: true,
        ..ModelKind::new::<SlimDimensions>(
            NAME,
            "A DiT whose dimensions follow from two numbers.",
            "the slim DiT",
            ["layers", "size"],
        )
    };
    let build =
        |slim: &SlimDimensions, device: &ComputeDevice| -> Result<Arc<dyn Architecture>, ModelError> {
            Ok(Arc::new(Dit::new(&slim.dit(), device)?))
        };
    // Its weights say what a DiT's say.
    registry.register(ModelFactory::new(kind, build, flow_models::dit::build).with_rules(check))
}
