//! Pictures and videos on the device, channels last, with room for zeros around each: what convolutions and group norm read.
//!
//! Legend: B samples, T frames, H rows, W columns, C channels.

pub mod border;
pub mod group_norm;

use crate::Element;
use crate::buffer::{Buffer, Refusal, at_least_one, wrong_length, wrong_size};

/// `[B, T, H, W, C]` in memory, perhaps a part of larger pictures: the values of a pixel are without gaps.
#[derive(Clone, Debug)]
pub struct Pictures {
    /// What they lie in; it begins with the first pixel.
    pub buffer: Buffer,
    /// `B`, `T`, `H`, `W`, `C`.
    pub axes: [usize; 5],
    /// Values from a sample, a frame, a row, a pixel to the next.
    pub strides: [usize; 4],
}

impl Pictures {
    /// A part of them, of `axes`, that begins with the value at `start`.
    #[must_use]
    pub fn part(&self, axes: [usize; 5], start: usize) -> Self {
        let Buffer { handle, element, .. } = &self.buffer;
        Self {
            buffer: Buffer {
                handle: handle.clone().offset_start((start * element.bytes()) as u64),
                length: reach(axes, self.strides),
                element: *element,
            },
            axes,
            strides: self.strides,
        }
    }

    /// Values from the first to the last, with both.
    fn reach(&self) -> usize {
        reach(self.axes, self.strides)
    }

    /// Refuses what is not within its buffer, has no pixels, or no whole vectors of `width` values.
    fn check(&self, name: &'static str, width: usize) -> Result<(), Refusal> {
        for axis in self.axes {
            at_least_one(name, axis)?;
        }
        self.buffer.expect(name, self.buffer.length)?;
        let (found, expected) = (self.buffer.length, self.reach());
        if found < expected {
            return Err(wrong_length(name, found, expected));
        }
        match self.strides.iter().find(|stride| !stride.is_multiple_of(width)) {
            Some(stride) => Err(wrong_size(
                name,
                *stride,
                format!("multiples of {width} from a pixel to the next"),
            )),
            None => Ok(()),
        }
    }

    /// Strides in vectors of `width` values.
    fn vectors(&self, width: usize) -> [usize; 4] {
        self.strides.map(|stride| stride / width)
    }
}

/// Values from the first to the last, with both.
fn reach(axes: [usize; 5], strides: [usize; 4]) -> usize {
    let last = axes.iter().zip(strides).map(|(axis, stride)| (axis - 1) * stride);
    last.sum::<usize>() + axes[4]
}

/// Values that a thread reads at once: as many as divide a pixel's channels and fill at most 16 bytes.
fn width(channels: usize, element: Element) -> usize {
    crate::buffer::width(channels, element)
}
