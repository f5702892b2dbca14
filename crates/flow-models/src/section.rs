//! What the sections of several architectures have in common.

use crate::layers::PACKING;
use flow_config::codes::{RULE_IMAGE_SHAPE, RULE_MODEL_SHAPE};
use flow_config::{ImageFacts, Rules};

/// A latent that is none of the images of `[data]`.
pub(crate) fn no_autoencoder(rules: &mut Rules<'_>, keys: &[&str], message: String) {
    rules
        .warning(RULE_IMAGE_SHAPE, keys, message)
        .help(
            "without `model.path`, a diffusers folder, and without `model.autoencoder` there is no autoencoder, so neither `train` nor \
             `pretrain` takes such latents; the shape is good for `check`, `plan` and benchmarks",
        );
}

/// What FLUX.1 and Qwen-Image have in common: packed latents, and heads that turn with three axes.
pub(crate) struct PackedDimensions {
    /// Rows and columns of a latent.
    pub latent: (usize, usize),
    /// Channels of a packed latent.
    pub in_channels: usize,
    /// Channels of a head.
    pub head: usize,
    /// Channels of a head that turn with each axis.
    pub axes: [usize; 3],
    /// The published model.
    pub published: &'static str,
}

impl PackedDimensions {
    /// The rules on dimensions that stand at `path`.
    pub fn check(&self, rules: &mut Rules<'_>, path: &str) {
        let key = |name: &str| format!("{path}.{name}");
        let (axes, width) = (self.axes, self.head);
        let sum: usize = axes.iter().sum();
        if sum != width || axes.iter().any(|channels| !channels.is_multiple_of(2)) {
            let (axes_key, width_key) = (key("axes_dims_rope"), key("attention_head_dim"));
            let message = format!(
                "`{axes_key}` is {axes:?} with the sum {sum}, and `{width_key}` is {width}: three even numbers must make it up"
            );
            let published = self.published;
            rules
                .error(RULE_MODEL_SHAPE, &[&axes_key, &width_key], message)
                .help(format!("{published} has [16, 56, 56] for heads of 128 channels"));
        }
        let (made, (height, width)) = (self.in_channels / (PACKING * PACKING), self.latent);
        if let Some(ImageFacts { size, channels }) = rules.pixel_images()
            && (made != channels || (height, width) != (size, size))
        {
            let message = format!(
                "the model's latents are {height} by {width} with {made} channels, the images of `[data]` {size} by {size} with \
                 {channels}"
            );
            let keys = [
                key("latent_height"),
                key("latent_width"),
                key("in_channels"),
                "data".into(),
            ];
            no_autoencoder(rules, &keys.each_ref().map(String::as_str), message);
        }
    }
}
