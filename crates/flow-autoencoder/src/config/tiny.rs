//! Dimensions of a TAESD, which comes without settings: the first weight of its decoder has them.

use super::Check;
use crate::AutoencoderError;

/// Dimensions of a TAESD (madebyollin/taesd, `taesd.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyConfig {
    /// Channels between its layers.
    pub width: usize,
    /// Channels of a latent.
    pub latent_channels: usize,
}

impl TinyConfig {
    /// Pixels of a side of the picture for one of the latent.
    pub const FACTOR: usize = 8;
    /// Side of the latents of a tile.
    pub(crate) const TILE: usize = 64;

    pub(super) fn check(self, check: &Check<'_>) -> Result<(), AutoencoderError> {
        check.within("width", self.width, 1 << 14)?;
        check.within("latent_channels", self.latent_channels, 1024)
    }
}
