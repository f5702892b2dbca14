//! What convolutions in time remember from chunk to chunk.

use crate::convolutions::Geometry;
use crate::layers::{Convolution, Place};
use burn::tensor::Tensor;
use flow_core::params::LayoutBuilder;

/// Numbers the convolutions that remember.
#[derive(Debug, Default)]
pub(super) struct Slots(usize);

impl Slots {
    pub fn next(&mut self) -> usize {
        self.0 += 1;
        self.0 - 1
    }

    pub fn count(&self) -> usize {
        self.0
    }
}

/// The last frames that each convolution read, and which chunk is being computed.
#[derive(Debug)]
pub(super) struct Memory {
    frames: Vec<Option<Tensor<5>>>,
    is_first: bool,
    is_last: bool,
}

impl Memory {
    /// Of nothing yet, for `slots` convolutions.
    pub fn new(slots: usize) -> Self {
        Self {
            frames: vec![None; slots],
            is_first: true,
            is_last: false,
        }
    }

    /// A chunk begins.
    pub fn begin(&mut self, is_first: bool, is_last: bool) {
        (self.is_first, self.is_last) = (is_first, is_last);
    }

    /// Whether this is the first chunk.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// `x [B, T, H, W, C]` behind the frames that slot number `slot` remembers, and how many those are. The last `most` frames
    /// of it are remembered in their place, unless no chunk follows.
    pub fn extend(&mut self, slot: usize, x: Tensor<5>, most: usize) -> (Tensor<5>, usize) {
        let before = self.frames[slot].take();
        let count = before.as_ref().map_or(0, |before| before.dims()[1]);
        let joined = match before {
            Some(before) => Tensor::cat(vec![before, x], 1),
            None => x,
        };
        if !self.is_last {
            let length = joined.dims()[1];
            let kept = most.min(length);
            self.frames[slot] = Some(joined.clone().narrow(1, length - kept, kept));
        }
        (joined, count)
    }
}

/// A convolution in time that reads the frames before a chunk: those it remembers, and zeros where there were none.
#[derive(Debug)]
pub(super) struct Remembering {
    convolution: Convolution,
    slot: usize,
}

impl Remembering {
    /// Of three taps along each axis, one output for each input.
    pub fn new(parts: LayoutBuilder<'_>, channels: [usize; 2], slots: &mut Slots) -> Self {
        Self::of_taps(parts, channels, [3; 3], slots)
    }

    /// Of `taps` along frames, rows and columns, one output for each input.
    pub fn of_taps(
        parts: LayoutBuilder<'_>,
        channels: [usize; 2],
        taps: [usize; 3],
        slots: &mut Slots,
    ) -> Self {
        Self {
            convolution: Convolution::volume(parts, channels, taps, Geometry::same(taps)),
            slot: slots.next(),
        }
    }

    pub fn forward(&self, at: Place<'_>, x: Tensor<5>, memory: &mut Memory) -> Tensor<5> {
        let most = self.convolution.frames() - 1;
        let (x, before) = memory.extend(self.slot, x, most);
        self.convolution.forward_after(at, x, most - before)
    }
}
