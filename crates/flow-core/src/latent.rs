//! The axes of what a model generates.

/// Axes of one latent. Images have one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatentShape {
    /// Channels.
    pub channels: usize,
    /// Frames.
    pub frames: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl LatentShape {
    /// Number of values, in the order channels, frames, rows, columns.
    pub fn values(&self) -> usize {
        self.channels * self.frames * self.height * self.width
    }
}
