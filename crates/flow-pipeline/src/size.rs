//! Sizes of pictures and videos in pixels, and those of their latents.

use crate::PipelineError;
use flow_core::LatentShape;
use std::fmt;

/// A picture's or a video's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Frames; 1 for a picture.
    pub frames: usize,
}

impl Size {
    /// A picture.
    pub const fn picture(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            frames: 1,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            width,
            height,
            frames,
        } = self;
        match frames {
            1 => write!(f, "{width} x {height} pixels"),
            _ => write!(f, "{frames} frames of {width} x {height} pixels"),
        }
    }
}

/// How pixels become values of a latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Channels of a latent.
    pub channels: usize,
    /// Pixels along a side to a value: the autoencoder's factor.
    pub side: usize,
    /// Pixels along a side that the transformer reads as one token.
    pub token: usize,
    /// Frames after the first to a frame of the latent; none: pictures only.
    pub frames: Option<usize>,
}

impl Steps {
    /// The latent of a picture or video of `size`.
    pub fn latent(&self, size: Size) -> Result<LatentShape, PipelineError> {
        let wrong = |problem: String| PipelineError::Size {
            found: size.to_string(),
            problem,
        };
        for (name, pixels) in [("width", size.width), ("height", size.height)] {
            if pixels == 0 || !pixels.is_multiple_of(self.token) {
                let below = (pixels / self.token * self.token).max(self.token);
                return Err(wrong(format!(
                    "the {name} must be a multiple of {} pixels; nearest: {below} or {}",
                    self.token,
                    below + self.token
                )));
            }
        }
        let frames = match (self.frames, size.frames) {
            (None, 1) => 1,
            (None, frames) => {
                return Err(wrong(format!(
                    "this pipeline makes pictures, so `frames` is 1, not {frames}"
                )));
            }
            (Some(step), frames) => {
                if frames == 0 || !(frames - 1).is_multiple_of(step) {
                    let below = frames.saturating_sub(1) / step * step + 1;
                    return Err(wrong(format!(
                        "the frames must be one and a multiple of {step} more; nearest: {below} or {}",
                        below + step
                    )));
                }
                1 + (frames - 1) / step
            }
        };
        Ok(LatentShape {
            channels: self.channels,
            frames,
            height: size.height / self.side,
            width: size.width / self.side,
        })
    }

    /// The picture or video that a latent of shape `latent` is decoded to.
    pub fn size(&self, latent: LatentShape) -> Size {
        let frames_step = self.frames.unwrap_or(1);
        Size {
            width: latent.width * self.side,
            height: latent.height * self.side,
            frames: 1 + latent.frames.saturating_sub(1) * frames_step,
        }
    }
}
