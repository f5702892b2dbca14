//! What the sections of several architectures have in common.

use flow_config::Rules;
use flow_config::codes::RULE_IMAGE_SHAPE;

/// A latent that is none of the images of `[data]`.
pub(crate) fn no_autoencoder(rules: &mut Rules<'_>, keys: &[&str], message: String) {
    rules
        .warning(RULE_IMAGE_SHAPE, keys, message)
        .help(
            "without `model.path`, a diffusers folder, there is no autoencoder, so neither `train` nor `pretrain` takes such latents; the \
             shape is good for `check`, `plan` and benchmarks",
        );
}
