//! Steps from one stage to the next: half or twice the rows and columns, and frames.

use super::memory::{Memory, Remembering, Slots};
use crate::convolutions::Geometry;
use crate::layers::{Convolution, Place};
use burn::tensor::Tensor;
use flow_core::params::LayoutBuilder;

/// Taps of a convolution in time alone.
const IN_TIME: [usize; 3] = [3, 1, 1];

/// A step. What it does to frames it does not do to the first frame of a video, which stays one frame at every stage.
#[derive(Debug)]
pub(super) enum Resample {
    /// Half the rows and columns, then, if there is a convolution in time, half the frames.
    Down {
        plane: Convolution,
        time: Option<(Convolution, usize)>,
    },
    /// Twice the frames, if there is a convolution in time, then twice the rows and columns.
    Up {
        plane: Convolution,
        time: Option<Remembering>,
    },
}

impl Resample {
    pub fn down(mut parts: LayoutBuilder<'_>, channels: usize, in_time: bool, slots: &mut Slots) -> Self {
        let plane = Convolution::plane(parts.under("resample.1"), [channels; 2], 3, Geometry::halved());
        let time = in_time.then(|| {
            let halved = Geometry {
                stride: [2, 1, 1],
                padding: [[0; 2]; 3],
                upsample: false,
            };
            let time = Convolution::volume(parts.under("time_conv"), [channels; 2], IN_TIME, halved);
            (time, slots.next())
        });
        Self::Down { plane, time }
    }

    /// The result has half of `channels`.
    pub fn up(mut parts: LayoutBuilder<'_>, channels: usize, in_time: bool, slots: &mut Slots) -> Self {
        let upsampled = Geometry::upsampled([1, 3, 3]);
        let plane = Convolution::plane(parts.under("resample.1"), [channels, channels / 2], 3, upsampled);
        let time = in_time.then(|| {
            let parts = parts.under("time_conv");
            Remembering::of_taps(parts, [channels, 2 * channels], IN_TIME, slots)
        });
        Self::Up { plane, time }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>, memory: &mut Memory) -> Tensor<5> {
        match self {
            Self::Down { plane, time } => {
                let x = plane.forward(at, x);
                let Some((time, slot)) = time else {
                    return x;
                };
                // Each chunk begins behind the last frame of the one before.
                let is_first = memory.is_first();
                let (joined, _) = memory.extend(*slot, x, 1);
                if is_first {
                    joined
                } else {
                    time.forward(at, joined)
                }
            }
            Self::Up { plane, time } => {
                let x = match time {
                    Some(time) if !memory.is_first() => interleaved(time.forward(at, x, memory)),
                    _ => x,
                };
                plane.forward(at, x)
            }
        }
    }
}

/// `[B, T, H, W, 2 C]` as `[B, 2 T, H, W, C]`: the halves of a frame's channels are two frames.
fn interleaved(x: Tensor<5>) -> Tensor<5> {
    let [batch, frames, height, width, channels] = x.dims();
    let channels = channels / 2;
    let halves = [0, 1].map(|half| {
        let half = x.clone().narrow(4, half * channels, channels);
        half.reshape([batch, frames, 1, height, width, channels])
    });
    Tensor::cat(halves.into(), 2).reshape([batch, 2 * frames, height, width, channels])
}
